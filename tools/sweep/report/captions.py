"""The sentence that opens a sweep's report, and the captions of its pictures."""

from collections.abc import Callable, Sequence

import numpy as np

from roundscope.attention.sites import Site
from roundscope.attention.testing.families import FAMILIES
from roundscope.tools.report.wording import listed, many
from roundscope.tools.sweep.report.effects import (
    LOG,
    Shares,
    between,
    center,
    fold,
    mean_interval,
    size,
    size_words,
)
from roundscope.tools.sweep.report.gains import digits_of, gain_words, gains
from roundscope.tools.sweep.report.levels import levels, of_results, order_words
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.report.lost import sentence as lost_sentence
from roundscope.tools.sweep.report.slices import Slice
from roundscope.tools.sweep.report.words import METRIC_LABELS, in_ends, number, percent
from roundscope.tools.sweep.report.words import fold as times
from roundscope.tools.sweep.storage.frames import Axis, Frame
from roundscope.tools.trace.analysis.bias import threshold


def sentence(frame: Frame, found: Shares) -> str:
    """Return what is NaN or infinite, and which axis matters most for the deviation elsewhere."""
    if not frame.rows:
        return f"None of {len(frame.failed)} cells is ok; below is why."
    first = lost_sentence(frame, lost(frame))
    if not first:
        return _axis(frame, found)
    if not frame.axes or not found.cells:
        return first
    return (
        f"{first} Over the {many(found.cells, 'cell')} of finite rms above 0: {_axis(frame, found)}"
    )


def _axis(frame: Frame, found: Shares) -> str:
    if not found.cells:
        return "No cell has a finite deviation above 0, so no axis can explain it."
    if not frame.axes:
        return _alone(frame)
    first = found.effects[0]
    if first.share == 0.0:
        every = frame.metric(size(frame))
        rms, _ = mean_interval(every[np.isfinite(every)])
        return f"No axis matters: {size_words(size(frame))} is {number(rms)} in every cell."
    if np.isnan(first.limit):
        return f"{_most(frame, found)}{_by_heads(frame, first.axis)}.{order_of(frame)}"
    if not first.stands_out:
        share = percent(first.share)
        return (
            f"No axis stands out from the seeds: the largest, {first.axis.label}, explains {share}"
            " of the variance of log rms."
        )
    then = ""
    if len(found.effects) > 1:
        second = found.effects[1]
        could = "" if second.stands_out else ", which seeds could give too"
        then = f"; next is {second.axis.label} with {percent(second.share)}{could}"
    seeds = f"the seeds alone make {percent(found.seeds)}"
    return f"{_most(frame, found)}{then}; {seeds}.{order_of(frame)}"


def order_of(frame: Frame) -> str:
    """Return in which gradients an axis' values have another order than in out, as a sentence."""
    words = order_words(frame, of_results(frame))
    return f" {words}" if words else ""


def _by_heads(frame: Frame, axis: Axis) -> str:
    """Return what heads say of the effect of an axis where there is one seed."""
    times = max(levels(frame, axis), key=lambda x: x.rms).times
    from_file = all(str(x) not in FAMILIES for x in frame.rows.column("input"))
    more = "" if from_file else "; several seeds (seed=0:5) would say more"
    if times is None or np.isnan(times[1]):
        return f"; one seed alone tells no effect from chance{more}"
    _, low, high = times
    chance = "" if low > 1.0 else ", so that it may be chance"
    return f" (95 % over heads: {number(low, 2)} to {number(high, 2)} times{chance}{more})"


def _most(frame: Frame, found: Shares) -> str:
    first = found.effects[0]
    codes, means = fold(frame, first.axis)
    high = first.axis.word(int(codes[means.argmax()]))
    low = first.axis.word(int(codes[means.argmin()]))
    ratio = 10 ** float(means.max() - means.min())
    than = f"{times(ratio)} at {high} than at {low}"
    if ratio >= 2:
        than = f"{times(ratio)} as large at {high} as at {low}"
    rms = size_words(size(frame))
    explains = f"it explains {percent(first.share)} of the variance of log rms, and {rms} is {than}"
    return f"{first.axis.label} matters most for the deviation: {explains}"


def _alone(frame: Frame) -> str:
    rms, largest = (in_ends(*between(m, frame.metric(m))) for m in ("rms", "max_abs"))
    count = len(frame.rows)
    seeds = f"{count} seeds of one condition" if count > 1 else "One condition, one seed"
    share = percent(mean_interval(frame.metric("rel_rms"))[0])
    return (
        f"{seeds}: rms from float64 is {rms} ({share} of its rms), the largest"
        f" difference {largest}."
    )


