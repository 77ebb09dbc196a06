"""The options of `roundscope sweep`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import Json, to_file


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What `roundscope sweep` can be told; see the texts of the fields."""

    axes: Annotated[
        list[str],
        typer.Argument(
            metavar="AXES",
            help="The axes with their values, as in preset=qiu-yao,fa2-bf16 T=128,256 seed=0:10"
            " O=bf16,fp32 PV.sum=exact,hopper:bf16; or an axes.toml. A range a:b:step leaves b"
            " out. Axes: {axes}; of one event: SITE, SITE.sum, SITE.mode, or {per_site} with"
            " .SITE. The defaults are T=256 N=4 H=64, tile 64, fa2, gaussian; input=FILE is the"
            " call that the file says, of all its layers. --axes prints the values of each"
            " axis; docs/reference/grammar.md explains every word.",
        ),
    ] = field(default_factory=list)
    zips: Annotated[
        list[str],
        typer.Option(
            "--zip",
            metavar="AXIS,AXIS",
            help="Let these axes advance together instead of crossing them; repeatable.",
        ),
    ] = field(default_factory=list)
    backward: Annotated[bool, typer.Option("--backward", help="Compute the gradients too.")] = False
    out: Annotated[
        Path,
        typer.Option(
            callback=to_file,
            help="The results file; the cells that it holds are not computed again.",
        ),
    ] = Path("sweep.sqlite")
    jobs: Annotated[
        int | None, typer.Option(help="Number of worker processes; by default that of cores.")
    ] = None
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Run elsewhere: dask:tcp://host:port or module:factory."
        ),
    ] = None
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute the cells that failed again.")
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only say which cells would run and for how long; one small cell is measured.",
        ),
    ] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard what the results file holds.")] = (
        False
    )
    names: Annotated[
        bool,
        typer.Option(
            "--axes",
            help="Print every axis with its values and default, the metrics and a TOML example.",
        ),
    ] = False
    json: Json = False
