"""report.html, diagnosis.json and the terminal output of a diagnosis, whatever was diagnosed."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from roundscope.tools.diagnose.report.steps_run import Step
from roundscope.tools.diagnose.tensors.verdict import Link
from roundscope.tools.report.page import CONTENTS, document, figure, folded, grid, verdict
from roundscope.tools.report.terminal import console, plain
from roundscope.tools.results.folder import write_results


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a diagnosis says.

    name        of what was diagnosed;  title, about: of the page
    first_line  the events, the evidence with counts, the repair
    kind        the verdict in a few words;  headline: in a few sentences
    steps       the steps of the diagnosis
    links       the verdict link by link;  unseen: what was not shown
    said        what the terminal shows besides: sentences, or tables of rich
    how         how to read the report, as HTML;  machine: lines of what was run
    data        that of diagnosis.json, without the verdict
    seconds     the time that the diagnosis took
    opening     the sentence that opens the page; `first_line` if it is left out
    number      the number behind it;  why, command: the next step, by default the repair of
                `first_line`
    """

    name: str
    title: str
    about: str
    first_line: str
    kind: str
    headline: str
    steps: Sequence[Step]
    links: Sequence[Link]
    unseen: Sequence[str]
    said: Sequence[Any]
    how: str
    machine: Sequence[str]
    data: dict[str, Any]
    seconds: float
    opening: str = ""
    number: str = ""
    why: str = "Next, the same run with those events exact"
    command: str = ""

    def document(self) -> Any:
        """Return the content of diagnosis.json, as plain data."""
        verdict = {
            "kind": self.kind,
            "first_line": self.first_line,
            "sentence": self.headline,
            "links": self.links,
        }
        verdict["not_shown"] = self.unseen
        return plain(self.data | {"verdict": verdict})


def html(r: Report) -> str:
    """Return the page: the verdict, the steps, the evidence, what was not shown, what was run."""
    proof = "".join(
        f"<li><b>{escape(x.name)}: {'holds' if x.holds else 'does not hold'}</b>."
        f" {escape(x.evidence)}."
        for x in r.links
    )
    unseen = "".join(f"<li>{escape(line)}" for line in r.unseen)
    body = (
        f"<h1>{escape(r.title)}</h1><p class=sub>{escape(r.about)}.</p>"
        f"{_opening(r)}<p>{escape(r.headline)}</p>"
        f"{folded('How to read this page', r.how)}{CONTENTS}"
        f"{''.join(section(s) for s in r.steps)}"
        f"<h2>Verdict: {escape(r.kind)}</h2><p>{escape(r.headline)}</p>"
        f"<h3>Evidence</h3><ul>{proof}</ul><h3>Not shown</h3><ul>{unseen}</ul>"
        f"<h2>What was run</h2><pre>{escape(chr(10).join(r.machine))}</pre>"
    )
    return document(f"Roundscope: diagnosis of {r.name}", body)


def _opening(r: Report) -> str:
    sentence, _, repair = r.first_line.partition(". Repair: ")
    sentence = r.opening or f"{sentence[:1].upper()}{sentence[1:]}."
    return verdict(sentence, r.number, r.command or repair, why=r.why)


def section(s: Step) -> str:
    """Return one step as HTML: its answer, pictures, tables."""
    images = "".join(figure(*p) for p in s.pictures)
    tables = "".join(grid(*t) for t in s.tables)
    return f"<h2>{s.number}. {escape(s.title)}</h2><p>{escape(s.sentence)}</p>{images}{tables}"


def written(r: Report, folder: Path, request: str) -> Any:
    """Write report.html and diagnosis.json into the folder; return the data of the latter."""
    data = r.document() | {"request": request}
    write_results(folder, "diagnosis.json", data, html(r))
    return data


def shown(r: Report, folder: Path) -> None:
    """Print the verdict and its evidence, with the first line unbroken."""
    screen = console()
    screen.print(f"verdict: {r.first_line}", style="bold", markup=False, soft_wrap=True)
    screen.print(r.headline, markup=False)
    for x in r.said:
        screen.print(x, markup=False) if isinstance(x, str) else screen.print(x)
    for link in r.links:
        screen.print(f"{'+' if link.holds else '-'} {link.name}: {link.evidence}", markup=False)
    screen.print(
        f"{r.seconds:.1f} s; not shown: {len(r.unseen)} points, at the end of the report",
        markup=False,
    )
    print(f"written: {folder / 'report.html'}, {folder / 'diagnosis.json'}")
