"""Step 2 of a run: the smallest set of events that must be exact for the replay to survive, by layer, head and event."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from roundscope.experiments.diagnose.gpt.blocks import by_head, by_layer, by_site, singly, union
from roundscope.experiments.diagnose.gpt.replay import Progress, Window, fates, limit
from roundscope.experiments.diagnose.gpt.trials import Trial
from roundscope.experiments.diagnose.gpt.units import Units, exactly
from roundscope.experiments.diagnose.search.ddmin import Outcome, Replays, ddmin, others, subsets

REPEATS = 3  # of a set, where outcomes are a matter of luck
CONTROLS = 8
CONFIRMS = 8  # repeats of the set found


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the search: which blocks it chose from, and which of them are needed."""

    name: str
    blocks: tuple[str, ...]
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guilty:
    """The smallest set found of events that must be exact, and what holds it up.

    levels      layers, heads, events, single events, as far as they were needed
    found       the set; all_units: what could be exact
    size, of    its elements, and among how many: events over all heads if all heads are needed, else events of one head
    outcomes    every set that was replayed;  controls: random sets of its size, at the last level
    without     each element put back alone, with its outcome;  only: the set low and all else exact
    ties        others that survive and are no larger;  turns: (smaller, larger) where more exact did worse
    repeats     of every set;  confirmed: repeats of the set found, beyond those of the search
    """

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

    @property
    def is_minimal(self) -> bool:
        """Whether each element put back alone fails again."""
        return not any(o.survives for _, o in self.without)

    @property
    def holds(self) -> bool:
        """Whether the set found keeps on surviving: all its repeats but one, at least."""
        return self.confirmed is None or self.confirmed.failures <= 1


def replays(w: Window, progress: Progress, repeats: int) -> Replays:
    """What replays sets of exact events, so many times each."""

    def run(sets: list[Units]) -> list[Outcome]:
        return often(w, sets, range(repeats), progress)

    return Replays(replay=run, width=max(limit() // repeats, 1))


def often(w: Window, sets: Sequence[Units], times: range, progress: Progress) -> list[Outcome]:
    """Sets of exact events, each in these repeats."""
    found = fates(w, [Trial(exactly(u), r) for u in sets for r in times], progress, width=limit())
    return [Outcome(units=u, fates=tuple(found[i * len(times) : (i + 1) * len(times)])) for i, u in enumerate(sets)]


def expected(units: Units) -> int:
    """About how many sets the search will ask for."""
    heads, sites = len(by_head(units)), len(by_site(units))
    return min(2**heads - 2, 8 * heads) + 4 * math.ceil(math.log2(sites + 1)) + CONTROLS + CONFIRMS + 4


def first_sets(units: Units) -> list[Units]:
    """What the search will ask for first: it fills the launch of the sanity arms."""
    blocks = by_head(units)
    return [union(blocks, names) for names in subsets(list(blocks), 2 * limit())]


def guilty(w: Window, units: Units, low: Outcome, exact: Outcome, progress: Progress) -> Guilty:
    """Step 2, of a replay that fails as it was and survives with all units exact. If outcomes are a matter of luck, that is if the set
    found does not keep on surviving, or the two above are not the same in every repeat, once more with more repeats of every set.
    """
    lucky = w.case.is_random or low.survives or not exact.survives or low.failures < len(low.fates)
    for repeats in (REPEATS,) if lucky else (1, REPEATS):
        asked = replays(w, progress, repeats)
        asked.outcomes |= {frozenset(): low, units: exact}
        found = search(asked, units)
        [confirmed] = often(w, [found.found], range(REPEATS, REPEATS + CONFIRMS), progress)
        made = replace(found, repeats=repeats, confirmed=confirmed)
        if made.holds:
            break
    return made


def search(found: Replays, units: Units) -> Guilty:
    """Step 2. Needs: the replay fails as it was, and survives with all units exact."""
    levels, kept = [], units
    start = [] if first_sets(units) else [("layers", by_layer)]  # all sets of heads are asked for, so also those of layers
    for name, blocks_of in (*start, ("heads", by_head), ("events", by_site), ("events of one head", singly)):
        over_all = set(by_head(kept)) == set(by_head(units))
        if blocks_of is singly and (over_all or len(by_head(kept)) == 1):
            break  # its elements are events over all heads, or single ones already
        chosen = level(found, name, blocks_of(kept))
        levels.append(chosen)
        kept = union(blocks_of(kept), chosen.needed)
    if smaller := [o for o in found.ties(kept) if len(o.units) < len(kept)]:
        chosen = level(found, "a smaller set met on the way", singly(smaller[0].units))
        levels, kept, over_all = [*levels, chosen], union(singly(units), chosen.needed), False
    universe = by_site(units) if over_all else singly(units)
    elements = {name: block for name, block in universe.items() if block <= kept}
    controls = [union(universe, names) for names in others(list(universe), elements, CONTROLS)]
    return held_up(found, tuple(levels), kept, units, elements, controls, len(universe))


def level(found: Replays, name: str, blocks: dict[str, Any]) -> Level:
    """Few blocks: all sets of them are asked for, and the smallest is taken; else ddmin."""
    ask = found.of_blocks(blocks)
    every = subsets(list(blocks), 2 * limit())
    survived = ask(every, []) if every else []
    if every:
        needed = next((s for s, good in zip(every, survived, strict=True) if good), list(blocks))
    else:
        needed = ddmin(list(blocks), ask)
    return Level(name=name, blocks=tuple(blocks), needed=tuple(needed))


def held_up(
    found: Replays, levels: tuple[Level, ...], kept: Any, units: Any, elements: dict[str, Any], controls: Sequence[Any], of: int
) -> Guilty:
    """The set with its controls: at most as large a launch as need be. elements: the blocks that `kept` is made of."""
    without = {name: kept - block for name, block in elements.items()}
    found.ask([*without.values(), units - kept, *controls])
    seen = found.outcomes
    return Guilty(
        levels=levels, found=kept, all_units=units, size=len(elements), of=of, outcomes=tuple(seen.values()),
        controls=tuple(seen[c] for c in controls), without=tuple((name, seen[rest]) for name, rest in without.items()),
        only=seen[units - kept], ties=tuple(found.ties(kept)), turns=tuple(found.turns()),
    )  # fmt: skip
