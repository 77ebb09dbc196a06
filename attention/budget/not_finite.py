"""`NotFinite` and `Origin`: what is infinite or NaN in a call, and where it begins, in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roundscope.emu.stats.comparison import Lost

WHAT = {
    "out": "outputs",
    "lse": "numbers of L",
    "delta": "numbers of delta",
    "dq": "numbers of dq",
    "dk": "numbers of dk",
    "dv": "numbers of dv",
    "dsinks": "numbers of dsinks",
}
AXES = {
    "out": ("batch entry", "token", "head", "feature"),
    "lse": ("batch entry", "token", "head"),
    "delta": ("batch entry", "token", "head"),
    "dq": ("batch entry", "token", "head", "feature"),
    "dk": ("batch entry", "key", "key head", "feature"),
    "dv": ("batch entry", "key", "key head", "feature"),
    "dsinks": ("head",),
    "q": ("batch entry", "token", "head", "feature"),
    "k": ("batch entry", "key", "key head", "feature"),
    "v": ("batch entry", "key", "key head", "feature"),
    "do": ("batch entry", "token", "head", "feature"),
    "sinks": ("head",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The first event that makes a number not finite although its arguments are finite.

    Attributes:
        event: The event ("O"), or the sum inside which it happens ("PV.step").
        place: Where, in the words of the axes: batch entry, head or key head, token or key,
            feature or key, and from which key tile (of keys: query tile) on.
        becomes: What the number becomes: infinite or NaN.
        value: The number before the event; of a sum, or if that is not finite either, the number
            of the same event in binary64.
        is_exact: Whether `value` is that of the event in binary64.
        format: The name of the format that the event rounds to.
        largest: Its largest finite number; NaN for blocks, whose scales decide it.
        injected: Whether an injected error makes it, and no rounding.
    """

    event: str
    place: dict[str, int]
    becomes: float
    value: float
    is_exact: bool
    format: str
    largest: float
    injected: bool

    @property
    def words(self) -> str:
        """Return the event, its place and its numbers, in words."""
        place = dict(self.place)
        tile = {n: place.pop(n) for n in ("key tile", "query tile") if n in place}
        since = "".join(f", from {n} {i} on" for n, i in tile.items())
        where = f"{self.event}: {place_words(place)}{since}"
        if self.injected:
            return f"{where}, where {number_words(self.becomes)} was injected"
        before = "the exact value of it" if self.is_exact else "the value before it"
        top = f", the largest number of {self.format} is {number_words(self.largest)}"
        return (
            f"{where}; {before} is {number_words(self.value)}"
            f"{'' if math.isnan(self.largest) else top}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """The numbers of a call's results that are infinite or NaN.

    Attributes:
        lost: For each result with such numbers where the result compared with differs, how many
            they are and where the first one stands. The errors of these results are infinite.
        shared: The same for numbers that are not finite in the result compared with either.
        inputs: The numbers of the inputs that are not finite.
        origin: The first event that makes a number of the first of the lost results not finite;
            None if no event of the plan does so by itself.
        avoided_by: Changes of the plan, in the words of docs/reference/grammar.md, under which no
            number is lost. They were tried; () if none is known.
        against: The name of the plan compared with.

    The text is a sentence that says all of this.
    """

    lost: dict[str, Lost]
    shared: dict[str, Lost] = field(default_factory=dict)
    inputs: dict[str, Lost] = field(default_factory=dict)
    origin: Origin | None = None
    avoided_by: tuple[str, ...] = ()
    against: str = "exact"

    def __str__(self) -> str:
        """Return the sentence: counts, first event and place, value before it, what avoids it."""
        text = _counts(self.lost)
        if self.origin is not None:
            text += f", first at {self.origin.words}"
            if self.avoided_by:
                many = len(self.avoided_by) > 1
                text += f"; {' '.join(self.avoided_by)} {'avoid' if many else 'avoids'} it"
        elif self.lost:
            name = next(iter(self.lost))
            text += f", {_first(name, self.lost[name])}"
        if self.shared:
            whose = "exact attention" if self.against == "exact" else self.against
            also = f"{_counts(self.shared)}, as under {whose}, and take no part in the errors"
            text = f"{text}; {also}" if text else also
        for name, x in self.inputs.items():
            text += f"; {x.words(f'numbers of {name}')}, {_first(name, x)}"
        return f"{text}."

    def numbered(self, heads: np.ndarray, key_heads: np.ndarray) -> "NotFinite":
        """Return the same of a call in which its heads, and key heads, have these numbers."""
        known = {"head": heads, "key head": key_heads}

        def of(axis: str, i: int) -> int:
            return int(known[axis][i]) if axis in known else i

        def moved(found: dict[str, Lost]) -> dict[str, Lost]:
            return {
                name: replace(x, first=tuple(map(of, AXES[name], x.first or ())))
                for name, x in found.items()
            }

        begin = self.origin
        if begin is not None:
            begin = replace(begin, place={n: of(n, i) for n, i in begin.place.items()})
        return replace(
            self,
            lost=moved(self.lost),
            shared=moved(self.shared),
            inputs=moved(self.inputs),
            origin=begin,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the results that have a number that is not finite."""
        return tuple(name for name in WHAT if name in self.lost or name in self.shared)


def number_words(x: float) -> str:
    """Return a number with commas between thousands, or infinite or NaN, in words."""
    if math.isnan(x):
        return "NaN"
    return ("-" if x < 0.0 else "") + "inf" if math.isinf(x) else f"{x:,.7g}"


def place_words(place: Mapping[str, int]) -> str:
    """Return a place in words, such as "batch entry 0, head 0, token 3"."""
    return ", ".join(f"{name} {i}" for name, i in place.items())


def _listed(texts: list[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _counts(found: dict[str, Lost]) -> str:
    """Return the counts of results in words: results after the first that are all NaN together."""
    first = next(iter(found), "")
    whole = [n for n, x in found.items() if n != first and x.nan == x.of]
    texts = [x.words(WHAT[n]) for n, x in found.items() if n not in whole]
    if whole:
        names = [n.replace("lse", "L") for n in whole]
        texts.append(f"all numbers of {_listed(names)} are NaN")
    return _listed(texts)


def _first(name: str, x: Lost) -> str:
    """Return the first place, or the only one, with batch entry and head before the row."""
    assert x.first is not None
    place = dict(zip(AXES[name], x.first, strict=True))
    order = ("batch entry", "head", "key head", "token", "key", "feature")
    words = place_words({n: place[n] for n in order if n in place})
    return f"{'at' if x.count == 1 else 'first at'} {words}"
