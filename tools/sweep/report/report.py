"""report.html of a sweep: one file that opens anywhere, without scripts or other files.

The pictures come first, then the numbers.
"""

import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np

from roundscope.tools.errors import bad
from roundscope.tools.report.page import document, figure, folded, verdict
from roundscope.tools.results.folder import write_page
from roundscope.tools.sweep.report.captions import sentence
from roundscope.tools.sweep.report.effects import Shares, changed_nothing, idle, shares
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.report.pictures import opening, pictures
from roundscope.tools.sweep.report.tables import conditions, failures, run
from roundscope.tools.sweep.report.words import many, number
from roundscope.tools.sweep.running.dry_run import said
from roundscope.tools.sweep.storage.frames import Frame, frame_of

Progress = Callable[[str], None]

HOW = """<b>Deviation.</b> Deviations are differences from unfused attention in binary64 on the same
tensors. A cell with an entry that is NaN or infinite, where that reference is not, has infinite
deviations and no signed mean; such entries are counted (not finite). <b>Seeds.</b> A seed draws the
tensors, the stochastic roundings and the noise; an input file is the same for every seed. Intervals
are 95 % t intervals of the mean over seeds: they say how well a mean is known, nothing about other
inputs. Infinite deviations make a mean infinite. On logarithmic scales the logarithm is averaged.
<b>Share of variance.</b> The share is the sum of squares of log10 rms between the values of an axis
over the total sum of squares, each axis alone, over the cells whose rms is finite and above 0.
Whether it is more than noise is decided by an F test in which the cells of one value and one seed
count as one, since they share their tensors; seeds alone would make an axis stand out in one report
of a hundred."""


def write(path: Path, out: Path | None = None, progress: Progress = lambda _: None) -> Path:
    """Write the report of a results file and return its path.

    Without `out` it is FILE.html beside the results. Raises UsageError for a file without cells or
    an `out` that cannot be, StorageError where it cannot be written.
    """
    out = path.with_suffix(".html") if out is None else out
    if out.exists() and path.exists() and out.samefile(path):
        raise bad("--out", str(out), "is the results file itself; name another")
    frame = frame_of(path)
    page = html(frame, progress)
    write_page(out, page, "Roundscope: sweep")
    return out


def answer(path: Path) -> str:
    """Return the sentence that opens the report of a results file."""
    frame = frame_of(path)
    return sentence(frame, shares(frame))


def html(frame: Frame, progress: Progress = lambda _: None) -> str:
    """Return the report as HTML; progress: called with the title of each picture."""
    found = shares(frame)
    parts = [_opening(frame, found)]
    for title, picture, caption in pictures(frame, found):
        progress(title)
        parts.append(figure(title, picture, caption))
    parts += [
        conditions(frame),
        failures(frame),
        run(frame),
    ]
    return document(
        f"Roundscope: sweep {frame.path.name}", "\n".join(part for part in parts if part)
    )


def _opening(frame: Frame, found: Shares) -> str:
    picture = opening(frame, found)
    shown = "" if picture is None else figure(*picture)
    lead = sentence(frame, found)
    sub = f"{frame.path.name}: {counts(frame)}"
    nothing = changed_nothing(idle(frame), bool(lost(frame).cells.any()))
    still = "".join(f"<p>{escape(text)}.</p>" for text in (*files(frame), *nothing))
    return (
        f"<h1>Which axis matters most?</h1><p class=sub>{escape(sub)}</p>"
        f"{_verdict(frame, lead)}{still}"
        f"{folded('How to read this page', f'<p class=note>{HOW}</p>')}{shown}"
    )


def _verdict(frame: Frame, lead: str) -> str:
    rms, name = frame.metric("rms"), shlex.quote(frame.path.name)
    usable = rms[np.isfinite(rms)]
    span = f"Rms of the output's error: {number(usable.min())}" if usable.size else ""
    if usable.size and usable.max() > usable.min():
        span += f" to {number(usable.max())}, over {many(usable.size, 'cell')}."
    by_event = f"roundscope export {name} sites.csv --table sites"
    if infinite := int(np.isinf(rms).sum()):
        span += f"{' ' if span else ''}Infinite in {many(infinite, 'cell')}."
    if not frame.rows:
        return verdict(lead, mood="bad")
    mood = "bad" if lost(frame).cells.any() else ""
    return verdict(
        lead, span, by_event, why="Next, the error of every rounding event of each cell", mood=mood
    )


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
