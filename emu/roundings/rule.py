"""The one rule: how a magnitude rounds, on non-negative integers.

A carrier (binary32 or binary64) has M fraction bits. The bits of |x|, read as an integer `a`, grow
with |x|, and adding one to the kept part carries from fraction into exponent by itself:

    a = eeeeeeee kkkkkkk r ssssssssssssss      k kept   r round bit   s sticky bits
        exponent fraction \\__ d dropped __/     rem = the d dropped bits,  unit = 2^d

so every rounding is a push and a cut,

    y = (a + push) & -unit,   0 <= push < unit,

which goes up to the next number if and only if rem + push >= unit. The mode decides only the push:

    ties to even      (unit - 1 + lsb) >> 1   half - 1 + lsb: a tie carries if the kept part is odd
    ties to away      unit >> 1               half: a tie carries
    directed, to odd  unit - 1                any rem > 0 carries, where the mode, the sign or an
                      even lsb says so 0                       else nothing does
    stochastic        unit - 1 or 0           by lot: rem / unit > R, R uniform on multiples of
                      2^-31 in [0, 1)

`unit - 1 + lsb` halved, rather than half - 1 + lsb, is 0 where nothing is dropped (unit = 1).

**Below the target's 2^emin** more bits are dropped, up to d = M, which keeps the leading bit alone:
that is the binade of `smallest`, the smallest positive number. All of "tiny", a < smallest, becomes
0 or smallest, and the same push decides. With d stopped at M + 1 and half = the bits of smallest /
2 = smallest - 2^M:

    to even    push = 2^M - 1       a + push >= smallest  iff  a > half      the tie goes to 0
    to away    push = 2^M           a + push >= smallest  iff  a >= half
    outward    push = smallest - a  for a > 0;  for a = 0 the unit - 1 = 2^(M+1) - 1 < smallest
               above

so the cut becomes 0 where a + push < smallest. Otherwise a + push < smallest + 2^M, and a cut at
2^M (one binade, where unit would span two) leaves smallest. The lsb stands where `a` may have
exponent bits, so it is taken from the significand 1.f instead: 1 at d = M, 0 at M + 1.

If smallest is no larger than the carrier's own least normal number (bf16 in binary32), then d <= M
throughout, and "0 if below smallest" is what the cut does anyway.

Only + - & | >> << comparisons and `where` are used, so that Numba compiles the very function that
XLA traces; every parameter of the target is data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode

EVEN, AWAY, ZERO, POSITIVE, NEGATIVE, OUTWARD, ODD, STOCHASTIC = (m.code for m in RoundingMode)
Bits = Any  # integers or booleans of the carrier: a scalar in Numba, an array in XLA
RANDOM_BITS = 31  # of the stochastic mode: the widest that a signed 32-bit word holds


class Carrier(NamedTuple):
    """The layout of the numbers that a computation carries."""

    fraction: int  # M
    bias: int
    magnitude: int  # mask of everything but the sign
    infinity: int
    nan: int


C32 = Carrier(23, 127, 0x7FFF_FFFF, 0x7F80_0000, 0x7FC0_0000)
C64 = Carrier(52, 1023, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000)


class Target(NamedTuple):
    """A `Rounding` as integers in the bits of one carrier."""

    drop: int  # dropped bits of a normal number, M + 1 - p
    # the largest number of dropped bits that differs from fewer: d of the carrier's lowest binade,
    # at most M + 1
    deepest: int
    emin: int  # biased exponent of the target's smallest normal number
    smallest: int  # bits of the smallest positive number
    largest: int  # bits of the largest finite number
    over_positive: int  # what overflow becomes, by sign
    over_negative: int
    infinite: int  # what an infinity becomes
    nan: int  # what a NaN becomes
    floor: int  # bits of the least magnitude: 0, or `smallest` where the format has no zero
    negative_zero: int  # 1 if the format has -0
    unsigned: int  # 1 if negative numbers, and zero, are NaN
    mode: int


def bits_of(value: float, carrier: Carrier) -> int:
    """Return the carrier's bits of a non-negative value that it holds exactly."""
    if carrier is C32:
        return int(np.float32(value).view(np.int32))
    return int(np.float64(value).view(np.int64))


