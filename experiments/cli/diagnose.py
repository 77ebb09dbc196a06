"""The command diagnose, of tensors and of runs."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import (
    Alignment,
    Causal,
    Json,
    Mask,
    Scale,
    Scales,
    Sinks,
    Softcap,
    Window,
    said,
    to_folder,
)


def diagnose(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_OR_TENSORS",
            help="Folder of a training run; or safetensors or npz with q, k, v, do per layer.",
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Use the real tensors that come with Roundscope.")
    ] = False,
    layer: Annotated[
        str | None,
        typer.Option(help="Use these layers only: names, numbers or patterns, by commas."),
    ] = None,
    plan: Annotated[str | None, typer.Option(help="As in trace.")] = None,
    causal: Causal = None,
    alignment: Alignment = None,
    scale: Scale = None,
    window: Window = None,
    softcap: Softcap = None,
    sinks: Sinks = None,
    mask: Mask = None,
    scales: Scales = None,
    arm: Annotated[
        str | None,
        typer.Option(help="Arm of a run; by default the one that failed first.", metavar="NAME"),
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="Replay a run from this step; by default from the latest step that decides.",
            metavar="STEP",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            help="Replay a run up to this step; by default 100 steps after the alarm.",
            metavar="STEP",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for the report and the finished replays; by default diagnose-<source>.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Find out why a run failed, or whether rounding adds up in tensors, and what repairs it."""
    from roundscope.experiments.diagnose.runs import of_run
    from roundscope.tools.diagnose import command

    command.run(
        source,
        sample=sample,
        layer=layer,
        plan=plan,
        said=said(causal, alignment, scale, window, softcap, sinks, mask, scales),
        arm=arm,
        first=from_,
        until=until,
        out=out,
        as_json=json,
        of_run=of_run,
    )
