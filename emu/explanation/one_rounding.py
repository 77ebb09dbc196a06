"""One rounding, or one sum of two numbers, explained in bits, with exact integers and fractions.

A number x that is rounded to a format of precision p is written as::

    |x| = (kept + rest) * 2^(exponent - p + 1),   kept an integer below 2^p,   0 <= rest < 1

`rest` is the discarded part. Its first bit is the round bit, and the others are the sticky bits.
The result is computed by the rule (`emu.roundings.rule`, run by `emu.backends.numba.rounding`). It
is checked against a second result, which is derived here by other code in exact arithmetic.

A sum is drawn in aligned bits, which shows where a carry pushes one bit off the end.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from roundscope.emu.errors import known_arguments, tidy_errors
from roundscope.emu.explanation.encoding import code_of, fields_of
from roundscope.emu.formats.format import Format
from roundscope.emu.numbers import as_float, is_known_number
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode
from roundscope.emu.roundings.modes import rounding as rounding_named
from roundscope.emu.shown import shown

HALF = Fraction(1, 2)
_FRACTION = re.compile(r"\s*([+-]?\d+)/(\d+)\s*")
_REPAIR = "write a decimal (-4.7), a fraction (1/3), a hexadecimal float (0x1.8p3), inf or nan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One rounding of one binary64 number, in bits.

    Attributes:
        text: the number as it was written.
        value: the binary64 number that is rounded.
        exact_input: whether binary64 holds the text exactly.
        rounding: the `Rounding`.
        exponent: the exponent of |value|, or the format's smallest exponent if |value| is below its
            smallest normal number; None unless the value is finite and not 0.
        kept: the kept bits, the leading bit first; their number is the format's precision.
        round_bit: the first discarded bit.
        sticky: the other discarded bits, up to the last 1; '' if none is 1.
        tie: whether |value| is halfway between two neighboring numbers of the format.
        up: whether 1 is added to the kept part.
        why: the decision in words.
        place: the code, without the sign, of the number that the kept part represents. It is also
            the number of smaller magnitudes in the format.
        flips: how many bits of the code change if 1 is added to the kept part, which shows how far
            the carry runs; 0 if nothing is added.
        grows: whether the carry runs out of the kept bits into the exponent.
        overflows: whether the rounded magnitude lies beyond the largest number.
        result: the rounded number, as the rule gives it.
        code: the result's code in the format; None for a NaN or a sign that the format does not
            have.
        fields: the sign, exponent field and fraction of the code; None if the code is None.
        error: result - value. It is 0 if both are the same infinity or both are NaN.
        ulps: the error divided by the distance between neighboring numbers of the format at
            |value|; None unless the value is finite and not 0 and the result is finite.
    """

    text: str
    value: float
    exact_input: bool
    rounding: Rounding
    exponent: int | None = None
    kept: str = ""
    round_bit: str = ""
    sticky: str = ""
    tie: bool = False
    up: bool = False
    why: str
    place: int | None = None
    flips: int = 0
    grows: bool = False
    overflows: bool = False
    result: float
    code: int | None
    fields: tuple[str, str, str] | None
    error: float
    ulps: float | None = None


