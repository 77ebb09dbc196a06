"""The options of the verbs that train a model or measure claims: a record for each verb.

`tools.options` says how they are read. They are here and not beside the verbs, since a study shares
most of them with others.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from roundscope.experiments.catalogue import DOSES, FORMATS, INTERVENTIONS, PAPERS, names
from roundscope.tools.options import Json, Timeout, to_file, to_folder

Quick = Annotated[
    bool,
    Option("--quick", help="A short version: minutes on two cores; the full one is for a GPU."),
]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `roundscope train` can be told; see the texts of the fields."""

    words: Annotated[
        list[str],
        Argument(
            metavar="CONFIG.toml|KEY=VALUE",
            help="Settings of the run. The keys are layers heads width context vocab batch steps"
            " parts lr min_lr warmup decay_steps beta1 beta2 weight_decay clip position"
            " qk_norm tied mlp_ratio gated llama optimizer matmul plan changes sums engine block"
            " data data_seed init_seed checkpoint_every keep monitor_every drift_alarm. A file has"
            " the same keys, and seeds = [..], [arms], [at].",
        ),
    ] = field(default_factory=list)
    out: Annotated[
        Path | None, Option(callback=to_folder, help="Folder for the run.", metavar="DIR")
    ] = None
    resume: Annotated[
        Path | None,
        Option(
            help="Continue this run; with --out, continue it as a branch in that folder.",
            metavar="DIR",
        ),
    ] = None
    first: Annotated[
        int | None,
        Option(
            "--from",
            help="First step of the branch; by default that of the last checkpoint.",
            metavar="STEP",
        ),
    ] = None
    at: Annotated[
        list[str],
        Option(
            metavar="STEP CHANGE",
            help="Change attention or the linear layers from a step on, in all arms, for example"
            " --at 300 'layer=1 head=0:2 -> O=fp32'. Left of the arrow: layer=, head= (0:3,5),"
            " matrix= (qkv, proj, fc1, fc2, all) and site= (O,PV; or {stages}); what is left"
            " out means all. Right of it, for attention: SITE=FORMAT[:MODE[:OVERFLOW]],"
            " SITE.sum=ACCUMULATOR, {of_plans}, or FORMAT alone; or"
            " offset=C:bias|noise|fixed[:all]|none, which adds to the output that delta reads"
            " C x half a BF16 ulp of V in rows with several P = 1, or in all rows. For linear"
            " layers: mx=FORMAT[:RULE], as in '-> mx=mxfp8_e4m3', or operands=FORMAT[:RULE],"
            " as in 'layer=0:2 matrix=qkv,fc1 -> operands=mxfp8_e4m3:rceil'."
            " docs/reference/grammar.md explains every word. Repeatable.",
        ),
    ] = field(default_factory=list)
    arms: Annotated[
        list[str],
        Option(
            "--arm",
            metavar="NAME=CHANGE[;CHANGE]",
            help="Train several runs (arms) on the same batches, this one with these changes;"
            " lr=1e-2 is a change too. Repeatable.",
        ),
    ] = field(default_factory=list)
    seeds: Annotated[
        str | None,
        Option(metavar="A:B,N", help="Train every arm once per seed of its weights and batches."),
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class DoseOptions:
    """What `roundscope dose` can be told; see the texts of the fields."""

    words: Annotated[
        list[str],
        Argument(
            metavar="KEY=VALUE",
            help="The axes, for example site=OD,O mode=toward-zero,stochastic p=2:9 lr=1e-2,1e-3"
            " steps=2000, and the model's settings: layers heads width context batch warmup"
            " data ...",
        ),
    ] = field(default_factory=list)
    quick: Quick = False
    out: Annotated[
        Path,
        Option(callback=to_folder, help="Folder for the results and report.html.", metavar="DIR"),
    ] = Path("dose")
    seeds: Annotated[
        str | None, Option(help="Seeds of weights and batches; by default 0:5.", metavar="A:B,N")
    ] = None
    study: Annotated[
        str | None, Option(help=f"Ask another question: {names(DOSES)}.", metavar="NAME")
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """What `roundscope proxy` can be told; see the texts of the fields."""

    words: Annotated[
        list[str],
        Argument(
            metavar="KEY=VALUE",
            help="Settings: depth width ratio phi norm batch steps noise lr min_lr warmup beta1"
            " beta2 block seed measure_every; and mx=FORMAT, the base of the interventions.",
        ),
    ] = field(default_factory=list)
    study: Annotated[
        str,
        Option(
            help=f"{FORMATS.name}, which differ from the first step; or {INTERVENTIONS.name}, which"
            " differ from the step --from.",
            metavar="NAME",
        ),
    ] = FORMATS.name
    arms: Annotated[
        list[str],
        Option(
            "--arm",
            metavar="NAME=CHANGE[;CHANGE]",
            help="Train this arm in place of the study's, for example"
            " --arm 'e4m3=-> mx=mxfp8_e4m3; site=norm -> fp32'. Left of the arrow: layer=,"
            " matrix= and site= (events or groups); what is left out means all. Right of it:"
            " SITE=FORMAT[:RULE][:MODE], FORMAT alone, mx=FORMAT or beta=0|1. lr=1e-2 is a"
            " change too. docs/reference/grammar.md explains every word. Repeatable.",
        ),
    ] = field(default_factory=list)
    first: Annotated[
        int | None,
        Option("--from", help="Step from which the arms of interventions differ.", metavar="STEP"),
    ] = None
    at: Annotated[
        list[str], Option(metavar="STEP CHANGE", help="Change all arms from a step on; repeatable.")
    ] = field(default_factory=list)
    quick: Quick = False
    out: Annotated[
        Path,
        Option(callback=to_folder, help="Folder for the results and the report.", metavar="DIR"),
    ] = Path("proxy")
    seeds: Annotated[
        str | None,
        Option(help="Seeds of weights, teacher and rows; by default 0:5.", metavar="A:B,N"),
    ] = None
    draw: Annotated[
        bool, Option("--draw", help="Draw what the results file in --out holds, without training.")
    ] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What `roundscope reproduce` can be told; see the texts of the fields."""

    paper: Annotated[
        str,
        Argument(
            help=f"{names(PAPERS)}: {', '.join(entry.number or 'our own' for entry in PAPERS)}.",
            metavar="PAPER",
        ),
    ]
    quick: Annotated[
        bool,
        Option("--quick", help="A short version: minutes on a CPU; the full one is for a GPU."),
    ] = False
    out: Annotated[
        Path | None,
        Option(
            callback=to_folder,
            help="Folder for the results and report.html; by default the paper's name.",
        ),
    ] = None
    engine: Annotated[str, Option(help="For golden: numpy or xla; both give the same bits.")] = (
        "numpy"
    )
    jobs: Annotated[
        int | None,
        Option(
            help="Number of worker processes: for golden, by default that of cores; for lowbit, of"
            " launches at a time, by default 1."
        ),
    ] = None
    draw: Annotated[
        bool, Option("--draw", help="Draw what the folder holds, without training.")
    ] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class KernelsOptions:
    """What `roundscope kernels` can be told; see the texts of the fields."""

    out: Annotated[
        Path,
        Option(
            callback=to_folder,
            help="Folder for report.html, kernels.json and measured.json; with --compare for"
            " passport.html, .json and .png.",
        ),
    ] = Path("kernels")
    only: Annotated[
        str | None,
        Option(
            metavar="NAME,...", help="Measure these kernels (or module:function); by default all."
        ),
    ] = None
    released: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="A checkout of the released code of arXiv 2510.04212, to be measured too.",
        ),
    ] = None
    tutorial: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Triton's tutorial 06, 06-fused-attention.py, to be measured too."
        ),
    ] = None
    draw: Annotated[
        bool, Option("--draw", help="Draw what the folder holds, without running a kernel.")
    ] = False
    record: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            callback=to_file,
            help="Add what the kernels installed here return to this record, in place of measuring"
            " their bias; --only takes names of the passport then.",
        ),
    ] = None
    written: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="With --record: judge what `python -m writer DIR` wrote in another environment.",
        ),
    ] = None
    compare: Annotated[
        tuple[Path, Path] | None,
        Option(
            metavar="OLD NEW",
            help="Say which bits changed from one record to another, and what arithmetic did; of"
            " one record given twice, from each release to the next.",
        ),
    ] = None
    timeout: Timeout = None
    json: Json = False