def opening(frame: Frame, found: Shares) -> str:
    """Return the caption of the opening picture."""
    crossed = "Combinations: what the axes explain together, beyond each alone."
    if not found.crossed:
        crossed = (
            "The axes are not fully crossed here: an axis' share contains that of others that"
            " change with it."
        )
    limit = "One seed: the level of noise is not known."
    if any(np.isfinite(e.limit) for e in found.effects):
        limit = (
            "Blue line: what the seeds could give by chance (1 % over all axes); red: beyond it."
        )
    seeds = ""
    if np.isfinite(found.seeds):
        seeds = " Seeds: the variance within conditions, which no axis explains."
    first = found.effects[0]
    if found.is_of_one:
        return (
            f"The {size_words(size(frame))} of every cell by {first.axis.label} (dots), geometric"
            f" means (lines): {first.axis.label} is the only axis.{_missing(frame)}"
        )
    return (
        f"Bars: the share of the variance of log rms over {found.cells} cells that lies between the"
        f" values of one axis (main effect, eta squared). {limit} {crossed}{seeds} Dots: the"
        f" {size_words(size(frame))} of every cell by"
        f" {found.effects[0].axis.label}; lines: geometric means.{_missing(frame)}"
    )


def _missing(frame: Frame) -> str:
    rms = frame.metric("rms")
    left = [
        f"{many(n, 'cell')} {what}"
        for n, what in (
            (int(np.isinf(rms).sum()), "of infinite rms (red triangles)"),
            (int(np.isnan(rms).sum()), "without an rms"),
            (int((rms == 0).sum()), "of rms 0"),
        )
        if n
    ]
    return f" Left out of shares and means: {listed(left)}." if left else ""


def seeds(frame: Frame) -> str:
    """Return the caption of the picture of seeds."""
    infinite = int(lost(frame).cells.sum())
    left = f" {infinite} of them have NaN or infinite results: no dots." if infinite else ""
    return (
        f"{len(frame.rows)} seeds (dots); line and band: mean and its 95 % t interval over seeds,"
        f" of the logarithm for rms and largest.{left}"
    )


def against(frame: Frame, cut: Slice) -> str:
    """Return the caption of deviation against an axis."""
    axis, shown = cut.across, _shown(frame, cut, "rms")
    words = listed([axis.word(c) for c in _infinite(frame, cut)])
    if not axis.numeric:
        least = _least(_means(frame, cut), axis.word)
        lost = f"{words}: results that are NaN or infinite. Of the other cells: " if words else ""
        return f"Which {axis.label} deviates most? {lost}{least} {shown}"
    question = f"Does the deviation grow with {axis.label}?"
    if words:
        question += f" At {words} results are NaN or infinite."
    slopes = _slopes(frame, cut)
    if not slopes.size:
        return f"{question} No two values of it can be compared. {shown}"
    among = ""
    if slopes.size > 1:
        among = f" ({slopes.min():+.2f} to {slopes.max():+.2f} over the lines)"
    return f"{question} rms goes as its power {np.median(slopes):+.2f}{among}. {shown}"


def comparable(frame: Frame, cut: Slice) -> bool:
    """Return whether the axis across has two values that can be compared.

    Otherwise a picture of it would show nothing.
    """
    return bool(_slopes(frame, cut).size) if cut.across.numeric else len(_means(frame, cut)) > 1


def _slopes(frame: Frame, cut: Slice) -> np.ndarray:
    """Return the exponents of rms as a power of the axis across, fitted for each line and row."""
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


def _least(means: dict[int, float], word: Callable[[int], str]) -> str:
    """Return which value has the largest mean, and which the least."""
    if len(means) < 2:
        return "No two of them can be compared."
    high, low = max(means, key=lambda c: means[c]), min(means, key=lambda c: means[c])
    if means[high] <= 1.001 * means[low]:
        return "None: the geometric means of rms are equal to a thousandth."
    return (
        f"{word(high)} (absolute rms {number(means[high])}), least {word(low)}"
        f" ({number(means[low])}); geometric means over what is shown."
    )


def _infinite(frame: Frame, cut: Slice) -> list[int]:
    """Return the values that are shown at which an rms is infinite."""
    y, code = frame.metric("rms"), frame.code(cut.across)
    there = cut.cells & np.isinf(y)
    return [c for c in cut.shown[cut.across.name] if (there & (code == c)).any()]


