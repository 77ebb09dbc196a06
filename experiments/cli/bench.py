"""The command bench, of rounding, attention and a training step."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import Json, to_folder


def bench(
    what: Annotated[
        str, typer.Argument(help="round, mx, dot, attention, sweep or step.", metavar="WHAT")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for bench-WHAT.json and bench-WHAT.png; not for sweep and step.",
            metavar="DIR",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure Roundscope's speed against that of the alternatives."""
    from roundscope.experiments.train import bench_step
    from roundscope.tools.bench import command as bench_command

    bench_command.run(what, as_json=json, out=out, more={"step": bench_step.run})
