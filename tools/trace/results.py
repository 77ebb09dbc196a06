"""The results of a layer, each with its error, its gain and what to hold these against."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.attention import Plan
from roundscope.attention.sites import Site
from roundscope.emu.backends.numpy_rounding import rounded
from roundscope.emu.roundings.modes import rounding
from roundscope.emu.stats.comparison import relative_rms
from roundscope.events.plan import base_name
from roundscope.tools.trace.analysis.consequences import Gain, difference, gain
from roundscope.tools.trace.run import RESULTS, Observed

WITH_GAIN = ("out", "dq", "dk", "dv")
EVENT = {"out": Site.OUT, "dq": Site.DQ_OUT, "dk": Site.DK_OUT, "dv": Site.DV_OUT}
"""The last event of each result, whose format the result has."""
LAST_DIGIT = 1e-7  # relative error that leaving in float32 makes, and more
CLOSE = 1.25  # times the least error of its format that a result may have to be called the least
FEW = 2.0  # times one rounding that the error of a gradient may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result: what its error is, and what other errors to hold it against.

    name        out, lse, delta, dq, dk or dv
    difference  statistics of its difference from the result compared with, by name
    gain        whether it is too long or too short; None for lse and delta
    beside      the relative rms error of the plan that stands beside; None without one
    besides     the gain of that plan
    cast        the relative rms error that casting the inputs makes alone; None if none
    computed    the relative rms difference from exact attention on the cast inputs; only with cast
    least       the relative rms error of the exact result rounded once to the result's format;
                None where the reference is not exact, or nothing rounds last
    unit        the same of the format that the plan gives the result before any change of it, in
                which results are weighed: one that a change leaves in FP32 is still read as BF16
    heads       the relative rms error of each query head, (B, N)
    """

    name: str
    difference: dict[str, float]
    gain: Gain | None
    beside: float | None
    besides: Gain | None
    cast: float | None
    computed: float | None
    least: float | None
    unit: float | None
    heads: np.ndarray

    @property
    def error(self) -> float:
        """Its relative rms error."""
        return self.difference["relative_rms"]

    @property
    def times(self) -> float:
        """Its error in units of one rounding: 1 is as good as a result of its format can be."""
        is_unit = self.unit is not None and math.isfinite(self.unit) and self.unit > 0.0
        return self.error / (self.unit if self.unit is not None and is_unit else LAST_DIGIT)

    @property
    def is_far(self) -> bool:
        """Whether its error is more than what its last rounding and few others make."""
        return self.times > (CLOSE if self.name == "out" else FEW)

    @property
    def is_known(self) -> bool:
        """Whether its error is a number: no number of it is lost, and some number is finite."""
        return math.isfinite(self.error)

    @property
    def is_biased(self) -> bool:
        """Whether it is too long or too short by more than the scatter of heads explains."""
        return self.gain is not None and self.gain.is_biased


def results(seen: Observed) -> list[Result]:
    """Return the results of a layer, in the order of RESULTS."""
    names = [n for n in RESULTS if seen.results[n] is not None]
    gains = [n for n in names if n in WITH_GAIN]
    return [_result(seen, n, len(gains)) for n in names]


def _result(seen: Observed, name: str, tests: int) -> Result:
    own, want = seen.results[name], seen.reference[name]
    beside = None if seen.beside is None else seen.beside[name]
    cast = None if seen.cast is None else seen.cast[name]
    key_heads, with_gain = seen.layer.k.shape[2], name in WITH_GAIN
    a, b = np.asarray(own, np.float64), np.asarray(want, np.float64)
    plan, is_exact = seen.request.plan, seen.request.against.name == "exact"
    least = _once(plan, name, b) if is_exact else None
    unit = _once(unchanged(plan), name, b) if is_exact and least is None else least
    by_head = [relative_rms(a[i, :, n], b[i, :, n]) for i, n in np.ndindex(a.shape[0], a.shape[2])]

    def of(x: Any) -> Gain | None:
        return gain(x, want, key_heads, tests) if with_gain and x is not None else None

    return Result(
        name=name,
        difference=difference(own, want),
        gain=of(own),
        beside=None if beside is None else _error(beside, want),
        besides=of(beside),
        cast=None if cast is None else _error(cast, want),
        computed=None if cast is None else _error(own, cast),
        least=least,
        unit=unit,
        heads=np.array(by_head).reshape(a.shape[0], a.shape[2]),
    )


def _once(plan: Plan, name: str, exact: np.ndarray) -> float | None:
    """Return the error of rounding an exact result once as a plan writes it."""
    if name not in EVENT or plan[EVENT[name]].format.precision >= 24:
        return None  # nobody compares with the error of that
    return _error(rounded(exact, rounding(plan[EVENT[name]].format)), exact)


def unchanged(plan: Plan) -> Plan:
    """Return the plan without the changes of --set; itself if its name is of no published one."""
    base = base_name(plan.name)
    try:
        return plan if base == plan.name else Plan.preset(base)
    except ValueError:  # a name of one's own
        return plan


def _error(a: Any, b: Any) -> float:
    return relative_rms(np.asarray(a, np.float64), np.asarray(b, np.float64))


def z_words(z: float, digits: int = 1) -> str:
    """Return a z in words, also one that is not known: of one number, or of equal ones."""
    return "z unknown" if math.isnan(z) else f"z = {z:+.{digits}f}"


def score(g: Gain) -> float:
    """Return the z of a gain: its mean over its standard error; NaN where that is not known."""
    return g.mean / g.se if g.se > 0.0 else math.nan
