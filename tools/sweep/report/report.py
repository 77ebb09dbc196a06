"""report.html of a sweep: one file that opens anywhere, without scripts or other files.

The pictures come first, then the numbers.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np

from roundscope.tools.errors import bad
from roundscope.tools.report.html import page
from roundscope.tools.report.model import Folded, Mood, Opening, Picture, Report, Text
from roundscope.tools.results.folder import write_page
from roundscope.tools.sweep.report.captions import sentence
from roundscope.tools.sweep.report.effects import changed_nothing, idle, shares
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.report.pictures import opening, pictures
from roundscope.tools.sweep.report.tables import conditions, failures, run
from roundscope.tools.sweep.report.words import many, number
from roundscope.tools.sweep.running.dry_run import said
from roundscope.tools.sweep.storage.frames import Frame, frame_of

Progress = Callable[[str], None]

HOW = [
    Text(
        "Deviations are differences from unfused attention in binary64 on the same"
        " tensors. A cell with an entry that is NaN or infinite, where that reference is not, has"
        " infinite deviations and no signed mean; such entries are counted (not finite).",
        "note",
        lead="Deviation.",
    ),
    Text(
        "A seed draws the tensors, the stochastic roundings and the noise; an input file is"
        " the same for every seed. Intervals are 95 % t intervals of the mean over seeds: they say"
        " how well a mean is known, nothing about other inputs. Infinite deviations make a mean"
        " infinite. On logarithmic scales the logarithm is averaged.",
        "note",
        lead="Seeds.",
    ),
    Text(
        "The share is the sum of squares of log10 rms between the values of an axis"
        " over the total sum of squares, each axis alone, over the cells whose rms is finite and"
        " above 0. Whether it is more than noise is decided by an F test in which the cells of one"
        " value and one seed count as one, since they share their tensors; seeds alone would make"
        " an axis stand out in one report of a hundred.",
        "note",
        lead="Share of variance.",
    ),
]


def write(path: Path, out: Path | None = None, progress: Progress = lambda _: None) -> Path:
    """Write the report of a results file and return its path.

    Without `out` it is FILE.html beside the results. Raises UsageError for a file without cells or
    an `out` that cannot be, StorageError where it cannot be written.
    """
    out = path.with_suffix(".html") if out is None else out
    if out.exists() and path.exists() and out.samefile(path):
        raise bad("--out", str(out), "is the results file itself; name another")
    frame = frame_of(path)
    write_page(out, page(report(frame, progress)), "Roundscope: sweep")
    return out


def answer(path: Path) -> str:
    """Return the sentence that opens the report of a results file."""
    frame = frame_of(path)
    return sentence(frame, shares(frame))


def report(frame: Frame, progress: Progress = lambda _: None) -> Report:
    """Return the report; progress: called with the title of each picture."""
    found, first = shares(frame), []
    if (picture := opening(frame, found)) is not None:
        first.append(Picture(*picture))
    drawn = []
    for title, figure, caption in pictures(frame, found):
        progress(title)
        drawn.append(Picture(title, figure, caption))
    nothing = changed_nothing(idle(frame), bool(lost(frame).cells.any()))
    return Report(
        title=f"sweep {frame.path.name}",
        heading="Which axis matters most?",
        about=f"{frame.path.name}: {counts(frame)}",
        opening=_opening(frame, sentence(frame, found)),
        parts=[
            *(Text(f"{text}.") for text in (*files(frame), *nothing)),
            Folded("How to read this page", HOW),
            *first,
            *drawn,
            *conditions(frame),
            *failures(frame),
            run(frame),
        ],
    )


def _opening(frame: Frame, lead: str) -> Opening:
    rms, name = frame.metric("rms"), shlex.quote(frame.path.name)
    usable = rms[np.isfinite(rms)]
    span = f"Rms of the output's error: {number(usable.min())}" if usable.size else ""
    if usable.size and usable.max() > usable.min():
        span += f" to {number(usable.max())}, over {many(usable.size, 'cell')}."
    by_event = f"roundscope export {name} sites.csv --table sites"
    if infinite := int(np.isinf(rms).sum()):
        span += f"{' ' if span else ''}Infinite in {many(infinite, 'cell')}."
    if not frame.rows:
        return Opening(lead, mood="bad")
    mood: Mood = "bad" if lost(frame).cells.any() else ""
    why = "Next, the error of every rounding event of each cell"
    return Opening(lead, span, by_event, why, mood)


def files(frame: Frame) -> list[str]:
    """Return what the input files say of their calls, and what was asked otherwise."""
    notes = frame.rows.columns.get("note", np.empty(0, object))
    return said(tuple(dict.fromkeys(note for note in notes if note)))


def counts(frame: Frame) -> str:
    """Return how many cells, conditions and seeds there are, and what failed or is not finite."""
    infinite = int(lost(frame).cells.sum())
    seeds = {*frame.rows.column("seed"), *frame.failed.column("seed")}
    ran = len(np.unique(frame.condition))
    parts = [
        many(len(frame.rows) + len(frame.failed), "cell"),
        many(ran, "condition"),
        many(len(seeds), "seed"),
    ]
    if frame.failed:
        parts.append(f"{len(frame.failed)} failed")
    if infinite:
        parts.append(f"{infinite} with NaN or infinite results")
    if frame.repeated:
        parts.append(f"{frame.repeated} computed again later, of which the last result counts")
    return ", ".join(parts) + "."