@known_arguments
def explain(value: float | str, rounding: Rounding | str) -> Explanation:
    """Explain one rounding of one number in bits.

    The result is computed by the same integer rule as that of `round_to`. It is checked against a
    second result, which separate code derives in exact arithmetic. The stochastic mode draws the
    first random number of its seed.

    Args:
        value: a number, or a text: a decimal ("-4.7"), a fraction ("1/3"), a hexadecimal float
            ("0x1.8p3"), "inf" or "nan".
        rounding: a `Rounding`, or a `Format` or its name. With a format the number is rounded to
            nearest even.

    Returns:
        An `Explanation`: kept and discarded bits, the decision in words, and the result with its
        code.

    Raises:
        ValueError: for a text that is not a number or lies beyond binary64, or for an unknown
            format.
        TypeError: for a rounding that is not a name, a `Format` or a `Rounding`.
        ArithmeticError: if the two results differ, which would be an error in this package.

    Example:
        >>> from roundscope import emu
        >>> shown = emu.explain("0.1", "bf16")
        >>> shown.kept, shown.round_bit, shown.up, shown.result
        ('11001100', '1', True, 0.10009765625)
        >>> shown.why
        'round bit 1, a sticky bit is 1: above half an ulp, to the nearest'
        >>> shown.fields
        ('0', '01111011', '1001101')
    """
    r = rounding_named(rounding)
    x, exact = parse(value)
    ordinary = math.isfinite(x) and x != 0 and (r.format.signed or x > 0)
    parts = _finite(x, r) if ordinary else _special(x, r)
    result = rule_result(x, r)
    if not _same(result, parts["result"]):
        raise ArithmeticError(
            f"rounding {x!r} to {r}: the rule gives {result!r}, exact arithmetic"
            f" {parts['result']!r}"
        )
    code = code_of(result, r.format)
    bits = None if code is None else fields_of(code, r.format)
    return Explanation(
        text=str(value), value=x, exact_input=exact, rounding=r, code=code, fields=bits, **parts
    )


