"""Commands that show something at once: formats, explain, sites, watch, doctor."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import Json, to_file


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
    from roundscope.tools.look import explain as explain_command

    explain_command.run(value, to, mode=mode, overflow=overflow, seed=seed, plus=plus, as_json=json)


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


def doctor(json: Json = False) -> None:
    """Print versions, devices, known problems of this machine, its caches and settings with what to
    do about each, and run a self-check.
    """
    from roundscope.tools.look import doctor as doctor_command

    if not doctor_command.run(as_json=json):
        raise typer.Exit(1)
