"""Parsing of numbers in text: decimals, fractions, hexadecimal floats, inf and nan."""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from roundscope.emu.errors import tidy_errors
from roundscope.emu.numbers import as_float, is_known_number
from roundscope.emu.shown import shown

_FRACTION = re.compile(r"\s*([+-]?\d+)/(\d+)\s*")
_REPAIR = "write a decimal (-4.7), a fraction (1/3), a hexadecimal float (0x1.8p3), inf or nan"


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
