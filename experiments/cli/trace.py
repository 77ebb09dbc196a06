"""Verbs that look at tensors or at a run: trace, diagnose; or at what a kernel returned:
identify.
"""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments.cli.options import Json


def trace(
    file: Annotated[
        Path | None,
        typer.Argument(
            help=(
                "safetensors or npz with q, k, v and optionally do, per layer; layout and scale are"
                " metadata, of npz entries."
            )
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="The real tensors that come with Roundscope.")
    ] = False,
    layer: Annotated[str | None, typer.Option(help="This layer only.")] = None,
    plan: Annotated[
        str,
        typer.Option(
            help="{presets} or all:FORMAT; with @ARCHITECTURE on its tensor cores: {architectures}."
        ),
    ] = "qiu-yao",
    block_q: Annotated[int, typer.Option(help="Queries per tile.")] = 128,
    block_k: Annotated[int, typer.Option(help="Keys per tile.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="Query t sees keys s <= t.")] = False,
    scale: Annotated[
        float | None, typer.Option(help="Of the scores; the file's, else 1 / sqrt(H).")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="BNTH or BTNH; the file's metadata if left out.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CHANGE",
            help=(
                "SITE=FORMAT[:MODE[:OVERFLOW]], SITE.sum=ACCUMULATOR, {of_plans} as in"
                " O=bf16:stochastic; repeatable. docs/grammar.md "
                "has every word."
            ),
        ),
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE:WHAT[:WHERE]...",
            help=(
                "O:ulps=0.5:rows=0:64:heads=3, PV:exact, P:flip=3:rows=5,9; repeatable. WHAT:"
                " exact, ulps=X, bias=X (in value, not in ulps), set=X, "
                "flip=BIT, noise=ULPS. WHERE: {wheres} with numbers, lists and ranges; 0:64 leaves"
                " 64 out."
            ),
        ),
    ] = None,
    record: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="rows, events:SITE,SITE (to records.npz) or steps:SITE; repeatable.",
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(help="The plan to compare results with; exact is binary64.")
    ] = "exact",
    engine: Annotated[
        str,
        typer.Option(
            help=(
                "numpy, xla, or pallas: fused kernels, on a GPU; the same bits. On a CPU numpy is"
                " the fastest for a single trace, since xla compiles first."
            )
        ),
    ] = "numpy",
    seed: Annotated[int, typer.Option(help="Of stochastic rounding and noise.")] = 0,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Go on with NaN and infinities in the file.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder for report.html and trace.json; trace-<file>-<plan> if left out, with -2"
                " where that holds another request."
            )
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run attention on tensors and report which rounding events lean."""
    from roundscope.experiments.trace import command as trace_command

    trace_command.run(
        file,
        sample=sample,
        layer=layer,
        layout=layout,
        allow_nan=allow_nan,
        out=out,
        as_json=json,
        plan=plan,
        against=against,
        sets=set_ or [],
        inject=inject or [],
        record=record or [],
        engine=engine,
        seed=seed,
        block_q=block_q,
        block_k=block_k,
        scale=scale,
        causal=causal,
    )


def diagnose(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_OR_TENSORS",
            help="The folder of a training run; or safetensors or npz with q, k, v, do per layer.",
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="The real tensors that come with Roundscope.")
    ] = False,
    layer: Annotated[str | None, typer.Option(help="This layer only.")] = None,
    plan: Annotated[str | None, typer.Option(help="As in trace; qiu-yao if left out.")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Query t sees keys s <= t.")] = False,
    arm: Annotated[
        str | None,
        typer.Option(
            help="Of a run: the arm; the one that failed first if left out.", metavar="NAME"
        ),
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="Of a run: replay from this step; the latest that decides, if left out.",
            metavar="STEP",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            help="Of a run: replay to this step at most; 100 behind the alarm.", metavar="STEP"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the report and the replays done; diagnose-<source> if left out."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Find out why a run failed, or whether rounding adds up in tensors: where it comes from and
    what repairs it.
    """
    from roundscope.experiments.diagnose import command

    command.run(
        source,
        sample=sample,
        layer=layer,
        plan=plan,
        causal=causal,
        arm=arm,
        first=from_,
        until=until,
        out=out,
        as_json=json,
    )


def identify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE",
            help=(
                "A kernel to call here ({kernels}, or module:function); or safetensors or npz with"
                " q, k, v, out and optionally do, dq, "
                "dk, dv."
            ),
        ),
    ],
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--full",
            help="Whether query t sees keys s <= t only; a file's metadata, else full.",
        ),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Of the scores; the file's, else 1 / sqrt(H).")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Of a file: BNTH or BTNH; its metadata if left out.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Of a file with several: this one.")] = None,
    head: Annotated[
        int, typer.Option(help="The key head that is looked at, of the first batch entry.")
    ] = 0,
    window: Annotated[
        int | None, typer.Option(help="Keys that a query sees, the nearest; all if left out.")
    ] = None,
    softcap: Annotated[
        float | None,
        typer.Option(
            help="Scores are softcap tanh(score / softcap). A file's `sinks` are read too."
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Seconds for the search of the forward, and of the backward.")
    ] = 45.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder for identify.json; identify-<name> if left out, with -2 where that holds"
                " another request."
            )
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Find out which arithmetic gave a kernel's numbers: the plan with the same bits, or what it is
    near and is not.
    """
    from roundscope.experiments.kernels import command
    from roundscope.experiments.kernels.reading import Options

    options = Options(
        is_causal=causal,
        scale=scale,
        layout=layout,
        layer=layer,
        head=head,
        window=window,
        softcap=softcap,
    )
    command.run(source, options, budget=budget, out=out, as_json=json)
