"""`Injection`: a controlled error at chosen entries of one site."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from roundscope.attention.sites import Axes, Site

Where = int | range | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddUlps:
    """Adds `ulps` units in the last place of the site's format; the result may lie between its numbers."""

    ulps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Adds a constant."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBit:
    """Flips one bit of the number's code in the site's format; bit 0 is the last fraction bit."""

    bit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTo:
    """Replaces the number by a value."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Replaces the number by what it was before rounding; a sum of products by its binary64 sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Adds or subtracts `ulps` by a fair coin: zero mean, the same root mean square as AddUlps."""

    ulps: float
    seed: int = 0


What = AddUlps | Bias | FlipBit | SetTo | Exact | Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """An error at one site, at the entries that every given selection names.

    site      the event
    what      AddUlps, Bias, FlipBit, SetTo, Exact or Noise
    batch, heads   of the attention call
    rows      queries (for DV, DK and inputs K, V: keys)
    columns   keys, of events that have one entry per score
    features  of events that have one entry per feature
    tiles     key tiles (for DV and DK: query tiles) at which a repeated event is hit

    A selection is an int, a range, a tuple of ints, or None for all. Raises ValueError for a selection that
    the site's events do not have, or a bit that its format does not have.
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
        for name in ("batch", "heads", "rows", "columns", "features", "tiles"):
            object.__setattr__(self, name, _selection(name, getattr(self, name)))
        axes = self.site.axes
        if self.columns is not None and axes is not Axes.TS:
            raise ValueError(f"columns={self.columns}: {self.site} has one entry per {axes}; use rows or features")
        if self.features is not None and axes not in (Axes.TH, Axes.SH):
            raise ValueError(f"features={self.features}: {self.site} has one entry per {axes}; use rows or columns")


def _selection(name: str, where: Any) -> Where:
    chosen = _as_where(name, where)
    if chosen is not None and min(chosen, default=0) < 0:  # type: ignore[type-var, arg-type]
        raise ValueError(f"{name}={where!r}: indices count from 0; negative ones name nothing")
    return chosen


def _as_where(name: str, where: Any) -> Where:
    if where is None or isinstance(where, range):
        return where
    if isinstance(where, int):
        return (where,)
    if isinstance(where, slice):
        if where.stop is None:
            raise ValueError(f"{name}={where}: give a slice with a stop")
        return range(where.start or 0, where.stop, where.step or 1)
    if isinstance(where, Iterable) and all(isinstance(i, int) or hasattr(i, "__index__") for i in where):
        return tuple(int(i) for i in where)
    raise ValueError(f"{name}={where!r}: give an int, a range, a tuple of ints, or None for all")
