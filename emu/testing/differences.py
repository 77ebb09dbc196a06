"""How far numbers are apart, and the words of the assertions' messages.

A distance is counted in numbers of a format. The magnitudes of a format are ranked from zero
upward, as their codes are, and infinity has the rank after that of the largest finite number. The
distance of two numbers is the difference of their ranks, with the sign, so it is also right where
the spacing changes, at powers of two, and across zero.

A message says how many numbers differ, and shows one of them in full.
"""

from __future__ import annotations

import math

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.explanation.encoding import code_of, fields_of
from roundscope.emu.explanation.one_rounding import explain
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, RoundingMode, without_saturation

APART = 2**64 - 1  # the distance of a NaN from a number, and of what has no rank


def is_number(x: np.ndarray, f: Format) -> np.ndarray:
    """Return which float64 numbers the format has; NaN and infinities count as such."""
    r = without_saturation(Rounding(format=f))
    held: np.ndarray = (round_to(x, r) == x) | ~np.isfinite(x) | (x == 0)
    return held


def distance(x: np.ndarray, y: np.ndarray, f: Format) -> np.ndarray:
    """Return how many numbers of the format lie between two float64 arrays, counting one end.

    Args:
        x: an array of numbers of the format; see `is_number`.
        y: another array of x's shape.
        f: the format.

    Returns:
        A uint64 array: 0 for equal numbers, for +0 and -0 and for two NaN, and `APART` where one of
        the two is NaN or is not a number of the format.
    """
    a, b = _ranks(x, f), _ranks(y, f)
    same_sign = np.signbit(x) == np.signbit(y)
    steps = np.where(same_sign, np.maximum(a, b) - np.minimum(a, b), a + b)
    steps = np.where(np.isnan(x) & np.isnan(y), np.uint64(0), steps)
    apart = np.isnan(x) != np.isnan(y)
    apart |= ~is_number(x, f) | ~is_number(y, f)
    return np.where(apart & (x != y), np.uint64(APART), steps)


def _ranks(x: np.ndarray, f: Format) -> np.ndarray:
    """Return the ranks of magnitudes as uint64, so that the sum of two does not overflow."""
    from roundscope.emu.backends.numba.ops import numpy_ops
    from roundscope.emu.formats.codes import encode

    ranks: np.ndarray = encode(numpy_ops(), np.abs(x), f).astype(np.uint64)
    return ranks


LABEL = 10  # the number of columns of the words left of a value


def counted(wrong: int, total: int, noun: str) -> str:
    """Return "3 of 4,096 numbers differ (0.0732 %)", with the noun given."""
    return f"{wrong:,} of {total:,} {noun} differ ({100 * wrong / max(total, 1):.3g} %)"


def place(flat: int, shape: tuple[int, ...]) -> str:
    """Return the index of an entry in words, "index (3, 17)"; of a single number, nothing."""
    if not shape:
        return "the only number"
    index = tuple(int(i) for i in np.unravel_index(flat, shape))
    return f"index {index[0] if len(index) == 1 else index}"


def written(label: str, value: float, f: Format) -> str:
    """Return one line: a label, a value in decimal and hexadecimal, and its bits in the format."""
    return f"  {label:<{LABEL}}{value!r:<24} {_hexed(value):<24} {bits_of(value, f)}".rstrip()


def raw(label: str, word: int, f: Format | None, width: int, value: float | int) -> str:
    """Return one line for a stored word, whose bits are shown as they are, NaN included.

    Args:
        label: the word left of the value.
        word: the stored bits as a whole number.
        f: the format of the word, or None for a whole number of `width` bits.
        width: the number of bits of the word.
        value: the number that the word stands for.
    """
    if f is None:
        return f"  {label:<{LABEL}}{value!r:<24} 0x{word:0{(width + 3) // 4}x}"
    # an 8-bit dtype stores a narrower format in its lower bits
    bits = "|".join(part for part in fields_of(word & ((1 << f.bits) - 1), f) if part)
    return f"  {label:<{LABEL}}{value!r:<24} {_hexed(float(value)):<24} {bits}"


def bits_of(value: float, f: Format) -> str:
    """Return "sign|exponent|fraction" of a number of the format, or that it is none."""
    try:
        code = code_of(value, f)
    except ValueError:
        return f"not a number of {f.name}"
    if code is None:
        return f"{f.name} does not have it"
    return "|".join(part for part in fields_of(code, f) if part)


def apart(steps: int, f: Format) -> str:
    """Return the line of a distance in numbers of the format."""
    if steps >= APART:
        words = "none: one of the two is NaN, or is not a number of the format"
    else:
        words = f"{steps:,} ulp{'s' * (steps != 1)} of {f.name} (numbers from one to the other)"
    return f"  {'distance':<{LABEL}}{words}"


def ulps_apart(ulps: float, f: Format) -> str:
    """Return the line of a distance in ulps of the format at the expected number."""
    if math.isinf(ulps):
        return apart(APART, f)
    return f"  {'distance':<{LABEL}}{ulps:.6g} ulp of {f.name} at the expected number"


def in_ulps(error: float, f: Format) -> str:
    """Return the line of an error in ulps of the format at the exact value."""
    return f"  {'error':<{LABEL}}{error:+.6g} ulp of {f.name}"


def drawing(value: float, r: Rounding) -> str:
    """Return the drawing of a rounding, indented; nothing for the stochastic mode.

    In the stochastic mode the drawing would show the first random number of the seed, which is not
    the one of an entry in the middle of an array.
    """
    if r.mode is RoundingMode.STOCHASTIC:
        return ""
    from roundscope.emu.explanation.drawing import drawn

    rows = drawn(explain(value, r)).splitlines()
    return "\n".join(f"    {row}".rstrip() for row in rows)


def joined(*lines: str) -> str:
    """Return the lines that are not empty, one below the other."""
    return "\n".join(line for line in lines if line)


def titled(what: str, words: str) -> str:
    """Return the first line of a message; `what` names the array that was compared, if given."""
    return f"{what}: {words}" if what else words


def _hexed(value: float) -> str:
    if not math.isfinite(value):
        return ""
    mantissa, _, exponent = value.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"
