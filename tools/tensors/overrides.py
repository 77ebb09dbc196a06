"""What a command line says of a call in place of what its file says: `Overrides`."""

import math
from dataclasses import dataclass

import numpy as np

from roundscope.attention.inputs.alignment import ALIGNMENTS, Alignment
from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.options import CallOptions

MOST_KEYS = 2**31 - 1  # of a window
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What is said of a call in place of what its file says; None for as the file says.

    is_causal  whether query t sees the keys s <= t only
    alignment  whether t and s are counted from the first or from the last
    scale      the factor of the scores; 0 for 1 / sqrt(H)
    window     how many keys a query sees, its own included; 0 for all
    softcap    the bound of the scores; 0 for none
    has_sinks  whether the file's sinks take part
    has_mask   whether the file's mask takes part
    has_bias   whether the file's bias takes part
    has_scales whether q, k and v are multiplied by the scales with which they are stored
    """

    is_causal: bool | None = None
    alignment: Alignment | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = True
    has_mask: bool = True
    has_bias: bool = True
    has_scales: bool = True


AS_THE_FILE = Overrides()


def overrides_of(said: CallOptions) -> Overrides:
    """Return what options put in place of what a file says. Raises UsageError with the repair."""
    for option in ("sinks", "mask", "bias", "scales"):
        if getattr(said, option) not in (None, NONE):
            repair = "leaves those of the file out; write none"
            raise bad(f"--{option}", getattr(said, option), repair)
    window = _number("--window", said.window, "such as 128, or none for all keys")
    return Overrides(
        is_causal=said.causal,
        alignment=_alignment(said.alignment),
        scale=_number("--scale", said.scale, "such as 0.125, or none for 1 / sqrt(H)", is_any=True),
        window=keys_given("--window", window),
        softcap=_number("--softcap", said.softcap, "such as 50, or none for no bound"),
        has_sinks=said.sinks is None,
        has_mask=said.mask is None,
        has_bias=said.bias is None,
        has_scales=said.scales is None,
    )


def _alignment(word: str | None) -> Alignment | None:
    for known in ALIGNMENTS:
        if word == known:
            return known
    if word is not None:
        raise UsageError(f"--alignment '{word}': {unknown('alignment', word, ALIGNMENTS)}")
    return None


def number_given(name: str, text: object, repair: str) -> float:
    """Return a number. Raises UsageError unless it is finite and not lost in binary32."""
    try:
        number = float(str(text))
    except ValueError:
        number = math.nan
    with np.errstate(over="ignore", under="ignore"):
        narrow = float(np.float32(number))
    if not math.isfinite(number):
        raise bad(name, text, f"write a finite number, {repair}")
    if not math.isfinite(narrow) or (narrow == 0.0) != (number == 0.0):
        raise bad(name, text, f"beyond binary32, in which scores are; write a number {repair}")
    return number


def keys_given(name: str, number: float | None) -> int | None:
    """Return how many keys a window has. Raises UsageError unless it is a whole number."""
    if number is None:
        return None
    if not 0 <= number <= MOST_KEYS or number != int(number):
        repair = f"write how many keys a query sees, such as 128, at most {MOST_KEYS}"
        raise bad(name, number, repair)
    return int(number)


def _number(name: str, text: object, repair: str, *, is_any: bool = False) -> float | None:
    """Return the number of an option, 0 for none, or None if it is not given."""
    if text is None or text == NONE:
        return None if text is None else 0.0
    number = number_given(name, text, repair)
    if number == 0.0 and is_any:
        raise bad(name, text, f"give a finite number other than 0, {repair}")
    if number < 0.0 and not is_any:
        raise bad(name, text, f"give a number above 0, {repair}")
    return number
