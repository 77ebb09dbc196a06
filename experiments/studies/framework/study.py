"""What a study is: a question as data, and a few functions of its results.

    Study    the question, its launches, its claims, figures and tables
    Launch   runs that are computed together, in one executable
    Figure   a question that a picture answers
    Table    the numbers of every condition

`command.run` does the rest: it runs the launches that are missing, keeps them, and writes the page,
the JSON and the terminal's table. docs/howto-study.md writes a study step by step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure as Picture

from roundscope.experiments.results.run import Run
from roundscope.experiments.studies.framework.store import Store
from roundscope.experiments.studies.framework.verdicts import Verdict

R = TypeVar("R")  # the results of a study, in the form that its claims and figures read
Progress = Callable[[int], None]  # to be called with the number of steps done


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Runs of one executable.

    title    for the progress bar, such as "GPT, lr 0.001: 40 runs"
    steps    how many steps `run` reports
    config   kept beside every run
    keys     the names of the runs that it makes: it runs if one of them is not in the store
    run      computes them: name -> run
    """

    title: str
    steps: int
    config: Mapping[str, Any]
    keys: tuple[str, ...]
    run: Callable[[Progress], Mapping[str, Run[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How many launches there are, how many of them are complete, and how many ran now.

    devices    where those that are there were computed
    failure    the first error of launches that failed; empty where none did
    """

    launches: int
    there: int
    ran: int
    interrupted: bool = False
    devices: Sequence[str] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Generic[R]):
    """title: a question;  draw: the picture, None where nothing is there to draw;  caption: how to
    read it.
    """

    title: str
    draw: Callable[[R], Picture | None]
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[R]):
    """A line for each condition, for the page and the terminal; and the same as records, for the
    JSON.

    name       its key in the JSON, and with `title` its place on the page
    heads      of the columns; a line break may stand in one
    rows       lines of text
    records    the same as data
    note       below it on the page
    shown      the columns that the terminal shows; none: the table is on the page only
    grouped    the first column names groups of lines: the terminal prints it as a heading
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: Callable[[R], Sequence[Sequence[str]]]
    records: Callable[[R], Sequence[Mapping[str, Any]]]
    note: str = ""
    shown: tuple[int, ...] = ()
    grouped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """What needs no runs: verdicts; and pictures as (title, picture, caption), under a heading."""

    verdicts: Sequence[Verdict] = ()
    title: str = ""
    figures: Sequence[tuple[str, Picture | None, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[R]):
    """A question at one scale.

    name       of NAME.json
    file       of the results, FILE.sqlite; `name` if left out. Several studies may share one
    kept       what such a file is called, as a pattern: without one there is nothing to draw
    page       of PAGE.html
    question   heads the page;  paper: where the claims stand
    launches   every launch in its order, given the store: those of a later stage may depend on runs
               that are there; asked again until nothing is missing
    results    what is there, in whole parts; None where there is nothing to tell yet
    measure    in place of both, for a study whose measurements are no runs: given the folder and
               whether to draw only (then it computes nothing), what came of it, and the results
    unit       what is counted as launches, in the plural
    answer     one or two sentences
    claims     a verdict for every claim and case;  source: the heading of their first column
    figures    the first opens the page
    tables     every condition with its numbers
    caution    how a verdict is to be understood: above them on the page, below them on the terminal
    rules      how verdicts are reached, and what else stands below them
    caveats    what was not shown
    about      what was run, line by line: name -> text
    config     for the JSON
    scale      "quick", "full" or ""
    static     verdicts and pictures that need no runs, in so many parts
    """

    name: str
    question: str
    answer: Callable[[R], str]
    launches: Callable[[Store], Sequence[Launch]] = lambda store: ()
    results: Callable[[Store], R | None] = lambda store: None
    measure: Callable[[Path, bool], tuple[Outcome, R | None]] | None = None
    unit: str = "launches"
    file: str = ""
    kept: str = "*.sqlite"
    page: str = "report"
    paper: str = ""
    claims: Callable[[R], Sequence[Verdict]] = lambda results: []
    source: str = "row"
    figures: Sequence[Figure[R]] = ()
    tables: Sequence[Table[R]] = ()
    caution: str = ""
    rules: Sequence[str] = ()
    caveats: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    static: Callable[[Progress], "Static"] | None = None
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Generic[R]):
    """A sentence to be tested: source, where it stands; text; judge: its verdicts, one for each
    case.
    """

    source: str
    text: str
    judge: Callable[[R], Iterable[Verdict]]


def judged(claims: Sequence[Claim[R]], results: R) -> list[Verdict]:
    """The verdicts of all claims, in their order."""
    return [verdict for claim in claims for verdict in claim.judge(results)]
