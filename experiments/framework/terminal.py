"""A study on the terminal: the answer, the tables, the verdicts, and the names of the files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as Grid

from roundscope.experiments.framework import verdict_table
from roundscope.experiments.framework.page import launched, missing
from roundscope.experiments.framework.study import R, Study, Table
from roundscope.experiments.framework.verdicts import Verdict
from roundscope.tools.report.terminal import console


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
        screen.print(verdict_table.screen(verdicts, study.source, screen.width))
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
    lines = table.rows(results)
    kept = [column for column in table.shown if any(line[column] for line in lines)]
    for column in kept[1:] if table.grouped else kept:
        grid.add_column(table.heads[column].replace("\n", " "), overflow="fold")
    for line in lines:
        first, *rest = (escape(line[column]) for column in kept)
        if table.grouped and first != before:
            grid.add_row(f"[bold]{first}[/bold]")
        grid.add_row(*rest if table.grouped else ("" if first == before else first, *rest))
        before = first
    return grid
