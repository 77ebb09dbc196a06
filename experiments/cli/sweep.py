"""Verbs that measure many conditions: sweep, reproduce, export, report."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments.cli.options import Json
from roundscope.experiments.errors import bad
from roundscope.experiments.studies.catalogue import PAPERS, names


def sweep(
    axes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="AXES",
            help=(
                "preset=qiu-yao,fa2-bf16 T=128,256 seed=0:10 O=bf16,fp32 PV.sum=exact,hopper:bf16,"
                " or an axes.toml; a:b:step leaves b "
                "out. Axes: {axes}; of one event: SITE, SITE.sum, SITE.mode, or {per_site} with"
                " .SITE. Left out: T=256 N=4 H=64, tile 64, "
                "qiu-yao, gaussian; --axes says what all of them may be, docs/grammar.md has every"
                " word."
            ),
        ),
    ] = None,
    zip_: Annotated[
        list[str] | None,
        typer.Option(
            "--zip",
            metavar="AXIS,AXIS",
            help="These advance together instead of crossing; repeatable.",
        ),
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Gradients too.")] = False,
    out: Annotated[
        Path, typer.Option(help="The results file; cells that it holds are not computed again.")
    ] = Path("sweep.sqlite"),
    jobs: Annotated[
        int | None, typer.Option(help="Worker processes; as many as cores if left out.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(metavar="WHERE", help="dask:tcp://host:port or module:factory.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute cells again that failed.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say how many cells, which and how long; measures one small cell."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away what the results file holds.")
    ] = False,
    names: Annotated[
        bool,
        typer.Option(
            "--axes", help="Print every axis, its values and default, a TOML example, the metrics."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Compute attention under many conditions, each once, into an SQLite file."""
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
            help=f"{names(PAPERS)}: {', '.join(entry.number for entry in PAPERS)}.", metavar="PAPER"
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on a CPU; in full it is made for a GPU.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results and report.html; the paper's name if left out."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Of golden: numpy or xla; the same bits.")] = "numpy",
    jobs: Annotated[
        int | None, typer.Option(help="Of golden: worker processes; as many as cores if left out.")
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw what the folder holds; nothing is trained.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the claims of a paper, each with a verdict."""
    from roundscope.experiments.studies import reproduce as papers

    code = papers.run(
        paper, quick=quick, out=out, engine=engine, jobs=jobs, as_json=json, draw=draw
    )
    if code:
        raise typer.Exit(code)


def export(
    file: Annotated[Path, typer.Argument(help="The results of a sweep.", metavar="SWEEP.sqlite")],
    out: Annotated[Path, typer.Argument(help="The ending chooses.", metavar="OUT.csv|OUT.parquet")],
    table: Annotated[str, typer.Option(help="cells or sites.")] = "cells",
) -> None:
    """Write a sweep's results as CSV or Parquet."""
    from roundscope.experiments.sweep.storage import export as export_results
    from roundscope.experiments.train.record import is_log

    if is_log(file):
        told = (
            "is the log of a training run: SQLite with the tables steps, heads, sites and alarms;"
            " draw it with"
        )
        raise bad("SWEEP.sqlite", str(file), f"{told}  roundscope report {file.parent}")
    rows = export_results.export(file, out, table)
    print(f"written: {out} ({rows} rows)")


def report(
    file: Annotated[
        Path,
        typer.Argument(
            help="The results of a sweep, or the folder of a training run.",
            metavar="SWEEP.sqlite|RUN",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write; SWEEP.html beside it, or RUN/report.html, if left out."
        ),
    ] = None,
) -> None:
    """Draw a sweep's results or a training run: one HTML file that opens offline."""
    from roundscope.experiments.train.report import page

    if (folder := page.folder_of(file)) is not None:
        print(f"written: {page.write(folder, out)}")
        return
    from roundscope.experiments.sweep.report import report as sweep_report

    print(f"written: {sweep_report.write(file, out)}")
