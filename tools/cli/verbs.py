"""The verbs of the tools: what each is called, its help, and where its work is done.

Nothing but the records of options is imported before a verb runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.budget.options import BudgetOptions
from roundscope.tools.check.options import CheckOptions
from roundscope.tools.check_cast.options import CheckCastOptions
from roundscope.tools.cli.commands import few_collections, verb
from roundscope.tools.compare.options import CompareOptions
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.options import Json, to_file
from roundscope.tools.sweep.options import SweepOptions
from roundscope.tools.trace.options import TraceOptions


def formats(
    names: Annotated[
        list[str] | None, typer.Argument(help="Formats, also e<x>m<y>; by default all.")
    ] = None,
    json: Json = False,
) -> None:
    """Print a table of number formats: range, epsilon, tie window."""
    from roundscope.tools.look import formats as formats_view

    formats_view.show(names or (), as_json=json)


def explain(
    value: Annotated[
        str, typer.Argument(help="For example -4.7, 1/3, 0x1.8p3, inf or nan.", metavar="VALUE")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Target format, such as bf16 or e4m3fn:saturate.",
            metavar="FORMAT[:MODE[:OVERFLOW]]",
        ),
    ],
    mode: Annotated[
        str | None, typer.Option(help="Rounding mode, such as toward-zero; else ties-to-even.")
    ] = None,
    overflow: Annotated[
        str | None, typer.Option(help="inf, nan or saturate; by default the format's own.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the stochastic mode.")] = 0,
    plus: Annotated[
        str | None, typer.Option(help="Round VALUE + B, and draw the addition.", metavar="B")
    ] = None,
    json: Json = False,
) -> None:
    """Draw one rounding in bits: what is kept and why."""
    from roundscope.emu.roundings.modes import rounding
    from roundscope.tools.look import explain as command

    command.run(value, rounding(to, mode, overflow=overflow, seed=seed), plus, as_json=json)


def sites(
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="List only the events of this plan, and how each of them rounds."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List every rounding event with its formula; with --plan, how a plan rounds it."""
    from roundscope.tools.look import sites as sites_view

    sites_view.show(as_json=json, plan=plan)


def plans(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parts of names, libraries such as tokamax, machines such as H100, formats such as"
            " e4m3fn, or operations; by default all.",
            metavar="WORD",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the plans of attention and of operations: what each is, and whose bits it has."""
    from roundscope.tools.look import plans as plans_view

    plans_view.show(words or (), as_json=json)


@verb
def trace(options: TraceOptions) -> None:
    """Run attention on tensors: how exact are its results, and which rounding event is to blame?"""
    with few_collections():
        from roundscope.tools.trace import command

        command.run(options)


@verb
def identify(options: IdentifyOptions) -> None:
    """Find the plan that gives a kernel's numbers to the bit, or the nearest plans."""
    from roundscope.tools.identify import command

    command.run(options)


@verb
def compare(options: CompareOptions) -> int:
    """Name the operation that makes two runs of a model differ, and its share of the gap."""
    from roundscope.tools.compare import command

    return command.run(options)


@verb
def budget(options: BudgetOptions) -> None:
    """Name the operation, and the rounding, that makes the error of a model's step."""
    from roundscope.tools.budget import command

    command.run(options)


@verb
def check(options: CheckOptions) -> int:
    """Test a kernel: as exact as its plan? biased? explained? invariant? right at the edges?"""
    from roundscope.tools.check import run

    return run.run(options)


@verb
def sweep(options: SweepOptions) -> int:
    """Compute attention under many conditions and store the results in an SQLite file."""
    if options.names:
        from roundscope.tools.sweep.conditions import names_view

        names_view.show(as_json=options.json)
        return 0
    from roundscope.tools.sweep import command

    return command.run(options)


def watch(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="What watch(model, log=...) has written.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(callback=to_file, help="The picture, a PNG file; by default beside the log."),
    ] = None,
    json: Json = False,
) -> None:
    """Draw the log of a watched training: drift over steps, by layer, and the alarm."""
    from roundscope.tools.watch import command

    command.run(log, out=out, as_json=json)


@verb
def check_cast(options: CheckCastOptions) -> int:
    """Test a cast or a quantizer: ties, subnormals, overflow, NaN, scales of blocks, bias."""
    from roundscope.tools.check_cast import command

    return command.run(options)


def doctor(json: Json = False) -> None:
    """Print versions, devices, known problems of this machine, its caches and settings with what to
    do about each, and run a self-check.
    """
    from roundscope.tools.look import doctor as doctor_command

    if not doctor_command.run(as_json=json):
        raise typer.Exit(1)
