"""The command that measures many conditions: sweep."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import Json, to_file


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
        from roundscope.tools.sweep.conditions import names_view

        names_view.show(as_json=json)
        return
    from roundscope.tools.sweep import command

    options = command.SweepOptions(
        axes=axes or [],
        zips=zip_ or [],
        backward=backward,
        out=out,
        jobs=jobs,
        executor=executor,
        retry_failed=retry_failed,
        dry_run=dry_run,
        fresh=fresh,
        json=json,
    )
    if code := command.run(options):
        raise typer.Exit(code)
