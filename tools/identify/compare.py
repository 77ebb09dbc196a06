"""How close two outputs are: the share of equal bits, and the distance of the rest in ulps."""

from dataclasses import dataclass

import numpy as np

FAR = 64.0  # ulps; a larger distance counts as this one


@dataclass(frozen=True, slots=True, order=True)
class Nearness:
    """How close an output is to another; the greater, the closer.

    equal      the share of numbers with the same bits (zeros of either sign count as the same)
    distance   minus the mean distance of the others in ulps, each at most FAR
    """

    equal: float
    distance: float

    def __str__(self) -> str:
        return f"{self.equal:.6f} of the bits, {-self.distance:.3g} ulps apart where not"


def nearness(got: np.ndarray, want: np.ndarray) -> Nearness:
    """Return how close `got` is to `want`, arrays of one shape; the ulps are those of `want`."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    equal = float(same.mean())
    if equal == 1.0:
        return Nearness(1.0, 0.0)
    size = np.abs(np.where(np.isfinite(want[~same]), want[~same], 0.0))
    ulp = ulps(want[~same], float(size.max(initial=0.0)) * 2.0**-12)
    with np.errstate(invalid="ignore"):
        away = np.abs(got[~same].astype(np.float64) - want[~same]) / ulp
    return Nearness(equal, -float(np.nan_to_num(np.minimum(away, FAR), nan=FAR).mean()))


def ulps(x: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Return the ulps of x in BF16, the format in which kernels return their results.

    Numbers below `least` have the ulp of `least`.
    """
    size = np.abs(np.where(np.isfinite(x), x, 0.0)).astype(np.float64)
    return np.exp2(np.floor(np.log2(np.maximum(size, max(least, 2.0**-126))))) * 2.0**-7


def where_rows_differ(got: np.ndarray, want: np.ndarray, tile: int) -> list[tuple[int, float]]:
    """Return (first row, share of equal numbers) of each tile of rows that is not wholly equal.

    The arrays are (B, T, N, H); `tile` is the number of rows of a tile.
    """
    same = (got == want).mean(axis=(0, 2, 3))
    parts = [(lo, float(same[lo : lo + tile].mean())) for lo in range(0, same.size, tile)]
    return [part for part in parts if part[1] < 1.0]
