"""Commands that measure many conditions: sweep, reproduce, export, report."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments.cli.options import Json, to_file, to_folder
from roundscope.experiments.errors import bad
from roundscope.experiments.studies.catalogue import PAPERS, names


def sweep(
    axes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="AXES",
            help=(
                "The axes with their values, as in preset=qiu-yao,fa2-bf16 T=128,256 seed=0:10"
                " O=bf16,fp32 PV.sum=exact,hopper:bf16; or an axes.toml. A range a:b:step leaves b"
                " out. Axes: {axes}; of one event: SITE, SITE.sum, SITE.mode, or {per_site} with"
                " .SITE. The defaults are T=256 N=4 H=64, tile 64, fa2, gaussian; input=FILE is the"
                " call that the file says, of all its layers. --axes prints the values of each"
                " axis; docs/reference/grammar.md explains every word."
            ),
        ),
    ] = None,
    zip_: Annotated[
        list[str] | None,
        typer.Option(
            "--zip",
            metavar="AXIS,AXIS",
            help="Let these axes advance together instead of crossing them; repeatable.",
        ),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Compute the gradients too.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            callback=to_file,
            help="The results file; the cells that it holds are not computed again.",
        ),
    ] = Path("sweep.sqlite"),
    jobs: Annotated[
        int | None, typer.Option(help="Number of worker processes; by default that of cores.")
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Run elsewhere: dask:tcp://host:port or module:factory."
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute the cells that failed again.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only say which cells would run and for how long; one small cell is measured.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what the results file holds.")
    ] = False,
    names: Annotated[
        bool,
        typer.Option(
            "--axes",
            help="Print every axis with its values and default, the metrics and a TOML example.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Compute attention under many conditions and store the results in an SQLite file."""
    if names:
        from roundscope.experiments.sweep.conditions import names_view

        names_view.show(as_json=json)
        return
    from roundscope.experiments.sweep import command

    code = command.run(
        axes or [],
        zips=zip_ or [],
        backward=backward,
        out=out,
        jobs=jobs,
        executor=executor,
        retry_failed=retry_failed,
        dry_run=dry_run,
        fresh=fresh,
        as_json=json,
    )
    if code:
        raise typer.Exit(code)


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            help=f"{names(PAPERS)}: {', '.join(entry.number or 'our own' for entry in PAPERS)}.",
            metavar="PAPER",
        ),
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A short version: minutes on a CPU; the full one is for a GPU."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for the results and report.html; by default the paper's name.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="For golden: numpy or xla; both give the same bits.")
    ] = "numpy",
    jobs: Annotated[
        int | None,
        typer.Option(help="For golden: number of worker processes; by default that of cores."),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw what the folder holds, without training.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the claims of a paper and give a verdict on each."""
    from roundscope.experiments.studies import reproduce as papers

    code = papers.run(
        paper, quick=quick, out=out, engine=engine, jobs=jobs, as_json=json, draw=draw
    )
    if code:
        raise typer.Exit(code)


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
    from roundscope.experiments.sweep.storage import export as export_results
    from roundscope.experiments.train.record import is_log

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
    from roundscope.experiments.sweep.report import report as sweep_report

    page_of, answer = sweep_report.write(file, out), sweep_report.answer(file)
    print(f"{answer}\nwritten: {page_of}")
