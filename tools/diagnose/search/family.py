"""The record of a kind of units, for any model: all that search, words and page ask of it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Blocks = dict[str, frozenset[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The functions of a kind of units. Units are tuples (layer, place in it, event).

    levels     units -> (name, what makes blocks of units) of the levels of the search, the coarsest
               first
    classes    units -> sets that are asked for before, and taken if they are smaller than what the
               levels find
    few        a set found of at most this many units is searched one by one; None: where it is not
               made of events over all places
    by_site, singly   the blocks of which a set is made in sentences and controls
    words      (units, all units) -> where they are, in a sentence
    change     units -> as the command line takes it;  row: a place -> its words
    sites      the enumeration of events
    """

    levels: Callable[[frozenset[Any]], Sequence[tuple[str, Callable[[frozenset[Any]], Blocks]]]]
    classes: Callable[[frozenset[Any]], list[frozenset[Any]]]
    few: int | None
    by_site: Callable[[frozenset[Any]], Blocks]
    singly: Callable[[frozenset[Any]], Blocks]
    words: Callable[[Collection[Any], frozenset[Any]], str]
    change: Callable[[Collection[Any]], str]
    row: Callable[[tuple[Any, ...]], str]
    sites: type[StrEnum]

    def over_all(self, kept: frozenset[Any], units: frozenset[Any]) -> bool:
        """Return whether a set is made of events over all places where something rounds."""
        whole = self.whole(kept, units)
        return {u[:2] for u in kept} == {u[:2] for u in units} and union(whole, whole) == kept

    def whole(self, kept: frozenset[Any], units: frozenset[Any]) -> Blocks:
        """Return the events that a set has in all places where they round."""
        return {name: block for name, block in self.by_site(units).items() if block <= kept}

    def is_singled_out(self, kept: frozenset[Any], units: frozenset[Any]) -> bool:
        """Return whether units of a set are searched one by one at the end."""
        if self.few is not None:
            return 1 < len(kept) <= self.few
        return not self.over_all(kept, units) and any(
            len(block) > 1 for block in self.by_site(kept).values()
        )

    def universe(self, kept: frozenset[Any], units: frozenset[Any]) -> Blocks:
        """Return the elements among which a set is one of its size."""
        return (
            self.by_site(units)
            if self.few is None and self.over_all(kept, units)
            else self.singly(units)
        )

    def elements(self, kept: frozenset[Any], units: frozenset[Any]) -> Blocks:
        """Return what is put back alone, to see whether the set is minimal."""
        if self.few is not None:
            return self.singly(kept) if len(kept) <= self.few else self.by_site(kept)
        return self.whole(kept, units) if self.over_all(kept, units) else self.singly(kept)


def union(blocks: Blocks, names: Iterable[str]) -> frozenset[Any]:
    """Return the units of some blocks."""
    return frozenset[Any]().union(*(blocks[name] for name in names))
