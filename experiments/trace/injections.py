"""The grammar of --inject:  SITE:WHAT[:WHERE]...

    O:ulps=0.5:rows=0-63:heads=3    PV:exact    P:flip=3:rows=5,9

WHAT   exact | ulps=X | bias=X | set=X | flip=BIT | noise=ULPS
WHERE  batch= heads= rows= columns= features= tiles=, each a list of numbers and ranges, both ends included
"""

import math

import numpy as np

from roundscope.attention.injection import (
    AddUlps,
    Bias,
    Exact,
    FlipBit,
    Injection,
    Noise,
    SetTo,
    What,
)
from roundscope.attention.places import check_injection
from roundscope.attention.plan import Plan, site_named
from roundscope.emu.api import round_to
from roundscope.emu.formats.format import Format, unknown
from roundscope.emu.rounding.modes import Overflow, Rounding
from roundscope.experiments.errors import UsageError

WHATS = ("exact", "ulps", "bias", "set", "flip", "noise")
WHERES = ("batch", "heads", "rows", "columns", "features", "tiles")


def injection(text: str, plan: Plan, seed: int = 0) -> Injection:
    """One --inject SITE:WHAT[:WHERE]... ; a value must be a number of the site's format."""
    site, _, rest = text.partition(":")
    what, *where = rest.split(":")
    try:
        chosen = site_named(site)
        made = Injection(site=chosen, what=_what(what, plan[chosen].format, seed), **dict(_where(w) for w in where))
        check_injection(made, plan)
        return made
    except ValueError as error:
        raise UsageError(f"--inject '{text}': {error}") from None


def _what(text: str, f: Format, seed: int) -> What:
    name, given, value = text.partition("=")
    if name not in WHATS or bool(given) == (name == "exact"):
        raise ValueError(f"{unknown('change', text, WHATS)} ; write exact, ulps=0.5, bias=1e-3, set=1, flip=3 or noise=0.5")
    if name == "exact":
        return Exact()
    if name == "flip":
        return FlipBit(bit=_whole(value))
    x = _number(value)
    if name == "set":
        return SetTo(value=_held(x, f))
    if name == "ulps":
        return AddUlps(ulps=x)
    return Bias(value=x) if name == "bias" else Noise(ulps=x, seed=seed)


def _number(text: str) -> float:
    try:
        x = float(text)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"'{text}' is no finite number; write one such as 0.5")
    return x


def _held(x: float, f: Format) -> float:
    """x if the format holds it."""
    if abs(x) > f.max_finite:
        raise ValueError(f"{f.name} cannot hold {x:g}; its largest number is {f.max_finite:g}")
    nearest = float(round_to(np.array(x), Rounding(format=f, overflow=None if f.inf else Overflow.SATURATE)))
    if nearest != x:
        raise ValueError(f"{f.name} cannot hold {x!r}; the nearest number it has is {nearest!r}")
    return x


def _where(text: str) -> tuple[str, range | tuple[int, ...]]:
    name, given, value = text.partition("=")
    if name not in WHERES or not given:
        raise ValueError(f"{unknown('place', text, WHERES)} ; write rows=0-63 or heads=1,3")
    parts = [_range(part) for part in value.split(",")]
    return name, parts[0] if len(parts) == 1 else tuple(i for part in parts for i in part)


def _range(text: str) -> range:
    low, dash, high = text.partition("-")
    first = _whole(low)
    last = _whole(high) if dash else first
    if last < first:
        raise ValueError(f"'{text}' is empty; write the smaller number first")
    return range(first, last + 1)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"'{text}' is no whole number from 0; write one such as 3, or a range 0-63")
    return int(text)
