"""Commands that show numbers, studies, kernels and this machine.

These are formats, explain, sites, studies, accumulators, kernels, watch, bench and doctor.
"""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments.cli.options import Json, Timeout, to_file, to_folder


def formats(
    names: Annotated[
        list[str] | None, typer.Argument(help="Formats, also e<x>m<y>; by default all.")
    ] = None,
    json: Json = False,
) -> None:
    """Print a table of number formats: range, epsilon, tie window."""
    from roundscope.experiments.look import formats as formats_view

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
    from roundscope.experiments.look import explain as explain_command

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
    from roundscope.experiments.look import sites as sites_view

    sites_view.show(as_json=json, plan=plan)


def studies(json: Json = False) -> None:
    """List every study: what it asks, its command, and how long it takes."""
    from roundscope.experiments.look import studies as studies_view

    studies_view.show(as_json=json)


def accumulators(
    out: Annotated[
        Path, typer.Option(callback=to_folder, help="Folder for report.html and accumulators.json.")
    ] = Path("accumulators"),
    order: Annotated[
        bool,
        typer.Option(
            "--order", help="Find the order of additions in this machine's matrix products instead."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure how the sums of tensor cores are biased, as a function of their length K."""
    from roundscope.experiments.studies.tensor_cores import order as orders

    if order:
        orders.show(as_json=json)
        return
    from roundscope.experiments.studies.tensor_cores import study

    if code := study.run(out=out, as_json=json):
        raise typer.Exit(code)


def kernels(
    out: Annotated[
        Path,
        typer.Option(
            callback=to_folder, help="Folder for report.html, kernels.json and measured.json."
        ),
    ] = Path("kernels"),
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Measure these kernels (or module:function); by default all."
        ),
    ] = None,
    released: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A checkout of the released code of arXiv 2510.04212, to be measured too.",
        ),
    ] = None,
    tutorial: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Triton's tutorial 06, 06-fused-attention.py, to be measured too."
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw what the folder holds, without running a kernel.")
    ] = False,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Measure which real attention kernels are biased, on named inputs."""
    from roundscope.experiments.studies.kernels import study

    if code := study.run(
        out=out,
        as_json=json,
        draw=draw,
        released=released,
        tutorial=tutorial,
        only=only,
        timeout=timeout,
    ):
        raise typer.Exit(code)


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
    from roundscope.experiments.watch import command

    command.run(log, out=out, as_json=json)


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
    from roundscope.experiments.bench import command as bench_command

    bench_command.run(what, as_json=json, out=out)


def doctor(json: Json = False) -> None:
    """Print versions, devices, known problems of this machine, its caches and settings with what to
    do about each, and run a self-check.
    """
    from roundscope.experiments.look import doctor as doctor_command

    if not doctor_command.run(as_json=json):
        raise typer.Exit(1)
