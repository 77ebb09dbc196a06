"""Commands that answer a question by measuring: reproduce, studies, accumulators, kernels."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments import catalogue
from roundscope.experiments.catalogue import PAPERS, names
from roundscope.tools.cli.options import Json, Timeout, to_folder


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            help=f"{names(PAPERS)}: {', '.join(entry.number or 'our own' for entry in PAPERS)}.",
            metavar="PAPER",
        ),
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A short version: minutes on a CPU; the full one is for a GPU."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for the results and report.html; by default the paper's name.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="For golden: numpy or xla; both give the same bits.")
    ] = "numpy",
    jobs: Annotated[
        int | None,
        typer.Option(help="For golden: number of worker processes; by default that of cores."),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw what the folder holds, without training.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the claims of a paper and give a verdict on each."""
    from roundscope.experiments import reproduce as papers

    code = papers.run(
        paper, quick=quick, out=out, engine=engine, jobs=jobs, as_json=json, draw=draw
    )
    if code:
        raise typer.Exit(code)


def studies(json: Json = False) -> None:
    """List every study: what it asks, its command, and how long it takes."""
    catalogue.show(as_json=json)


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
    from roundscope.experiments.questions.tensor_cores import order as orders

    if order:
        orders.show(as_json=json)
        return
    from roundscope.experiments.questions.tensor_cores import study

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
    from roundscope.experiments.questions.kernels import study

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
