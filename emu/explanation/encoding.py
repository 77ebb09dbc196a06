"""The bits of a number in its format: sign, exponent field, fraction.

Codes of a format grow with the magnitude. So the code of a number is the place of its magnitude
among the format's magnitudes, with the sign as the highest bit. Infinity follows the largest finite
number; NaN has the format's canonical code.
"""

import math

from roundscope.emu.formats.format import Format


def code_of(x: float, f: Format) -> int | None:
    """Return the code of a number of the format.

    The result is None for a NaN, an infinity, a zero or a sign that the format does not have.
    Raises ValueError for any other x that is not a number of the format.
    """
    negative = math.copysign(1, x) < 0
    if math.isnan(x):
        return _nan_code(f)
    if (negative and not f.signed) or (math.isinf(x) and not f.inf) or (x == 0 and not f.zero):
        return None
    place = _place(abs(f.max_finite), f) + 1 if math.isinf(x) else _place(abs(x), f)
    return place | (int(negative) << (f.bits - 1) if f.signed else 0)


def _place(magnitude: float, f: Format) -> int:
    """Return how many magnitudes of the format are smaller than this one."""
    exponent = max(math.frexp(magnitude)[1] - 1, f.emin) if magnitude else f.emin
    units = math.ldexp(magnitude, f.precision - 1 - exponent)
    if units != int(units) or magnitude > f.max_finite:
        raise ValueError(f"{magnitude!r} is not a number of {f.name}; round it first")
    per_binade = 1 << (f.precision - 1)
    return (exponent - f.emin) * per_binade + int(units) - (0 if f.zero else per_binade)


def _nan_code(f: Format) -> int | None:
    """Return the code of NaN, or None if the format has none.

    In a format with infinities it is the quiet NaN, whose first fraction bit is set. In fnuz
    formats it is the code that -0 has elsewhere. In all others every bit but the sign is set.
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
    """Return the bits of a code: sign ('' if the format has none), exponent field, fraction."""
    bits, fraction = f"{code:0{f.bits}b}", f.precision - 1
    signs = int(f.signed)
    return bits[:signs], bits[signs : f.bits - fraction], bits[f.bits - fraction :]
