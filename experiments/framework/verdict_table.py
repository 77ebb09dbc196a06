"""The table of verdicts of every `reproduce` command, for its page and for the terminal."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.tools.report.terminal import WIDTH

if TYPE_CHECKING:
    from rich.table import Table

ON_TERMINAL = {Word.AGREES: "green", Word.CONTRADICTS: "red", Word.DEPENDS: "yellow"}
ON_PAGE = {Word.AGREES: "good", Word.CONTRADICTS: "bad", Word.DEPENDS: "warn"}


def html(verdicts: Sequence[Verdict], first: str = "row") -> str:
    """Return the table for a page; `first` heads the column that says where a claim stands."""
    names = (first, "claim", "case", "measured", "verdict")
    head = "".join(f"<th>{name}" for name in names)
    rows = "".join(_row(figure, claim, v) for figure, claim, v in _lines(verdicts))
    return f"<div class=wide><table class=words><tr>{head}{rows}</table></div>"


def _row(figure: str, claim: str, v: Verdict) -> str:
    note = f"<br><i>{escape(v.note)}</i>" if v.note else ""
    word = f"<b class={ON_PAGE.get(v.word, 'muted')}>{v.word}</b>"
    cells = (escape(figure), escape(claim), escape(v.case), escape(v.measured) + note, word)
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells)


# widths on the terminal, and on a narrow one; the first column and that of cases may be narrower
FIRST, CLAIM, CASE, VERDICT = 9, 28, 22, 12
NARROW, NARROW_CLAIM, NARROW_CASE = 98, 21, 14


def screen(verdicts: Sequence[Verdict], first: str = "row", width: int = WIDTH) -> "Table":
    """Return the table for a terminal of `width` columns; `first` is as in `html`."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head, own in _widths(verdicts, first, width).items():
        table.add_column(head, width=own, overflow="fold")
    for figure, claim, v in _lines(verdicts):
        style = ON_TERMINAL.get(v.word, "")
        table.add_row(figure, claim, v.case, v.measured, v.word.value, style=style)
    return table


def _widths(verdicts: Sequence[Verdict], first: str, width: int) -> dict[str, int]:
    """Return columns as wide as their contents; the measurements get the rest of the terminal."""
    claim, most = (NARROW_CLAIM, NARROW_CASE) if width < NARROW else (CLAIM, CASE)
    places = min(FIRST, max(len(text) for text in (first, *(v.figure for v in verdicts))))
    case = min(most, max(len(text) for text in ("case", *(v.case for v in verdicts))))
    gaps = 4
    measured = width - gaps - places - claim - case - VERDICT
    return {first: places, "claim": claim, "case": case, "measured": measured, "verdict": VERDICT}


def _lines(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, str, Verdict]]:
    """Yield (figure, claim with its sizes, verdict); what repeats the line above is left out."""
    before = ("", "")
    for v in verdicts:
        now = (v.figure, f"{v.claim} ({v.sizes})" if v.sizes else v.claim)
        yield *(("", "") if now == before else now), v
        before = now
