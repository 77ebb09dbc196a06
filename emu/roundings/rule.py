"""The one rule that rounds a magnitude, in arithmetic on its bits as a non-negative integer.

**The idea.** A carrier (binary32 or binary64) has M fraction bits. The bits of |x|, read as an
integer `a`, grow with |x|::

    a = eeeeeeee kkkkkkk r ssssssssssssss      k kept   r round bit   s sticky bits
        exponent fraction \\__ d dropped __/     rem = the d dropped bits,  unit = 2^d

Adding one to the kept part carries from the fraction into the exponent by itself. So a rounding
adds a number to `a`, the push, and then clears the dropped bits, the cut::

    y = (a + push) & -unit,   0 <= push < unit

The result is the next number up if and only if rem + push >= unit; otherwise it is the number
below. The mode decides only the push. With lsb the last kept bit and half = unit / 2::

    mode               push                     effect
    ties to even       (unit - 1 + lsb) >> 1    is half - 1 + lsb: a tie goes up if lsb is 1
    ties to away       unit >> 1                is half: a tie goes up
    directed, to odd   unit - 1 or 0            any rem > 0 goes up, or nothing does
    stochastic         unit - 1 or 0            goes up if rem / unit > R, R random

In a directed mode the mode and the sign choose between unit - 1 and 0. To odd takes unit - 1 where
lsb is 0. In the stochastic mode R is uniform on the multiples of 2^-31 in [0, 1). The push of ties
to even is written as a shift because (unit - 1 + lsb) >> 1 is 0 where nothing is dropped (unit =
1), as it must be.

**Below the target's 2^emin** more bits are dropped, up to d = M, where only the leading bit is
kept. This happens in the binade of `smallest`, the bits of the smallest positive number. Every
smaller number, a < smallest, becomes 0 or smallest, and the same push decides. There d is held at
M + 1, so that unit = 2^(M+1), and the bits of half the smallest number are smallest - 2^M::

    ties to even       push = 2^M - 1         a + push >= smallest  iff  a > smallest - 2^M
    ties to away       push = 2^M             a + push >= smallest  iff  a >= smallest - 2^M
    outward, a > 0     push = smallest - a    a + push = smallest
    outward, a = 0     push = unit - 1        a + push < smallest

So a tie goes to 0 in ties to even. The result is 0 where a + push < smallest. Otherwise a + push <
smallest + 2^M, and a cut at 2^M instead of unit gives smallest: 2^M is one binade, whereas unit
would be two. The position of lsb in `a` may belong to the exponent, so lsb is taken from the
significand with its leading bit instead: it is 1 at d = M and 0 at d = M + 1.

If smallest is not above the carrier's own least normal number (bf16 in binary32), d never exceeds
M, and the cut gives 0 below smallest in any case.

**The sign** of x goes back onto the result, also onto a zero, except where the format has no -0,
and onto a zero that NaN became: it comes from no number, so it has no sign (`signed`).

The code uses only + - & | >> << comparisons and `where`, so that Numba compiles the same function
that XLA traces. Every parameter of the target is data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode

EVEN, AWAY, ZERO, POSITIVE, NEGATIVE, OUTWARD, ODD, STOCHASTIC = (m.code for m in RoundingMode)
Bits = Any  # integers or booleans of the carrier: a scalar in Numba, an array in XLA
RANDOM_BITS = 31  # of the stochastic mode: the most that a signed 32-bit word holds


class Carrier(NamedTuple):
    """The layout of the numbers that a computation carries."""

    fraction: int  # the number of fraction bits, M
    bias: int
    magnitude: int  # mask of everything but the sign
    infinity: int
    nan: int


C32 = Carrier(23, 127, 0x7FFF_FFFF, 0x7F80_0000, 0x7FC0_0000)
C64 = Carrier(52, 1023, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000)


class Target(NamedTuple):
    """A `Rounding` as integers in the bits of one carrier."""

    drop: int  # dropped bits of a normal number, M + 1 - p
    # the largest number of dropped bits, which the carrier's lowest binade has; at most M + 1,
    # since more than M + 1 give the same result
    deepest: int
    emin: int  # biased exponent of the target's smallest normal number
    smallest: int  # bits of the smallest positive number
    largest: int  # bits of the largest finite number
    over_positive: int  # what overflow becomes, by sign
    over_negative: int
    infinite: int  # what an infinity becomes
    nan: int  # what a NaN becomes
    floor: int  # bits of the least magnitude: 0, or `smallest` where the format has no zero
    # bits of the largest |x| that gives a zero with the sign of x: all bits, or infinity where NaN
    # becomes zero, or -1 where the format has no -0
    signed_zero: int
    unsigned: int  # 1 if negative numbers and zero become NaN
    mode: int


def bits_of(value: float, carrier: Carrier) -> int:
    """Return the carrier's bits of a non-negative value that it holds exactly."""
    if carrier is C32:
        return int(np.float32(value).view(np.int32))
    return int(np.float64(value).view(np.int64))


