"""Which results of a sweep are too long or too short: the gain of every condition, with its z."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from roundscope.tools.report.wording import many
from roundscope.tools.sweep.measuring.metrics import deviate
from roundscope.tools.sweep.measuring.sums import GRADIENTS
from roundscope.tools.sweep.report.words import number
from roundscope.tools.sweep.storage.frames import Frame
from roundscope.tools.trace.analysis.bias import threshold

RESULTS = {"out": "gain", **{g: f"{g}_gain" for g in GRADIENTS}}
FURTHEST = 2  # conditions that are named of those with a biased result


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """By how much a result is too long (above 0) or too short, in each condition where z is known.

    result      out, dq, dk or dv;  condition: the numbers of the conditions, (K,)
    mean        the mean over seeds;  half: half of its 95 % interval over seeds, NaN for one seed
    z           the gain in its standard errors, as a normal deviate: those of the cells, over
                heads, added up over seeds (Stouffer's), or over seeds where a cell has one head
    """

    result: str
    condition: np.ndarray
    mean: np.ndarray
    half: np.ndarray
    z: np.ndarray

    def biased(self, limit: float) -> np.ndarray:
        """Return the places of the conditions beyond a limit of |z|, the furthest gain first."""
        there = np.flatnonzero(np.abs(self.z) > limit)
        return np.asarray(there[np.argsort(-np.abs(self.mean[there]), kind="stable")])


def where(frame: Frame, condition: int) -> str:
    """Return the values of a condition in the words of the command line."""
    cell = int(np.flatnonzero(frame.condition == condition)[0])
    words = (f"{axis.label}={axis.word(int(frame.code(axis)[cell]))}" for axis in frame.axes)
    return " ".join(words) or "the one condition"


def gains(frame: Frame, result: str, cells: np.ndarray | None = None) -> Gains:
    """Return the gains of a result; cells: those to look at, a bool for each; None for all."""
    name = RESULTS[result]
    y = frame.metric(name)
    usable = np.isfinite(y) if cells is None else np.isfinite(y) & cells
    condition, place = np.unique(frame.condition[usable], return_inverse=True)
    x = y[usable]
    n = np.bincount(place, minlength=len(condition))
    mean = np.bincount(place, x, len(condition)) / np.maximum(n, 1)
    off = x - mean[place]
    with np.errstate(all="ignore"):
        se = np.sqrt(np.bincount(place, off * off, len(condition)) / ((n - 1.0) * n))
        half = np.where(n > 1, stdtrit(np.maximum(n - 1, 1), 0.975) * se, np.nan)
    with np.errstate(invalid="ignore"):
        own = np.bincount(place, frame.metric(f"{name}_z")[usable], len(condition)) / np.sqrt(n)
    z = np.where(np.isnan(own), deviate(mean, se, n), own)
    known = ~np.isnan(z)
    parts = (condition, mean, half, z)
    condition, mean, half, z = (np.asarray(part)[known] for part in parts)
    return Gains(result=result, condition=condition, mean=mean, half=half, z=z)


def bias_words(frame: Frame, found: Sequence[Gains]) -> str:
    """Return which results are too long or too short beyond chance; empty where nobody can tell.

    The limit of |z| is that which chance alone exceeds in one sweep of a hundred.
    """
    count = sum(len(g.z) for g in found)
    if not count:
        return ""
    limit = threshold(count)
    beyond = {g.result: g.biased(limit) for g in found}
    named = [float(g.z[i]) for g in found for i in beyond[g.result][:FURTHEST]]
    digits = digits_of(limit, named)
    tests = f"|z| > {limit:.{digits}f}, {many(count, 'test')}"
    told = []
    for g in found:
        if len(places := beyond[g.result]):
            far = "; ".join(gain_words(frame, g, int(i), digits) for i in places[:FURTHEST])
            of = f" in {len(places)} of {many(len(g.z), 'condition')}" if len(g.z) > 1 else ""
            told.append(f"{g.result}{of} is {far}")
    if not told:
        return f"No result is too long or too short by more than chance ({tests})."
    return f"Biased beyond chance ({tests}): {'. '.join(told)}."


def digits_of(limit: float, beyond: Sequence[float]) -> int:
    """Return the digits behind the point with which each z beyond a limit is seen to be beyond."""
    for digits in range(1, 5):
        shown = float(f"{limit:.{digits}f}")
        if all(float(f"{abs(z):.{digits}f}") > shown for z in beyond):
            return digits
    return 5


def gain_words(frame: Frame, g: Gains, i: int, digits: int = 1) -> str:
    """Return by how much a result is too long or too short in a condition, with its z."""
    half = "" if np.isnan(g.half[i]) else f" ± {number(100 * g.half[i], 2)}"
    way = "long" if g.mean[i] > 0 else "short"
    z = f"z = {g.z[i]:+.{digits}f}" if np.isfinite(g.z[i]) else "beyond all tables"
    at = f" at {where(frame, int(g.condition[i]))}" if frame.axes else ""
    return f"too {way} by {number(100 * abs(g.mean[i]))}{half} %{at} ({z})"
