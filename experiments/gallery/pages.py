"""The pages and pictures of docs/gallery: where each study's come from, Markdown, the index."""

import gzip
import io
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from roundscope.emu.whole_files import write_whole
from roundscope.experiments import catalogue
from roundscope.experiments.catalogue import STUDIES, Entry, named
from roundscope.experiments.framework.command import lacking, measured
from roundscope.experiments.framework.study import Static, Study
from roundscope.experiments.framework.verdicts import Verdict, Word, lines
from roundscope.experiments.gallery import claims
from roundscope.experiments.questions.dose import study as dose
from roundscope.experiments.questions.kernels import study as kernels
from roundscope.experiments.questions.tensor_cores import study as tensor_cores
from roundscope.experiments.reproduce import study_of
from roundscope.tools.report.pictures import png

DOCS = Path(__file__).resolve().parents[2] / "docs"
FINDING, MEASURED, LESSON = "The finding", "The measurements", "A lesson on this paper"
DELTA = "which-rounding-of-delta-kills-a-training"  # sections of the measurements
MX = "does-block-scaling-make-training-diverge-arxiv-250620752"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a page of the gallery is made from.

    study    makes the study, at the scale that is drawn; None where nothing can be drawn again
    records  files of docs/runs -> names for the command; empty where `study` computes results
    command  the words that draw the figures, after `roundscope`
    image    the picture in docs/images, with its caption, of a study whose results were not kept
    instead  for a study without any picture: where its question is answered, in Markdown
    links    further pages about it -> their title
    """

    links: Mapping[str, str]
    command: str = ""
    study: Callable[[], Study[Any]] | None = None
    records: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    caption: str = ""
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
    catalogue.GOLDEN.name: _paper(
        catalogue.GOLDEN,
        _links("is-flash-attention-stable-arxiv-240502803", "is-it-stable"),
        {"golden.sqlite.gz": "golden.sqlite"},
    ),
    catalogue.LONG.name: _paper(
        catalogue.LONG,
        _links("is-flash-attention-stable-arxiv-240502803", "is-it-stable"),
        {"long.sqlite": "golden.sqlite"},
    ),
    catalogue.QIU_YAO.name: _paper(
        catalogue.QIU_YAO,
        _links("why-low-precision-transformer-training-fails-arxiv-251004212", "why-bf16-fails"),
        # the older file is read into the newer one
        {"qiu-yao.sqlite": "qiu-yao-h200.sqlite", "qiu-yao-h100.sqlite": "qiu-yao.sqlite"},
    ),
    catalogue.SU.name: _paper(
        catalogue.SU,
        _links(MX, "mx-instability"),
        {"su-proxy.sqlite.gz": "proxy.sqlite", "su-ln-fix.sqlite.gz": "su.sqlite"},
    ),
    catalogue.MXFP8.name: _paper(
        catalogue.MXFP8,
        _links("mxfp8-recipes-arxiv-250608027", "mxfp8-recipes"),
        {"mxfp8.sqlite.gz": "mxfp8.sqlite", "mxfp8-proxy.sqlite.gz": "proxy.sqlite"},
    ),
    catalogue.LOWBIT.name: _paper(
        catalogue.LOWBIT,
        {"../findings/low-bit-training.md": FINDING},
        {"lowbit.sqlite.gz": "lowbit.sqlite"},
    ),
    catalogue.DOSE.name: Source(
        image="dose.png",
        caption="Steps until training diverges, when only the output as delta reads it is"
        " rounded, to p significant bits; a point is the median of 5 seeds, an arrow a run that"
        " did not diverge in 2,000 steps. Toward zero kills at least 4 of 5 runs up to 6 bits"
        " and a few at 7 and 8, to nearest only at 2 bits, stochastic rounding 1 run of 35.",
        command="dose steps=2000 lr=1e-2 site=OD p=2-8 mode=toward-zero,ties-to-even,stochastic"
        " --seeds 0-4",
        links=_links(DELTA),
    ),
    catalogue.BIAS.name: Source(
        image="bias.png",
        caption="Steps until training diverges, when c half ulps of V are added to the output"
        " as"
        " delta reads it, in rows with several P = 1: with V's sign (in the picture"
        ' "leans"), with a random sign, or with V\'s sign turned at random features. Three'
        " seeds; an arrow is a run that did not diverge in 1,000 steps.",
        command="dose --study bias --seeds 0-2 steps=1000",
        links=_links(DELTA),
    ),
    catalogue.SCALING.name: _dose("scaling"),
    catalogue.CONDITIONS.name: _dose("conditions", "steps=1000"),
    catalogue.IDENTITY.name: _dose("identity"),
    catalogue.FORMATS.name: Source(
        instead="The same question, at six rates and with 12 seeds, is asked by"
        " [`reproduce su`](su.md), whose results are kept. This command is for a model"
        " and formats of your own.",
        links=_links(MX),
    ),
    catalogue.INTERVENTIONS.name: Source(
        instead="The same question, at three distances from the divergence and with 8 seeds, is"
        " asked by [`reproduce su`](su.md), whose results are kept. This command is for a run"
        " and changes of your own.",
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
    catalogue.MECHANISM.name: _links("what-its-mechanism-rests-on", "why-bf16-fails"),
    catalogue.RELEASED.name: _links(
        "the-same-on-the-arithmetic-that-the-released-code-runs", "why-bf16-fails"
    ),
    catalogue.GPT2.name: _links("at-gpt-2s-size", "why-bf16-fails"),
    catalogue.FA4.name: {"../findings/kernels.md#flashattention-4-and-cudnns-mxfp8": FINDING},
    catalogue.TWO_LEVEL.name: {"../findings/kernels.md#fp8-on-hopper-over-long-rows": FINDING},
    catalogue.ALARM.name: _links("a-warning-before-the-loss-moves"),
    catalogue.FP4_RULES.name: {"../findings/fp4-rules.md": FINDING},
    catalogue.TRUNCATION.name: {"../findings/truncation.md": FINDING},
}


def source_of(entry: Entry) -> Source:
    """Return a study's source: in SOURCES, or `reproduce` with docs/runs. Raises KeyError."""
    if entry.name in SOURCES or entry not in catalogue.PAPERS:
        return SOURCES[entry.name]
    file = f"{entry.name}.sqlite"
    records = {file: file} if (DOCS / "runs" / file).is_file() else {}
    return _paper(entry, LINKS.get(entry.name, {}), records)


