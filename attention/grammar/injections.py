"""Injections in words, SITE:WHAT[:WHERE]...

    O:ulps=0.5:rows=0:64:heads=3    PV:exact    P:flip=3:rows=5,9

WHAT is one of exact, ulps=X, bias=X, set=X, flip=BIT and noise=ULPS. WHERE is one of batch=,
heads=, rows=, columns=, features= and tiles=, with numbers and ranges (`ranges`), and share=PART
and mask=FILE.npy, which choose among these entries. A colon before a letter separates these parts;
a colon before a digit or a sign belongs to a range.
"""

import math
import re
from dataclasses import fields, replace
from typing import Any

import numpy as np

from roundscope.attention import places
from roundscope.attention.grammar.ranges import selection, spelled
from roundscope.attention.injection import Injection
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import site_named
from roundscope.emu.errors import tidy_errors, unknown
from roundscope.emu.formats.format import Format
from roundscope.emu.numbers import check_seed
from roundscope.emu.shown import shown
from roundscope.events.injection import AddUlps, Bias, Exact, FlipBit, Noise, SetTo, What

WHATS: dict[str, type[What]] = {
    "exact": Exact,
    "ulps": AddUlps,
    "bias": Bias,
    "set": SetTo,
    "flip": FlipBit,
    "noise": Noise,
}
RANGES = ("batch", "heads", "rows", "columns", "features", "tiles")
WHERES = (*RANGES, "share", "mask")


@tidy_errors
def injection_of(text: str, seed: int = 0) -> Injection:
    """Return the injection that a text describes.

    Args:
        text: SITE:WHAT[:WHERE]...
        seed: Seed of noise and of a share, from 0 to 2^32 - 1.

    Raises:
        ValueError: A word is unknown or given twice. The message names the word and how to fix it.
        TypeError: `text` is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"text={shown(text)}: write SITE:WHAT[:WHERE]..., as in 'O:ulps=0.5:rows=0:64'"
        )
    check_seed("seed", seed)
    site, *rest = re.split(r":(?=[A-Za-z_])", text.strip())
    if not rest:
        raise ValueError(f"{shown(text)}: write SITE:WHAT[:WHERE]..., as in O:ulps=0.5:rows=0:64")
    chosen, (what, *where) = site_named(site), rest
    selections = [_where(word) for word in where]
    if twice := [name for i, (name, _) in enumerate(selections) if name in dict(selections[:i])]:
        raise ValueError(f"{twice[0]}= is given twice; write one list, as in {twice[0]}=0:2,5")
    given: dict[str, Any] = dict(selections)
    if "share" in given:
        given["seed"] = seed
    if (file := given.pop("mask", None)) is None:
        return Injection(site=chosen, what=_what(what, seed), **given)
    try:
        whole = Injection(site=chosen, what=_what(what, seed), mask=_read(file), **given)
    except TypeError as error:
        raise ValueError(f"mask={file}: {error}") from None
    return replace(whole, mask=replace(whole.mask, name=file))


def check_injection(injection: Injection, plan: Plan) -> None:
    """Raise ValueError for an injection that a plan cannot have.

    The plan never reaches its event, or the event's format does not have its bit or value.
    """
    places.check_injection(injection, plan)
    check_held(injection, plan)


def check_held(injection: Injection, plan: Plan) -> None:
    """Raise ValueError for a `SetTo` of a finite value that its event's format does not have.

    Sites in blocks are not checked, since the scale of a block decides which numbers it has.
    """
    if (
        isinstance(injection.what, SetTo)
        and math.isfinite(injection.what.value)
        and plan.block(injection.site) is None
    ):
        _check_held(float(injection.what.value), plan[injection.site].format)


def injection_words(injection: Injection) -> str:
    """Return an injection as text for `injection_of`, such as O:ulps=0.5:rows=0:64:heads=3.

    The seed of noise and of a share is left out. A mask that no file holds is told by its size.
    """
    what = injection.what
    key = next(name for name, kind in WHATS.items() if isinstance(what, kind))
    value = "" if isinstance(what, Exact) else f"={_short(getattr(what, fields(what)[0].name))}"
    where = [
        f"{name}={spelled(getattr(injection, name))}"
        for name in RANGES
        if getattr(injection, name) is not None
    ]
    where += [] if injection.share is None else [f"share={_short(injection.share)}"]
    where += [] if injection.mask is None else [f"mask={injection.mask.name}"]
    return ":".join([str(injection.site), key + value, *where])


def _what(text: str, seed: int) -> What:
    """Return the error that a WHAT describes."""
    name, given, value = text.partition("=")
    if name in WHATS and not given and name != "exact":
        raise ValueError(f"'{name}' needs a number: write {name}=1")
    if name not in WHATS or bool(given) == (name == "exact"):
        raise ValueError(
            unknown(
                "change",
                text,
                WHATS,
                "; write exact, ulps=0.5, bias=1e-3, set=1, flip=3 or noise=0.5",
            )
        )
    if name == "exact":
        return Exact()
    if name == "flip":
        return FlipBit(bit=_bit(value))
    x = _number(value)
    match name:
        case "ulps":
            return AddUlps(ulps=x)
        case "bias":
            return Bias(value=x)
        case "noise":
            return Noise(ulps=x, seed=seed)
        case _:
            return SetTo(value=x)


def _bit(text: str) -> int:
    """Return the number of a bit. Raise ValueError for anything else."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f"flip={text}: a bit is a whole number from 0; bit 0 is the last fraction bit"
        )
    return int(text)


def _number(text: str) -> float:
    """Return a finite number. Raise ValueError for anything else."""
    try:
        x = float(text)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"'{text}' is no finite number; write one such as 0.5")
    return x


def _short(x: float) -> str:
    """Return text that reads back as the same number: by %g if that is exact, else by repr."""
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)


def _check_held(x: float, f: Format) -> None:
    """Raise ValueError if a format does not have a number; the message has the nearest one."""
    if abs(x) > f.max_finite:
        raise ValueError(f"{f.name} cannot hold {x:g}; its largest number is {f.max_finite:g}")
    unit = math.ldexp(1.0, max(math.frexp(x)[1] - f.precision, f.emin - f.precision + 1))
    nearest = round(x / unit) * unit if f.precision < 53 else x
    if nearest != x:
        raise ValueError(f"{f.name} cannot hold {x!r}; the nearest number it has is {nearest!r}")


def _where(text: str) -> tuple[str, range | tuple[int, ...] | float | str]:
    """Return the name and the indices of a WHERE, or the number of a share or a mask's file."""
    name, given, value = text.partition("=")
    if name not in WHERES or not given:
        raise ValueError(
            unknown("place", text, WHERES, "; write rows=0:64, heads=1,3 or share=0.01")
        )
    if name == "mask":
        return name, value
    if name == "share":
        return name, _number(value)
    try:
        return name, selection(value)
    except ValueError as error:
        raise ValueError(f"{name}={value}: {error}") from None


def _read(file: str) -> Any:
    """Return the array of a file. Raise ValueError if there is none."""
    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise ValueError(
            f"mask={file}: no .npy file of an array; make one with numpy.save('{file}', array)"
        ) from None
