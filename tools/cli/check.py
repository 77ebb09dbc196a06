"""The command check."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import (
    Alignment,
    Json,
    Mask,
    Scale,
    Scales,
    Sinks,
    Softcap,
    Timeout,
    Window,
    said,
    to_file,
    to_folder,
)


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE",
            help="A kernel to call here ({kernels}, or module:function); or safetensors or npz with"
            " q, k, v, out and optionally do, dq, dk, dv.",
        ),
    ],
    claims: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="The plan that the kernel is meant to have: {presets}. By default the twin of a"
            " kernel that has one, else fa2.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="CHANGE", help="A change of that plan, such as P=bf16."),
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option("--causal/--full", help="Causal calls alone, or full ones; by default both."),
    ] = None,
    alignment: Alignment = None,
    scale: Scale = None,
    window: Window = None,
    softcap: Softcap = None,
    sinks: Sinks = None,
    mask: Mask = None,
    scales: Scales = None,
    tokens: Annotated[int, typer.Option(help="Queries and keys of a head.")] = 192,
    features: Annotated[int, typer.Option(help="Features of a head.")] = 64,
    heads: Annotated[int, typer.Option(help="Heads of a call.")] = 8,
    batch: Annotated[int, typer.Option(help="Batch entries of a call.")] = 5,
    draws: Annotated[
        int, typer.Option(help="How many draws of each kind of inputs, while a question is open.")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the first draw.")] = 0,
    dtype: Annotated[
        str, typer.Option(help="Type of the inputs: bfloat16, float16 or float32.")
    ] = "bfloat16",
    forward: Annotated[
        bool, typer.Option("--forward", help="Check the output alone, without gradients.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TEST,...",
            help="Run some of the tests: envelope, bias, explanation, invariance, edges.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Other bits of a second call, or of another batch, are a failure, and so are rows"
            " that see no key and are not 0.",
        ),
    ] = False,
    false_alarm: Annotated[
        float,
        typer.Option(help="Probability that a kernel as good as its plan fails envelope or bias."),
    ] = 1e-4,
    budget: Annotated[
        int,
        typer.Option(metavar="PLANS", help="Plans that the search for the plan of its bits tries."),
    ] = 3000,
    library: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The arrays of module:function: numpy, torch or jax; by default those of the"
            " library that its module has imported.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Axes of its arrays, or of a file: BNTH or BTNH."),
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Layer of a file; by default all.")] = None,
    head: Annotated[
        int, typer.Option(help="Key head whose arithmetic is looked for, from 0 on.")
    ] = 0,
    block_q: Annotated[
        int | None, typer.Option(help="Queries of the plan's tiles; by default the twin's.")
    ] = None,
    block_k: Annotated[
        int | None, typer.Option(help="Keys of the plan's tiles; by default the twin's.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            metavar="DIR",
            help="Folder for report.html and check.json; by default check-<name>-<plan>, with -2"
            " added if that holds another request.",
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            callback=to_file, metavar="FILE", help="A file of JUnit's XML, with a case a row."
        ),
    ] = None,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Test a kernel: as exact as its plan? biased? explained? invariant? right at the edges?"""
    from roundscope.tools.check import command
    from roundscope.tools.check.asked import TESTS, Asked, claims_of
    from roundscope.tools.tensors.overrides import Overrides, words

    overrides = words(**said(None, alignment, scale, window, softcap, sinks, mask, scales))
    asked = Asked(
        source=source,
        claims=claims_of(source) if claims is None else claims,
        changes=tuple(change or ()),
        is_causal=causal,
        tokens=tokens,
        features=features,
        batch=batch,
        heads=heads,
        draws=draws,
        seed=seed,
        dtype=dtype,
        library=library,
        layout=layout,
        block_q=block_q,
        block_k=block_k,
        backward=not forward,
        only=TESTS if only is None else tuple(name.strip() for name in only.split(",")),
        false_alarm=false_alarm,
        budget=budget,
        is_strict=strict,
        layer=layer,
        overrides=Overrides(**overrides),
        head=head,
        timeout=timeout,
    )
    if code := command.run(asked, out=out, junit_file=junit, as_json=json):
        raise typer.Exit(code)