COUNTED = {  # what is said of several verdicts
    Word.AGREES: "agree",
    Word.CONTRADICTS: "contradict",
    Word.DEPENDS: "depend on conditions",
    Word.UNDECIDED: "are undecided",
    Word.NOT_TESTABLE: "are not testable",
}
DECIDED = (Word.AGREES, Word.CONTRADICTS, Word.DEPENDS)  # in bold
SHOWN = 12  # verdicts beyond which the table is folded
SITES = {  # the beginning of a paper's number -> its address; what follows is the number
    "arXiv ": "https://arxiv.org/abs/",
    "flash-attention #": "https://github.com/Dao-AILab/flash-attention/pull/",
    "vllm-project/flash-attention #": "https://github.com/vllm-project/flash-attention/pull/",
}
INDEX = """\
# Gallery

Every study of `roundscope studies`: its question, its figures, and what they say of each claim.
What the results mean together is in [the findings](../findings/index.md).

{rows}

These pages are written by `python -m roundscope.experiments.gallery`, which trains
nothing: it draws what [the runs of record](../runs/README.md) hold.

```{{toctree}}
:hidden:

{names}
```
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A picture of a page: its title, its caption, and its file beside the page."""

    title: str
    caption: str
    file: str


def write(names: Sequence[str] = (), folder: Path = DOCS / "gallery") -> None:
    """Write the pages of these studies, by default of all, and the index. Raises UsageError."""
    chosen = [named(name) for name in names] or STUDIES
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for entry in chosen:
        write_whole(folder / f"{entry.name}.md", text_of(entry, folder))
    write_whole(folder / "index.md", index(folder))
    write_whole(folder.parent / "findings" / "claims.md", claims.text_of(claims.pages_of(folder)))


