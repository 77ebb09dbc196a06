"""Classification of one rounding event from the numbers before and after it and the format.

The function is written once; Numba compiles it for scalars, and XLA traces it on arrays. All
arithmetic is in binary64. The error, `after - before`, is exact where the two are within a factor
of two of each other (Sterbenz' lemma) or one of them is zero. One of the two always holds for
rounding to nearest, unless a number saturates. Elsewhere, as for a tiny number that is rounded away
from zero, the difference is rounded to nearest. It may then seem to be half an ulp when it is not;
the test `after - error == before` tells true ties from these.
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
    """Return the parameters of a `Format`, or those that a `TracedFormat` holds as data."""
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
    COUNTS without `n`, then the error and the error in ulps of the format. Both errors are 0 where
    the result or the argument is not finite. An ulp is the distance between neighboring numbers of
    the format in the binade of `before`.

    Args:
        where: the elementwise choice, as in `emu.roundings.rule`.
        from_bits: the function from int64 bits to the float64 number.
        compiled: a decorator for the function, as in `emu.roundings.rule`.
    """

    @compiled
    def classify(before: Any, after: Any, a: Any, b: Any, f: Judged) -> tuple[Any, ...]:
        finite = (a < INFINITY) & (b < INFINITY)
        e = where(a >> 52 > f.emin, a >> 52, f.emin)
        per_ulp = from_bits((2046 - e + f.precision - 1) << 52)  # 1 / ulp, a power of two
        error = where(finite, after - before, 0.0)
        # 1 / ulp is not a number where the argument is infinite or NaN
        ulps = where(error != 0.0, error * per_ulp, 0.0)
        size = where(ulps < 0.0, -ulps, ulps)
        away, toward = finite & (b > a), finite & (b < a)
        tie = (size == 0.5) & (after - error == before)
        # the argument is beyond the largest finite number, and the result is infinite, NaN or over
        # half an ulp away (see `Stats`)
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
