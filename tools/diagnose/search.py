"""The smallest set of events that must be exact for a replay to survive: step 2 of a run.

`Family`: what search, words and page ask of a kind of units, for any model. `ddmin` is by A. Zeller
and R. Hildebrandt (Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002). Here an
input is a set of events that are made exact, and it shows what is looked for if the replay
survives: with all of them exact it does, with none it fails. ddmin halves first, then refines, and
ends with a set of which no single element can be left out. `guilty` searches level by level, and
then checks what it found. `Replays` asks for each outcome once.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations, pairwise
from typing import Any, TypeVar

import numpy as np

from roundscope.tools.diagnose.replay.replayer import Outcome, Replayer, Trial, limit

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
        several = any(len(block) > 1 for block in self.by_site(kept).values())
        return several and not self.over_all(kept, units)

    def universe(self, kept: frozenset[Any], units: frozenset[Any]) -> Blocks:
        """Return the elements among which a set is one of its size."""
        is_over_all = self.few is None and self.over_all(kept, units)
        return self.by_site(units) if is_over_all else self.singly(units)

    def elements(self, kept: frozenset[Any], units: frozenset[Any]) -> Blocks:
        """Return what is put back alone, to see whether the set is minimal."""
        if self.few is not None:
            return self.singly(kept) if len(kept) <= self.few else self.by_site(kept)
        return self.whole(kept, units) if self.over_all(kept, units) else self.singly(kept)


def grouped(units: Iterable[Any], key: Callable[[Any], Any], words: Callable[[Any], str]) -> Blocks:
    """Return blocks of the units with the same words, in the order of their keys."""
    found: dict[str, list[Any]] = {}
    for u in sorted(units, key=key):
        found.setdefault(words(u), []).append(u)
    return {name: frozenset(own) for name, own in found.items()}


def union(blocks: Blocks, names: Iterable[str]) -> frozenset[Any]:
    """Return the units of some blocks."""
    return frozenset[Any]().union(*(blocks[name] for name in names))


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
    """Return how many sets a level asks for, at least and at most; all, if few."""
    if count < 2:
        return 0, 0
    fewest = 2 * math.ceil(math.log2(count))
    return (count, 2**count - 2) if 2**count - 2 <= few else (fewest, count * count + 3 * count)


def others(universe: Sequence[T], found: Iterable[T], count: int) -> list[frozenset[T]]:
    """Return at most `count` random sets of the size of `found`, all different."""
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
        """Return whether replays survive with each set exact; spare sets fill the launch."""
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
        """Return pairs: a set that survives, and a larger one around it that fails."""
        each = self.outcomes.values()
        good, bad = ([o for o in each if o.survives is kind] for kind in (True, False))
        return [(a, b) for a in good for b in bad if a.units < b.units]

    def ties(self, found: frozenset[Any]) -> list[Outcome]:
        """Return other sets that survive and are no larger; the smallest first."""
        alive = [o for o in self.outcomes.values() if o.survives and o.units != found]
        own = [o for o in alive if 0 < len(o.units) <= len(found)]
        return sorted(own, key=lambda o: len(o.units))


# repeats of a set, where outcomes differ between repeats; of the set rounding alone; of a repair
REPEATS = 3
CONTROLS = 8  # random sets that the set found is compared with
CONFIRMS = 8  # repeats of the set found
FEW = 16  # up to this many sets of a level's blocks, all are asked for until one survives

Exactly = Callable[[frozenset[Any]], Any]  # units -> the change that makes them exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the search: which blocks it chose from, and which of them are needed."""

    name: str
    blocks: tuple[str, ...]
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guilty:
    """The smallest set found of events that must be exact, and the checks of it.

    family      of the units;  levels: of the search, as far as they were needed
    found       the set;  all_units: what could be exact
    size, of    the number of its elements, and of those it was chosen from: events over all places
                if it is made of these, else single ones
    outcomes    every set that was replayed;  controls: random sets of its size
    without     each element put back alone, with its outcome
    only        the outcome with the set rounding and all else exact
    ties        others that survive and are no larger
    turns       pairs (smaller, larger) where more exact events did worse
    repeats     of every set;  confirmed: repeats of the set found, beyond those of the search
    """

    family: Family
    levels: tuple[Level, ...]
    found: Any
    all_units: Any
    size: int
    of: int
    outcomes: tuple[Outcome, ...]
    controls: tuple[Outcome, ...]
    without: tuple[tuple[str, Outcome], ...]
    only: Outcome
    ties: tuple[Outcome, ...]
    turns: tuple[tuple[Outcome, Outcome], ...]
    repeats: int = 1
    confirmed: Outcome | None = None

    def words(self, units: Any) -> str:
        """Return units in a sentence."""
        return self.family.words(units, self.all_units)

    @property
    def elsewhere(self) -> list[Outcome]:
        """Sets that survive without all of the set found, the smallest first."""
        own = [o for o in self.outcomes if o.survives and not o.units >= self.found]
        return sorted(own, key=lambda o: len(o.units))

    @property
    def is_minimal(self) -> bool:
        """Return whether each element put back alone makes the replay fail again."""
        return not any(o.survives for _, o in self.without)

    @property
    def holds(self) -> bool:
        """Return whether the set found survives all its repeats but one, at least."""
        return self.confirmed is None or self.confirmed.failures <= 1