def target_of(r: Rounding, carrier: Carrier) -> Target:
    """Return a rounding as the integers that the rule needs for a carrier.

    Raises ValueError if the carrier cannot hold the format.
    """
    f: Format = r.format
    if carrier is C32 and not f.fits_binary32:
        raise ValueError(f"format {f.name} does not fit a float32 array; pass float64")
    largest = bits_of(f.max_finite, carrier)
    beyond = {Overflow.INF: carrier.infinity, Overflow.NAN: carrier.nan, Overflow.SATURATE: largest}
    assert r.overflow is not None  # a `Rounding` fills it in when it is made
    over = beyond[r.overflow]
    # IEEE 754-2019, 7.4: a direction that points inward stops at the largest finite number
    inward = {
        RoundingMode.TOWARD_ZERO: (True, True),
        RoundingMode.TO_ODD: (True, True),
        RoundingMode.TOWARD_POSITIVE: (False, True),
        RoundingMode.TOWARD_NEGATIVE: (True, False),
    }.get(r.mode, (False, False))
    infinite = carrier.infinity if f.inf and r.overflow is Overflow.INF else over
    smallest = bits_of(f.min_positive, carrier)
    drop, emin = carrier.fraction + 1 - f.precision, f.emin + carrier.bias
    keeps_nan = f.nan or r.nan is NanPolicy.KEEP
    signed_zero = carrier.magnitude if keeps_nan else carrier.infinity
    return Target(
        drop=drop,
        deepest=min(drop + emin - 1, carrier.fraction + 1),
        emin=emin,
        smallest=smallest,
        largest=largest,
        over_positive=largest if inward[0] else over,
        over_negative=largest if inward[1] else over,
        infinite=infinite,
        nan=carrier.nan if keeps_nan else 0,
        floor=0 if f.zero else smallest,
        signed_zero=signed_zero if f.negative_zero else -1,
        unsigned=int(not f.signed),
        mode=r.mode.code,
    )


class Rule(NamedTuple):
    """The rule over one carrier, as three functions, and the sign of their results.

    `nearest_even` has only the common mode ties-to-even, `any_mode` takes any mode but the
    stochastic one from the target, and `stochastic` takes random bits too. All three map the bits
    of a number, sign included, to those of the rounded number. `signed` is their last step.
    """

    nearest_even: Callable[..., Any]
    any_mode: Callable[..., Any]
    stochastic: Callable[..., Any]
    signed: Callable[..., Any]


