"""What the values of an axis do to the errors of out, dq, dk and dv: levels, and their order.

A value is held against the one with the least error. Cells of one seed share their tensors, so the
ratio is taken for each seed; where there is one seed, as of a file of tensors, its interval is that
of heads.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from roundscope.attention.sites import Site
from roundscope.tools.report.wording import listed
from roundscope.tools.sweep.measuring.sums import GRADIENTS
from roundscope.tools.sweep.report.effects import mean_interval, scaled, shares, size, size_words
from roundscope.tools.sweep.report.slices import chosen
from roundscope.tools.sweep.report.words import fold, number, percent
from roundscope.tools.sweep.storage.frames import Axis, Frame

LEVELS = 6  # the most values of an axis that a terminal shows
NAMES = ("out", *GRADIENTS)
SPREAD = {"out": "log_rms_se", **{g: f"{g}_log_rms_se" for g in GRADIENTS}}
ALIKE = 1.02  # the ratio of two errors up to which their order says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What one value of an axis does.

    value    the value in words;  rms: the geometric mean over its cells of the `size` of a result's
             error
    times    how many times as large it is as at the value with the least, and the ends of its 95 %
             interval, over seeds or heads; None for that value
    gain     the mean gain of the output over its cells, NaN if not known
    """

    value: str
    rms: float
    times: tuple[float, float, float] | None
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OfResult:
    """What the axis that matters most for a result does to its error.

    levels   values of the axis, the least and the largest among them;  share: as in `Effect`
    metric   the `size` that the levels have
    reads    why no axis changes a gradient: "P is the forward's operand; dV reads P_B"; or ""
    """

    result: str
    axis: Axis
    share: float
    levels: list[Level]
    metric: str
    reads: str = ""

    @property
    def most(self) -> Level:
        """The value with the largest error."""
        return max(self.levels, key=lambda x: x.rms)

    @property
    def least(self) -> Level:
        """The value with the least."""
        return min(self.levels, key=lambda x: x.rms)


def levels(frame: Frame, axis: Axis, result: str = "out") -> list[Level]:
    """Return some values of an axis, in its order: the least and the largest are among them."""
    metric = size(frame, result)
    y = scaled(metric, frame.metric(metric))
    code, gain = frame.code(axis), frame.metric("gain" if result == "out" else f"{result}_gain")
    usable = np.isfinite(y)
    means = {int(c): float(y[usable & (code == c)].mean()) for c in np.unique(code[usable])}
    if not means:
        return []
    least, most = min(means, key=lambda c: means[c]), max(means, key=lambda c: means[c])
    found = []
    for c in sorted({*chosen(frame, axis, usable, LEVELS), least, most}):
        gains_here = gain[(code == c) & np.isfinite(gain)]
        pair = usable & (code == c), usable & (code == least)
        found.append(
            Level(
                value=axis.word(c),
                rms=10.0 ** means[c],
                times=None if c == least else _times(frame, result, y, *pair),
                gain=float(gains_here.mean()) if gains_here.size else np.nan,
            )
        )
    return found


def of_results(frame: Frame) -> list[OfResult]:
    """Return what the axes do to each result that a sweep has; [] without axes or gradients."""
    found = []
    for name in NAMES if frame.axes else ():
        of = shares(frame, size(frame, name))
        if of.cells and of.effects and (own := levels(frame, of.effects[0].axis, name)):
            first = of.effects[0]
            found.append(
                OfResult(
                    result=name,
                    axis=first.axis,
                    share=first.share,
                    levels=own,
                    metric=size(frame, name),
                    reads=_reads(frame, name),
                )
            )
    return found if len(found) > 1 else []


def words(found: list[OfResult]) -> list[str]:
    """Return a line for each result: its axis, how much that explains, and its ends."""
    lines = []
    for x in found:
        if x.most.times is None or x.most.rms <= ALIKE * x.least.rms:
            reads = f": {x.reads}" if x.reads else ""
            rms = f"its {size_words(x.metric)}, {number(x.most.rms)}"
            lines.append(f"{x.result}: no axis changes {rms}, by 2 %{reads}.")
            continue
        times, low, high = x.most.times
        ends = "" if math.isnan(low) else f" [{number(low, 2)}, {number(high, 2)}]"
        lines.append(
            f"{x.result}: {x.axis.label} explains {percent(x.share)}; {size_words(x.metric)} is"
            f" {number(x.least.rms)} at {x.least.value} and {number(x.most.rms)} at {x.most.value},"
            f" {number(times)}{ends} times it."
        )
    return [line + _nothing_left(x) for line, x in zip(lines, found, strict=True)]


