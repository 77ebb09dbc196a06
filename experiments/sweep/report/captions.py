"""The sentences below the pictures of a sweep's report."""

from collections.abc import Sequence

import numpy as np

from roundscope.attention.sites import Site
from roundscope.experiments.sweep.report.effects import LOG, centre, mean_interval
from roundscope.experiments.sweep.report.slices import Slice
from roundscope.experiments.sweep.report.words import listed, number, percent
from roundscope.experiments.sweep.storage.frames import Axis, Frame


def against(frame: Frame, cut: Slice) -> str:
    """Below deviation against an axis."""
    axis = cut.across
    if not axis.numeric:
        return (
            f"Which {axis.label} deviates most? {_extremes(frame, cut)} {_shown(frame, cut, 'rms')}"
        )
    slopes = _slopes(frame, cut)
    if not slopes.size:
        return (
            f"Does the deviation grow with {axis.label}? No two values of it can be compared."
            f" {_shown(frame, cut, 'rms')}"
        )
    among = (
        f" ({slopes.min():+.2f} to {slopes.max():+.2f} over the lines)" if slopes.size > 1 else ""
    )
    return (
        f"Does the deviation grow with {axis.label}? rms goes as its power"
        f" {np.median(slopes):+.2f}{among}. {_shown(frame, cut, 'rms')}"
    )


def comparable(frame: Frame, cut: Slice) -> bool:
    """Whether the axis across has two values that can be compared; a picture of it would show
    nothing otherwise.
    """
    return bool(_slopes(frame, cut).size) if cut.across.numeric else len(_means(frame, cut)) > 1


def _slopes(frame: Frame, cut: Slice) -> np.ndarray:
    """The exponent of rms in the axis across, one per line and row, from the means by least
    squares.
    """
    y = frame.metric("rms")
    x = np.log10(np.array(cut.across.values, dtype=float))[frame.code(cut.across)]
    usable, found = cut.cells & np.isfinite(y) & (y > 0), []
    others = [axis for axis in (cut.lines, cut.rows) if axis is not None]
    place = np.stack([frame.code(a) for a in others], 1) if others else np.zeros((len(y), 1), int)
    for where in np.unique(place[usable], axis=0):
        mine = usable & (place == where).all(1)
        if np.unique(x[mine]).size > 1:
            found.append(np.polyfit(x[mine], np.log10(y[mine]), 1)[0])
    return np.array(found)


def _extremes(frame: Frame, cut: Slice) -> str:
    means = _means(frame, cut)
    if len(means) < 2:
        return "No two of them can be compared."
    high, low = max(means, key=lambda c: means[c]), min(means, key=lambda c: means[c])
    word = cut.across.word
    if means[high] <= 1.001 * means[low]:
        return "None: the geometric means of rms are equal to a thousandth."
    return (
        f"{word(high)} (rms {number(means[high])}), least {word(low)} ({number(means[low])});"
        " geometric means over what is shown."
    )


def _means(frame: Frame, cut: Slice) -> dict[int, float]:
    """The geometric mean of rms at each value that is shown and has one."""
    y, code = frame.metric("rms"), frame.code(cut.across)
    means = {
        c: centre("rms", y[cut.cells & (code == c) & (y > 0)])[0]
        for c in cut.shown[cut.across.name]
    }
    return {c: mean for c, mean in means.items() if np.isfinite(mean)}


def _shown(frame: Frame, cut: Slice, metric: str) -> str:
    """How seeds are shown, what is held and what is left out."""
    mark = "lines and bands" if cut.across.numeric and metric in LOG else "marks and bars"
    kind = (
        "geometric means and their"
        if metric in LOG
        else "means (geometric where the scale is logarithmic) and their"
    )
    parts = [
        f"{seeds_words(frame, cut.cells)} (faint dots); {mark}: {kind} 95 % t intervals over seeds."
    ]
    if one_seed(frame, cut.cells):
        parts = ["One seed each: no spread is known."]
    parts += _left(frame, cut)
    if cut.held:
        parts.append(
            f"All at {listed([f'{k} = {v}' for k, v in cut.held.items()])}, where the most"
            " conditions are and rms is largest."
        )
    lost = int(
        (
            cut.cells
            & ~(frame.metric(metric) > 0 if metric in LOG else np.isfinite(frame.metric(metric)))
        ).sum()
    )
    if lost:
        parts.append(
            f"{lost} cells without a finite {metric}{' above 0' if metric in LOG else ''} are left"
            " out."
        )
    return " ".join(parts)


def _left(frame: Frame, cut: Slice) -> list[str]:
    found = []
    for axis in (cut.across, cut.lines, cut.rows):
        if axis is not None and (more := len(axis.values) - len(cut.shown[axis.name])):
            which = "evenly chosen" if axis.numeric else "those with the largest deviation"
            found.append(
                f"{more} of {len(axis.values)} values of {axis.label} are not shown ({which}, and"
                " with cells here, are)."
            )
    return found


