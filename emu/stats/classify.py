"""What a rounding did to one number, judged from outside.

The judgment needs the number before, the number after, and the format. It is written once; Numba
compiles it for scalars, XLA traces it on arrays. All is binary64: `after - before` is exact where
the two are within a factor of two of each other or one of them is zero (Sterbenz), which is always
so to nearest unless a number saturates. Elsewhere, as for a tiny number taken outward, it is
rounded to nearest, and `after - error` is `before` only where half an ulp is no rounded difference.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from roundscope.emu.formats.format import Format

COUNTS = (
    "n",
    "inexact",
    "ties",
    "ties_away",
    "away",
    "toward",
    "carries",
    "overflow",
    "underflow",
    "subnormal",
    "nan",
)
SUMS = ("error", "abs_error", "sq_error", "ulps", "abs_ulps", "sq_ulps")
INFINITY = 0x7FF0_0000_0000_0000


class Judged(NamedTuple):
    """The parameters of a format that classification needs, as binary64 bits and exponents."""

    precision: int
    emin: int  # biased
    largest: int  # bits of the largest finite number
    min_normal: int  # bits of 2^emin


def judged(f: Any) -> Judged:
    """Return the parameters of a `Format`, or of a `TracedFormat`, which has them as data."""
    if not isinstance(f, Format):
        traced: Judged = f.judged
        return traced
    import numpy as np

    bits = [int(np.float64(v).view(np.int64)) for v in (f.max_finite, f.min_normal)]
    return Judged(f.precision, f.emin + 1023, *bits)


def build_classify(
    where: Callable[..., Any], from_bits: Callable[..., Any], compiled: Callable[..., Any]
) -> Any:
    """Return the function classify(before, after, a, b, format).

    Its arguments a and b are the bits of |before| and |after|. It returns the flags in the order of
    COUNTS without `n`, then the error in value and in ulps of the format, both 0 where the result
    or the argument is not finite. An ulp is the distance of neighbors in the binade of `before`.

    Args:
        where: the elementwise choice, as in `emu.roundings.rule`.
        from_bits: from int64 bits to the float64 number.
        compiled: applied to the function, as in `emu.roundings.rule`.
    """

    @compiled
    def classify(before: Any, after: Any, a: Any, b: Any, f: Judged) -> tuple[Any, ...]:
        finite = (a < INFINITY) & (b < INFINITY)
        e = where(a >> 52 > f.emin, a >> 52, f.emin)
        per_ulp = from_bits((2046 - e + f.precision - 1) << 52)  # 1 / ulp, a power of two
        error = where(finite, after - before, 0.0)
        # 1 / ulp is no number where the argument is none
        ulps = where(error != 0.0, error * per_ulp, 0.0)
        size = where(ulps < 0.0, -ulps, ulps)
        away, toward = finite & (b > a), finite & (b < a)
        tie = (size == 0.5) & (after - error == before)
        # beyond the largest finite number; then infinite, NaN or over half an ulp away: see `Stats`
        beyond = (a < INFINITY) & (a > f.largest) & ((b >= INFINITY) | (size > 0.5))
        return (
            away | toward,
            tie,
            tie & away,
            away,
            toward,
            away & (b >> 52 > e),
            beyond,
            finite & (a > 0) & (b == 0),
            (b > 0) & (b < f.min_normal),
            b > INFINITY,
            error,
            ulps,
        )

    return classify