def text_of(entry: Entry, folder: Path) -> str:
    """Return the page of a study; write its pictures into the folder."""
    source = source_of(entry)
    if source.study is None:
        if not source.image:
            return page(entry, drawn=source.instead, links=source.links)
        drawn = (
            f"Printed by `roundscope {source.command}` on an H200. The results file of that"
            " run was not kept, so only this picture is shown; the command draws all of them."
        )
        image = f"../images/{source.image}"
        shown = Shown(title=entry.question, caption=source.caption, file=image)
        return page(entry, drawn=drawn, pictures=[shown], links=source.links)
    study = source.study()
    with tempfile.TemporaryDirectory() as path:
        for file, name in source.records.items():  # under the names that commands look for
            opened = gzip.open if file.endswith(".gz") else open
            with opened(DOCS / "runs" / file, "rb") as kept, (Path(path) / name).open("wb") as copy:
                shutil.copyfileobj(kept, copy)
        outcome, results = measured(study, Path(path), bool(source.records))
        if results is None:
            raise RuntimeError(f"{entry.name}: there is nothing to draw")
        static = study.static(lambda n: None) if study.static else Static()
    drawn = f"Computed on a CPU by `roundscope {source.command}`."
    if source.records:
        files = " and ".join(f"`docs/runs/{file}`" for file in source.records)
        drawn = f"Drawn by `roundscope {source.command}` from {files}."
    figures = [(each.title, each.draw(results), each.caption) for each in study.figures]
    drawings = [x for x in (*figures, *static.figures) if x[1] is not None]
    for old in folder.glob(f"images/{entry.name}-[0-9]*.png"):
        old.unlink()
    pictures = []
    for number, (title, picture, caption) in enumerate(drawings, start=1):
        assert picture is not None
        file = f"images/{entry.name}-{number}.png"
        write_whole(folder / file, small(png(picture)))
        pictures.append(Shown(title=title, caption=escaped(caption), file=file))
    lack = lacking({"there": outcome.there, "launches": outcome.launches}, study.unit)
    return page(
        entry,
        drawn=f"{drawn} {lack}".strip(),
        answer=study.answer(results),
        verdicts=[*study.claims(results), *static.verdicts],
        pictures=pictures,
        caveats=study.caveats,
        links=source.links,
    )


def small(data: bytes) -> bytes:
    """Return the bytes of a PNG file with at most 256 colors, which is a third of the size."""
    out = io.BytesIO()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()


def page(
    entry: Entry,
    *,
    drawn: str,
    links: Mapping[str, str],
    answer: str = "",
    verdicts: Sequence[Verdict] = (),
    pictures: Sequence[Shown] = (),
    caveats: str = "",
) -> str:
    """Return the page of a study as Markdown; `drawn` says where its figures come from."""
    shown = []
    for each in pictures:
        title = escaped(each.title)
        heading = f"## {title}\n\n" if each.title != entry.question else ""
        shown.append(f"{heading}![{title}]({each.file})\n\n*{each.caption.strip()}*")
    also = ", ".join(f"[{title}]({link})" for link, title in links.items())
    parts = [
        f"# {escaped(entry.question)}",
        paper(entry.paper),
        f"    roundscope {entry.command}",
        escaped(answer),
        *shown[:1],
        drawn,
        "\n".join(_verdicts(verdicts)),
        *shown[1:],
        f"## Notes and limits\n\n{escaped(caveats)}" if caveats else "",
        f"See also: {also}." if also else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def paper(text: str) -> str:
    """Return the paper of a study with a link to it: "arXiv 2405.02803, Is ..."."""
    number, _, title = text.partition(", ")
    for start, site in SITES.items():
        if number.startswith(start):
            return f"[{number}]({site}{number.removeprefix(start)}), *{escaped(title)}*"
    return escaped(text)


def index(folder: Path) -> str:
    """Return the page of all studies: a row for each, with its first picture if it has one."""
    rows = ["| figure | question |", "|---|---|"]
    for entry in STUDIES:
        stored, image = source_of(entry).image, f"images/{entry.name}-1.png"
        if stored:
            image = f"../images/{stored}"
        elif not (folder / image).is_file():
            image = ""
        question = escaped(entry.question)
        figure = f"[![{question}]({image})]({entry.name}.md)" if image else ""
        rows.append(f"| {figure} | [{question}]({entry.name}.md)<br>`roundscope {entry.command}` |")
    names = "\n".join(f"{entry.name} <{entry.name}>" for entry in STUDIES)
    return INDEX.format(rows="\n".join(rows), names=names)


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of the verdicts: how many of each kind, and the table."""
    if not verdicts:
        return
    count = Counter(v.word for v in verdicts)
    kinds = ", ".join(f"{count[word]} {text}" for word, text in COUNTED.items() if count[word])
    yield f"## Verdicts\n\nOf {len(verdicts)} verdicts {kinds}.\n"
    is_long = len(verdicts) > SHOWN
    if is_long:
        yield "<details><summary>Every verdict</summary>\n"
    yield "| | claim | case | measured | verdict |\n|---|---|---|---|---|"
    for where, claim, v in lines(verdicts):
        measured = escaped(v.measured) + (f" *{escaped(v.note)}*" if v.note else "")
        word = f"**{v.word}**" if v.word in DECIDED else v.word
        yield f"| {escaped(where)} | {escaped(claim)} | {escaped(v.case)} | {measured} | {word} |"
    if is_long:
        yield "\n</details>"


def escaped(text: str) -> str:
    """Return text as Markdown that shows it as it is, in one line."""
    return re.sub(r"([\\`*_<>|$\[\]{}])", r"\\\1", " ".join(text.split()))
