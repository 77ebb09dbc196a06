"""`Injection`: a controlled error at chosen entries of one site."""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from roundscope.attention.sites import Axes, Site, site_named

Where = int | range | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddUlps:
    """Adds `ulps` units in the last place of the site's format; the result may lie between its
    numbers.

    Raises unless they are finite.
    """

    ulps: float

    def __post_init__(self) -> None:
        _finite("AddUlps: ulps", self.ulps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Adds a constant. Raises unless it is finite."""

    value: float

    def __post_init__(self) -> None:
        _finite("Bias: value", self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBit:
    """Flips one bit of the number's code in the site's format; bit 0 is the last fraction bit."""

    bit: int

    def __post_init__(self) -> None:
        _whole("FlipBit: bit", self.bit, "0 is the last fraction bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTo:
    """Replaces the number by a value, which may be NaN or infinite: the only amount that may."""

    value: float

    def __post_init__(self) -> None:
        _number("SetTo: value", self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Replaces the number by what it was before rounding; a sum of products by its binary64 sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Adds or subtracts `ulps` by a fair coin: zero mean, the same root mean square as AddUlps.

    Raises unless they are finite.
    """

    ulps: float
    seed: int = 0

    def __post_init__(self) -> None:
        _finite("Noise: ulps", self.ulps)
        _whole("Noise: seed", self.seed, "a seed is below 2^32")
        if self.seed >= 2**32:
            raise ValueError(
                f"Noise: seed={self.seed}: a seed is a whole number from 0 to 2^32 - 1"
            )


What = AddUlps | Bias | FlipBit | SetTo | Exact | Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """An error at one site, at the entries that every given selection names.

    site      the event, or its name
    what      AddUlps, Bias, FlipBit, SetTo, Exact or Noise
    batch, heads   of the attention call
    rows      queries (for DV, DK and inputs K, V: keys)
    columns   keys, of events that have one entry per score
    features  of events that have one entry per feature
    tiles     key tiles (for DV and DK: query tiles) at which a repeated event is hit

    A selection is an int, a range, a tuple of ints, or None for all. Raises ValueError for an empty
    selection and for one that the site's events do not have. `attend` and `examine` refuse entries
    that a call does not have, and a bit that the site's format does not have.
    """

    site: Site
    what: What
    batch: Where = None
    heads: Where = None
    rows: Where = None
    columns: Where = None
    features: Where = None
    tiles: Where = None

    @staticmethod
    def parse(text: str, *, seed: int = 0) -> "Injection":
        """An injection in the words of the command line, SITE:WHAT[:WHERE]... (docs/grammar.md).

            Injection.parse("O:ulps=0.5:rows=0:64:heads=1,3")

        seed  of noise. Raises ValueError naming the word and the repair.
        """
        from roundscope.attention.grammar.injections import injection_of

        return injection_of(text, seed)

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", site_named(self.site))
        if not isinstance(self.what, What):
            raise TypeError(
                f"what={self.what!r}: give AddUlps, Bias, FlipBit, SetTo, Exact or Noise, such as"
                " AddUlps(ulps=0.5)"
            )
        for name in ("batch", "heads", "rows", "columns", "features", "tiles"):
            object.__setattr__(self, name, _selection(name, getattr(self, name)))
        axes = self.site.axes
        if self.columns is not None and axes is not Axes.TS:
            raise ValueError(
                f"columns={self.columns}: {self.site} has one entry per {axes}; use rows or"
                " features"
            )
        if self.features is not None and axes not in (Axes.TH, Axes.SH):
            raise ValueError(
                f"features={self.features}: {self.site} has one entry per {axes}; use rows or"
                " columns"
            )


def _selection(name: str, where: Any) -> Where:
    chosen = _as_where(name, where)
    if chosen is not None and not chosen:
        raise ValueError(
            f"{name}={where!r}: names nothing, and the injection would do nothing; None names all"
        )
    if chosen is not None and min(chosen) < 0:
        raise ValueError(f"{name}={where!r}: indices count from 0; negative ones name nothing")
    return chosen


def _as_where(name: str, where: Any) -> range | tuple[int, ...] | None:
    if where is None or isinstance(where, range):
        return where
    if _is_index(where):
        return (operator.index(where),)
    if isinstance(where, slice):
        if where.stop is None:
            raise ValueError(f"{name}={where}: give a slice with a stop")
        if (
            not all(x is None or _is_index(x) for x in (where.start, where.stop, where.step))
            or where.step == 0
        ):
            raise ValueError(
                f"{name}={where}: give a slice of whole numbers, with a step other than 0, such as"
                " slice(0, 64)"
            )
        return range(where.start or 0, where.stop, where.step or 1)
    if isinstance(where, Iterable) and all(map(_is_index, indices := list(where))):
        return tuple(map(operator.index, indices))
    raise ValueError(f"{name}={where!r}: give an int, a range, a tuple of ints, or None for all")


def _is_index(x: Any) -> bool:
    return isinstance(x, Integral) and not isinstance(x, bool)


def _number(name: str, x: Any) -> None:
    if not isinstance(x, Real) or isinstance(x, bool):
        raise TypeError(f"{name}={x!r}: give a number, such as 0.5")


def _finite(name: str, x: Any) -> None:
    _number(name, x)
    if not math.isfinite(x):
        raise ValueError(
            f"{name}={x}: give a finite number, such as 0.5; SetTo(value={x}) puts this one in the"
            " place of others"
        )


def _whole(name: str, x: Any, hint: str) -> None:
    if not _is_index(x):
        raise TypeError(f"{name}={x!r}: give a whole number from 0 on; {hint}")
    if x < 0:
        raise ValueError(f"{name}={x}: give a whole number from 0 on; {hint}")