def _nothing_left(x: OfResult) -> str:
    """Return that a result has an error above its own size; or ""."""
    if "rel_rms" not in x.metric or x.most.rms <= 1.0:
        return ""
    where = f" at {x.most.value}" if x.least.rms <= 1.0 else ""
    return f" An error above 100 % leaves nothing of {x.result}{where}: zeros would be nearer."


def _reads(frame: Frame, result: str) -> str:
    """Return that dv reads another rounding of P than that which is an axis; or ""."""
    if result != "dv":  # dq and dk read the output too, through delta
        return ""
    is_axis = any(frame.axis(f"{kind}.{Site.P}") for kind in ("format", "mode"))
    return f"{Site.P} is the forward's operand; dV reads {Site.P_B}" if is_axis else ""


def order_words(frame: Frame, found: list[OfResult]) -> str:
    """Return for which gradients values of the main axis of out have another order; or ""."""
    if not found:
        return ""
    axis = found[0].axis
    out = _means(frame, axis, "out")
    turned: dict[tuple[int, int], list[str]] = {}
    for x in found[1:]:
        own = _means(frame, axis, x.result)
        pairs = [
            (a, b) for a in out for b in out if {a, b} <= own.keys() and out[a] > ALIKE * out[b]
        ]
        if against := {p: own[p[1]] / own[p[0]] for p in pairs if own[p[1]] > ALIKE * own[p[0]]}:
            turned.setdefault(max(against, key=lambda p: against[p]), []).append(x.result)
    told = []
    for (a, b), results in turned.items():
        of = {n: _means(frame, axis, n) for n in results}
        more = listed([f"{n} is {fold(of[n][b] / of[n][a])}" for n in results])
        told.append(
            f"The order reverses in {listed(results)}: at {axis.label}={axis.word(b)}, against"
            f" {axis.word(a)}, the error of {more}, and that of out smaller"
        )
    return ". ".join(told) + "." if told else ""


def _means(frame: Frame, axis: Axis, result: str) -> dict[int, float]:
    """Return the geometric mean of a result's rms at each value of an axis."""
    metric = size(frame, result)
    y, code = scaled(metric, frame.metric(metric)), frame.code(axis)
    usable = np.isfinite(y)
    return {int(c): 10.0 ** float(y[usable & (code == c)].mean()) for c in np.unique(code[usable])}


def _times(
    frame: Frame, result: str, y: np.ndarray, cells: np.ndarray, least: np.ndarray
) -> tuple[float, float, float] | None:
    """Return the ratio of the errors of two values of an axis with its interval."""
    own, other = _by_seed(frame, y, cells), _by_seed(frame, y, least)
    apart = np.array([own[s] - other[s] for s in own if s in other])
    if not apart.size:
        return None
    mean, half = mean_interval(apart)
    if math.isnan(half):
        half = _over_heads(frame, result, cells, least)
    return 10.0**mean, 10.0 ** (mean - half), 10.0 ** (mean + half)


def _over_heads(frame: Frame, result: str, cells: np.ndarray, least: np.ndarray) -> float:
    """Return half of the 95 % interval of a difference of log10 rms by the scatter of heads.

    The heads are the same in both, so that it is rather too wide. NaN where a cell has one head.
    """
    spread, heads = frame.metric(SPREAD[result]), frame.rows.column("N").astype(float)
    squares = [float((spread[x] ** 2).mean()) for x in (cells, least)]
    free = float(heads[cells | least].min()) - 1.0
    if free < 1.0:
        return math.nan
    return float(stdtrit(free, 0.975)) * math.sqrt(sum(squares)) / math.log(10.0)


def _by_seed(frame: Frame, y: np.ndarray, cells: np.ndarray) -> dict[int, float]:
    """Return the mean of numbers over the cells of each seed, of some cells."""
    seeds, place = np.unique(frame.seeds()[cells], return_inverse=True)
    means = np.bincount(place, y[cells]) / np.bincount(place)
    return dict(zip(seeds.tolist(), means.tolist(), strict=True))
