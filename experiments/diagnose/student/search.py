"""Steps 1 and 2 of a proxy's run: replayed, with everything exact, and the smallest set of events that must be exact to survive.

By layer, then matrix, then event, then single ones, as far as they are few; classes of events (`sites.GROUPS`) are asked for beside, and
a smaller set that survives among them is taken instead. All with `search` of the other runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from roundscope.experiments.diagnose.gpt.replay import limit
from roundscope.experiments.diagnose.replay.start import SANITY, Counter, Sanity
from roundscope.experiments.diagnose.search.ddmin import Outcome, Replays, others
from roundscope.experiments.diagnose.search.guilty import (
    CONFIRMS,
    CONTROLS,
    REPEATS,
    Guilty,
    held_up,
    level,
)
from roundscope.experiments.diagnose.student.case import Case
from roundscope.experiments.diagnose.student.replay import (
    AS_IT_WAS,
    EXACT,
    Own,
    Replayer,
    Trial,
    better,
    judged,
    own,
)
from roundscope.experiments.diagnose.student.units import (
    Blocks,
    Units,
    by_layer,
    by_matrix,
    by_site,
    change,
    singly,
    union,
    units_of,
)
from roundscope.experiments.train.student.sites import GROUPS

FEW = 16  # events that the search takes one by one
LEVEL = 0.01  # p below which a set survives more often than shams


class Cause(StrEnum):
    """What the replays say about the divergence."""

    ROUNDING = "rounding"
    OTHER = "not rounding after the replay's first step"
    LUCK = "not decided: the divergence hangs on last bits"
    LOST = "not decided: the divergence was not replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Steps 1 and 2.

    own       the run's replay;  failed: when it diverged;  equal, compared: points of the file's curve with the same bits, and all
    sanity    one per state that was tried, backwards in time;  replayer: of the last of them, with its shams
    units     the events that round;  guilty: None if there was nothing to search for
    """

    case: Case
    cause: Cause
    own: Own
    failed: int | None
    equal: int
    compared: int
    sanity: tuple[Sanity, ...]
    replayer: Replayer
    units: Units
    guilty: Guilty | None

    @property
    def shams(self) -> Outcome:
        """All shams of the state from which sets were replayed."""
        return Outcome(units=frozenset(), fates=tuple(self.replayer.shams))

    @property
    def p(self) -> float:
        """That the set found survives so often by luck: `better` than all shams so far."""
        return 1.0 if self.guilty is None or self.guilty.confirmed is None else better(self.guilty.confirmed.fates, self.replayer.shams)

    @property
    def holds(self) -> bool:
        """Whether the set found survives again and again where shams do not."""
        return self.guilty is not None and self.guilty.holds and self.p < LEVEL


def replayed(case: Case, folder: Path, count: Counter) -> Replayed:
    """Steps 1 and 2. Goes back, state by state, until FP32 survives from there while the run as it was does not."""
    count.says(1, f"to step {case.until}, as it was")
    mine, units = own(case, count), units_of(case.config, case.plan(case.failed))
    tried: list[Sanity] = []
    for start in case.starts:
        count.says(1, f"from step {start}: as it was, everything exact")
        replayer = Replayer(case=case, begin=mine.states[start], folder=folder, progress=count)
        tried.append(_sanity(replayer, units))
        if tried[-1].holds and tried[-1].fails:
            break
    failed = judged(mine.losses[:, :1])[0]
    cause = _cause(failed, tried[-1])
    if cause is Cause.ROUNDING:
        count.says(2, f"{len(units)} events, {replayer.steps} steps a set")
    found = guilty(replayer, units, tried[-1]) if cause is Cause.ROUNDING else None
    equal, compared = _alike(case, mine)
    return Replayed(
        case=case, cause=cause, own=mine, failed=failed, equal=equal, compared=compared, sanity=tuple(tried), replayer=replayer,
        units=units, guilty=found,
    )  # fmt: skip


def _sanity(replayer: Replayer, units: Units) -> Sanity:
    fates = replayer([Trial(text, r) for text in (AS_IT_WAS, EXACT) for r in range(SANITY)])
    low, exact = Outcome(units=frozenset(), fates=tuple(fates[:SANITY])), Outcome(units=units, fates=tuple(fates[SANITY:]))
    return Sanity(first=replayer.begin.step, low=low, exact=exact)


def _cause(failed: int | None, last: Sanity) -> Cause:
    if failed is None:
        return Cause.LOST
    if not last.fails:
        return Cause.LUCK
    return Cause.ROUNDING if last.holds else Cause.OTHER


def _alike(case: Case, mine: Own) -> tuple[int, int]:
    """Points of the file's curve that the replay has with the same bits, and all that both have."""
    points, before = [p for p in case.row.curve if p[0] <= case.until], 0
    equal = 0
    for step, loss, norm in points:
        found = mine.losses[before:step, 0].max(), mine.norms[before, 0]
        equal += all(a == b or not (np.isfinite(a) or np.isfinite(b)) for a, b in zip(found, (loss, norm), strict=True))
        before = step
    return equal, len(points)


def guilty(replayer: Replayer, units: Units, sanity: Sanity) -> Guilty:
    """Step 2. If the set found does not keep on surviving, or the sanity arms are no clear case: with more repeats of every set."""
    lucky = sanity.low.failures < SANITY or sanity.exact.failures > 0

    def often(sets: Sequence[Units], times: range) -> list[Outcome]:
        fates = replayer([Trial(change(u), r) for u in sets for r in times])
        return [Outcome(units=u, fates=tuple(fates[i * len(times) : (i + 1) * len(times)])) for i, u in enumerate(sets)]

    for repeats in (REPEATS,) if lucky else (1, REPEATS):
        asked = Replays(replay=lambda sets, n=repeats: often(sets, range(n)), width=max((limit() - 1) // repeats, 1))  # type: ignore[misc]
        asked.outcomes |= {frozenset(): sanity.low, units: sanity.exact}
        found = search(asked, units)
        [confirmed] = often([found.found], range(REPEATS, REPEATS + CONFIRMS))
        made = replace(found, repeats=repeats, confirmed=confirmed)
        if made.holds:
            break
    return made


def search(found: Replays, units: Units) -> Guilty:
    """The set. Needs: the replay fails as it was, and survives with all units exact."""
    levels, kept = [], units
    classes = [frozenset(u for u in units if u.site in sites) for sites in GROUPS.values()]
    found.ask([x for x in dict.fromkeys(classes) if x and x != units])
    for name, blocks_of in (("layers", by_layer), ("matrices", by_matrix), ("events", by_site)):
        blocks = blocks_of(kept)
        levels.append(level(found, name, blocks))
        kept = union(blocks, levels[-1].needed)
    if smaller := [o for o in found.ties(kept) if len(o.units) < len(kept)]:
        kept = smaller[0].units
        levels.append(level(found, "a smaller set met on the way", by_site(kept)))
        kept = union(by_site(kept), levels[-1].needed)
    if 1 < len(kept) <= FEW:
        levels.append(level(found, "single events", singly(kept)))
        kept = union(singly(kept), levels[-1].needed)
    elements: Blocks = singly(kept) if len(kept) <= FEW else by_site(kept)
    every = singly(units)
    controls = [union(every, names) for names in others(list(every), list(singly(kept)), CONTROLS)]
    return held_up(found, tuple(levels), kept, units, elements, controls, len(units))
