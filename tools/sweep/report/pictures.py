"""The pictures of a sweep's report with their captions.

Each caption asks a question and answers it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from roundscope.attention.sites import Site
from roundscope.tools.sweep.report import captions, plots, plots_maps
from roundscope.tools.sweep.report.effects import Shares, joint_share, mean_interval, shares
from roundscope.tools.sweep.report.slices import LINES, Slice, chosen, slice_of
from roundscope.tools.sweep.report.words import AXES_LABELS, with_interval
from roundscope.tools.sweep.storage.frames import Axis, Frame, sites_of

Picture = tuple[str, Any, str]
# axes that come first, in this order; the others are ordered by their effect
FIRST = ("T", "S", "block_q", "block_k", "format")
MOST = 8  # pictures of deviation against an axis
DEVIATION = ("rms", "max_abs", "rel_rms")
SIGNED = ("mean_ulps", "mean", "mean_abs")
SOFTMAX = ("several_ones", "rescales")
BACKWARD = ("delta_bias", "dq_rel_rms", "dk_rel_rms", "dv_rel_rms")


def opening(frame: Frame, found: Shares) -> Picture | None:
    """Return the picture that shows which axis matters most.

    Where only the seed varies it shows the seeds; None for a single cell.
    """
    if frame.axes and found.cells and found.effects[0].share > 0.0:
        first, rms = found.effects[0].axis, frame.metric("rms")
        usable = np.isfinite(rms) & (rms > 0)
        figure = plots.opening(found, first, (frame.code(first), rms, usable))
        return "Share of each axis, and the first of them", figure, captions.opening(frame, found)
    last = "delta_bias" if np.isfinite(frame.metric("delta_bias")).any() else "mean_ulps"
    values = {
        name: frame.metric(name)[np.argsort(frame.seeds())] for name in ("rms", "max_abs", last)
    }
    if frame.axes or len(frame.rows) < 2 or not np.isfinite(values["rms"]).any():
        return None
    return "How much do seeds differ?", plots.seeds(values), captions.seeds(frame)


def pictures(frame: Frame, found: Shares) -> Iterator[Picture]:
    """Yield all further pictures for which this sweep has the numbers."""
    if not frame.rows:
        return
    by_name = {axis.name: axis for axis in frame.axes}
    order = [by_name[n] for n in FIRST if n in by_name]
    order += [e.axis for e in found.effects if e.axis not in order]
    order = [axis for axis in order if captions.comparable(frame, slice_of(frame, axis))]
    for axis in order[:MOST]:
        cut = slice_of(frame, axis)
        caption = captions.against(frame, cut)
        if axis is order[:MOST][-1] and len(order) > MOST:
            caption += f" {len(order) - MOST} more axes have no picture."
        yield f"Deviation against {axis.label}", plots.against(frame, cut, DEVIATION), caption
    yield from _pair(frame, found)
    yield from _sites(frame, found)
    if frame.axes:
        yield from _others(frame)


def _others(frame: Frame) -> Iterator[Picture]:
    """Yield signed errors, softmax events and gradients, each against one axis.

    It is the axis that explains most of them.
    """
    if np.isfinite(frame.metric("mean_ulps")).any():
        cut = _cut(frame, "mean_abs")
        yield (
            "Signed mean beside magnitude",
            plots.against(frame, cut, SIGNED),
            captions.signed(frame, cut, "mean_ulps"),
        )
    occurring = [m for m in SOFTMAX if (np.nan_to_num(frame.metric(m)) > 0).any()]
    if occurring:
        cut = _cut(frame, occurring[0])
        yield (
            "Rows with several P = 1, and rescales",
            plots.against(frame, cut, SOFTMAX),
            captions.softmax(frame, cut),
        )
    if np.isfinite(frame.metric("delta_bias")).any():
        cut = _cut(frame, "dq_rel_rms", flat=True)
        yield (
            "Backward: bias of delta, and gradients",
            plots.against(frame, cut, BACKWARD),
            captions.signed(frame, cut, "delta_bias"),
        )


def _cut(frame: Frame, metric: str, flat: bool = False) -> Slice:
    """Return the slice along the axis that explains most of a metric."""
    return slice_of(frame, shares(frame, metric).effects[0].axis, metric, flat=flat)


def _pair(frame: Frame, found: Shares) -> Iterator[Picture]:
    """Yield the picture of two axes together: tile and format where both vary.

    Otherwise these are the two axes that explain most.
    """
    tile = frame.axis("block_k") or frame.axis("block_q")
    a, b = frame.axis("format"), tile
    if (a is None or b is None) and len(found.effects) > 1:
        a, b = found.effects[0].axis, found.effects[1].axis
    if a is None or b is None or a == b or not np.isfinite(frame.metric("rms")).any():
        return
    cut = slice_of(frame, b, "rms", lines=a, flat=True)
    rows, columns = [c for c in cut.of(a) if c is not None], [c for c in cut.of(b) if c is not None]
    values = {
        name: _table(frame, cut, name, (a, rows), (b, columns)) for name in ("rms", "ratio_max")
    }
    values = {name: v for name, v in values.items() if not np.isnan(v[0]).all()}
    labels = AXES_LABELS.get(a.label, a.label), AXES_LABELS.get(b.label, b.label)
    figure = plots_maps.pair(
        [a.word(c) for c in rows], [b.word(c) for c in columns], values, labels
    )
    yield (
        f"{a.label} and {b.label} together",
        figure,
        captions.pair(frame, cut, joint_share(frame, "rms", a, b)),
    )


def _table(
    frame: Frame,
    cut: Slice,
    metric: str,
    rows: tuple[Axis, list[int]],
    columns: tuple[Axis, list[int]],
) -> tuple[np.ndarray, list[list[str]]]:
    """Return (means, mean ± interval as text) of a metric by two axes."""
    y, a, b = frame.metric(metric), frame.code(rows[0]), frame.code(columns[0])
    found = [
        [mean_interval(y[cut.cells & (a == i) & (b == j)]) for j in columns[1]] for i in rows[1]
    ]
    text = [[with_interval(*pair).replace(" ± ", "\n± ") for pair in row] for row in found]
    return np.array([[mean for mean, _ in row] for row in found]), text


def _sites(frame: Frame, found: Shares) -> Iterator[Picture]:
    """Yield errors by site and format, or by site and the axis that explains most.

    Where no axis varies these are bars.
    """
    axis = (
        frame.axis("format")
        or frame.axis("preset")
        or (found.effects[0].axis if found.effects else None)
    )
    cut = None if axis is None else slice_of(frame, axis, flat=True)
    cells, codes = np.ones(len(frame.rows), bool), [-1]
    if cut is not None and axis is not None:
        cells = cut.cells
        if cut.lines is not None:
            cells = cells & (frame.code(cut.lines) == _largest(frame, cut.lines, cells))
        codes = chosen(frame, axis, cells, LINES)
    members = [
        np.flatnonzero(cells if axis is None else cells & (frame.code(axis) == c)) for c in codes
    ]
    rms, bias = _site_numbers(frame, members)
    names = [s for s in Site if any(np.nanmax(x, initial=0.0) > 0 for x in rms[s])]
    if not names:
        return
    mean = np.array([[mean_interval(x)[0] for x in rms[s]] for s in names])
    signed = np.array([[mean_interval(x) for x in bias[s]] for s in names])
    quiet = [s for s in Site if s not in names and any(x.size for x in rms[s])]
    if axis is None or cut is None:
        yield (
            "Errors by event",
            plots_maps.site_bars(list(names), mean[:, 0], *signed[:, 0].T),
            captions.sites(frame, None, cells, names, mean, signed, [], quiet),
        )
        return
    words = [axis.word(c) for c in codes]
    across = AXES_LABELS.get(axis.label, axis.label)
    figure = plots_maps.sites(list(names), words, mean, signed[..., 0], signed[..., 1], across)
    caption = captions.sites(frame, cut, cells, names, mean, signed, words, quiet)
    yield f"Errors by event and {axis.label}", figure, caption


def _largest(frame: Frame, axis: Axis, cells: np.ndarray) -> int:
    """Return the value of an axis that has the most conditions.

    Of several such values it is the one with the largest rms.
    """
    y, code = frame.metric("rms"), frame.code(axis)
    usable = cells & np.isfinite(y)
    there = np.unique(code[usable if usable.any() else cells])
    size = {
        int(c): (
            np.unique(frame.condition[cells & (code == c)]).size,
            float(np.nan_to_num(y[usable & (code == c)]).sum()),
        )
        for c in there
    }
    return max(size, key=lambda c: size[c])


def _site_numbers(
    frame: Frame, members: list[np.ndarray]
) -> tuple[dict[Site, list[np.ndarray]], dict[Site, list[np.ndarray]]]:
    """Return (rms errors, mean errors) of every site.

    Each has, for each group of cells, the numbers of its cells that have the site.
    """
    keys, names = frame.rows.column("key"), ("rms_error", "mean_error")
    found = [sites_of(frame.path, list(keys[group]), names) for group in members]
    rms, bias = (
        {s: [of[name].get(s, np.empty(0)) for of in found] for s in Site} for name in names
    )
    return rms, bias
