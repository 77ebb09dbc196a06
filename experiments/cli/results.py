"""Commands that read results, those of a sweep and those of a training: export, report."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import to_file
from roundscope.tools.errors import bad


def export(
    file: Annotated[Path, typer.Argument(help="Results of a sweep.", metavar="SWEEP.sqlite")],
    out: Annotated[
        Path,
        typer.Argument(
            callback=to_file,
            help="File to write; its ending chooses the format.",
            metavar="OUT.csv|OUT.parquet",
        ),
    ],
    table: Annotated[str, typer.Option(help="The table to write: cells or sites.")] = "cells",
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="CSV: texts as they are, also those that a spreadsheet takes for formulas; else"
            " these have a ' before them.",
        ),
    ] = False,
) -> None:
    """Write a sweep's results as CSV or Parquet."""
    from roundscope.experiments.train.record import is_log
    from roundscope.tools.sweep.storage import export as export_results

    if is_log(file):
        repair = (
            "is the log of a training run: SQLite with the tables steps, heads, sites and alarms;"
            f" draw it with  roundscope report {file.parent}"
        )
        raise bad("SWEEP.sqlite", str(file), repair)
    rows = export_results.export(file, out, table, raw=raw)
    if said := export_results.lost(file):
        print(said)
    print(f"written: {out} ({rows} rows)")


def report(
    file: Annotated[
        Path,
        typer.Argument(
            help="Results of a sweep, or the folder of a training run.", metavar="SWEEP.sqlite|RUN"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_file,
            help="File to write; by default SWEEP.html beside the results, or RUN/report.html.",
        ),
    ] = None,
) -> None:
    """Draw a sweep's results or a training run into one HTML file that opens offline."""
    from roundscope.experiments.train.report import page

    if (folder := page.folder_of(file)) is not None:
        print(f"written: {page.write(folder, out)}")
        return
    from roundscope.tools.sweep.report import report as sweep_report

    page_of, answer = sweep_report.write(file, out), sweep_report.answer(file)
    print(f"{answer}\nwritten: {page_of}")
