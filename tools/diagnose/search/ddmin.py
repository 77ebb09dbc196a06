"""ddmin, and tests that are cached.

ddmin is by A. Zeller and R. Hildebrandt (Simplifying and isolating failure-inducing input, IEEE TSE
28(2), 2002). Here an input is a set of events that are made exact, and it shows what is looked for
if the replay survives: with all of them exact it does, with none it fails. ddmin halves first, then
refines, and ends with a set of which no single element can be left out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, TypeVar

import numpy as np

from roundscope.tools.diagnose.replay.fate import Outcome

T = TypeVar("T")
# of sets, and of sets that may be asked for next, to whether the replay survives with each of the
# first exact; all of these are replayed at once
Ask = Callable[[list[list[T]], list[list[T]]], list[bool]]


def ddmin(elements: Sequence[T], ask: Ask[T]) -> list[T]:
    """Return a smallest set of `elements` with which the replay survives.

    It is smallest in the sense that no element can be left out (1-minimal). It needs that the
    replay survives with all and fails with none. No other property of the outcomes is needed, and
    nothing but 1-minimality is guaranteed.
    """
    kept, parts = list(elements), 2
    while len(kept) >= 2:
        pieces = split(kept, parts)
        rests = [[x for x in kept if x not in piece] for piece in pieces] if parts > 2 else []
        survived = ask([*pieces, *rests], halves(pieces))
        chosen = next((i for i, good in enumerate(survived) if good), None)
        if chosen is not None and chosen < len(pieces):
            kept, parts = pieces[chosen], 2
        elif chosen is not None:
            kept, parts = rests[chosen - len(pieces)], max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return kept


def split(elements: Sequence[T], parts: int) -> list[list[T]]:
    """Return contiguous pieces, as equal in size as can be."""
    edges = np.linspace(0, len(elements), parts + 1).round().astype(int)
    return [list(elements[lo:hi]) for lo, hi in pairwise(edges)]


def halves(pieces: Sequence[list[T]]) -> list[list[T]]:
    """Return what bisection would ask for next: halves of the pieces, their halves, and so on."""
    found: list[list[T]] = []
    level = list(pieces)
    while level:
        level = [half for piece in level if len(piece) > 1 for half in split(piece, 2)]
        found += level
    return found


def subsets(elements: Sequence[T], most: int) -> list[list[T]]:
    """Return every set but the empty one and the whole, if there are at most `most`; else none."""
    if 2 ** len(elements) - 2 > most:
        return []
    return [list(c) for size in range(1, len(elements)) for c in combinations(elements, size)]


def sets_to_come(count: int, few: int) -> tuple[int, int]:
    """Return how many sets a level of `count` blocks asks for, at least and at most.

    few: up to this many sets, all of them are asked for.
    """
    if count < 2:
        return 0, 0
    fewest = 2 * math.ceil(math.log2(count))
    return (count, 2**count - 2) if 2**count - 2 <= few else (fewest, count * count + 3 * count)


def others(universe: Sequence[T], found: Iterable[T], count: int) -> list[frozenset[T]]:
    """Return random sets of the size of `found`, different from it and from each other.

    There are at most `count`, fewer only if no more exist.
    """
    own, size = frozenset(found), len(frozenset(found))
    rng, drawn = np.random.Generator(np.random.Philox(key=2)), dict[frozenset[T], None]()
    for _ in range(200 * count):
        pick = frozenset(universe[i] for i in rng.choice(len(universe), size, replace=False))
        if pick != own:
            drawn[pick] = None
        if len(drawn) == count:
            break
    return list(drawn)


@dataclass(slots=True, kw_only=True)
class Replays:
    """Asks for the outcomes of sets, each once.

    replay     computes the outcomes of new sets;  width: as many of them take the time of one
    outcomes   all so far, in the order of their launches
    expects    is called with the fewest and the most sets still to come
    """

    replay: Callable[[list[frozenset[Any]]], list[Outcome]]
    width: int
    outcomes: dict[frozenset[Any], Outcome] = field(default_factory=dict)
    expects: Callable[[int, int], None] = lambda fewest, most: None  # sets that are still to come

    def ask(self, sets: Iterable[Iterable[Any]], spare: Iterable[Iterable[Any]] = ()) -> list[bool]:
        """Return whether the replay survives with each set exact.

        spare: sets that fill the free places of the launch.
        """
        wanted = [frozenset(x) for x in sets]
        new = self._new(wanted)
        if new:
            free = -len(new) % self.width
            new += self._new(x for x in map(frozenset, spare) if x not in new)[:free]
            self.outcomes |= {o.units: o for o in self.replay(new)}
        return [self.outcomes[x].survives for x in wanted]

    def _new(self, sets: Iterable[frozenset[Any]]) -> list[frozenset[Any]]:
        return [x for x in dict.fromkeys(sets) if x not in self.outcomes]

    def of_blocks(self, blocks: dict[T, frozenset[Any]]) -> Ask[T]:
        """Return `ask` for sets of blocks of events: layers, heads, events over all heads."""

        def joined(sets: Iterable[Iterable[T]]) -> list[frozenset[Any]]:
            return [frozenset[Any]().union(*(blocks[name] for name in names)) for names in sets]

        return lambda sets, spare: self.ask(joined(sets), joined(spare))

    def turns(self) -> list[tuple[Outcome, Outcome]]:
        """Return pairs (smaller, larger) where more exact events do worse.

        The smaller survives; the larger, which contains it, fails.
        """
        good, bad = (
            [o for o in self.outcomes.values() if o.survives is kind] for kind in (True, False)
        )
        return [(a, b) for a in good for b in bad if a.units < b.units]

    def ties(self, found: frozenset[Any]) -> list[Outcome]:
        """Return other sets that survive and are no larger; the smallest first."""
        own = [
            o
            for o in self.outcomes.values()
            if o.survives and o.units != found and 0 < len(o.units) <= len(found)
        ]
        return sorted(own, key=lambda o: len(o.units))
