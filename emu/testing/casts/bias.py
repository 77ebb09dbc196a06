"""The bias of a cast: its mean signed error on random numbers, and if that is beyond chance."""

import math
from dataclasses import dataclass, replace

import numpy as np

from roundscope.emu.api import ulp_of
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.testing.casts.classes import bracket, is_allowed
from roundscope.emu.testing.casts.records import Numbers, Row, Status, row_of, skipped

QUESTION = "Do the errors on random numbers have the mean that the asked rounding gives?"
LIMIT = 6.0  # the |z| above which a mean is not chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of many errors, and its distance from 0 in standard errors (z)."""

    mean: float
    z: float

    @property
    def is_biased(self) -> bool:
        """True if the mean is farther from 0 than chance explains."""
        return abs(self.z) > LIMIT


def mean_of(d: Numbers) -> Mean:
    """Return the mean of errors with its z; z is infinite for equal errors other than 0."""
    mean, error = float(d.mean()), float(d.std()) / math.sqrt(d.size)
    z = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    return Mean(mean=mean, z=z)


def bias_row(q: Numbers, got: Numbers, r: Rounding, of: str = "") -> Row:
    """Return the row on the bias of results for random quotients.

    The mean error is measured in ulps of the format, up or down and also along the number, away
    from zero or toward it. The row fails if either differs from that of the asked rounding on the
    same numbers by more than chance gives. In the stochastic mode the asked mean is 0.

    Args:
        q: random quotients; those outside the finite range of the format are left out.
        got: the results for them.
        r: the asked rounding.
        of: what was random in words, for the note.
    """
    kept = (np.abs(q) <= r.format.max_finite) & (q != 0) & np.isfinite(got)
    q, got = q[kept], got[kept]
    if not q.size:
        return skipped("bias", QUESTION, "no finite result")
    good, expected = is_allowed(got, q, r)
    against = q if r.mode is RoundingMode.STOCHASTIC else expected
    ulps = ulp_of(q, r.format)
    extra = (got - against) / ulps
    parts = [extra, np.sign(q) * extra]
    if r.mode is RoundingMode.STOCHASTIC:
        parts += _halves(q, np.sign(q) * extra, r.format)
    is_biased = any(mean_of(d).is_biased for d in parts)
    note = _in_words(q, got, ulps, r.format)
    row = row_of("bias", QUESTION, good, q, got, expected, f=r.format, note=f"{note}{of}")
    return _with_status(row, Status.FAIL if is_biased else Status.PASS)


def _halves(q: Numbers, d: Numbers, f: Format) -> list[Numbers]:
    """Return the errors of quotients nearer to zero's side of their neighbors, and of the others.

    Rounding to nearest has a mean error of 0 over both together, but not over each.
    """
    low, high = (np.abs(side) for side in bracket(q, f))
    near = np.abs(q) < (low + high) / 2
    return [part for part in (d[near], d[~near & (low != high)]) if part.size]


def _with_status(row: Row, status: Status) -> Row:
    return replace(row, status=status, examples=row.examples if status is Status.FAIL else ())


def _in_words(q: Numbers, got: Numbers, ulps: Numbers, f: Format) -> str:
    error = (got - q) / ulps
    updown, along = mean_of(error), mean_of(np.sign(q) * error)
    direction = "toward zero" if along.mean < 0 else "away from zero"
    side = "down" if updown.mean < 0 else "up"
    words = [
        f"mean error along the number {along.mean:+.4f} ulps (z {_z(along)})"
        + (f", {direction}" if along.is_biased else "")
    ]
    words.append(
        f"up or down {updown.mean:+.4f} (z {_z(updown)})"
        + (f", {side}" if updown.is_biased else "")
    )
    return "; ".join([*words, f"norm {_norm(q, got):+.3%}"])


def _z(m: Mean) -> str:
    return f"{m.z:+.1f}" if math.isfinite(m.z) else f"{m.z:+}"


def _norm(q: Numbers, got: Numbers) -> float:
    """Return by how much the norm grows, all numbers brought to the same power of two first."""
    e = np.ldexp(1.0, -np.frexp(q)[1])
    return math.sqrt(float(((got * e) ** 2).sum() / ((q * e) ** 2).sum())) - 1
