"""Reads the values of each axis, from words or TOML, into the one form that a parameter has."""

import functools
import math
import re
from collections.abc import Callable

from roundscope.attention.alignment import alignment_given
from roundscope.attention.grammar.changes import ALIASES, parted
from roundscope.attention.grammar.edits import KINDS, stabilizer_words
from roundscope.attention.sites import PRODUCTS, Site, site_named
from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.cell import (
    DEFAULTS,
    OF_CALL,
    OPTIONAL,
    PER_SITE,
    Value,
)

WHOLE = ("T", "S", "N", "H", "block_q", "block_k", "tile", "seed")
RANGES = (*WHOLE, "window", "batch")  # axes that take a:b
ENGINES = ("numpy", "xla")
LARGEST = 2**31 - 1  # of a size


def axis_named(name: str) -> str:
    """Return the full name of an axis: format.O for O, accumulator.PV for PV.sum.

    Raises UsageError with the nearest name.
    """
    if name in (*DEFAULTS, *OPTIONAL, "tile"):
        return name
    if name in ("plan", *ALIASES):
        return "preset" if ALIASES.get(name, name) == "plan" else ALIASES[name]
    try:
        kind, site = parted(name)
    except ValueError:
        kind, site = "", ""
    if kind not in PER_SITE or ("." not in name and name.upper() not in Site.__members__):
        known = (*DEFAULTS, *OPTIONAL, "tile", *(f"{kind}.SITE" for kind in PER_SITE))
        raise UsageError(unknown("axis", name, known, "and SITE, SITE.sum"))
    try:
        event = site_named(site)
    except ValueError as error:
        raise UsageError(f"axis '{name}': {error}") from None
    if kind == "accumulator" and event not in PRODUCTS:
        raise UsageError(
            f"axis '{name}': {event} is no sum of products; those are {' '.join(PRODUCTS)}"
        )
    return f"{kind}.{event}"


@functools.lru_cache(maxsize=1 << 16, typed=True)
def typed(name: str, value: Value) -> Value:
    """Return a value of the axis `name` in the type of its default and in one spelling.

    Raises UsageError naming both and the repair.
    """
    kind = name.partition(".")[0]
    try:
        if value == "preset" and kind not in OF_CALL and DEFAULTS.get(kind, "preset") == "preset":
            return "preset"
        return _READERS[kind](value)
    except ValueError as error:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, str):
            shown = f"'{value}'"
        complete = f"unknown {name} {shown}" in str(error)  # the message names both
        raise UsageError(str(error) if complete else f"{name} {shown}: {error}") from None


def _whole(lowest: int, largest: int) -> Callable[[Value], Value]:
    def read(value: Value) -> Value:
        number = value
        if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,20}", value):
            number = int(value)
        if type(number) is not int or not lowest <= number <= largest:
            raise ValueError(f"give a whole number from {lowest} to {largest}")
        return number

    return read


def _truth(value: Value) -> Value:
    if str(value).lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return str(value).lower() == "true"


def _text(read: Callable[[str], object]) -> Callable[[Value], Value]:
    """Return a reader of text: `read` checks it, and returns its one spelling."""

    def checked(value: Value) -> Value:
        if not isinstance(value, str):
            raise ValueError("give text, in TOML between quotation marks")
        return str(read(value.strip()))

    return checked


def _engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(unknown("engine", name, ENGINES))
    return name


def _changing(kind: str) -> Callable[[Value], Value]:
    """Return a reader of a change of the plan, in the one spelling that the grammar gives it."""
    return _text(KINDS[kind].spell)


def _of_call(
    read: Callable[[str], str] | None = None, none: str = "none"
) -> Callable[[Value], Value]:
    """Return a reader of what a call has beside tensors and plan.

    That is `default` (as the file says), none, 0 for the same, or what `read` returns of others.
    """

    def checked(value: Value) -> Value:
        text = str(value).strip()
        if text in ("default", none):
            return text
        if read is None:
            raise ValueError(f"give {none}, or default for what the file has")
        return none if text == "0" and none == "none" else read(text)

    return checked


def _alignment(text: str) -> str:
    return str(alignment_given(text))


def _count(text: str) -> str:
    return str(_whole(1, LARGEST)(text))


def _positive(text: str) -> str:
    number = _real(text)
    if number <= 0.0:
        raise ValueError("give a number above 0, or none")
    return number_words(number)


def _factor(text: str) -> str:
    number = _real(text)
    if number == 0.0:
        raise ValueError("give a number other than 0, such as 0.125, or none for 1 / sqrt(H)")
    return number_words(number)


def number_words(number: float) -> str:
    """Return the shortest text of a number: 2 for 2.0, and every digit that it needs."""
    return repr(number).removesuffix(".0")


def _real(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("give a finite number, none, or default for what the file says")
    return number


def _or(word: str, read: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: word if value == word else read(value)


_READERS: dict[str, Callable[[Value], Value]] = {
    **{name: _whole(1, LARGEST) for name in WHOLE},
    "seed": _whole(0, 2**32 - 1),
    "causal": _truth,
    "backward": _truth,
    "unfused": _truth,
    "preset": _changing("plan"),
    "stabiliser": stabilizer_words,
    **{
        kind: _changing(kind)
        for kind in ("format", "mode", "accumulator", "exp", "key_order", "delta_from")
    },
    "scale": _of_call(_factor),
    "alignment": _of_call(_alignment, none="default"),
    "window": _of_call(_count),
    "softcap": _of_call(_positive),
    "mask": _of_call(),
    "sinks": _of_call(),
    "batch": _of_call(_count, none="1"),
    "only": _or("all", _changing("only")),
    "but": _or("none", _changing("but")),
    "engine": _text(_engine),
    "injection": _text(str),
    "input": _text(str),
}
