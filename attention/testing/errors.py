"""Errors of the results of attention, head by head: their size, their worst row and their bias."""

from dataclasses import dataclass

import numpy as np

from roundscope.emu.stats.comparison import deviations

LEAST_ROW = 2.0**-5  # a row counts as at least so large, in units of the head's rms row
LEAST = 1e-12  # relative errors below this one are those of binary64
MOST = 1e12  # relative errors above this one count as this one where errors are compared
STATISTICS = ("rms", "row", "gain", "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The errors of one result in each of n heads, (n,).

    In a head with a number that is lost, infinite or NaN where the exact one is not, rms and row
    are infinite, and gain and mean are NaN.

    Attributes:
        rms: |x - exact| / |exact|, Euclidean norms over all tokens and features.
        row: The largest |x - exact| / |exact| of a token's row, where rows of little weight count
            as 1/32 of the rms row.
        gain: <x - exact, exact> / |exact|^2: above 0 the result is too long, below 0 too short.
        mean: The sum of x - exact over the sum of |exact|: above 0 the result is too high.
        at: The token whose row has the largest error.
    """

    rms: np.ndarray
    row: np.ndarray
    gain: np.ndarray
    mean: np.ndarray
    at: np.ndarray


def by_head(x: np.ndarray) -> np.ndarray:
    """Return an array (B, T, N, H) as (B N, T, H) in float64."""
    moved = np.ascontiguousarray(x.swapaxes(1, 2), np.float64)
    return moved.reshape(-1, *moved.shape[2:])


def errors(x: np.ndarray, exact: np.ndarray) -> Errors:
    """Return the errors of a result; both arrays are (B, T, N, H).

    A number that is not finite where the exact one is, or the reverse, has an infinite error; the
    same infinity, or NaN, in both has none. Finite errors are 0 where the exact result is 0 in the
    whole head, since there they have no scale.
    """
    want = by_head(exact)
    off = deviations(by_head(x), want)
    want = np.where(np.isfinite(want), want, 0.0)
    is_lost = np.isinf(off).any((1, 2))
    size = np.square(want).sum((1, 2))
    rows = np.sqrt(np.square(want).sum(2))
    usual = np.sqrt(size / want.shape[1])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_rows = _over(np.sqrt(np.square(off).sum(2)), np.maximum(rows, LEAST_ROW * usual))
        gain = _over((off * want).sum((1, 2)), size)
        mean = _over(off.sum((1, 2)), np.abs(want).sum((1, 2)))
        return Errors(
            rms=_over(np.sqrt(np.square(off).sum((1, 2))), np.sqrt(size)),
            row=of_rows.max(1),
            gain=np.where(is_lost, np.nan, gain),
            mean=np.where(is_lost, np.nan, mean),
            at=of_rows.argmax(1),
        )


def differences(kernel: Errors, plan: Errors) -> dict[str, np.ndarray]:
    """Return how much larger a kernel's errors are than a plan's, for each head, (n,).

    "rms" and "row" are logarithms of ratios, "gain" and "mean" are in units of the plan's relative
    rms error, and NaN where a number of either is lost.
    """
    unit = np.maximum(plan.rms, LEAST)
    return {
        "rms": np.log(ratios(kernel.rms, plan.rms)),
        "row": np.log(ratios(kernel.row, plan.row)),
        "gain": (kernel.gain - plan.gain) / unit,
        "mean": (kernel.mean - plan.mean) / unit,
    }


def ratios(kernel: np.ndarray, plan: np.ndarray, least: float = LEAST) -> np.ndarray:
    """Return the kernel's errors over the plan's, each taken to be between `least` and `MOST`.

    So the ratio of two infinite errors is 1, and that of one is large and not infinite.
    """
    return np.asarray(np.clip(kernel, least, MOST) / np.clip(plan, least, MOST))


def _over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b; where b is 0, 0 or, of an infinite a, infinity."""
    return np.where((b == 0.0) & np.isfinite(a), 0.0, a / b)
