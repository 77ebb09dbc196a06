"""Commands on tensors and the results of kernels: trace, identify."""

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
    Timeout,
    Window,
    said,
    to_folder,
)


def trace(
    file: Annotated[
        Path | None,
        typer.Argument(
            help=(
                "safetensors or npz with q, k, v and optionally do, mask, sinks, per layer, as"
                " roundscope.torch.capture writes; layout and scale are metadata, of npz entries."
            )
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Use the real tensors that come with Roundscope.")
    ] = False,
    layer: Annotated[
        str | None,
        typer.Option(help="Use these layers only: names, numbers or patterns, by commas."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help=(
                "{presets} or all:FORMAT; with -fp16 at its end in FP16 in place of BF16; with"
                " @ARCHITECTURE on its tensor cores: {architectures}. By default fa2, or fa2-fp16"
                " for tensors in FP16."
            )
        ),
    ] = None,
    block_q: Annotated[int, typer.Option(help="Queries per tile.")] = 128,
    block_k: Annotated[int, typer.Option(help="Keys per tile.")] = 128,
    causal: Causal = None,
    alignment: Alignment = None,
    scale: Scale = None,
    window: Window = None,
    softcap: Softcap = None,
    sinks: Sinks = None,
    mask: Mask = None,
    scales: Scales = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Order of the axes: BNTH or BTNH; by default as in the file's metadata."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CHANGE",
            help=(
                "Change the plan: SITE=FORMAT[:MODE[:OVERFLOW]], SITE.sum=ACCUMULATOR or"
                " {of_plans}, for example O=bf16:stochastic; repeatable."
                " docs/reference/grammar.md explains every word."
            ),
        ),
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE:WHAT[:WHERE]...",
            help=(
                "Add an error to an event, for example O:ulps=0.5:rows=0:64:heads=3, PV:exact or"
                " P:flip=3:rows=5,9; repeatable. WHAT is exact, ulps=X, bias=X (in value, not in"
                " ulps), set=X, flip=BIT or noise=ULPS. WHERE is {wheres} with numbers, lists and"
                " ranges; 0:64 leaves 64 out."
            ),
        ),
    ] = None,
    record: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help=(
                "Keep more: rows or events:SITE,SITE (written to records.npz), or steps:SITE;"
                " repeatable."
            ),
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(help="The plan with whose results to compare; exact is binary64.")
    ] = "exact",
    beside: Annotated[
        str | None,
        typer.Option(
            help="The plan whose errors stand beside those of the plan, by default fa2; or none."
        ),
    ] = None,
    budget: Annotated[
        bool,
        typer.Option(
            "--budget/--no-budget",
            help="Whether to measure which event makes how much of the error, which takes longer.",
        ),
    ] = True,
    budget_heads: Annotated[
        int | None,
        typer.Option(
            help=(
                "Heads on which the error budget is measured; by default as many as have a million"
                " scores together, evenly chosen."
            )
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help=(
                "numpy, xla, or pallas (fused kernels on a GPU); all give the same bits. On a CPU"
                " numpy is the fastest for a single trace, since xla compiles first."
            )
        ),
    ] = "numpy",
    seed: Annotated[int, typer.Option(help="Seed of stochastic rounding and noise.")] = 0,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Accept NaN and infinities in the file.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help=(
                "Folder for report.html and trace.json; by default trace-<file>-<plan>, with -2"
                " added if that holds another request."
            ),
        ),
    ] = None,
    png: Annotated[
        bool, typer.Option("--png", help="Write the page's pictures as PNG files too.")
    ] = False,
    json: Json = False,
) -> None:
    """Run attention on tensors: how exact are its results, and which rounding event is to blame?"""
    from roundscope.tools.trace.garbage import few_collections

    with few_collections():
        from roundscope.tools.trace import command as trace_command

        trace_command.run(
            file,
            sample=sample,
            layer=layer,
            layout=layout,
            allow_nan=allow_nan,
            out=out,
            as_json=json,
            png=png,
            plan=plan,
            against=against,
            beside=beside,
            budget=budget,
            budget_heads=budget_heads,
            sets=set_ or [],
            inject=inject or [],
            record=record or [],
            engine=engine,
            seed=seed,
            block_q=block_q,
            block_k=block_k,
            said=said(causal, alignment, scale, window, softcap, sinks, mask, scales),
        )


def identify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE",
            help=(
                "A kernel to call here ({kernels}, or module:function); or safetensors or npz with"
                " q, k, v, out and optionally do, dq, dk, dv."
            ),
        ),
    ],
    causal: Causal = None,
    alignment: Alignment = None,
    scale: Scale = None,
    window: Window = None,
    softcap: Softcap = None,
    sinks: Sinks = None,
    mask: Mask = None,
    scales: Scales = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Axes of a file: BNTH or BTNH; by default as in its metadata."),
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Layer of a file with several.")] = None,
    head: Annotated[
        int, typer.Option(help="The key head to examine, in the first entry of the batch.")
    ] = 0,
    budget: Annotated[
        int,
        typer.Option(
            metavar="PLANS",
            help="Plans that the search of the forward tries; that of the backward a sixteenth.",
        ),
    ] = 8000,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help=(
                "Folder for identify.json; by default identify-<name>, with -2 added if that holds"
                " another request."
            ),
        ),
    ] = None,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Find the plan that gives a kernel's numbers to the bit, or the nearest plans."""
    from roundscope.tools.identify import command
    from roundscope.tools.identify.reading import Options
    from roundscope.tools.tensors.overrides import words

    overrides = words(**said(causal, alignment, scale, window, softcap, sinks, mask, scales))
    options = Options(layout=layout, layer=layer, head=head, timeout=timeout, **overrides)
    command.run(source, options, budget=budget, out=out, as_json=json)
