"""report.html of a sweep: one file that opens anywhere, without scripts or other files.

The pictures come first, then the numbers.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from roundscope.emu.numerics import NUMERICS
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.html import page
from roundscope.tools.report.model import (
    Code,
    Folded,
    Mood,
    Opening,
    Part,
    Picture,
    Points,
    Report,
    Section,
    Table,
    Text,
    notes,
)
from roundscope.tools.report.wording import many
from roundscope.tools.results.folder import write_page
from roundscope.tools.results.tables import json_of
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Value, lacking
from roundscope.tools.sweep.measuring.sums import GRADIENTS
from roundscope.tools.sweep.report import answers
from roundscope.tools.sweep.report.captions import one_seed, sentence
from roundscope.tools.sweep.report.effects import (
    LOG,
    between,
    changed_nothing,
    idle,
    mean_interval,
    shares,
    size,
    size_words,
)
from roundscope.tools.sweep.report.levels import words
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.report.pictures import opening, pictures
from roundscope.tools.sweep.report.words import in_ends, number, short, with_interval
from roundscope.tools.sweep.running.dry_run import duration, said
from roundscope.tools.sweep.storage.frames import TOGETHER, Frame, Row, Rows, frame_of, parameters

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
        " how well a mean is known, nothing about other inputs. With one seed, as of a file, the"
        " ratio of two values' errors has the interval of its heads. Infinite deviations make a"
        " mean infinite. On logarithmic scales the logarithm is averaged.",
        "note",
        lead="Seeds.",
    ),
    Text(
        "By how much a result is too long (above 0) or too short: the difference along the result"
        " of the reference, as a part of its length. Noise leaves it at 0, whatever the signs of"
        " the numbers are, where a mean over entries of both signs shows nothing. z is the gain in"
        " its standard errors over heads, as a normal deviate that is as rare as Student's, and"
        " those of several seeds are added up (over the root of their number).",
        "note",
        lead="Gain.",
    ),
    Text(
        "The share is the sum of squares of log10 rms (relative, where every cell has that) between"
        " the values of an axis over the total sum of squares, each axis alone, over the cells"
        " whose rms is finite and above 0. Whether it is more than noise is decided by an F test in"
        " which the cells of one value and one seed count as one, since they share their tensors;"
        " seeds alone would make an axis stand out in one report of a hundred.",
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


def answer(path: Path) -> list[Part]:
    """Return what the terminal says of a results file."""
    frame = frame_of(path)
    if not len(frame.rows):
        return [Text(sentence(frame, shares(frame)))]
    return answers.parts(answers.answer(frame))


def report(frame: Frame, progress: Progress = lambda _: None) -> Report:
    """Return the report; progress: called with the title of each picture."""
    found, first = shares(frame), []
    if (picture := opening(frame, found)) is not None:
        first.append(Picture(*picture))
    drawn = []
    for picture in pictures(frame, found):
        progress(picture[0])
        drawn.append(Picture(*picture))
    nothing = changed_nothing(idle(frame), bool(lost(frame).cells.any()))
    told = answers.answer(frame) if len(frame.rows) else None
    said_of = [] if told is None else [told.zeros, told.bias, answers.hits_words(told)]
    by_result = [] if told is None else words(told.results)
    return Report(
        title=f"sweep {frame.path.name}",
        heading="Which axis matters most?",
        about=f"{frame.path.name}: {counts(frame)}",
        opening=_opening(frame, sentence(frame, found)),
        parts=[
            *([Points(by_result)] if by_result else []),
            *(Text(text) for text in said_of if text),
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
    metric = size(frame)
    rms, name = frame.metric(metric), shlex.quote(frame.path.name)
    usable = rms[np.isfinite(rms)]
    span = (
        f"{size_words(metric).capitalize()} of the output's error: {number(usable.min())}"
        if usable.size
        else ""
    )
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


# rows of conditions, kinds of failures, values of an axis that are listed
MOST = 200
ERRORS = 40
VALUES = 24
COLUMNS = {
    "rms": "rms",
    "max_abs": "largest",
    "rel_rms": "relative rms",
    "gain": "gain",
    "ratio_max": "largest /\nunfused's",
    "delta_bias": "mean of\ndelta",
    "dq_rel_rms": "dq,\nrelative rms",
    "dk_rel_rms": "dk,\nrelative rms",
    "dv_rel_rms": "dv,\nrelative rms",
    **{f"{g}_gain": f"{g},\ngain" for g in GRADIENTS},
}
ALWAYS = tuple(COLUMNS)[:5]  # the others need gradients


def conditions(frame: Frame) -> list[Section]:
    """Return the table of conditions, largest rms first; those that are not finite are in red."""
    if not frame.rows:
        return []
    names = _names(frame)
    metrics = [m for m in COLUMNS if m in ALWAYS or not np.isnan(frame.metric(m)).all()]
    cells = np.argsort(frame.condition, kind="stable")
    # the numbers of the cells of each condition, in ascending order
    members = np.split(cells, np.flatnonzero(np.diff(frame.condition[cells])) + 1)
    means = [mean_interval(frame.metric("rms")[cells])[0] for cells in members]
    order = np.argsort(-np.nan_to_num(means, nan=np.inf), kind="stable")
    failed, infinite = _failed_by_condition(frame, names), lost(frame).cells
    rows, marked = [], []
    for c in order[:MOST]:
        cells, row = members[c], frame.rows[members[c][0]]
        gone, bad = int(infinite[cells].sum()), failed[tuple(row[n] for n in names)]
        seeds = f"{len(cells)}"
        if bad:
            seeds += f", {bad} failed"
        if gone:
            seeds += f", {gone} not finite"
        counts = {"gain": "not_finite", "delta_bias": "delta_not_finite"}  # of lost entries
        counts |= {f"{g}_gain": f"{g}_not_finite" for g in GRADIENTS}
        values = [
            "-"
            if m in counts and (np.nan_to_num(frame.metric(counts[m])[cells]) > 0).any()
            else in_ends(*between(m, frame.metric(m)[cells]))
            if m in LOG
            else with_interval(*mean_interval(frame.metric(m)[cells]))
            for m in metrics
        ]
        rows.append([*(short(str(row[n]), 40) for n in names), seeds, *values])
        marked.append(gone > 0)
    more = len(order) - MOST
    note = (
        "One seed each: no interval is known"
        if one_seed(frame, np.ones(len(frame.rows), bool))
        else "Errors: geometric mean over seeds [95 % t interval of the logarithms]; signed"
        " numbers: mean ± half of the 95 % t interval"
    )
    if any(marked):
        note += (
            "; red: some seed has NaN or infinite results, so the error is infinite and a signed"
            " mean is not known (-)"
        )
    tile = {axis.name: axis.label for axis in frame.axes if axis.label == "tile"}
    heads = [*(tile.get(n, n) for n in names), "seeds", *(COLUMNS[m] for m in metrics)]
    rest = f"{more} more conditions are in the file." if more > 0 else ""
    parts: list[Part] = [*notes(f"{note}."), Table(heads, rows, marked), *notes(rest)]
    return [Section("All conditions, the largest rms first", parts)]


def _names(frame: Frame) -> list[str]:
    """Return the parameters of the table's columns: those that vary among cells that are ok."""
    names = []
    for axis in frame.axes:
        names.append(axis.name)
        for n in axis.also:
            same = frame.rows.column(n) == frame.rows.column(axis.name)
            if TOGETHER.get(n) != axis.name or not same.all():
                names.append(n)
    return names


