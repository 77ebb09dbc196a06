"""Errors of the results of attention, head by head: their size, their worst row and their bias."""

from dataclasses import dataclass

import numpy as np

LEAST_ROW = 2.0**-5  # a row counts as at least so large, in units of the head's rms row
LEAST = 1e-12  # relative errors below this one are those of binary64
STATISTICS = ("rms", "row", "gain", "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The errors of one result in each of n heads, (n,).

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

    Numbers that are not finite in either array are left out. Errors are 0 where the exact result is
    0 in the whole head, since there they have no scale.
    """
    own, want = by_head(x), by_head(exact)
    fine = np.isfinite(own) & np.isfinite(want)
    off = np.where(fine, own, 0.0) - np.where(fine, want, 0.0)
    want = np.where(fine, want, 0.0)
    size = np.square(want).sum((1, 2))
    rows = np.sqrt(np.square(want).sum(2))
    usual = np.sqrt(size / want.shape[1])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_rows = _over(np.sqrt(np.square(off).sum(2)), np.maximum(rows, LEAST_ROW * usual))
        return Errors(
            rms=_over(np.sqrt(np.square(off).sum((1, 2))), np.sqrt(size)),
            row=of_rows.max(1),
            gain=_over((off * want).sum((1, 2)), size),
            mean=_over(off.sum((1, 2)), np.abs(want).sum((1, 2))),
            at=of_rows.argmax(1),
        )


def differences(kernel: Errors, plan: Errors) -> dict[str, np.ndarray]:
    """Return how much larger a kernel's errors are than a plan's, for each head, (n,).

    "rms" and "row" are logarithms of ratios, "gain" and "mean" are in units of the plan's relative
    rms error.
    """
    unit = np.maximum(plan.rms, LEAST)

    def ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(np.maximum(a, LEAST) / np.maximum(b, LEAST)))

    return {
        "rms": ratio(kernel.rms, plan.rms),
        "row": ratio(kernel.row, plan.row),
        "gain": (kernel.gain - plan.gain) / unit,
        "mean": (kernel.mean - plan.mean) / unit,
    }


def _over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, and 0 where b is 0."""
    return np.where(b == 0.0, 0.0, a / b)
