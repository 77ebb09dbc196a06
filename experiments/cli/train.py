"""Verbs that train: prepare, train, dose, proxy."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.experiments.cli.options import Json
from roundscope.experiments.studies.catalogue import DOSES, FORMATS, INTERVENTIONS, names


def prepare(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Text files, and folders with some.", metavar="DIR_OR_FILES"),
    ],
    out: Annotated[Path, typer.Option(help="Folder for train.bin and val.bin.")],
    json: Json = False,
) -> None:
    """Make training data of any text, a token per byte, in nanoGPT's files."""
    from roundscope.experiments.train.run import prepare as preparing

    preparing.run(paths, out, as_json=json)


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG.toml|KEY=VALUE",
            help=(
                "layers heads width context vocab batch steps lr min_lr warmup decay_steps beta1"
                " beta2 weight_decay clip position "
                "qk_norm tied mlp_ratio matmul plan changes sums engine block data data_seed"
                " init_seed checkpoint_every keep monitor_every "
                "drift_alarm; the file has the same keys, and seeds = [..], [arms], [at]."
            ),
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", metavar="DIR")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with this run; with --out, a branch of it goes there.", metavar="DIR"
        ),
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="The branch's first step; the last checkpoint's if left out.",
            metavar="STEP",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP CHANGE",
            help=(
                "Change attention or the linear layers from a step on, in all arms: --at 300"
                " 'layer=1 head=0:2 -> O=fp32'. Left of the "
                "arrow layer=, head= (0:3,5), matrix= (qkv, proj, fc1, fc2, all) and site= (O,PV;"
                " or {stages}), all if left out; right of it "
                "SITE=FORMAT[:MODE[:OVERFLOW]], SITE.sum=ACCUMULATOR, {of_plans} or FORMAT alone;"
                " offset=C:bias|noise|fixed[:all]|none: the "
                "output that delta reads is off by C x half a BF16 ulp of V in rows with several P"
                " = 1, or in all. Linear layers: "
                "-> mx=FORMAT[:RULE], or layer=0:2 matrix=qkv,fc1 -> operands=mxfp8_e4m3:rceil."
                " docs/grammar.md has every word. "
                "Repeatable."
            ),
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHANGE[;CHANGE]",
            help="One run of several, on the same batches; lr=1e-2 is a change too. Repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A:B,N", help="Every arm once per seed, of weights and of batches."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a small GPT with emulated attention, go on with a run, or replay it with other
    arithmetic.
    """
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
                "site=OD,O mode=toward-zero,stochastic p=2:9 lr=1e-2,1e-3 steps=2000, and the"
                " model's: layers heads width context batch "
                "warmup data ..."
            ),
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on two cores; in full it is made for a GPU.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for the results and report.html.", metavar="DIR")
    ] = Path("dose"),
    seeds: Annotated[
        str | None, typer.Option(help="Of weights and batches; 0:5 if left out.", metavar="A:B,N")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help=f"Another question: {names(DOSES)}.", metavar="NAME")
    ] = None,
    json: Json = False,
) -> None:
    """Time to divergence of training against the rounding of one event: its bits, its mode, the
    learning rate.
    """
    from roundscope.experiments.studies.dose.study import asked
    from roundscope.experiments.studies.framework import command

    options = [
        *(["--study", study] if study else []),
        *(["--quick"] if quick else []),
        *(["--seeds", seeds] if seeds else []),
    ]
    told = " ".join(["roundscope dose", *options, *(words or [])])
    code = command.run(
        asked(words or [], name=study, quick=quick, seeds=seeds),
        out=out,
        command=told,
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
                "depth width ratio phi norm batch steps noise lr min_lr warmup beta1 beta2 block"
                " seed measure_every; "
                "mx=FORMAT of the interventions' base."
            ),
        ),
    ] = None,
    study: Annotated[
        str,
        typer.Option(
            help=(
                f"{FORMATS.name}, from the first step; or {INTERVENTIONS.name}, from the step"
                " --from."
            ),
            metavar="NAME",
        ),
    ] = FORMATS.name,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHANGE[;CHANGE]",
            help=(
                "In place of the study's arms: --arm 'e4m3=-> mx=mxfp8_e4m3; site=norm -> fp32'."
                " Left of the arrow layer=, matrix= "
                "and site= events or groups, all if left out; right of it"
                " SITE=FORMAT[:RULE][:MODE], FORMAT alone, mx=FORMAT, "
                "beta=0|1; lr=1e-2 is a change too. docs/grammar.md has every word. "
                "Repeatable."
            ),
        ),
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from", help="The step at which the arms of interventions part.", metavar="STEP"
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP CHANGE", help="Change all arms from a step on. Repeatable."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on two cores; in full it is made for a GPU.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for the results and the report.", metavar="DIR")
    ] = Path("proxy"),
    seeds: Annotated[
        str | None,
        typer.Option(help="Of weights, teacher and rows; 0:5 if left out.", metavar="A:B,N"),
    ] = None,
    draw: Annotated[
        bool,
        typer.Option("--draw", help="Train nothing: draw what the results file in --out holds."),
    ] = False,
    json: Json = False,
) -> None:
    """Train a student MLP in block-scaled formats, and change the arithmetic in mid-training."""
    from roundscope.experiments.studies.proxy.study import run

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
