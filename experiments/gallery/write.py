"""Write the pages and pictures of docs/gallery."""

import gzip
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Picture

from roundscope.emu.whole_files import write_whole
from roundscope.experiments.catalogue import STUDIES, Entry, named
from roundscope.experiments.framework.loop import measured
from roundscope.experiments.framework.page import missing
from roundscope.experiments.framework.study import Static, Study
from roundscope.experiments.gallery.page import Shown, escaped, index, page
from roundscope.experiments.gallery.sources import SOURCES, Source
from roundscope.tools.report.pictures import png

DOCS = Path(__file__).resolve().parents[2] / "docs"


def write(names: Sequence[str] = (), folder: Path = DOCS / "gallery") -> None:
    """Write the pages of these studies, by default of all, and the index.

    Raises UsageError for a name that no study has.
    """
    chosen = [named(name) for name in names] or STUDIES
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for entry in chosen:
        write_whole(folder / f"{entry.name}.md", text_of(entry, folder))
    cards = {entry: _first(entry, folder) for entry in STUDIES}
    write_whole(folder / "index.md", index(cards))


def text_of(entry: Entry, folder: Path) -> str:
    """Return the page of a study; write its pictures into the folder."""
    source = SOURCES[entry.name]
    if source.study is None:
        return _without_study(entry, source)
    study = source.study()
    with tempfile.TemporaryDirectory() as path:
        _copy(source, Path(path))
        outcome, results = measured(study, Path(path), bool(source.records))
        if results is None:
            raise RuntimeError(f"{entry.name}: there is nothing to draw")
        is_whole = outcome.there == outcome.launches
        static = study.static(lambda n: None) if study.static and is_whole else Static()
    lack = missing({"there": outcome.there, "launches": outcome.launches}, study.unit)
    return page(
        entry,
        drawn=f"{_drawn(source)} {lack}".strip(),
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
    import io

    from PIL import Image

    out = io.BytesIO()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()


def _copy(source: Source, folder: Path) -> None:
    """Copy the runs of record into a folder, under the names that their commands look for."""
    for file, name in source.records.items():
        opened = gzip.open if file.endswith(".gz") else open
        with opened(DOCS / "runs" / file, "rb") as kept, (folder / name).open("wb") as copy:
            shutil.copyfileobj(kept, copy)


def _drawn(source: Source) -> str:
    command = f"`roundscope {source.command}`"
    if not source.records:
        return f"Computed on a CPU by {command}."
    files = " and ".join(f"`docs/runs/{file}`" for file in source.records)
    return f"Drawn by {command} from {files}."


def _without_study(entry: Entry, source: Source) -> str:
    pictures = []
    drawn = source.instead
    if source.stored is not None:
        image = f"../images/{source.stored.image}"
        pictures = [Shown(title=entry.question, caption=source.stored.caption, file=image)]
        drawn = (
            f"Printed by `roundscope {source.stored.command}` on an H200. The results file of that"
            " run was not kept, so only this picture is shown; the command draws all of them."
        )
    return page(
        entry,
        drawn=drawn,
        answer="",
        verdicts=(),
        pictures=pictures,
        caveats="",
        links=source.links,
    )


def _first(entry: Entry, folder: Path) -> str:
    stored = SOURCES[entry.name].stored
    if stored is not None:
        return f"../images/{stored.image}"
    file = f"images/{entry.name}-1.png"
    return file if (folder / file).is_file() else ""