def often(
    replayer: Replayer, exactly: Exactly, sets: Sequence[frozenset[Any]], times: range
) -> list[Outcome]:
    """Return the outcomes of sets of exact events, each in these repeats."""
    fates = iter(replayer([Trial(exactly(u), r) for u in sets for r in times]))
    return [Outcome(units=u, fates=tuple(next(fates) for _ in times)) for u in sets]


def guilty(
    replayer: Replayer,
    family: Family,
    exactly: Exactly,
    units: frozenset[Any],
    low: Outcome,
    exact: Outcome,
    is_random: bool,
) -> Guilty:
    """Run step 2, for a replay that fails as it was and survives with all units exact.

    If outcomes differ between repeats, that is if the set found does not keep on surviving, or the
    two above do not end alike in every repeat, the search is done once more with more repeats of
    every set.
    """
    unsteady = is_random or exact.failures > 0 or low.failures < len(low.fates)
    for repeats in (REPEATS,) if unsteady else (1, REPEATS):
        asked = Replays(
            replay=lambda sets, n=repeats: often(replayer, exactly, sets, range(n)),  # type: ignore[misc]
            width=max(limit() // repeats, 1),
            expects=lambda fewest, most, n=repeats: replayer.clock.expects(n * fewest, n * most),  # type: ignore[misc]
        )
        asked.outcomes |= {frozenset(): low, units: exact}
        found = search(asked, units, family)
        [confirmed] = often(replayer, exactly, [found.found], range(REPEATS, REPEATS + CONFIRMS))
        made = replace(found, repeats=repeats, confirmed=confirmed)
        if made.holds:
            break
    if repeats < REPEATS and made.found != units:
        [more] = often(replayer, exactly, [units - made.found], range(repeats, REPEATS))
        made = replace(made, only=replace(made.only, fates=(*made.only.fates, *more.fates)))
    return made


def search(asked: Replays, units: frozenset[Any], family: Family) -> Guilty:
    """Return the set; the replay has to fail as it was and survive with all units exact."""
    levels: list[Any] = []
    kept = units
    asked.ask([x for x in dict.fromkeys(family.classes(units)) if x and x != units])
    for name, blocks_of in family.levels(units):
        is_everywhere = bool(levels) and kept == units
        levels.append(level(asked, name, blocks_of(kept), is_everywhere))
        kept = union(blocks_of(kept), levels[-1].needed)
    if smaller := [o for o in asked.ties(kept) if len(o.units) < len(kept)]:
        blocks = family.by_site(smaller[0].units)
        levels.append(level(asked, "a smaller set met on the way", blocks))
        kept = union(blocks, levels[-1].needed)
    if family.is_singled_out(kept, units):
        blocks = family.singly(kept)
        levels.append(level(asked, "single events", blocks))
        kept = union(blocks, levels[-1].needed)
    return held_up(asked, tuple(levels), kept, units, family)


def level(asked: Replays, name: str, blocks: dict[str, Any], is_everywhere: bool = False) -> Level:
    """Return which blocks of a level are needed.

    If there are few blocks, sets of them are asked for, size by size, and the first that survives
    is taken; otherwise by ddmin. Where all of them may be needed (is_everywhere: so it was one
    level up), each is left out alone first: if all these fail, no smaller set need be asked for.
    """
    ask, names = asked.of_blocks(blocks), list(blocks)
    fewest, most = sets_to_come(len(blocks), FEW)
    asked.expects(fewest + CONTROLS + CONFIRMS, most + CONTROLS + CONFIRMS)
    every, needed = subsets(names, FEW), names
    rests = [[x for x in names if x != name] for name in names]
    if is_everywhere and len(names) > 2 and not any(ask(rests, [])):
        return Level(name=name, blocks=tuple(names), needed=tuple(names))
    for size in sorted({len(s) for s in every}):
        own = [s for s in every if len(s) == size]
        if chosen := next((s for s, good in zip(own, ask(own, []), strict=True) if good), None):
            needed = chosen
            break
    if not every:
        needed = ddmin(names, ask)
    return Level(name=name, blocks=tuple(names), needed=tuple(needed))


def held_up(
    asked: Replays, levels: tuple[Level, ...], kept: Any, units: Any, family: Family
) -> Guilty:
    """Return the set with controls, each element put back alone, and the set alone low."""
    elements, universe = family.elements(kept, units), family.universe(kept, units)
    own = [name for name, block in universe.items() if block <= kept]
    controls = [union(universe, names) for names in others(list(universe), own, CONTROLS)]
    without = {name: kept - block for name, block in elements.items()}
    asked.expects(len(controls) + CONFIRMS, len(controls) + len(without) + 1 + CONFIRMS)
    asked.ask([*without.values(), units - kept, *controls])
    seen = asked.outcomes
    return Guilty(
        family=family,
        levels=levels,
        found=kept,
        all_units=units,
        size=len(elements),
        of=len(universe),
        outcomes=tuple(seen.values()),
        controls=tuple(seen[c] for c in controls),
        without=tuple((name, seen[rest]) for name, rest in without.items()),
        only=seen[units - kept],
        ties=tuple(asked.ties(kept)),
        turns=tuple(asked.turns()),
    )
