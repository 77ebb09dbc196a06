"""Where the figures of every study come from: a run of record, a computation, a stored picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from roundscope.experiments import catalogue
from roundscope.experiments.framework.study import Study
from roundscope.experiments.reproduce import study_of

MEASUREMENTS = "../notes/measurements.md"
FAILS = f"{MEASUREMENTS}#why-low-precision-transformer-training-fails-arxiv-251004212"
DELTA = f"{MEASUREMENTS}#which-rounding-of-delta-kills-a-training"
MX = f"{MEASUREMENTS}#does-block-scaling-make-training-diverge-arxiv-250620752"
PAPERS = "../tutorials/papers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A picture in docs/images whose results file was not kept: its name, caption and command."""

    image: str
    caption: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a page of the gallery is made from.

    study    makes the study, at the scale that is drawn; None where nothing can be drawn again
    records  files of docs/runs -> the names that the command looks for; empty where `study`
             computes its results, which takes up to two minutes
    command  the words that draw the figures, after `roundscope`
    stored   the picture that stands for a study that is not drawn again
    instead  for a study without any picture: where its question is answered, in Markdown
    links    further pages about it -> their title
    """

    links: Mapping[str, str]
    command: str = ""
    study: Callable[[], Study[Any]] | None = None
    records: Mapping[str, str] = field(default_factory=dict)
    stored: Stored | None = None
    instead: str = ""


def _topic(name: str, *words: str) -> Study[Any]:
    from roundscope.experiments.questions.dose.study import asked

    return asked(words, name=name, quick=False, seeds="0-2")


def _kernels() -> Study[Any]:
    from roundscope.experiments.questions.kernels.study import study

    return study()


def _accumulators() -> Study[Any]:
    from roundscope.experiments.questions.tensor_cores.study import study

    return study()


def _dose(name: str, link: str, *words: str) -> Source:
    """Return the source of a topic of `dose`, whose results file has three seeds."""
    return Source(
        study=partial(_topic, name, *words),
        records={f"dose-{name}.sqlite": "dose.sqlite"},
        command=" ".join([f"dose --study {name} --seeds 0-2", *words]),
        links={link: "The measurements"},
    )


SOURCES = {
    catalogue.GOLDEN.name: Source(
        stored=Stored(
            image="golden.png",
            caption=(
                "Largest deviation of tiled attention from binary64 over that of unfused attention,"
                " against the number of key tiles, 30 seeds. Production kernels (`fa2-bf16`, green)"
                " are more exact than unfused attention; only running sums that are kept in BF16"
                " over many key tiles reach the ten times of the paper."
            ),
            command="reproduce golden --engine xla",
        ),
        links={
            f"{MEASUREMENTS}#is-flash-attention-stable-arxiv-240502803": "The measurements",
            f"{PAPERS}/is-it-stable.md": "A lesson on this paper",
        },
    ),
    catalogue.QIU_YAO.name: Source(
        study=partial(study_of, catalogue.QIU_YAO.name, quick=False),
        records={"qiu-yao.sqlite": "qiu-yao.sqlite"},
        command="reproduce qiu-yao --draw",
        links={
            FAILS: "The measurements",
            f"{PAPERS}/why-bf16-fails.md": "A lesson on this paper",
        },
    ),
    catalogue.RELEASED.name: Source(
        study=partial(study_of, catalogue.RELEASED.name, quick=False),
        records={"released.sqlite": "released.sqlite"},
        command="reproduce released --draw",
        links={
            f"{MEASUREMENTS}#the-same-on-the-arithmetic-that-the-released-code-runs": (
                "The measurements"
            ),
            f"{PAPERS}/why-bf16-fails.md": "A lesson on this paper",
        },
    ),
    catalogue.SU.name: Source(
        study=partial(study_of, catalogue.SU.name, quick=False),
        records={"su-proxy.sqlite.gz": "proxy.sqlite"},
        command="reproduce su --draw",
        links={MX: "The measurements", f"{PAPERS}/mx-instability.md": "A lesson on this paper"},
    ),
    catalogue.MXFP8.name: Source(
        study=partial(study_of, catalogue.MXFP8.name, quick=False),
        records={"mxfp8.sqlite.gz": "mxfp8.sqlite", "mxfp8-proxy.sqlite.gz": "proxy.sqlite"},
        command="reproduce mxfp8 --draw",
        links={
            f"{MEASUREMENTS}#mxfp8-recipes-arxiv-250608027": "The measurements",
            f"{PAPERS}/mxfp8-recipes.md": "A lesson on this paper",
        },
    ),
    catalogue.FA4.name: Source(
        study=partial(study_of, catalogue.FA4.name, quick=False),
        command="reproduce fa4",
        links={"../findings/kernels.md#flashattention-4-and-cudnns-mxfp8": "The finding"},
    ),
    catalogue.TWO_LEVEL.name: Source(
        study=partial(study_of, catalogue.TWO_LEVEL.name, quick=False),
        command="reproduce two-level",
        links={"../findings/kernels.md#fp8-on-hopper-over-long-rows": "The finding"},
    ),
    catalogue.ALARM.name: Source(
        study=partial(study_of, catalogue.ALARM.name, quick=False),
        records={"alarm.sqlite": "alarm.sqlite"},
        command="reproduce alarm --draw",
        links={f"{MEASUREMENTS}#a-warning-before-the-loss-moves": "The measurements"},
    ),
    catalogue.DOSE.name: Source(
        stored=Stored(
            image="dose.png",
            caption=(
                "Steps until training diverges, when only the output as delta reads it is rounded,"
                " to p significant bits; a point is the median of 5 seeds, an arrow a run that did"
                " not diverge in 2,000 steps. Toward zero kills at least 4 of 5 runs up to 6 bits"
                " and a few at 7 and 8, to nearest only at 2 bits, stochastic rounding 1 run of 35."
            ),
            command=(
                "dose steps=2000 lr=1e-2 site=OD p=2-8 mode=toward-zero,ties-to-even,stochastic"
                " --seeds 0-4"
            ),
        ),
        links={DELTA: "The measurements"},
    ),
    catalogue.BIAS.name: Source(
        stored=Stored(
            image="bias.png",
            caption=(
                "Steps until training diverges, when c half ulps of V are added to the output as"
                " delta reads it, in rows with several P = 1: with V's sign (in the picture"
                ' "leans"), with a random sign, or with V\'s sign turned at random features. Three'
                " seeds; an arrow is a run that did not diverge in 1,000 steps."
            ),
            command="dose --study bias --seeds 0-2 steps=1000",
        ),
        links={DELTA: "The measurements"},
    ),
    catalogue.SCALING.name: _dose("scaling", DELTA),
    catalogue.CONDITIONS.name: _dose("conditions", DELTA, "steps=1000"),
    catalogue.IDENTITY.name: _dose("identity", DELTA),
    catalogue.FORMATS.name: Source(
        instead=(
            "The same question, at six rates and with 12 seeds, is asked by"
            " [`reproduce su`](su.md), whose results are kept. This command is for a model"
            " and formats of your own."
        ),
        links={MX: "The measurements"},
    ),
    catalogue.INTERVENTIONS.name: Source(
        instead=(
            "The same question, at three distances from the divergence and with 8 seeds, is"
            " asked by [`reproduce su`](su.md), whose results are kept. This command is for a run"
            " and changes of your own."
        ),
        links={MX: "The measurements"},
    ),
    catalogue.ACCUMULATORS.name: Source(
        study=_accumulators,
        command="accumulators",
        links={f"{MEASUREMENTS}#tensor-cores": "The measurements"},
    ),
    catalogue.KERNELS.name: Source(
        study=_kernels,
        records={"kernels-h200.json": "measured.json"},
        command="kernels --draw",
        links={"../findings/kernels-bias.md": "The finding"},
    ),
}
