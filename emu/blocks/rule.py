"""The rules of a block on integers, in the bits of binary64: scale exponents and quotients.

In this module V is a number of a block, a the block's largest magnitude, X its scale, m the largest
number of the element format, emax the exponent of m, and p the precision of the element format.

**Exponent.** A rule that gives powers of two takes the exponent of a, plus one if the fraction of a
exceeds a limit. Adding 2^52 - 1 - limit, the push, to the bits of a carries into the exponent in
exactly this case. So the limit, as 52 fraction bits, says everything about the rule::

    FLOOR  limit = 2^52 - 1, which no fraction exceeds
    CEIL   limit = 0
    EVEN   limit = the fraction of the number just below 2 - 2^-p
    RCEIL  limit = the fraction of m
    BUMP   limit = the fraction of 1.75

RCEIL: let a = f 2^e and m = g 2^emax with 1 <= f, g < 2. The quotient a / m = (f / g) 2^(e - emax)
exceeds 2^(e - emax) if and only if f > g, and it never exceeds 2^(e - emax + 1). EVEN: f rounds to
2 if and only if f >= 2 - 2^-p, since it rounds to p bits with ties away from zero.

**Quotient.** V / X is rounded to odd (an inexact result takes an odd last bit). One more rounding,
to 51 bits or fewer, gives the rounding of the exact quotient, and the probabilities of the
stochastic mode are right to 2^-31. Let v and s be the 53-bit significands of V and X as integers. X
has at most 35 significand bits, so s' = s / 2^18 is an integer. Long division gives 57 bits of the
quotient in two steps, with the digits q1 and q2 and the remainders r1 and r2::

    v 2^38 / s' = q1 2^28 + q2 + r2 / s',   v 2^10 = q1 s' + r1,   r1 2^28 = q2 s' + r2
    (v < 2^53,  2^34 <= s' < 2^35)

No step exceeds 63 bits. A quotient outside binary64's normal range becomes the nearest end of that
range, which rounds in the same way, since element formats lie inside binary32.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.names import ScaleRule
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
    """A scale rule that rounds the quotient a / m to the scale format, as integers."""

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


def quotients_of(f: BlockFormat, m: float | None = None) -> Quotients:
    """Return the integers of a rule that rounds a quotient; m: in place of the largest element."""
    mode = RoundingMode.TOWARD_POSITIVE if f.rule is ScaleRule.RCEIL else RoundingMode.TIES_TO_EVEN
    element = f.element.format.max_finite if m is None else m
    return Quotients(
        bits_of(element, C64),
        target_of(Rounding(format=f.scale, mode=mode, overflow=Overflow.SATURATE), C64)._replace(
            unsigned=0
        ),
        bits_of(f.scale.min_positive, C64),
        bits_of(f.tensor_top, C64),
        target_of(rounding(BINARY32, overflow=Overflow.SATURATE), C64),
    )


def element_of(f: BlockFormat) -> Target:
    """Return the elements' rounding as a target in binary64's bits."""
    return target_of(f.element, C64)


class BlockRule(NamedTuple):
    """The three functions of a block: its scale's exponent, and two ways to divide by a scale.

    exponent(a, powers) returns the exponent of the scale for a block whose largest magnitude has
    the bits a. shifted(a, e) divides the magnitude with the bits a by 2^e, and quotient(a, x)
    divides it by the scale with the bits x; both return the bits of the quotient.
    """

    exponent: Callable[..., Any]
    shifted: Callable[..., Any]
    quotient: Callable[..., Any]


def build_block_rule(
    where: Callable[..., Any], divide: Callable[..., Any], compiled: Callable[..., Any]
) -> BlockRule:
    """Return the three functions of a block for one executor.

    Their arguments are a, the bits of a finite magnitude, and x, the bits of a scale that is normal
    in binary64 and has at most 35 significand bits. `where` and `compiled` are as in
    `emu.roundings.rule`; `divide` is the quotient of non-negative integers, rounded down.
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
        """Return a quotient clipped to binary64's normal range; 0 stays 0."""
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
