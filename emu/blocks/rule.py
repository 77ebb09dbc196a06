"""The rules of a block on integers, in the bits of binary64: scale exponents and quotients.

**Exponent.** A power of two rule is "the exponent of the largest magnitude a, one more where its
fraction exceeds a limit": adding 2^52 - 1 - limit to the bits of a carries into the exponent
exactly there, so one push says the rule:

    FLOOR  limit = 2^52 - 1 (never exceeded)
    CEIL   limit = 0
    EVEN   limit just below 2 - 2^-p
    RCEIL  limit = fraction of the element's largest number m
    BUMP   limit = 1.75

RCEIL: with a = f 2^e and m = g 2^emax, 1 <= f, g < 2, the quotient a / m = (f / g) 2^(e - emax)
exceeds 2^(e - emax) if and only if f > g, and never 2^(e - emax + 1). EVEN: f rounds to p bits,
ties away, and so to 2, from 2 - 2^-p on.

**Quotient.** V / X is rounded to odd (inexact results take an odd last bit). Rounded once more to
51 bits or fewer it is the rounding of the exact quotient, and its distance from its neighbors is
right to 2^-31 for the stochastic mode. X has at most 35 significand bits, so its integer s' = s /
2^18 is exact, and long division gives 57 bits in two steps:

    v 2^38 / s' = q1 2^28 + q2,   v 2^10 = q1 s' + r1,   r1 2^28 = q2 s' + r2
    (v < 2^53,  2^34 <= s' < 2^35)

and no step leaves 63 bits. A quotient that leaves binary64's normal range stops at its ends:
elements live inside binary32.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from roundscope.emu.blocks.format import BlockFormat, ScaleRule
from roundscope.emu.roundings.modes import BINARY32, Overflow, Rounding, RoundingMode, rounding
from roundscope.emu.roundings.rule import C64, Bits, Target, bits_of, target_of

M, BIAS, INFINITY, NAN = C64.fraction, C64.bias, C64.infinity, C64.nan
ONE = 1 << M
LARGEST = INFINITY - 1


class Powers(NamedTuple):
    """A scale rule that gives powers of two, as integers."""

    push: int
    emax: int
    low: int  # least and largest exponent of the scale format
    high: int


class Quotients(NamedTuple):
    """A scale rule that rounds a / m to the scale format, as integers."""

    largest: int  # bits of m
    scale: Target
    smallest: int  # bits of the least scale
    tensor_top: int  # bits of scale.max_finite * m
    tensor: Target


def powers_of(f: BlockFormat) -> Powers:
    """Return the integers of a rule that gives powers of two."""
    e = f.element.format

    def exponent(x: float) -> int:
        return math.frexp(x)[1] - 1

    fraction = {
        ScaleRule.FLOOR: ONE - 1,
        ScaleRule.CEIL: 0,
        ScaleRule.EVEN: ONE - (ONE >> e.precision) - 1,
        ScaleRule.BUMP: 3 * ONE // 4,
        ScaleRule.RCEIL: bits_of(e.max_finite, C64) & (ONE - 1),
    }
    return Powers(ONE - 1 - fraction[f.rule], e.emax, exponent(f.scale.min_positive), f.scale.emax)


def quotients_of(f: BlockFormat) -> Quotients:
    """Return the integers of a rule that rounds a quotient."""
    mode = RoundingMode.TOWARD_POSITIVE if f.rule is ScaleRule.RCEIL else RoundingMode.TIES_TO_EVEN
    element = f.element.format.max_finite
    return Quotients(
        bits_of(element, C64),
        target_of(Rounding(format=f.scale, mode=mode, overflow=Overflow.SATURATE), C64)._replace(
            unsigned=0
        ),
        bits_of(f.scale.min_positive, C64),
        bits_of(f.scale.max_finite * element, C64),
        target_of(rounding(BINARY32, overflow=Overflow.SATURATE), C64),
    )


def element_of(f: BlockFormat) -> Target:
    """Return the elements' rounding as a target in binary64's bits."""
    return target_of(f.element, C64)


class BlockRule(NamedTuple):
    """The three functions of a block: its scale's exponent, and two ways to divide by a scale.

    exponent(a, powers) returns e of X = 2^e; shifted(a, e) the bits of V / 2^e; quotient(a, x) the
    bits of V / X.
    """

    exponent: Callable[..., Any]
    shifted: Callable[..., Any]
    quotient: Callable[..., Any]


def build_block_rule(
    where: Callable[..., Any], divide: Callable[..., Any], compiled: Callable[..., Any]
) -> BlockRule:
    """Return the three functions of a block for one executor.

    Their arguments are a, the bits of a finite magnitude, and x, the bits of a scale that is normal
    in binary64 and has at most 35 significand bits.

    Args:
        where: the elementwise choice, as in `emu.roundings.rule`.
        divide: the quotient of non-negative integers, cut to a whole number.
        compiled: applied to every function, as in `emu.roundings.rule`.
    """

    @compiled
    def within(n: Bits, low: Bits, high: Bits) -> Bits:
        raised = where(n < low, low, n)
        return where(raised > high, high, raised)

    @compiled
    def exponent(a: Bits, t: Powers) -> Bits:
        return within(((a + t.push) >> M) - BIAS - t.emax, t.low, t.high)

    @compiled
    def normal(a: Bits, q: Bits) -> Bits:
        """A quotient inside binary64's normal range; a number below it is as good as its end."""
        return where(a == 0, 0, where(a < ONE, ONE, within(q, ONE, LARGEST)))

    @compiled
    def shifted(a: Bits, e: Bits) -> Bits:
        return normal(a, a - (e << M))

    @compiled
    def quotient(a: Bits, x: Bits) -> Bits:
        v, s = (a & (ONE - 1)) | ONE, ((x & (ONE - 1)) | ONE) >> 18
        q1 = divide(v << 10, s)
        r1 = (v << 10) - q1 * s
        q2 = divide(r1 << 28, s)
        q = (q1 << 28) | q2
        below = where(q < 1 << 56, 1, 0)
        dropped = 4 - below
        sticky = where((q & ((1 << dropped) - 1)) | ((r1 << 28) - q2 * s) != 0, 1, 0)
        exponent = (a >> M) - (x >> M) + BIAS - below
        return normal(a, ((exponent - 1) << M) + ((q >> dropped) | sticky))

    return BlockRule(exponent, shifted, quotient)