def _means(frame: Frame, cut: Slice) -> dict[int, float]:
    """Return the geometric mean of rms at each value that is shown and has one."""
    y, code = frame.metric("rms"), frame.code(cut.across)
    means = {
        c: center("rms", y[cut.cells & (code == c) & (y > 0) & np.isfinite(y)])[0]
        for c in cut.shown[cut.across.name]
    }
    return {c: mean for c, mean in means.items() if np.isfinite(mean)}


def _shown(frame: Frame, cut: Slice, metric: str) -> str:
    """Return how seeds are shown, what is held fixed and what is left out."""
    mark = "lines and bands" if cut.across.numeric and metric in LOG else "marks and bars"
    means = "geometric means"
    if metric not in LOG:
        means = "means (geometric where the scale is logarithmic)"
    parts = [
        f"{seeds_words(frame, cut.cells)} (faint dots); {mark}: {means} and their 95 % t intervals"
        " over seeds."
    ]
    if one_seed(frame, cut.cells):
        parts = ["One seed each: no spread is known."]
    parts += _left(frame, cut)
    if cut.held:
        parts.append(
            f"All at {listed([f'{k} = {v}' for k, v in cut.held.items()])}, where the most"
            " conditions are and rms is largest."
        )
    y = frame.metric(metric)
    usable = np.isfinite(y) & (y > 0) if metric in LOG else np.isfinite(y)
    if infinite := int((cut.cells & np.isinf(y)).sum()):
        parts.append(
            f"{infinite} cells with NaN or infinite results have an infinite {metric}: red"
            " triangles, no part of the means."
        )
    if elsewhere := int((~cut.cells & np.isinf(y)).sum()):
        parts.append(f"{elsewhere} other cells of infinite {metric} are not in this picture.")
    if lost := int((cut.cells & ~usable & ~np.isinf(y)).sum()):
        above = " above 0" if metric in LOG else ""
        parts.append(f"{lost} cells without a finite {metric}{above} are left out.")
    return " ".join(parts)


def _of_axis(axis: Axis, more: int) -> str:
    which = "chosen evenly" if axis.numeric else "those with the largest deviation"
    return (
        f"{more} of {len(axis.values)} values of {axis.label} are not shown (those shown are"
        f" {which}, among those with cells here)."
    )


def _left(frame: Frame, cut: Slice) -> list[str]:
    found = []
    for axis in (cut.across, cut.lines, cut.rows):
        if axis is not None and (more := len(axis.values) - len(cut.shown[axis.name])):
            found.append(_of_axis(axis, more))
    return found


def seeds_words(frame: Frame, cells: np.ndarray) -> str:
    """Return how many seeds a condition has: "5 seeds each", or "1 to 5 seeds each"."""
    count = np.bincount(frame.condition[cells]) if cells.any() else np.zeros(1, int)
    low, high = count[count > 0].min(initial=count.max()), count.max()
    each = many(int(high), "seed")
    return f"{each} each" if low == high else f"{low} to {each} each"


def one_seed(frame: Frame, cells: np.ndarray) -> bool:
    """Return whether no condition has a second seed."""
    return bool(not cells.any() or np.bincount(frame.condition[cells]).max() < 2)


def gain(frame: Frame, cut: Slice) -> str:
    """Return the caption of the output's gain: which conditions shown are biased."""
    found = gains(frame, "out", cut.cells)
    answer = "No condition shown has a z: it needs two seeds, or two heads."
    if len(found.z):
        limit = threshold(len(found.z))
        far = found.biased(limit)
        digits = digits_of(limit, [float(found.z[i]) for i in far[:1]])
        words = f"; {gain_words(frame, found, int(far[0]), digits)}" if len(far) else ""
        most = "the furthest" if len(far) > 1 else "it"
        answer = (
            f"In {len(far)} of {len(found.z)} conditions shown the gain lies further from 0 than"
            f" chance puts one in a hundred pages (|z| > {limit:.{digits}f})"
            f"{words.replace('; ', f'; {most} is ', 1)}."
        )
    if lost_too := int((cut.cells & (np.nan_to_num(frame.metric("not_finite")) > 0)).sum()):
        answer += f" {lost_too} cells with NaN or infinite results have no gain."
    line = (
        "The thin line through a dot is its own standard error: over heads for the gain, over rows"
        " for the mean. The mean is 0 for numbers of both signs, however short they are."
    )
    return f"Is the output too long or too short? {answer} {_shown(frame, cut, 'gain')} {line}"


