"""The words of the assertions' messages: how many numbers differ, and one of them in full."""

from __future__ import annotations

import math

import numpy as np

from roundscope.emu.explanation.encoding import code_of, fields_of
from roundscope.emu.explanation.one_rounding import explain
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.testing.distance import APART

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