def seeds_words(frame: Frame, cells: np.ndarray) -> str:
    """How many seeds a condition has: 5 seeds each, or 1 to 5 seeds each."""
    count = np.bincount(frame.condition[cells]) if cells.any() else np.zeros(1, int)
    low, high = count[count > 0].min(initial=count.max()), count.max()
    return f"{high} seeds each" if low == high else f"{low} to {high} seeds each"


def one_seed(frame: Frame, cells: np.ndarray) -> bool:
    """Whether no condition has a second seed."""
    return bool(not cells.any() or np.bincount(frame.condition[cells]).max() < 2)


def signed(frame: Frame, cut: Slice, metric: str) -> str:
    """Below signed means: how many conditions lean."""
    y = frame.metric(metric)
    found = [
        mean_interval(y[cut.cells & (frame.condition == c)])
        for c in np.unique(frame.condition[cut.cells])
    ]
    known = [(mean, half) for mean, half in found if np.isfinite(half)]
    leaning = sum(abs(mean) > half for mean, half in known)
    what = "delta" if metric == "delta_bias" else "the output"
    answer = (
        f"In {leaning} of {len(known)} conditions shown the interval over seeds leaves out 0 (1 in"
        " 20 does by chance)."
        if known
        else "One seed cannot tell."
    )
    own = "The thin line through a dot: its own standard error over rows."
    return f"Does the error of {what} lean? {answer} {_shown(frame, cut, metric)} {own}"


def softmax(frame: Frame, cut: Slice) -> str:
    """Below rows with several P = 1 and rescales."""
    share, rescales = (
        float(np.nanmax(frame.metric(name)[cut.cells])) for name in ("several_ones", "rescales")
    )
    return (
        "How often do rows see two or more P = 1, and how often does the running maximum move? Up"
        f" to {percent(share)} of the rows, and up to {number(rescales)} key tiles per row."
        f" {_shown(frame, cut, 'several_ones')}"
    )


def pair(frame: Frame, cut: Slice, together: float) -> str:
    """Below the map of two axes."""
    a, b = cut.lines, cut.across
    assert a is not None
    return (
        f"Does {b.label} act alike at every {a.label}? Together they explain {percent(together)} of"
        " the variance of log rms beyond what each explains alone (0: alike, as factors). Means ±"
        f" half of the 95 % t interval over seeds, {seeds_words(frame, cut.cells)}; right: the"
        " largest error over that of unfused attention in the same formats, what tiling"
        f" costs.{_at(cut.held)}"
    )


def _at(held: dict[str, str]) -> str:
    return f" All at {listed([f'{k} = {v}' for k, v in held.items()])}." if held else ""


def sites(
    frame: Frame,
    cut: Slice | None,
    cells: np.ndarray,
    names: Sequence[Site],
    rms: np.ndarray,
    lean: np.ndarray,
    words: list[str],
    quiet: Sequence[Site],
) -> str:
    """Below errors by site; rms (sites, columns), lean (sites, columns, mean and half)."""
    held = {} if cut is None else dict(cut.held)
    if cut is not None and cut.lines is not None:
        held[cut.lines.label] = _only(frame, cut.lines, cells)
    none = f" Without any error: {' '.join(quiet)}." if quiet else ""
    means = lean[..., 0]
    return (
        "Which events err most, and which way? rms is largest in"
        f" {_largest(rms, rms, names, words)}, the mean signed error in"
        f" {_largest(np.abs(means), means, names, words)}; in value, so that an event of large"
        f" numbers has large errors. {_sites_spread(frame, cells, bool(words))}{_at(held)}{none}"
    )


def _largest(size: np.ndarray, x: np.ndarray, names: Sequence[Site], words: list[str]) -> str:
    """Where a table of sites is largest, and its number there."""
    i, j = divmod(int(np.nanargmax(size)), size.shape[1])
    return f"{names[i]}{f' at {words[j]}' if words else ''} ({number(x[i, j])})"


def _sites_spread(frame: Frame, cells: np.ndarray, mapped: bool) -> str:
    if one_seed(frame, cells):
        return "One seed."
    interval = "95 % t interval over seeds"
    shown = (
        f"pale: mean signed errors whose {interval} holds 0; a number stands where it does not (1"
        " in 20 by chance)"
    )
    return (
        f"Means over seeds, {seeds_words(frame, cells)};"
        f" {shown if mapped else f'bars: {interval}'}."
    )


def _only(frame: Frame, axis: Axis, cells: np.ndarray) -> str:
    found = np.unique(frame.code(axis)[cells])
    return axis.word(int(found[0])) if found.size else "-"
