"""A study on the terminal: the answer, the tables, the verdicts, and the names of the files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as Grid

from roundscope.experiments.framework.page import launched, missing
from roundscope.experiments.framework.study import R, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, lines
from roundscope.tools.report.terminal import WIDTH, console

STYLES = {Word.AGREES: "green", Word.CONTRADICTS: "red", Word.DEPENDS: "yellow"}
# widths of the verdicts, and on a narrow terminal; the first column and cases may be narrower
FIRST, CLAIM, CASE, VERDICT = 9, 28, 22, 12
NARROW, NARROW_CLAIM, NARROW_CASE = 98, 21, 14
GAPS = 4  # columns between the five


def show(
    study: Study[R], results: R, verdicts: Sequence[Verdict], data: Mapping[str, Any], out: Path
) -> None:
    """Print everything to stdout, in as many columns as the terminal has, 100 at most."""
    screen = console()
    screen.print(data["answer"], markup=False)
    for table in study.tables:
        if table.shown:
            screen.print(_grid(table, results))
    if verdicts:
        screen.print(verdict_grid(verdicts, study.source, screen.width))
    for text in (study.caution if verdicts else "", missing(data["run"], study.unit)):
        if text:
            screen.print(text, markup=False)
    scale = f" ({study.scale})" if study.scale else ""
    screen.print(f"{study.unit}: {launched(data['run'])}{scale}", markup=False)
    names = (f"{study.page}.html", f"{study.name}.json", f"{study.file or study.name}.sqlite")
    files = [str(out / name) for name in names if (out / name).exists()]
    print(f"written: {', '.join(files)}")


def _grid(table: Table[R], results: R) -> Grid:
    """Return the columns that are shown and not empty.

    A first cell that repeats the one above is left out.
    """
    grid, before = Grid(box=None, padding=(0, 1, 0, 0), pad_edge=False), ""
    rows = table.rows(results)
    kept = [column for column in table.shown if any(row[column] for row in rows)]
    for column in kept[1:] if table.grouped else kept:
        grid.add_column(table.heads[column].replace("\n", " "), overflow="fold")
    for row in rows:
        first, *rest = (escape(row[column]) for column in kept)
        if table.grouped and first != before:
            grid.add_row(f"[bold]{first}[/bold]")
        grid.add_row(*rest if table.grouped else ("" if first == before else first, *rest))
        before = first
    return grid


def verdict_grid(verdicts: Sequence[Verdict], first: str = "row", width: int = WIDTH) -> Grid:
    """Return the table of verdicts for a terminal of `width` columns; `first` heads their places.

    Columns are as wide as their contents; the measurements get the rest of the terminal.
    """
    claim, most = (NARROW_CLAIM, NARROW_CASE) if width < NARROW else (CLAIM, CASE)
    places = min(FIRST, max(len(text) for text in (first, *(v.figure for v in verdicts))))
    case = min(most, max(len(text) for text in ("case", *(v.case for v in verdicts))))
    measured = width - GAPS - places - claim - case - VERDICT
    grid = Grid(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    heads = (first, "claim", "case", "measured", "verdict")
    for head, own in zip(heads, (places, claim, case, measured, VERDICT), strict=True):
        grid.add_column(head, width=own, overflow="fold")
    for place, text, v in lines(verdicts):
        style = STYLES.get(v.word, "")
        grid.add_row(place, text, v.case, v.measured, v.word.value, style=style)
    return grid