def split(magnitude: Fraction, f: Format) -> tuple[int, int, Fraction]:
    """Return (exponent, kept, rest) of a positive number, as the module's formula defines them."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    exponent = max(exponent, f.emin)
    units = magnitude / Fraction(2) ** (exponent - f.precision + 1)
    return exponent, math.floor(units), units - math.floor(units)


def _finite(x: float, r: Rounding) -> dict[str, Any]:
    f, exact = r.format, Fraction(x)
    exponent, kept, rest = split(abs(exact), f)
    unit = Fraction(2) ** (exponent - f.precision + 1)
    up, why = decide(kept, rest, x < 0, r)
    magnitude = (kept + up) * unit
    overflows = magnitude > Fraction(f.max_finite)
    if overflows:
        result, note = overflow(x < 0, r)
        why += "; " + note
    elif magnitude == 0 and not f.zero:
        result, why = f.min_positive, why + f"; {f.name} has no zero: its least number"
    else:
        result = _signed(float(magnitude), x < 0, f)
    # binary digits, up to the last 1
    discarded = f"{rest.numerator:0{max(1, rest.denominator.bit_length() - 1)}b}"
    finite = math.isfinite(result)
    place = (
        (exponent - f.emin) * (1 << (f.precision - 1))
        + kept
        - (0 if f.zero else 1 << (f.precision - 1))
    )
    return dict(
        exponent=exponent,
        kept=f"{kept:0{f.precision}b}",
        round_bit=discarded[:1],
        sticky=discarded[1:],
        tie=rest == HALF,
        up=up,
        why=why,
        place=place,
        flips=(place ^ (place + 1)).bit_count() if up else 0,
        grows=up and kept + 1 == 1 << f.precision,
        overflows=overflows,
        result=result,
        error=float(Fraction(result) - exact) if finite else result - x,
        ulps=float((Fraction(result) - exact) / unit) if finite else None,
    )


def _special(x: float, r: Rounding) -> dict[str, Any]:
    """Return the fields for zeros, infinities, NaN, and negative numbers in unsigned formats."""
    f = r.format
    if math.isnan(x):
        keeps = f.nan or r.nan is NanPolicy.KEEP
        why = (
            "NaN stays NaN"
            if f.nan
            else f"{f.name} has no NaN: nan={r.nan} {'keeps it' if keeps else 'makes it 0'}"
        )
        result = math.nan if keeps else 0.0
    elif not f.signed and x <= 0:
        result, why = math.nan, f"{f.name} has neither zero nor negative numbers: NaN"
    elif x == 0:
        result, why = _signed(0.0, math.copysign(1, x) < 0, f), "zero is exact"
    elif f.inf and r.overflow is Overflow.INF:
        result, why = x, f"{f.name} has infinities"
    else:
        result = math.nan if r.overflow is Overflow.NAN else math.copysign(f.max_finite, x)
        why = f"infinity, with overflow={r.overflow}"
    same = _same(result, x) or result == x
    return dict(why=why, result=result, error=0.0 if same else result - x)


def decide(kept: int, rest: Fraction, negative: bool, r: Rounding) -> tuple[bool, str]:
    """Return whether 1 is added to the kept part, and the reason in words."""
    odd = kept & 1 == 1
    if rest == 0:
        return False, f"nothing is discarded: this is a number of {r.format.name}"
    match r.mode:
        case RoundingMode.TO_ODD:
            return not odd, f"inexact: to the odd neighbor, and the kept part is {_parity(odd)}"
        case RoundingMode.TOWARD_ZERO:
            return False, "toward zero: what is discarded is dropped"
        case RoundingMode.AWAY_FROM_ZERO:
            return True, "away from zero: any discarded 1 adds one"
        case RoundingMode.TOWARD_POSITIVE | RoundingMode.TOWARD_NEGATIVE:
            outward = negative == (r.mode is RoundingMode.TOWARD_NEGATIVE)
            sign = "negative" if negative else "positive"
            return (
                outward,
                f"{r.mode} and {sign}: any discarded 1 {'adds one' if outward else 'is dropped'}",
            )
        case RoundingMode.STOCHASTIC:
            draw = first_random(r.seed)
            chance, drawn = math.floor(rest * 2**31), f"{draw / 2**31:.6f}"
            sign = ">" if chance > draw else "<="
            return (
                chance > draw,
                (
                    f"discarded part {chance / 2**31:.6f} of an ulp {sign} drawn {drawn} (seed"
                    f" {r.seed})"
                ),
            )
    if rest != HALF:
        bits = f"round bit {int(rest > HALF)}" + (", a sticky bit is 1" if rest > HALF else "")
        return (
            rest > HALF,
            f"{bits}: {'above' if rest > HALF else 'below'} half an ulp, to the nearest",
        )
    if r.mode is RoundingMode.TIES_TO_AWAY:
        return True, "round bit 1, no sticky bit: a tie, away from zero"
    return odd, f"round bit 1, no sticky bit: a tie, to even, and the kept part is {_parity(odd)}"


def overflow(negative: bool, r: Rounding) -> tuple[float, str]:
    """Return the result for a finite number beyond the largest, and why (IEEE 754-2019, 7.4)."""
    inward = {RoundingMode.TOWARD_ZERO, RoundingMode.TO_ODD}
    inward.add(RoundingMode.TOWARD_POSITIVE if negative else RoundingMode.TOWARD_NEGATIVE)
    largest, sign = r.format.max_finite, -1.0 if negative else 1.0
    if r.mode in inward:
        return sign * largest, f"beyond the largest number, {largest:g}: {r.mode} stops there"
    beyond = {Overflow.INF: math.inf, Overflow.NAN: math.nan, Overflow.SATURATE: largest}
    assert r.overflow is not None  # a `Rounding` fills it in when it is made
    became = beyond[r.overflow]
    return sign * became, f"beyond the largest number, {largest:g}: overflow={r.overflow}"


def first_random(seed: int) -> int:
    """Return the first random integer of a seed, in [0, 2^31)."""
    import numpy as np

    from roundscope.emu.roundings.random import random31

    key, zero = np.array([seed], np.uint32), np.zeros(1, np.uint32)
    return int(random31((key, zero), (zero, zero))[0])


def _parity(odd: bool) -> str:
    return "odd" if odd else "even"


def rule_result(x: float, r: Rounding) -> float:
    """Return x rounded by the rule, as Numba runs it on binary64 numbers."""
    import numpy as np

    from roundscope.emu.backends.numba.rounding import round_array

    random = (
        np.array([first_random(r.seed)], np.int32) if r.mode is RoundingMode.STOCHASTIC else None
    )
    return float(round_array(np.array([x]), r, random)[0])


def _signed(magnitude: float, negative: bool, f: Format) -> float:
    return -magnitude if negative and (magnitude or f.negative_zero) else magnitude


def _same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (
        a == b and math.copysign(1, a) == math.copysign(1, b)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """a + b with both operands at the larger exponent.

    Attributes:
        a: the first operand, a binary64 number.
        b: the second operand.
        total: their sum as a binary64 number.
        exact: whether total is the exact sum.
        exponent: the exponent of the bit before the point, whose weight is 2^exponent.
        rows: |a|, |b| and |a + b| in bits, each as a pair: the bits before the point and those
            after it. The point comes after the column of 2^exponent.
        shift: how many places the sum moves to have one bit before the point. 1 means a carry into
            a new binade, and a negative number means cancellation.
    """

    a: float
    b: float
    total: float
    exact: bool
    exponent: int
    rows: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]
    shift: int


def add(a: float | str, b: float | str, f: Format) -> Addition:
    """Return the sum of two finite numbers other than 0, aligned on the format's grid.

    Raises ValueError for other numbers, and for two numbers whose sum is 0.
    """
    x, y = parse(a)[0], parse(b)[0]
    if not (math.isfinite(x) and math.isfinite(y) and x + y != 0 and x != 0 and y != 0):
        raise ValueError(
            f"--plus {b}: a sum is drawn for finite numbers other than 0; explain {x + y!r} instead"
        )
    total, exact = x + y, Fraction(x) + Fraction(y)
    exponent = max(split(abs(Fraction(v)), f)[0] for v in (x, y))
    row_a, row_b, row_sum = (
        _digits(abs(v) / Fraction(2) ** exponent) for v in (Fraction(x), Fraction(y), exact)
    )
    return Addition(
        a=x,
        b=y,
        total=total,
        exact=Fraction(total) == exact,
        exponent=exponent,
        rows=(row_a, row_b, row_sum),
        shift=split(abs(exact), f)[0] - exponent,
    )


def _digits(units: Fraction) -> tuple[str, str]:
    """Return the binary digits before and after the point, up to the last 1."""
    places = units.denominator.bit_length() - 1
    bits = f"{units.numerator:0{places + 1}b}"
    return bits[: len(bits) - places], bits[len(bits) - places :]


@tidy_errors
def parse(value: float | str) -> tuple[float, bool]:
    """Return the binary64 number nearest to the value, and whether it is exactly the value.

    Raises ValueError for a text that is not a number or lies beyond binary64.
    """
    if not isinstance(value, str):
        if not is_known_number(value):
            raise TypeError(f"value={shown(value)}: give a number, or a text; {_REPAIR}")
        x = as_float(value)
        if math.isinf(x) and isinstance(value, int):
            raise ValueError(f"value={shown(value)}: beyond binary64; write inf")
        return x, math.isnan(x) or x == value
    try:
        x, exact = _read(value.strip().lower())
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"VALUE {shown(value)}: not a number; {_REPAIR}") from None
    except OverflowError:
        x, exact = math.inf, False
    if math.isinf(x) and not exact:
        raise ValueError(
            f"VALUE {shown(value)}: beyond binary64; write inf, or a magnitude up to 1.797e308"
        )
    return x, exact


def _read(text: str) -> tuple[float, bool]:
    if match := _FRACTION.fullmatch(text):
        exact = Fraction(int(match[1]), int(match[2]))
        return float(exact), Fraction(float(exact)) == exact
    if "0x" in text:
        return float.fromhex(text), _hex_fits(text)
    x = float(text)
    return x, text.lstrip("+-") in ("inf", "infinity", "nan") or (
        math.isfinite(x) and _decimal_fits(text, x)
    )


def _decimal_fits(text: str, x: float) -> bool:
    try:
        return Decimal(text) == Decimal(x)
    except InvalidOperation:  # the exponent is beyond Decimal's range
        return False


def _hex_fits(text: str) -> bool:
    """Return whether binary64 holds a hexadecimal float exactly (overflow is checked elsewhere)."""
    digits, _, exponent = text.partition("0x")[2].partition("p")
    whole, _, fraction = digits.partition(".")
    mantissa, power = int(whole + fraction, 16), int(exponent or 0) - 4 * len(fraction)
    if mantissa == 0:
        return True
    low = (mantissa & -mantissa).bit_length() - 1
    return mantissa.bit_length() - low <= 53 and power + low >= -1074
