"""The bits of a number in its format: sign, exponent field, fraction.

Codes of a format grow with the magnitude, so a code is the number's place in the order of
magnitudes, with the sign on top. Infinity follows the largest finite number; NaN is the format's
own (canonical) code.
"""

import math

from roundscope.emu.formats.format import Format


def code_of(x: float, f: Format) -> int | None:
    """Return the code of a number of the format.

    It is None for a NaN, an infinity or a sign that the format does not have. Raises ValueError if
    x is a number between two numbers of the format.
    """
    negative = math.copysign(1, x) < 0
    if math.isnan(x):
        return _nan_code(f)
    if (negative and not f.signed) or (math.isinf(x) and not f.inf) or (x == 0 and not f.zero):
        return None
    place = _place(abs(f.max_finite), f) + 1 if math.isinf(x) else _place(abs(x), f)
    return place | (int(negative) << (f.bits - 1) if f.signed else 0)


def _place(magnitude: float, f: Format) -> int:
    """Return how many magnitudes of the format come before this one."""
    exponent = max(math.frexp(magnitude)[1] - 1, f.emin) if magnitude else f.emin
    units = math.ldexp(magnitude, f.precision - 1 - exponent)
    if units != int(units) or magnitude > f.max_finite:
        raise ValueError(f"{magnitude!r} is not a number of {f.name}; round it first")
    per_binade = 1 << (f.precision - 1)
    return (exponent - f.emin) * per_binade + int(units) - (0 if f.zero else per_binade)


def _nan_code(f: Format) -> int | None:
    """Return the code of NaN, or None if the format has none.

    With infinities it is the quiet NaN, whose first fraction bit is set; in fnuz formats it is the
    code of -0; in all others every bit but the sign is set.
    """
    if not f.nan:
        return None
    if f.inf:
        return (_place(f.max_finite, f) + 1) | (1 << (f.precision - 2))
    return (
        1 << (f.bits - 1)
        if f.signed and not f.negative_zero
        else (1 << (f.bits - int(f.signed))) - 1
    )


def fields_of(code: int, f: Format) -> tuple[str, str, str]:
    """Return a code as bits: sign ('' if the format has none), exponent field, fraction."""
    bits, fraction = f"{code:0{f.bits}b}", f.precision - 1
    signs = int(f.signed)
    return bits[:signs], bits[signs : f.bits - fraction], bits[f.bits - fraction :]