def signed(frame: Frame, cut: Slice, metric: str) -> str:
    """Return the caption of signed means, with the number of biased conditions."""
    y = frame.metric(metric)
    intervals = [
        mean_interval(y[cut.cells & (frame.condition == c)])
        for c in np.unique(frame.condition[cut.cells])
    ]
    known = [(mean, half) for mean, half in intervals if np.isfinite(half)]
    biased = sum(abs(mean) > half for mean, half in known)
    what = "delta" if metric == "delta_bias" else "the output"
    answer = "One seed cannot tell."
    if known:
        answer = (
            f"In {biased} of {len(known)} conditions shown the interval over seeds excludes 0 (1 in"
            " 20 does by chance)."
        )
    line = "The thin line through a dot is its own standard error over rows."
    count = "delta_not_finite" if metric == "delta_bias" else "not_finite"
    if lost_too := int((cut.cells & (np.nan_to_num(frame.metric(count)) > 0)).sum()):
        answer += f" {lost_too} cells with NaN or infinite results have no mean."
    return f"Is the error of {what} biased up or down? {answer} {_shown(frame, cut, metric)} {line}"


def softmax(frame: Frame, cut: Slice) -> str:
    """Return the caption of rows with several P = 1 and of rescales."""
    share, rescales = (
        float(np.nanmax(frame.metric(name)[cut.cells])) for name in ("several_ones", "rescales")
    )
    return (
        "How often do rows have two or more P = 1, and how often does the running maximum change?"
        f" In up to {percent(share)} of the rows, and in up to {number(rescales)} key tiles per"
        f" row. {_shown(frame, cut, 'several_ones')}"
    )


def pair(frame: Frame, cut: Slice, together: float) -> str:
    """Return the caption of the map of two axes; together: the share that only both explain."""
    a, b = cut.lines, cut.across
    assert a is not None
    n = int(np.isinf(frame.metric("rms")[cut.cells]).sum())
    means = "One seed each: no interval is known"
    if not one_seed(frame, cut.cells):
        interval = "Means ± half of the 95 % t interval over seeds"
        means = f"{interval}, {seeds_words(frame, cut.cells)}"
    gray = f" Gray with inf: {n} cells with NaN or infinite results, no part of shares."
    return (
        f"Does {b.label} have the same effect at every {a.label}? Together they explain"
        f" {percent(together)} of the variance of log rms beyond what each explains alone (0 means"
        f" that their effects multiply). {means}.{gray if n else ''}"
        f' "{METRIC_LABELS["ratio_max"]}": the largest error relative to that of unfused attention'
        f" in the same formats, which is what tiling costs.{_at(cut.held)}"
    )


def _at(held: dict[str, str]) -> str:
    return f" All at {listed([f'{k} = {v}' for k, v in held.items()])}." if held else ""


def sites(
    frame: Frame,
    cut: Slice | None,
    cells: np.ndarray,
    names: Sequence[Site],
    rms: np.ndarray,
    bias: np.ndarray,
    words: list[str],
    quiet: Sequence[Site],
) -> str:
    """Return the caption of errors by site: rms (sites, columns), bias (..., mean and half)."""
    held = {} if cut is None else dict(cut.held)
    if cut is not None and cut.lines is not None:
        codes = np.unique(frame.code(cut.lines)[cells])
        held[cut.lines.label] = cut.lines.word(int(codes[0])) if codes.size else "-"
    none = f" Without any error: {' '.join(quiet)}." if quiet else ""
    if n := int(lost(frame).cells[cells].sum()):
        none += (
            f" In {n} cells with NaN or infinite results these are the errors of the events whose"
            " numbers are finite."
        )
    if cut is not None and words and (more := len(cut.across.values) - len(words)):
        none += f" {_of_axis(cut.across, more)}"
    means, spread = bias[..., 0], "One seed."
    if not one_seed(frame, cells):
        interval = "95 % t interval over seeds"
        shown = f"bars: {interval}"
        if words:
            shown = (
                f"pale: mean signed errors whose {interval} contains 0; numbers are written where"
                " it does not (1 in 20 by chance)"
            )
        spread = f"Means over seeds, {seeds_words(frame, cells)}; {shown}."
    return (
        "Which events have the largest errors, and of which sign? rms is largest in"
        f" {_largest(rms, rms, names, words)}, the mean signed error in"
        f" {_largest(np.abs(means), means, names, words)}. Errors are in value, so an event of"
        f" large numbers has large errors. {spread}{_at(held)}"
        f"{none}"
    )


def _largest(size: np.ndarray, x: np.ndarray, names: Sequence[Site], words: list[str]) -> str:
    """Return where a table of sites is largest, and its number there."""
    if np.isnan(size).all():  # a file of which somebody took the column
        return "no event, since none is known"
    i, j = divmod(int(np.nanargmax(size)), size.shape[1])
    return f"{names[i]}{f' at {words[j]}' if words else ''} ({number(x[i, j])})"
