"""What a study is: a question as data, and a few functions of its results.

    Study    the question, its launches, its claims, figures and tables
    Launch   runs that are computed together, in one executable
    Figure   a question that a picture answers
    Table    the numbers of every condition

`command.run` does the rest: it runs the launches that are missing, keeps them, and writes the page,
the JSON and the terminal's table. docs/howto/study.md writes a study step by step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure as Picture

from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.verdicts import Verdict
from roundscope.tools.results.run import Run

R = TypeVar("R")  # the results of a study, in the form that its claims and figures read
Progress = Callable[[int], None]  # to be called with the number of steps done


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Runs of one executable, which are computed together.

    title    what the progress bar says, such as "GPT, lr 0.001: 40 runs"
    steps    how many steps `run` reports
    config   what is stored beside every run
    keys     the keys of the runs: the launch runs if one of them is not in the store
    run      computes the runs, by key
    """

    title: str
    steps: int
    config: Mapping[str, Any]
    keys: tuple[str, ...]
    run: Callable[[Progress], Mapping[str, Run[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How many launches there are, are complete and ran now; where; the first failure's error."""

    launches: int
    there: int
    ran: int
    interrupted: bool = False
    devices: Sequence[str] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Generic[R]):
    """A question as title, the picture that answers it (None: nothing to draw), how to read it."""

    title: str
    draw: Callable[[R], Picture | None]
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[R]):
    """A line for each condition: text for the page and the terminal, and records for the JSON.

    name       its key in the JSON, and with `title` its place on the page
    heads      the headings of the columns; one may contain a line break
    rows       the lines as text
    records    the same lines as data
    note       text below the table on the page
    shown      the columns that the terminal shows; if there are none, the table is on the page only
    grouped    whether the first column names groups of lines, which the terminal prints as headings
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: Callable[[R], Iterable[Sequence[str]]]
    records: Callable[[R], Sequence[Mapping[str, Any]]]
    note: str = ""
    shown: tuple[int, ...] = ()
    grouped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """What needs no runs: verdicts, and pictures as (title, picture, caption) under a heading."""

    verdicts: Sequence[Verdict] = ()
    title: str = ""
    figures: Sequence[tuple[str, Picture | None, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[R]):
    """A question at one scale.

    name       the study's name, and that of NAME.json
    question   the heading of the page
    answer     one or two sentences
    launches   every launch, given the store; it is called again until nothing is missing, since
               those of a later stage may depend on what is stored
    results    the results in whole parts, given the store; None where there is nothing to report
    measure    in place of `launches` and `results`, for a study whose measurements are no runs.
               Given the folder and whether only to draw (then it computes nothing), it returns
               the outcome and the results
    unit       what is counted as launches, in the plural
    file       the results file is FILE.sqlite; `name` if left out. Several studies may share one
    kept       where `measure` keeps something, a pattern of the names of files to draw
    page       the page is PAGE.html
    paper      where the claims stand
    claims     a verdict for every claim and case
    source     the heading of the first column of the verdicts
    figures    the figures; the first opens the page
    tables     every condition with its numbers
    caution    how a verdict is to be understood: above them on the page, below on the terminal
    rules      how verdicts are reached, and whatever else stands below them
    caveats    what was not shown
    about      what was run, line by line: name -> text
    config     the settings in the JSON
    scale      "quick", "full" or ""
    static     verdicts and pictures that need no runs
    parts      the number of parts in which `static` reports its progress
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
    claims: Callable[[R], Iterable[Verdict]] = lambda results: []
    source: str = "row"
    figures: Sequence[Figure[R]] = ()
    tables: Sequence[Table[R]] = ()
    caution: str = ""
    rules: Sequence[str] = ()
    caveats: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    static: Callable[[Progress], Static] | None = None
    parts: int = 1
