"""Commands that train: prepare, train, dose, proxy."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments.catalogue import DOSES, FORMATS, INTERVENTIONS, names
from roundscope.tools.cli.options import Json, to_folder


def prepare(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Text files, and folders of text files.", metavar="DIR_OR_FILES"),
    ],
    out: Annotated[
        Path, typer.Option(callback=to_folder, help="Folder for train.bin and val.bin.")
    ],
    json: Json = False,
) -> None:
    """Make training data from any text, one token per byte, in nanoGPT's file format."""
    from roundscope.experiments.train.run import prepare as preparing

    preparing.run(paths, out, as_json=json)


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG.toml|KEY=VALUE",
            help=(
                "Settings of the run. The keys are layers heads width context vocab batch steps"
                " parts lr min_lr warmup decay_steps beta1 beta2 weight_decay clip position"
                " qk_norm tied mlp_ratio matmul plan changes sums engine block data data_seed"
                " init_seed checkpoint_every keep monitor_every drift_alarm. A file has the same"
                " keys, and seeds = [..], [arms], [at]."
            ),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=to_folder, help="Folder for the run.", metavar="DIR")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue this run; with --out, continue it as a branch in that folder.",
            metavar="DIR",
        ),
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="First step of the branch; by default that of the last checkpoint.",
            metavar="STEP",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP CHANGE",
            help=(
                "Change attention or the linear layers from a step on, in all arms, for example"
                " --at 300 'layer=1 head=0:2 -> O=fp32'. Left of the arrow: layer=, head= (0:3,5),"
                " matrix= (qkv, proj, fc1, fc2, all) and site= (O,PV; or {stages}); what is left"
                " out means all. Right of it, for attention: SITE=FORMAT[:MODE[:OVERFLOW]],"
                " SITE.sum=ACCUMULATOR, {of_plans}, or FORMAT alone; or"
                " offset=C:bias|noise|fixed[:all]|none, which adds to the output that delta reads"
                " C x half a BF16 ulp of V in rows with several P = 1, or in all rows. For linear"
                " layers: mx=FORMAT[:RULE], as in '-> mx=mxfp8_e4m3', or operands=FORMAT[:RULE],"
                " as in 'layer=0:2 matrix=qkv,fc1 -> operands=mxfp8_e4m3:rceil'."
                " docs/reference/grammar.md explains every word. Repeatable."
            ),
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHANGE[;CHANGE]",
            help=(
                "Train several runs (arms) on the same batches, this one with these changes;"
                " lr=1e-2 is a change too. Repeatable."
            ),
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="A:B,N", help="Train every arm once per seed of its weights and batches."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train a small GPT with emulated attention, or continue or replay a run."""
    from roundscope.experiments.train.run import command

    code = command.run(
        words or [],
        out=out,
        resume=resume,
        first=from_,
        at=at or [],
        arms=arm or [],
        seeds=seeds,
        as_json=json,
    )
    if code:
        raise typer.Exit(code)


def dose(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help=(
                "The axes, for example site=OD,O mode=toward-zero,stochastic p=2:9 lr=1e-2,1e-3"
                " steps=2000, and the model's settings: layers heads width context batch warmup"
                " data ..."
            ),
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A short version: minutes on two cores; the full one is for a GPU."
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            callback=to_folder, help="Folder for the results and report.html.", metavar="DIR"
        ),
    ] = Path("dose"),
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds of weights and batches; by default 0:5.", metavar="A:B,N"),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help=f"Ask another question: {names(DOSES)}.", metavar="NAME")
    ] = None,
    json: Json = False,
) -> None:
    """Measure how soon training diverges, by how one event rounds and the learning rate."""
    from roundscope.experiments.framework import command
    from roundscope.experiments.questions.dose.study import asked

    options = [
        *(["--study", study] if study else []),
        *(["--quick"] if quick else []),
        *(["--seeds", seeds] if seeds else []),
    ]
    command_line = " ".join(["roundscope dose", *options, *(words or [])])
    code = command.run(
        asked(words or [], name=study, quick=quick, seeds=seeds),
        out=out,
        command=command_line,
        as_json=json,
    )
    if code:
        raise typer.Exit(code)


def proxy(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help=(
                "Settings: depth width ratio phi norm batch steps noise lr min_lr warmup beta1"
                " beta2 block seed measure_every; and mx=FORMAT, the base of the interventions."
            ),
        ),
    ] = None,
    study: Annotated[
        str,
        typer.Option(
            help=(
                f"{FORMATS.name}, which differ from the first step; or {INTERVENTIONS.name}, which"
                " differ from the step --from."
            ),
            metavar="NAME",
        ),
    ] = FORMATS.name,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHANGE[;CHANGE]",
            help=(
                "Train this arm in place of the study's, for example"
                " --arm 'e4m3=-> mx=mxfp8_e4m3; site=norm -> fp32'. Left of the arrow: layer=,"
                " matrix= and site= (events or groups); what is left out means all. Right of it:"
                " SITE=FORMAT[:RULE][:MODE], FORMAT alone, mx=FORMAT or beta=0|1. lr=1e-2 is a"
                " change too. docs/reference/grammar.md explains every word. Repeatable."
            ),
        ),
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from", help="Step from which the arms of interventions differ.", metavar="STEP"
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP CHANGE", help="Change all arms from a step on; repeatable."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A short version: minutes on two cores; the full one is for a GPU."
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            callback=to_folder, help="Folder for the results and the report.", metavar="DIR"
        ),
    ] = Path("proxy"),
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds of weights, teacher and rows; by default 0:5.", metavar="A:B,N"),
    ] = None,
    draw: Annotated[
        bool,
        typer.Option("--draw", help="Draw what the results file in --out holds, without training."),
    ] = False,
    json: Json = False,
) -> None:
    """Train a student MLP in block-scaled formats, and change the arithmetic during training."""
    from roundscope.experiments.questions.proxy.study import run

    code = run(
        words or [],
        name=study,
        own=arm or [],
        first=from_,
        at=at or [],
        seeds=seeds,
        quick=quick,
        out=out,
        as_json=json,
        draw=draw,
    )
    if code:
        raise typer.Exit(code)
