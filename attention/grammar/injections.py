"""The grammar of injections:  SITE:WHAT[:WHERE]...

    O:ulps=0.5:rows=0:64:heads=3    PV:exact    P:flip=3:rows=5,9

WHAT   exact | ulps=X | bias=X | set=X | flip=BIT | noise=ULPS
WHERE  batch= heads= rows= columns= features= tiles=, each numbers and ranges (`ranges`)

A colon before a letter separates; one before a digit or a sign belongs to a range.
"""

import math
import re
from dataclasses import fields

from roundscope.attention import places
from roundscope.attention.grammar.ranges import selection, spelled
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
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import site_named
from roundscope.emu.formats.format import Format, unknown

WHATS: dict[str, type] = {
    "exact": Exact,
    "ulps": AddUlps,
    "bias": Bias,
    "set": SetTo,
    "flip": FlipBit,
    "noise": Noise,
}
WHERES = ("batch", "heads", "rows", "columns", "features", "tiles")


def injection_of(text: str, seed: int = 0) -> Injection:
    """The injection in words; seed: of noise.

    Raises ValueError naming the word and the repair, TypeError for what is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"text={text!r}: write SITE:WHAT[:WHERE]..., as in 'O:ulps=0.5:rows=0:64'")
    site, *rest = re.split(r":(?=[A-Za-z_])", text.strip())
    if not rest:
        raise ValueError(f"'{text}': write SITE:WHAT[:WHERE]..., as in O:ulps=0.5:rows=0:64")
    chosen, (what, *where) = site_named(site), rest
    selections = [_where(word) for word in where]
    if twice := [name for i, (name, _) in enumerate(selections) if name in dict(selections[:i])]:
        raise ValueError(f"{twice[0]}= is given twice; write one list, as in {twice[0]}=0:2,5")
    return Injection(site=chosen, what=_what(what, seed), **dict(selections))


def check_injection(made: Injection, plan: Plan) -> None:
    """Raises ValueError for an event that a plan never reaches, a bit or a value that its format
    does not have.
    """
    places.check_injection(made, plan)
    check_held(made, plan)


def check_held(made: Injection, plan: Plan) -> None:
    """Raises ValueError for a finite value that the format of its event does not have; of blocks,
    the scale decides what they have.
    """
    if (
        isinstance(made.what, SetTo)
        and math.isfinite(made.what.value)
        and plan.block(made.site) is None
    ):
        _check_held(float(made.what.value), plan[made.site].format)


def injection_words(made: Injection) -> str:
    """An injection as `injection_of` reads it: O:ulps=0.5:rows=0:64:heads=3."""
    key = next(name for name, kind in WHATS.items() if isinstance(made.what, kind))
    value = (
        ""
        if isinstance(made.what, Exact)
        else f"={_short(getattr(made.what, fields(made.what)[0].name))}"
    )
    where = [
        f"{name}={spelled(getattr(made, name))}"
        for name in WHERES
        if getattr(made, name) is not None
    ]
    return ":".join([str(made.site), key + value, *where])


def _what(text: str, seed: int) -> What:
    name, given, value = text.partition("=")
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
    return (
        Noise(ulps=x, seed=seed)
        if name == "noise"
        else WHATS[name](**{fields(WHATS[name])[0].name: x})
    )


def _bit(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f"flip={text}: a bit is a whole number from 0; bit 0 is the last fraction bit"
        )
    return int(text)


def _number(text: str) -> float:
    try:
        x = float(text)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"'{text}' is no finite number; write one such as 0.5")
    return x


def _short(x: float) -> str:
    """The shorter of %g and repr that is the number."""
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)


def _check_held(x: float, f: Format) -> None:
    if abs(x) > f.max_finite:
        raise ValueError(f"{f.name} cannot hold {x:g}; its largest number is {f.max_finite:g}")
    unit = math.ldexp(1.0, max(math.frexp(x)[1] - f.precision, f.emin - f.precision + 1))
    nearest = round(x / unit) * unit if f.precision < 53 else x
    if nearest != x:
        raise ValueError(f"{f.name} cannot hold {x!r}; the nearest number it has is {nearest!r}")


def _where(text: str) -> tuple[str, range | tuple[int, ...]]:
    name, given, value = text.partition("=")
    if name not in WHERES or not given:
        raise ValueError(unknown("place", text, WHERES, "; write rows=0:64 or heads=1,3"))
    try:
        return name, selection(value)
    except ValueError as error:
        raise ValueError(f"{name}={value}: {error}") from None
