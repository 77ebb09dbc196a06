"""The options of `roundscope diagnose`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import CallOptions, Changes, Json, Layers, Layout, Sample, to_folder


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """What `roundscope diagnose` can be told; see the texts of the fields."""

    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_OR_TENSORS",
            help="Folder of a training run; or safetensors or npz with q, k, v, do per layer.",
        ),
    ] = None
    sample: Sample = False
    layer: Layers = None
    plan: Annotated[str | None, typer.Option(help="As in trace.")] = None
    changes: Changes = field(default_factory=list)
    call: CallOptions = field(default_factory=CallOptions)
    layout: Layout = None
    arm: Annotated[
        str | None,
        typer.Option(help="Arm of a run; by default the one that failed first.", metavar="NAME"),
    ] = None
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="Replay a run from this step; by default from the latest step that decides.",
            metavar="STEP",
        ),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            help="Replay a run up to this step; by default 100 steps after the alarm.",
            metavar="STEP",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for the report and the finished replays; by default diagnose-<source>.",
        ),
    ] = None
    json: Json = False
