"""What a diagnosis says, whatever was diagnosed: its page, diagnosis.json and the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roundscope.tools.diagnose.tensors.verdict import Link
from roundscope.tools.report.model import (
    Code,
    Folded,
    Opening,
    Part,
    Points,
    Report,
    Section,
    Text,
)
from roundscope.tools.report.terminal import plain

RECORD = "diagnosis.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a diagnosis says.

    name        of what was diagnosed;  title, about: of the page
    first_line  the events, the evidence with counts, the repair
    kind        the verdict in a few words;  headline: in a few sentences
    steps       the steps of the diagnosis
    links       the verdict link by link;  unseen: what was not shown
    said        what the terminal shows besides
    how         how to read the report;  machine: lines of what was run
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
    steps: Sequence[Section]
    links: Sequence[Link]
    unseen: Sequence[str]
    said: Sequence[Part]
    how: Sequence[Part]
    machine: Sequence[str]
    data: dict[str, Any]
    seconds: float
    opening: str = ""
    number: str = ""
    why: str = "Next, the same run with those events exact"
    command: str = ""


def report(d: Diagnosis, request: str) -> Report:
    """Return the report; request: the digest of what was asked, for diagnosis.json."""
    sentence, _, repair = d.first_line.partition(". Repair: ")
    sentence = d.opening or f"{sentence[:1].upper()}{sentence[1:]}."
    held = ("does not hold", "holds")
    proof = [(f"{x.name}: {held[x.holds]}.", f"{x.evidence}.") for x in d.links]
    said: dict[str, Any] = {"kind": d.kind, "first_line": d.first_line, "sentence": d.headline}
    said |= {"links": d.links, "not_shown": d.unseen}
    verdict: list[Part] = [
        Text(d.headline),
        Section("Evidence", [Points(proof)]),
        Section("Not shown", [Points(d.unseen)]),
    ]
    next_step = [Text("", "strong", lead=f"{d.why}:", command=d.command)] if d.command else []
    return Report(
        title=f"diagnosis of {d.name}",
        heading=d.title,
        about=f"{d.about}.",
        opening=Opening(sentence, d.number, d.command or repair, d.why),
        parts=[
            Text(d.headline),
            Folded("How to read this page", d.how),
            *d.steps,
            Section(f"Verdict: {d.kind}", verdict),
            Section("What was run", [Code("\n".join(d.machine))]),
        ],
        brief=[
            Code(f"verdict: {d.first_line}", "strong"),
            Text(d.headline),
            *next_step,  # that of a run is in its first line
            *d.said,
            *(Text(f"{x.name} {held[x.holds]}: {x.evidence}") for x in d.links),
            Text(f"{d.seconds:.1f} s; not shown: {len(d.unseen)} points, at the end of the report"),
        ],
        data=plain(d.data | {"verdict": said, "request": request}),
    )


def step(number: int, title: str, sentence: str, *parts: Part | None) -> Section:
    """Return a step of a diagnosis: its answer, then pictures and tables; None is left out."""
    shown = [part for part in parts if part is not None]
    return Section(f"{number}. {title}", [Text(sentence), *shown])