def target_of(r: Rounding, carrier: Carrier) -> Target:
    """Return the integers that the rule needs.

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
    return Target(
        drop=drop,
        deepest=min(drop + emin - 1, carrier.fraction + 1),
        emin=emin,
        smallest=smallest,
        largest=largest,
        over_positive=largest if inward[0] else over,
        over_negative=largest if inward[1] else over,
        infinite=infinite,
        nan=carrier.nan if f.nan or r.nan is NanPolicy.KEEP else 0,
        floor=0 if f.zero else smallest,
        negative_zero=int(f.negative_zero),
        unsigned=int(not f.signed),
        mode=r.mode.code,
    )


class Rule(NamedTuple):
    """The rule over one carrier, as three functions.

    They are the mode everyone uses, every mode as data, and the mode with random bits.
    """

    nearest_even: Callable[..., Any]
    any_mode: Callable[..., Any]
    stochastic: Callable[..., Any]


def build_rule(carrier: Carrier, where: Callable[..., Any], compiled: Callable[..., Any]) -> Rule:
    """Return the rule for one carrier.

    Each of its functions maps (a, negative, target[, random]) to the bits of the rounded magnitude:
    a are the bits of |x|, negative says whether x < 0 or x is -0, random is an integer in [0,
    2^31). `nearest_even` is `any_mode` at mode EVEN, at twice the speed; `any_mode` covers all but
    the stochastic mode.

    Args:
        carrier: the layout of the bits.
        where: the elementwise choice (Numba: a scalar function; XLA: lax.select).
        compiled: applied to every function of the rule (Numba: njit; XLA: identity).
    """
    M = carrier.fraction
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
        """Return the push that takes whatever is inexact to the next number."""
        return where((a < t.smallest) & (a > 0), t.smallest - a, unit - 1)

    @compiled
    def scale(y: Bits, a: Bits, negative: Bits, t: Target) -> Bits:
        """Apply what a scale format adds: it has no zero and nothing negative.

        Only binary64 holds such a format, e8m0fnu.
        """
        y = where(y < t.floor, t.floor, y)
        return where((t.unsigned == 1) & (negative | (a == 0)), NAN, y)

    @compiled
    def leave(y: Bits, a: Bits, negative: Bits, t: Target) -> Bits:
        """Leave the result as it is, for carriers that hold no scale format."""
        return y

    finish = scale if carrier is C64 else leave

    @compiled
    def nearest_even(a: Bits, negative: Bits, t: Target) -> Bits:
        unit, _, lsb = split(a, t)
        return finish(cut(a, (unit - 1 + lsb) >> 1, unit, t.over_positive, t), a, negative, t)

    @compiled
    def any_mode(a: Bits, negative: Bits, t: Target) -> Bits:
        unit, _, lsb = split(a, t)
        directed = where(negative, t.mode == NEGATIVE, t.mode == POSITIVE) | (t.mode == OUTWARD)
        away = directed | ((t.mode == ODD) & (lsb == 0))
        nearest = where(t.mode == EVEN, (unit - 1 + lsb) >> 1, where(t.mode == AWAY, unit >> 1, 0))
        push = where(away, outward(a, unit, t), nearest)
        over = where(a == INFINITY, t.infinite, where(negative, t.over_negative, t.over_positive))
        return finish(cut(a, push, unit, over, t), a, negative, t)

    @compiled
    def stochastic(a: Bits, negative: Bits, t: Target, random: Bits) -> Bits:
        unit, significand, _ = split(a, t)
        d = clip(t.drop + t.emin - (a >> M), t.drop, t.drop + t.emin - 1)
        # the dropped part as a fraction of 2^31: what lies below 2^-31 of a unit never goes up
        part = where(a < t.smallest, significand, a & (unit - 1))
        up = (part << clip(RANDOM_BITS - d, 0, RANDOM_BITS)) >> clip(
            d - RANDOM_BITS, 0, M + 1
        ) > random
        push = where(up, outward(a, unit, t), 0)
        return finish(cut(a, push, unit, t.over_positive, t), a, negative, t)

    return Rule(nearest_even, any_mode, stochastic)