def build_rule(carrier: Carrier, where: Callable[..., Any], compiled: Callable[..., Any]) -> Rule:
    """Return the rule for one carrier.

    Each of its roundings maps (b, target[, random]) to the bits of the rounded number, as signed
    integers. b is the bits of x, and random is an integer in [0, 2^31). `nearest_even` gives what
    `any_mode` gives in the mode ties-to-even, at twice the speed. `any_mode` covers all modes but
    the stochastic one. signed(m, b, target) gives a rounded magnitude m the sign of x.

    Args:
        carrier: the layout of the bits.
        where: the elementwise choice (Numba: a scalar function; XLA: lax.select).
        compiled: applied to every function of the rule (Numba: njit; XLA: identity).
    """
    M, MAGNITUDE = carrier.fraction, carrier.magnitude
    INFINITY, NAN = carrier.infinity, carrier.nan
    LEADING = 1 << M

    @compiled
    def clip(n: Bits, low: Bits, high: Bits) -> Bits:
        raised = where(n < low, low, n)
        return where(raised > high, high, raised)

    @compiled
    def split(a: Bits, t: Target) -> tuple[Bits, Bits, Bits]:
        """Return the unit, the significand, and its lowest kept bit."""
        shift = clip(t.drop + t.emin - (a >> M), t.drop, t.deepest)
        significand = where(a >= LEADING, (a & (LEADING - 1)) | LEADING, a)
        return 1 << shift, significand, (significand >> shift) & 1

    @compiled
    def cut(a: Bits, push: Bits, unit: Bits, over: Bits, t: Target) -> Bits:
        """Return the bits of the result, with overflow and NaN resolved; an infinity overflows."""
        s = a + push
        y = where(s < t.smallest, 0, s & -where(unit < LEADING, unit, LEADING))
        return where(a > INFINITY, t.nan, where(y > t.largest, over, y))

    @compiled
    def outward(a: Bits, unit: Bits, t: Target) -> Bits:
        """Return the push that takes every inexact number up to the next one."""
        return where((a < t.smallest) & (a > 0), t.smallest - a, unit - 1)

    @compiled
    def scale(y: Bits, a: Bits, negative: Bits, t: Target) -> Bits:
        """Return the result in a format that may lack zero and negative numbers, as e8m0fnu does.

        Positive magnitudes below its smallest number become that number; zero and negative numbers
        become NaN. Of the two carriers only binary64 holds such a format.
        """
        y = where(y < t.floor, t.floor, y)
        return where((t.unsigned == 1) & (negative | (a == 0)), NAN, y)

    @compiled
    def leave(y: Bits, a: Bits, negative: Bits, t: Target) -> Bits:
        """Return y unchanged, for the carrier that does not hold e8m0fnu."""
        return y

    finish = scale if carrier is C64 else leave

    @compiled
    def signed(m: Bits, b: Bits, t: Target) -> Bits:
        """Return the rounded magnitude m with the sign of the number that has the bits b.

        A zero has no sign in a format without -0, nor has a zero that NaN became.
        """
        signless = (m == 0) & (b & MAGNITUDE > t.signed_zero)
        return where(signless, 0, m | (b & ~MAGNITUDE))

    @compiled
    def nearest_even(b: Bits, t: Target) -> Bits:
        a = b & MAGNITUDE
        unit, _, lsb = split(a, t)
        y = cut(a, (unit - 1 + lsb) >> 1, unit, t.over_positive, t)
        return signed(finish(y, a, b < 0, t), b, t)

    @compiled
    def any_mode(b: Bits, t: Target) -> Bits:
        a, negative = b & MAGNITUDE, b < 0
        unit, _, lsb = split(a, t)
        directed = where(negative, t.mode == NEGATIVE, t.mode == POSITIVE) | (t.mode == OUTWARD)
        away = directed | ((t.mode == ODD) & (lsb == 0))
        nearest = where(t.mode == EVEN, (unit - 1 + lsb) >> 1, where(t.mode == AWAY, unit >> 1, 0))
        push = where(away, outward(a, unit, t), nearest)
        over = where(a == INFINITY, t.infinite, where(negative, t.over_negative, t.over_positive))
        return signed(finish(cut(a, push, unit, over, t), a, negative, t), b, t)

    @compiled
    def stochastic(b: Bits, t: Target, random: Bits) -> Bits:
        a = b & MAGNITUDE
        unit, significand, _ = split(a, t)
        d = clip(t.drop + t.emin - (a >> M), t.drop, t.drop + t.emin - 1)
        # floor(2^31 * dropped part / unit) is compared with the random integer, so a dropped part
        # below 2^-31 of a unit never goes up
        part = where(a < t.smallest, significand, a & (unit - 1))
        up = (part << clip(RANDOM_BITS - d, 0, RANDOM_BITS)) >> clip(
            d - RANDOM_BITS, 0, M + 1
        ) > random
        push = where(up, outward(a, unit, t), 0)
        y = cut(a, push, unit, t.over_positive, t)
        return signed(finish(y, a, b < 0, t), b, t)

    return Rule(nearest_even, any_mode, stochastic, signed)
