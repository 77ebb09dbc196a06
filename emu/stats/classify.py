"""Classification of one rounding event from the numbers before and after it and the format.

The function is written once; Numba compiles it for scalars and for vectors, and XLA traces it on
arrays. All arithmetic is in binary64, or in binary32 where that is exact. The error, `after -
before`, is exact where the two are within a factor of two of each other (Sterbenz' lemma) or one of
them is zero. One of the two always holds for rounding to nearest, unless a number saturates.
Elsewhere, as for a tiny number that is rounded away from zero, the difference is rounded to
nearest. It may then seem to be half an ulp when it is not; the test `after - error == before` tells
true ties from these.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.rule import C64, Carrier, bits_of

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


class Judged(NamedTuple):
    """The parameters of a format that classification needs, as bits and exponents of a carrier."""

    precision: int
    emin: int  # biased
    largest: int  # bits of the largest finite number
    min_normal: int  # bits of 2^emin


def judged(f: Any, carrier: Carrier = C64) -> Judged:
    """Return the parameters of a `Format`, or those that a `TracedFormat` holds as data."""
    if not isinstance(f, Format):
        traced: Judged = f.judged
        return traced
    largest = bits_of(f.max_finite, carrier)
    if carrier is not C64 and float(np.float32(f.max_finite)) > f.max_finite:
        largest -= 1  # the carrier's numbers above this one are above the largest
    return Judged(f.precision, f.emin + carrier.bias, largest, bits_of(f.min_normal, carrier))


def build_classify(
    where: Callable[..., Any],
    power_of_two: Callable[..., Any],
    compiled: Callable[..., Any],
    carrier: Carrier = C64,
    arithmetic: Carrier = C64,
    *,
    is_exact: bool = False,
    has_deep: bool = False,
) -> Any:
    """Return the function classify(before, after, a, b, format).

    Its arguments before and after are numbers of the arithmetic; a and b are the carrier's bits of
    |before| and |after|, and the format has the carrier's parameters. It returns the flags in the
    order of COUNTS without `n`, then the error and the error in ulps of the format. Both errors are
    0 where the result or the argument is not finite. An ulp is the distance between neighboring
    numbers of the format in the binade of `before`.

    Args:
        where: the elementwise choice, as in `emu.roundings.rule`.
        power_of_two: the function from a biased exponent to the number.
        compiled: a decorator for the function, as in `emu.roundings.rule`.
        carrier: binary32 if it holds all numbers that are judged; it has the narrower words.
        arithmetic: binary32 if it also holds all errors and all 1 / ulp.
        is_exact: all 1 / ulp are numbers, and an error of half an ulp is exact; nothing tests it.
            So it is where binary32 holds both numbers, since two whose difference binary64 rounds
            are no half ulp apart, and where both are normal numbers.
        has_deep: formats may be deep (`Format.is_deep`). Their 1 / ulp may be beyond the largest
            number, so a factor 2^lift of it is multiplied apart; elsewhere lift is 0.
    """
    M, INFINITY = carrier.fraction, carrier.infinity
    ONE = carrier.bias + arithmetic.bias  # the sum of the biased exponents of 2^n and 2^-n

    @compiled
    def classify(before: Any, after: Any, a: Any, b: Any, f: Judged) -> tuple[Any, ...]:
        finite = (a < INFINITY) & (b < INFINITY)
        e = where(a >> M < f.emin, f.emin, a >> M)
        error = where(finite, after - before, 0.0)
        scale = ONE + f.precision - 1  # scale - e is the biased exponent of 1 / ulp
        if has_deep:
            lift = where(f.emin < f.precision, f.precision - f.emin, 0)
            ulps = error * power_of_two(scale - lift - e) * power_of_two(arithmetic.bias + lift)
        else:
            ulps = error * power_of_two(scale - e)
        if not is_exact:  # 1 / ulp is not a number where the argument is infinite or NaN
            ulps = where(error != 0.0, ulps, 0.0)
        size = abs(ulps)
        away, toward = finite & (b > a), finite & (b < a)
        tie = size == 0.5
        if not is_exact:
            tie = tie & (after - error == before)
        # the argument is beyond the largest finite number, and the result is infinite, NaN or over
        # half an ulp away (see `Stats`)
        beyond = (a < INFINITY) & (a > f.largest) & ((b >= INFINITY) | (size > 0.5))
        return (
            away | toward,
            tie,
            tie & away,
            away,
            toward,
            away & (b >> M > e),
            beyond,
            toward & (b == 0),
            (b > 0) & (b < f.min_normal),
            b > INFINITY,
            error,
            ulps,
        )

    return classify
