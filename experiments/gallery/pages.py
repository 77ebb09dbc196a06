"""The pages and pictures of docs/gallery: Markdown for Sphinx, a page for a study and the index."""

import gzip
import io
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Picture
from PIL import Image

from roundscope.emu.whole_files import write_whole
from roundscope.experiments.catalogue import STUDIES, Entry, named
from roundscope.experiments.framework.loop import measured
from roundscope.experiments.framework.page import missing
from roundscope.experiments.framework.study import Static, Study
from roundscope.experiments.framework.verdicts import Verdict, Word, lines
from roundscope.experiments.gallery.sources import DOCS, source_of
from roundscope.tools.report.pictures import png

COUNTED = {  # what is said of several verdicts
    Word.AGREES: "agree",
    Word.CONTRADICTS: "contradict",
    Word.DEPENDS: "depend on conditions",
    Word.UNDECIDED: "are undecided",
    Word.NOT_TESTABLE: "are not testable",
}
BADGES = {Word.AGREES: "success", Word.CONTRADICTS: "danger", Word.DEPENDS: "warning"}
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

<style>
.gallery .sd-card-img-top {{
  height: 9.5rem; object-fit: contain; background: #fff; padding: 6px; border-radius: 0;
}}
.gallery .sd-card-body {{ padding-top: .6rem; }}
.gallery .sd-card-title {{ font-size: 1rem; line-height: 1.35; }}
.gallery .sd-card-text {{ font-size: .85rem; }}
</style>

:::::{{grid}} 1 2 2 3
:gutter: 3
:class-container: gallery

{cards}
:::::

These pages are written by `python -m roundscope.experiments.gallery`, which trains
nothing: it draws what [the runs of record](../runs/README.md) hold.

```{{toctree}}
:hidden:

{names}
```
"""
CARD = """\
::::{{grid-item-card}} {question}
:link: {name}
:link-type: doc
{image}
`roundscope {command}`
::::"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A picture of a page: its title, its caption, and its file beside the page."""

    title: str
    caption: str
    file: str


def write(names: Sequence[str] = (), folder: Path = DOCS / "gallery") -> None:
    """Write the pages of these studies, by default of all, and the index.

    Raises UsageError for a name that no study has.
    """
    chosen = [named(name) for name in names] or STUDIES
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for entry in chosen:
        write_whole(folder / f"{entry.name}.md", text_of(entry, folder))
    write_whole(folder / "index.md", index(folder))


def text_of(entry: Entry, folder: Path) -> str:
    """Return the page of a study; write its pictures into the folder."""
    source = source_of(entry)
    if source.study is None:
        if source.stored is None:
            return page(entry, drawn=source.instead, links=source.links)
        drawn = (
            f"Printed by `roundscope {source.stored.command}` on an H200. The results file of that"
            " run was not kept, so only this picture is shown; the command draws all of them."
        )
        image = f"../images/{source.stored.image}"
        shown = Shown(title=entry.question, caption=source.stored.caption, file=image)
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
        is_whole = outcome.there == outcome.launches
        static = study.static(lambda n: None) if study.static and is_whole else Static()
    drawn = f"Computed on a CPU by `roundscope {source.command}`."
    if source.records:
        files = " and ".join(f"`docs/runs/{file}`" for file in source.records)
        drawn = f"Drawn by `roundscope {source.command}` from {files}."
    lack = missing({"there": outcome.there, "launches": outcome.launches}, study.unit)
    return page(
        entry,
        drawn=f"{drawn} {lack}".strip(),
        answer=study.answer(results),
        verdicts=[*study.claims(results), *static.verdicts],
        pictures=[*_saved(entry, _pictures(study, results, static), folder)],
        caveats=study.caveats,
        links=source.links,
    )


def _pictures(
    study: Study[Any], results: Any, static: Static
) -> Iterator[tuple[str, Picture, str]]:
    """Yield title, picture and caption of the figures that have something to draw."""
    for each in study.figures:
        if (picture := each.draw(results)) is not None:
            yield each.title, picture, each.caption
    for title, picture, caption in static.figures:
        if picture is not None:
            yield title, picture, caption


def _saved(
    entry: Entry, pictures: Iterator[tuple[str, Picture, str]], folder: Path
) -> Iterator[Shown]:
    for old in folder.glob(f"images/{entry.name}-[0-9]*.png"):
        old.unlink()
    for number, (title, picture, caption) in enumerate(pictures, start=1):
        file = f"images/{entry.name}-{number}.png"
        write_whole(folder / file, small(png(picture)))
        yield Shown(title=title, caption=escaped(caption), file=file)


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
    """Return the page of a study.

    Args:
        entry: The study, as the catalogue has it.
        drawn: Where its figures come from, as Markdown.
        links: Further pages -> their titles.
        answer: The study's answer, as text.
        verdicts: A verdict for each claim and case.
        pictures: Its figures, in their order.
        caveats: What it does not show, as text.
    """
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
    """Return the page of all studies: a card for each, with its first picture if it has one."""
    cards = []
    for entry in STUDIES:
        stored, image = source_of(entry).stored, f"images/{entry.name}-1.png"
        if stored is not None:
            image = f"../images/{stored.image}"
        elif not (folder / image).is_file():
            image = ""
        top = f":img-top: {image}\n:img-alt: {entry.question}\n" if image else ""
        question = escaped(entry.question)
        cards.append(
            CARD.format(question=question, name=entry.name, image=top, command=entry.command)
        )
    names = "\n".join(f"{entry.name} <{entry.name}>" for entry in STUDIES)
    return INDEX.format(cards="\n\n".join(cards), names=names)


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of the verdicts: how many of each kind, and the table."""
    if not verdicts:
        return
    count = Counter(v.word for v in verdicts)
    kinds = ", ".join(f"{count[word]} {text}" for word, text in COUNTED.items() if count[word])
    yield f"## Verdicts\n\nOf {len(verdicts)} verdicts {kinds}.\n"
    is_long = len(verdicts) > SHOWN
    if is_long:
        yield "::::{dropdown} Every verdict\n"
    yield "| | claim | case | measured | verdict |\n|---|---|---|---|---|"
    for where, claim, v in lines(verdicts):
        measured = escaped(v.measured) + (f" *{escaped(v.note)}*" if v.note else "")
        word = f"{{bdg-{BADGES.get(v.word, 'secondary')}}}`{v.word}`"
        yield f"| {escaped(where)} | {escaped(claim)} | {escaped(v.case)} | {measured} | {word} |"
    if is_long:
        yield "::::"


def escaped(text: str) -> str:
    """Return text as Markdown that shows it as it is, in one line."""
    return re.sub(r"([\\`*_<>|$\[\]{}])", r"\\\1", " ".join(text.split()))
