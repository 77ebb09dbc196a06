"""Where the figures of every study come from: a run of record, a computation, a stored picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundscope.experiments import catalogue
from roundscope.experiments.catalogue import Entry
from roundscope.experiments.framework.study import Study
from roundscope.experiments.questions.dose import study as dose
from roundscope.experiments.questions.kernels import study as kernels
from roundscope.experiments.questions.tensor_cores import study as tensor_cores
from roundscope.experiments.reproduce import study_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
FINDING, MEASURED, LESSON = "The finding", "The measurements", "A lesson on this paper"
DELTA = "which-rounding-of-delta-kills-a-training"  # sections of the measurements
MX = "does-block-scaling-make-training-diverge-arxiv-250620752"


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


def _links(section: str, lesson: str = "") -> dict[str, str]:
    """Return the links to a section of the measurements, and to a lesson if there is one."""
    found = {f"../notes/measurements.md#{section}": MEASURED}
    return found | ({f"../tutorials/papers/{lesson}.md": LESSON} if lesson else {})


def _paper(entry: Entry, links: Mapping[str, str], records: Mapping[str, str]) -> Source:
    return Source(
        study=lambda: study_of(entry.name, quick=False),
        records=records,
        command=f"{entry.command} --draw" if records else entry.command,
        links=links,
    )


def _dose(name: str, *words: str) -> Source:
    """Return the source of a topic of `dose`, whose results file has three seeds."""
    return Source(
        study=lambda: dose.asked(words, name=name, quick=False, seeds="0-2"),
        records={f"dose-{name}.sqlite": "dose.sqlite"},
        command=" ".join([f"dose --study {name} --seeds 0-2", *words]),
        links=_links(DELTA),
    )


SOURCES = {  # of studies that `source_of` has no rule for
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
        links=_links("is-flash-attention-stable-arxiv-240502803", "is-it-stable"),
    ),
    catalogue.SU.name: _paper(
        catalogue.SU, _links(MX, "mx-instability"), {"su-proxy.sqlite.gz": "proxy.sqlite"}
    ),
    catalogue.MXFP8.name: _paper(
        catalogue.MXFP8,
        _links("mxfp8-recipes-arxiv-250608027", "mxfp8-recipes"),
        {"mxfp8.sqlite.gz": "mxfp8.sqlite", "mxfp8-proxy.sqlite.gz": "proxy.sqlite"},
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
        links=_links(DELTA),
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
        links=_links(DELTA),
    ),
    catalogue.SCALING.name: _dose("scaling"),
    catalogue.CONDITIONS.name: _dose("conditions", "steps=1000"),
    catalogue.IDENTITY.name: _dose("identity"),
    catalogue.FORMATS.name: Source(
        instead=(
            "The same question, at six rates and with 12 seeds, is asked by"
            " [`reproduce su`](su.md), whose results are kept. This command is for a model"
            " and formats of your own."
        ),
        links=_links(MX),
    ),
    catalogue.INTERVENTIONS.name: Source(
        instead=(
            "The same question, at three distances from the divergence and with 8 seeds, is"
            " asked by [`reproduce su`](su.md), whose results are kept. This command is for a run"
            " and changes of your own."
        ),
        links=_links(MX),
    ),
    catalogue.ACCUMULATORS.name: Source(
        study=tensor_cores.study,
        command="accumulators",
        links=_links("tensor-cores"),
    ),
    catalogue.KERNELS.name: Source(
        study=kernels.study,
        records={"kernels-h200.json": "measured.json"},
        command="kernels --draw",
        links={"../findings/kernels-bias.md": FINDING},
    ),
}
LINKS = {  # of the other studies, if there are any
    catalogue.QIU_YAO.name: _links(
        "why-low-precision-transformer-training-fails-arxiv-251004212", "why-bf16-fails"
    ),
    catalogue.RELEASED.name: _links(
        "the-same-on-the-arithmetic-that-the-released-code-runs", "why-bf16-fails"
    ),
    catalogue.FA4.name: {"../findings/kernels.md#flashattention-4-and-cudnns-mxfp8": FINDING},
    catalogue.TWO_LEVEL.name: {"../findings/kernels.md#fp8-on-hopper-over-long-rows": FINDING},
    catalogue.ALARM.name: _links("a-warning-before-the-loss-moves"),
}


def source_of(entry: Entry) -> Source:
    """Return the source of a study.

    By default `reproduce` runs it, and its record is the file of its name in docs/runs, if there
    is one. Raises KeyError for a study of another command that has no source.
    """
    if entry.name in SOURCES or entry not in catalogue.PAPERS:
        return SOURCES[entry.name]
    file = f"{entry.name}.sqlite"
    records = {file: file} if (DOCS / "runs" / file).is_file() else {}
    return _paper(entry, LINKS.get(entry.name, {}), records)
