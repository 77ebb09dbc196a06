"""The verdict table, on the terminal and as rows of the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.golden.verdicts import Verdict, Word
from experiments.output import console

COLOURS = {Word.AGREES: "green", Word.CONTRADICTS: "red", Word.DEPENDS: "yellow"}
CAUTION = (
    "The paper's implementation, sizes, tiles and draws are unpublished: 'contradicts' says that the claim fails in our emulation at these "
    "sizes, not that the paper measured wrongly."
)


def show(verdicts: Sequence[Verdict], data: dict[str, Any], out: Path) -> None:
    """The answer, every verdict, and where the rest is."""
    from rich.table import Table

    screen = console()
    say = lambda text: screen.print(text, markup=False)  # noqa: E731
    say(data["answer"])
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head, width in (("figure", 7), ("claim", 27), ("case", 22), ("measured", 28), ("verdict", 12)):
        made.add_column(head, width=width, overflow="fold")
    for figure, claim, case, measured, v in lines(verdicts):
        made.add_row(figure, claim, case, measured, v.word.value, style=COLOURS.get(v.word, ""))
    screen.print(made)
    say(CAUTION)
    run = data["run"]
    say(f"{run['done']} cells done, {run['failed']} failed, {run['skipped']} there already, {run['seconds']:.0f} s ({run['scale']})")
    if data["first_error"]:
        say(f"first failure: {data['first_error']}; the same command tries failed cells again")
    say(f"written: {out / 'report.html'}, {out / 'verdicts.json'}, {out / 'golden.sqlite'}")


def lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str, str, str, Verdict]]:
    """(figure, claim with its sizes, case, measured, verdict); what repeats the line above is left out."""
    found, before = [], ("", "", "")
    for v in verdicts:
        now = (v.figure, v.claim, v.sizes)
        claim = f"{v.claim} ({v.sizes})" if v.sizes else v.claim
        shown = ("", "") if now == before else (v.figure, claim)
        found.append((*shown, v.case, v.measured, v))
        before = now
    return found
