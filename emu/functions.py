"""exp, 2^x, log, tanh, cos and sin, each with one definition for every engine.

All are evaluated in binary64 by one sequence of additions, guarded products and integer steps, so
that every engine gets the same bits. The result then rounds once to the event's format. exp of a
binary32 argument rounds correctly to binary32 and to every narrower format, in every mode, since
its binary64 value lies on the same side of every rounding boundary as the true value.
tests/checks/exhaustive_exp.py checks this for all 2^32 arguments with 60 digits.

`exp64`, which attention uses, stops at e^-400 and e^709, so that no later product leaves binary64's
normal range. `whole_exp` covers all of binary64, for formats that have binary64's exponents.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Ops

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has 21 trailing zero bits, so k * LN2_HIGH is exact for |k| < 2^21
LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SMALLEST_ARGUMENT = -400.0  # e^-400 = 2^-577, so no later product leaves binary64's normal range
LARGEST_ARGUMENT = 709.0  # e^709 = 2^1022.9
WHOLE_RANGE = (-746.0, 710.0)  # outside, e^x is below half of binary64's least number or infinite
ONE, INFINITY = 1 << 52, 0x7FF0_0000_0000_0000
BOUNDARY = 1 << 28  # 24-bit numbers and their midpoints are multiples of it in binary64's bits
EXP_TERMS = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))
LOG_TERMS = tuple(2.0 / n for n in range(23, 2, -2))
SIN_TERMS = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(9, 0, -1))
COS_TERMS = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(9, 1, -1))
# pi / 2 in three parts, of which k times the first two is exact for |k| <= 2^20
HALF_PI = (
    float.fromhex("0x1.921fb544p+0"),
    float.fromhex("0x1.0b4611a6p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)
LARGEST_ANGLE = 1.5e6
SMALL_TANH, WHOLE_TANH = 0.3, 20.0  # a series is used below the first; tanh is 1 from the second on


def _tanh_terms(count: int) -> tuple[float, ...]:
    """Return the coefficients of x^(2 count + 1) to x^3 of tanh, correctly rounded.

    They follow from the differential equation tanh' = 1 - tanh^2.
    """
    t = [Fraction(1)]
    for n in range(1, count + 1):
        t.append(-sum((t[i] * t[n - 1 - i] for i in range(n)), Fraction(0)) / (2 * n + 1))
    return tuple(float(c) for c in reversed(t[1:]))


TANH_TERMS = _tanh_terms(13)


def _horner(ops: Ops, x: Any, coefficients: tuple[float, ...]) -> Any:
    """Return c_0 x^n + ... + c_n, with each product and sum rounded to binary64 in turn."""
    y = coefficients[0]
    for c in coefficients[1:]:
        y = ops.multiply(x, y) + c
    return y


def exp64(ops: Ops, x: Any) -> Any:
    """Return e^x of a float64 array, within 0.7 ulp for a binary32 argument, 1.1 ulp for any other.

    Finite arguments outside [-400, 709] give e^-400 and e^709, so that a directed rounding still
    rounds them to the right side. The method is e^x = 2^k e^r with k = round(x / ln 2), r = high -
    low, |r| <= 0.35, and e^r = (1 + high) + (r^2 (1/2! + r/3! + ...) - low). The first bracket is
    exact where x is a binary32 number of at least 2^-29. If the sum rounds to a rounding boundary
    of binary32, such as 1, it is moved by one ulp toward the exact sum, so that it lies on the
    right side of the boundary (an error of at most 1 ulp).
    """
    k, high, low = _reduced(ops, x, SMALLEST_ARGUMENT, LARGEST_ARGUMENT)
    return _power(ops, x, k, high, low)


def whole_exp(ops: Ops, x: Any, *, to_odd: bool) -> Any:
    """Return e^x of a float64 array over the whole range of binary64.

    Inside the range of `exp64` both give the same bits. The exponent is added as an integer,
    because float arithmetic under XLA on a CPU flushes subnormal numbers.

    Args:
        ops: the array library.
        x: a float64 array.
        to_odd: whether one more rounding follows. Then subnormal results are rounded to odd, and
            finite arguments beyond the ends of binary64 give its least and its largest number, so
            that a directed rounding rounds them to the right side. Otherwise subnormal results are
            rounded to nearest, and arguments beyond the ends give 0 and infinity.
    """
    xp = ops.xp
    k, high, low = _reduced(ops, x, *WHOLE_RANGE)
    b = significand_bits(ops, high, low) + (k.astype(np.int64) << 52)
    shift = xp.clip(1 - (b >> 52), 1, 63)
    significand = (b & (ONE - 1)) | ONE
    kept = significand >> shift
    half = (1 << (shift - 1)) - 1 + (kept & 1)
    sticky = xp.where(significand & ((1 << shift) - 1) != 0, 1, 0)
    subnormal = kept | sticky if to_odd else (significand + half) >> shift
    b = xp.where(b >= INFINITY, INFINITY - int(to_odd), xp.where(b < ONE, subnormal, b))
    return _with_specials(xp, x, ops.from_bits(b))


def _reduced(ops: Ops, x: Any, smallest: float, largest: float) -> tuple[Any, Any, Any]:
    """Return k, high and low with x = k ln 2 + high - low, after x is clipped to the range."""
    xp = ops.xp
    z = xp.fmin(xp.fmax(x, smallest), largest)  # a number for NaN too
    k = xp.floor(ops.multiply(z, LOG2_E) + 0.5)
    return k, z - ops.multiply(k, LN2_HIGH), ops.multiply(k, LN2_LOW)


def exp2_64(ops: Ops, x: Any) -> Any:
    """Return 2^x of a float64 array, within 1.4 ulp; exact for whole x.

    Its range of results is that of `exp64`. The method is 2^x = 2^k e^(f ln 2) with k = round(x)
    and f = x - k, which is exact.
    """
    xp = ops.xp
    z = xp.fmin(xp.fmax(x, SMALLEST_ARGUMENT * LOG2_E), LARGEST_ARGUMENT * LOG2_E)
    k = xp.floor(z + 0.5)
    f = z - k
    return _power(ops, x, k, ops.multiply(f, LN2_HIGH), -ops.multiply(f, LN2_LOW))


def _power(ops: Ops, x: Any, k: Any, high: Any, low: Any) -> Any:
    """Return 2^k e^(high - low), or its special value where x is infinite or NaN.

    |high| is at most 0.36, and |low| is far smaller.
    """
    b = significand_bits(ops, high, low)
    y = ops.multiply(ops.from_bits(b), ops.from_bits((k.astype(np.int64) + 1023) << 52))
    return _with_specials(ops.xp, x, y)


def _with_specials(xp: Any, x: Any, y: Any) -> Any:
    """Return y, which is e^x, where x is finite; elsewhere 0, infinity or NaN."""
    return xp.where(xp.abs(x) < math.inf, y, xp.where(x < 0.0, 0.0, x))


def significand_bits(ops: Ops, high: Any, low: Any) -> Any:
    """Return the bits of e^(high - low).

    For binary32 arguments the number lies on the right side of every rounding boundary.
    """
    xp = ops.xp
    r = high - low
    tail = ops.multiply(ops.multiply(r, r), _horner(ops, r, EXP_TERMS)) - low
    y = (1.0 + high) + tail
    left_out = ((1.0 - y) + high) + tail  # the first two additions are exact: the sign is right
    b = ops.bits(y)
    side = xp.where(left_out > 0.0, 1, xp.where(left_out < 0.0, -1, 0))
    return xp.where(b & (BOUNDARY - 1) == 0, b + side, b)


def log64(ops: Ops, x: Any) -> Any:
    """Return ln x of a positive normal float64 array, within 0.9 ulp; -inf at 0.

    The method is ln x = k ln 2 + ln m with m = 1 + f in [sqrt(1/2), sqrt 2), and ln m = 2 atanh(s)
    with s = f / (2 + f). The term 2 s is written as f - s f = f - f^2/2 + s f^2/2, so that its
    leading term f is exact.
    """
    xp = ops.xp
    b = ops.bits(x)
    # the constant has the bits of sqrt(1/2), so that m = x / 2^k is in [sqrt(1/2), sqrt 2)
    k = (b - 0x3FE6_A09E_667F_3BCD) >> 52
    f = ops.from_bits(b - (k << 52)) - 1.0
    s = f / (2.0 + f)
    s2 = ops.multiply(s, s)
    half = ops.multiply(0.5, ops.multiply(f, f))
    series = ops.multiply(s, half + ops.multiply(s2, _horner(ops, s2, LOG_TERMS)))
    k = k.astype(np.float64)
    y = ops.multiply(k, LN2_HIGH) + (f - (half - (series + ops.multiply(k, LN2_LOW))))
    y = xp.where(x == 0.0, -math.inf, xp.where(x == math.inf, math.inf, y))
    return xp.where(x < 0.0, math.nan, xp.where(xp.isnan(x), x, y))


def tanh64(ops: Ops, x: Any) -> Any:
    """Return tanh x of a float64 array, within 4 ulps.

    The result is +-1 for |x| beyond 19.1, where binary64 has no number nearer to tanh x. For |x|
    below 0.3 it is x + x^3 (-1/3 + 2/15 x^2 ...), whose leading term is exact. Elsewhere it is (1 -
    e) / (1 + e) with e = exp(-2 |x|) and the sign of x.
    """
    xp = ops.xp
    size = xp.fmin(xp.abs(x), WHOLE_TANH)  # a number for NaN too
    e = exp64(ops, -2.0 * size)
    square = ops.multiply(size, size)
    series = ops.multiply(size, ops.multiply(square, _horner(ops, square, TANH_TERMS)))
    y = xp.where(size < SMALL_TANH, size + series, (1.0 - e) / (1.0 + e))
    return xp.where(xp.isnan(x), x, xp.copysign(y, x))


def cos64(ops: Ops, x: Any) -> Any:
    """Return cos x of a float64 array, within 1 ulp; NaN for |x| above 1.5 million.

    The method is x = k pi / 2 + r with r in two numbers, and a series of r.
    """
    return _turned(ops, x, 1)


def sin64(ops: Ops, x: Any) -> Any:
    """Return sin x of a float64 array, within 1 ulp; NaN for |x| above 1.5 million."""
    return ops.xp.where(ops.xp.abs(x) < 2.0**-27, x, _turned(ops, x, 0))


def _turned(ops: Ops, x: Any, quarters: int) -> Any:
    """Return the sine of x + quarters pi / 2."""
    xp, mul = ops.xp, ops.multiply
    z = xp.where(xp.abs(x) <= LARGEST_ANGLE, x, 0.0)
    k = xp.rint(mul(z, 2.0 / math.pi))
    first, part = z - mul(k, HALF_PI[0]), mul(k, HALF_PI[1])  # both exact
    high = first - part
    back = first - high
    low = ((first - (high + back)) + (back - part)) - mul(k, HALF_PI[2])
    r = high + low
    low = (high - r) + low
    square = mul(r, r)
    half = mul(0.5, square)
    near = 1.0 - half
    cosine = mul(mul(square, square), _horner(ops, square, COS_TERMS)) - mul(r, low)
    cosine = near + (((1.0 - near) - half) + cosine)
    sine = r + (mul(mul(r, square), _horner(ops, square, SIN_TERMS)) + mul(low, near))
    turn = k.astype(np.int64) + quarters
    y = xp.where(turn & 1 == 0, sine, cosine)
    return xp.where(xp.abs(x) <= LARGEST_ANGLE, xp.where(turn & 2 == 0, y, -y), math.nan)
