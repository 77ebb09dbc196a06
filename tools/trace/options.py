"""The options of `roundscope trace`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import CallOptions, Changes, Json, Layers, Layout, Sample, to_folder


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """What `roundscope trace` can be told; see the texts of the fields."""

    file: Annotated[
        Path | None,
        typer.Argument(
            help="safetensors or npz with q, k, v and optionally do, mask, sinks, per layer, as"
            " roundscope.torch.capture writes; layout and scale are metadata, of npz entries."
        ),
    ] = None
    sample: Sample = False
    layer: Layers = None
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="HEADS",
            help="Query heads to trace, as a call of their own, such as 3, 0:4 or 0,5; by default"
            " all. What follows numbers them from 0.",
        ),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(
            help="{presets} or all:FORMAT; with -fp16 at its end in FP16 in place of BF16; with"
            " @ARCHITECTURE on its tensor cores: {architectures}. By default fa2, or fa2-fp16"
            " for tensors in FP16."
        ),
    ] = None
    block_q: Annotated[int, typer.Option(help="Queries per tile.")] = 128
    block_k: Annotated[int, typer.Option(help="Keys per tile.")] = 128
    call: CallOptions = field(default_factory=CallOptions)
    layout: Layout = None
    changes: Changes = field(default_factory=list)
    inject: Annotated[
        list[str],
        typer.Option(
            metavar="SITE:WHAT[:WHERE]...",
            help="Add an error to an event, for example O:ulps=0.5:rows=0:64:heads=3, PV:exact or"
            " P:flip=3:rows=5,9; repeatable. WHAT is exact, ulps=X, bias=X (in value, not in"
            " ulps), set=X, flip=BIT or noise=ULPS (so many up or down). WHERE is {wheres} with"
            " numbers, lists and ranges (0:64 leaves 64 out); share=0.01 is a random part.",
        ),
    ] = field(default_factory=list)
    record: Annotated[
        list[str],
        typer.Option(
            metavar="WHAT",
            help="Keep more: rows or events:SITE,SITE (written to records.npz), or steps:SITE;"
            " repeatable.",
        ),
    ] = field(default_factory=list)
    against: Annotated[
        str, typer.Option(help="The plan with whose results to compare; exact is binary64.")
    ] = "exact"
    beside: Annotated[
        str | None,
        typer.Option(
            help="The plan whose errors stand beside those of the plan, by default fa2; or none."
        ),
    ] = None
    budget: Annotated[
        bool,
        typer.Option(
            "--budget/--no-budget",
            help="Whether to measure which event makes how much of the error, which takes longer.",
        ),
    ] = True
    budget_heads: Annotated[
        int | None,
        typer.Option(
            help="Heads on which the error budget is measured; by default as many as have a million"
            " scores together, evenly chosen."
        ),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            help="numpy, xla, or pallas (fused kernels on a GPU); all give the same bits. On a CPU"
            " numpy is the fastest for a single trace, since xla compiles first."
        ),
    ] = "numpy"
    seed: Annotated[int, typer.Option(help="Seed of stochastic rounding, noise and shares.")] = 0
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Accept NaN and infinities in the file.")
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for report.html and trace.json; by default trace-<file>-<plan>, with -2"
            " added if that holds another request.",
        ),
    ] = None
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Print the table of every rounding event too, which the page has anyway."
        ),
    ] = False
    png: Annotated[
        bool, typer.Option("--png", help="Write the page's pictures as PNG files too.")
    ] = False
    json: Json = False
