"""Step 2 of a run: the smallest set of events that must be exact for the replay to survive.

It is searched level by level, and then checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roundscope.tools.diagnose.replay.fate import Outcome, Trial
from roundscope.tools.diagnose.replay.replayer import Replayer, limit
from roundscope.tools.diagnose.search.ddmin import (
    Replays,
    ddmin,
    others,
    sets_to_come,
    subsets,
)
from roundscope.tools.diagnose.search.family import Family, union

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
        """Sets that survive although some of the set found still rounds, the smallest first.

        If there are any, the set found is not the only one.
        """
        return sorted(
            (o for o in self.outcomes if o.survives and not o.units >= self.found),
            key=lambda o: len(o.units),
        )

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
    fates = replayer([Trial(exactly(u), r) for u in sets for r in times])
    return [
        Outcome(units=u, fates=tuple(fates[i * len(times) : (i + 1) * len(times)]))
        for i, u in enumerate(sets)
    ]


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
    """Return the set.

    It needs that the replay fails as it was, and survives with all units exact.
    """
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
    rests = (
        [[x for x in names if x != name] for name in names]
        if is_everywhere and len(names) > 2
        else []
    )
    if rests and not any(ask(rests, [])):
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
    """Return the set with its controls, its elements put back one by one, and itself alone.

    Alone means that only the set rounds.
    """
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