def _failed_by_condition(frame: Frame, names: list[str]) -> dict[tuple[Value, ...], int]:
    """Return how many cells of each condition, which is its values of `names`, failed."""
    found: dict[tuple[Value, ...], int] = defaultdict(int)
    first = frame.rows[0]
    fixed = {n: first[n] for n in frame.names if n != "seed" and n not in names}
    for row in frame.failed:
        if all(row[n] in (value, row.get(TOGETHER.get(n, ""))) for n, value in fixed.items()):
            found[tuple(row[n] for n in names)] += 1
    return found


def failures(frame: Frame) -> list[Section]:
    """Return the table of errors: how many cells each stopped, and the first of them."""
    if not frame.failed:
        return []
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in frame.failed:
        groups[str(row["error"])].append(row)
    order = sorted(groups, key=lambda error: -len(groups[error]))
    names = frame.names or ("preset",)
    rows = [
        [
            str(len(groups[e])),
            " ".join(f"{name}={groups[e][0][name]}" for name in names),
            short(e, 300),
        ]
        for e in order[:ERRORS]
    ]
    more = len(order) - ERRORS
    note = "To try them again, run the same command with --retry-failed."
    rest = f"{more} more kinds of errors are in the file." if more > 0 else ""
    table = Table(("cells", "the first of them", "error"), rows)
    return [Section(f"{len(frame.failed)} cells failed", [table, *notes(note, rest)])]


def run(frame: Frame) -> Section:
    """Return what was run: axes, parameters, devices, versions, times; how to get all numbers."""
    rows = frame.rows.followed_by(frame.failed)
    devices = Counter(rows.column("device"))
    fixed = [n for n in parameters(rows) if n not in frame.names]
    lines = [f"{name:11} {_values(rows, name)}" for name in frame.names]
    lines += ["", f"{'fixed':11} {' '.join(f'{n}={rows[0][n]}' for n in fixed)}", ""]
    lines += [f"{'device':11} {n} ({devices[n]} cells)" for n in sorted(filter(None, devices))]
    for text in sorted(filter(None, set(rows.column("versions")))):
        versions = json_of(frame.path, "versions", text, {str: str})
        lines += [f"{'versions':11} {' '.join(f'{k} {v}' for k, v in versions.items())}"]
    lines += [f"{'numerics':11} {_numerics(rows)}"]
    finished = set(filter(None, rows.column("finished")))
    lines += [f"{'computed':11} {min(finished)} to {max(finished)}"] if finished else []
    seconds = sum(filter(None, rows.column("seconds")))
    lines += [f"{'time':11} {duration(seconds)} of one worker"]
    name = shlex.quote(frame.path.name)
    lines += [
        "",
        f"{'all numbers':11} roundscope export {name} cells.csv",
        f"{'by event':11} roundscope export {name} sites.csv --table sites",
    ]
    return Section("What was run", [Code("\n".join(lines))])


def _values(rows: Rows, name: str) -> str:
    values = sorted(set(rows.column(name)), key=lambda v: (isinstance(v, str), v))
    whole = all(isinstance(v, int) for v in values)
    if len(values) > 2 and whole and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    more = f" and {len(values) - VALUES} more" if len(values) > VALUES else ""
    return " ".join(str(v) for v in values[:VALUES]) + more


def _numerics(rows: Rows) -> str:
    """Return the numeric core's version, known if this one gives the last cell its key."""
    from roundscope.tools.sweep.conditions.condition import cell_of

    given = {name: rows[-1][name] for name in parameters(rows)}
    # without the axes that the cell may lack
    fewer = {name: x for name, x in given.items() if name in DEFAULTS or x != lacking(name)}
    try:
        same = rows[-1]["key"] in (cell_of(given).key, cell_of(fewer).key)
    except UsageError:
        return "not known (its input is not here)"
    if same:
        return str(NUMERICS)
    return f"not that of this Roundscope ({NUMERICS}), or another input file"
