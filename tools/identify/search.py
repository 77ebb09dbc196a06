"""The search for the plan that gives a kernel's outputs.

It tries structures, then tiles, then one change at a time for as long as one helps. The forward is
searched for on the last rows, which see all keys; then the backward on all rows, with the forward's
plan kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from roundscope.attention.plans.choices import GradientsApart, KeyOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import CHOICES
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import visible
from roundscope.emu.roundings.modes import E4M3, FP16
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.tools.errors import bad
from roundscope.tools.identify import candidates
from roundscope.tools.identify.candidates import Candidate, emulated, narrowest
from roundscope.tools.identify.compare import Nearness, nearness
from roundscope.tools.report.progress import Pace, left

ROWS = 128  # how many of the last rows the forward is searched for on
FEW_ROWS = 32  # how many of them the changes of every structure are first tried on
CONFIRMED = 24  # how many of the nearest changes are then tried on ROWS
MOST = 8000  # plans that the search of a forward tries
LEAST = 200  # plans of a budget; who gives fewer means seconds
# of a backward so many times fewer are tried, since one costs as much as many on few rows
SHARE = 16
TIES = 10  # plans that give every bit of the output, whose backwards are tried
EACH = 16  # plans between two lines of progress
FORMS = 3  # how many structures are tried on other tiles
CHANGES = 8  # the largest number of changes made one after the other
GAIN = 2e-5  # the share of equal bits that a change must add to explain anything
PART = 0.01  # the share of the unequal numbers that a change must explain
# the share of equal bits of a dQ that atomics add, beyond which the rest may be due to their order
ATOMIC = 0.9998
QUERY_TILES = (64, 128, 256, 512)  # queries of a tile that are tried for a backward
Told = Callable[[str], None]


@dataclass(slots=True)
class Found:
    """The nearest plan of one direction, and how it was found.

    best         the candidate
    near         how near its output is
    tried        how many plans were tried
    structures   every structure with its nearness, nearest first
    changes      the changes that were kept, in their order, with the nearness after each
    others       each further change of the best and the nearness it gives, nearest first
    stopped      whether no plan was left to try while some bit was not found
    ties         structures that give every bit as well, where the best is a structure that does
    """

    best: Candidate
    near: Nearness
    tried: int = 0
    structures: list[tuple[str, Nearness]] = field(default_factory=list)
    changes: list[tuple[str, Nearness]] = field(default_factory=list)
    others: list[tuple[str, Nearness]] = field(default_factory=list)
    stopped: bool = False
    ties: list[Candidate] = field(default_factory=list)


Judge = Callable[[Candidate], Nearness | None]
Ranked = list[tuple[Candidate, Nearness]]


def check_budget(budget: int) -> None:
    """Raise UsageError for a budget that is no number of plans.

    Until it counted plans it was in seconds, and small numbers still mean that. 0 tries the
    structures alone.
    """
    if budget < 0 or 0 < budget < LEAST or budget > 10**9:
        repair = (
            f"counts plans, and no longer seconds; give 0, or {LEAST} or more, such as {MOST}, its"
            " default"
        )
        raise bad("--budget", budget, repair)


class Tries:
    """The plans that a search may still try, counted: a busy machine tries as many.

    most   how many plans it may try
    tell   is told which plan is tried, and how much time is left at the most
    """

    def __init__(self, most: int, tell: Told) -> None:
        self.most, self.tell = most, tell
        self.done, self.stage, self._pace = 0, "", Pace()

    @property
    def is_over(self) -> bool:
        """Whether no plan is left."""
        return self.done >= self.most

    def count(self) -> None:
        """Count a plan that was tried."""
        self.done += 1
        if self.done % EACH == 0:
            self._pace.mark(self.done)
            rest = left(self.most - self.done, self._pace.rate)
            most = f", at most {rest}" if rest else ""
            self.tell(f"{self.stage}: plan {self.done} of at most {self.most}{most}")


def structures(x: Inputs, results: dict[str, np.ndarray]) -> Iterator[Candidate]:
    """Yield every structure in the formats of these inputs and results.

    Results in FP16 are those of a kernel in FP16, even if BF16 holds the inputs.
    """
    given = narrowest(*candidates.stored(x))
    is_half = FP16 in (given, narrowest(*results.values()))
    for c in candidates.structures(x.q.shape[-1], x.k.shape[1], x.is_cut):
        yield candidates.leaving(candidates.in_half(c) if is_half else c, results)
    if given == E4M3:
        for c in candidates.structures(x.q.shape[-1], x.k.shape[1], x.is_cut):
            for narrow in candidates.in_fp8(c, x.k.shape[1], has_scales=bool(x.scales)):
                yield candidates.leaving(narrow, results)


def forward(
    x: Inputs,
    out: np.ndarray,
    tell: Told,
    most: int = MOST,
    seen: Sequence[tuple[int, KeyOrder | None]] = (),
    sums: Mapping[Site, Accumulator] = MappingProxyType({}),
) -> Found:
    """Find the plan whose output is nearest to `out` (B, T, N, H).

    most   the number of plans after which no further one is tried
    seen   tiles that probes of the kernel saw, keys of a tile and their order, which are tried
           before all others; an order of None is that of each plan
    sums   orders of sums that probes saw; every structure is tried with them, too
    """
    forms = list(structures(x, {"out": out}))
    forms += [candidates.with_sums(c, sums) for c in forms if sums]
    tries = Tries(most + len(forms), tell)  # structures are always tried
    judge, quick = _forward_judge(x, out, ROWS), _forward_judge(x, out, FEW_ROWS)
    tries.stage = "structures"
    ranked = _ranked(judge, forms, tries)
    best, near = ranked[0]
    tell(f"structures: {best.plan.name} is nearest, {near}")
    result = Found(best=best, near=near, structures=[(c.plan.name, n) for c, n in ranked])
    if near.equal == 1.0:
        sizes = sorted({c.block_k for c, n in ranked if n.equal == 1.0 and not _is_whole(c)})
        more = (_on_tiles(c, size) for size in sizes for c in forms if not _is_whole(c))
        result.ties = _ties([*ranked, *_ranked(judge, more, tries, known=ranked)])
    else:
        result, forms = _tiled(x, result, [c for c, _ in ranked], judge, quick, tries, seen)
    if result.near.equal < 1.0:
        result = _widely(x, result, forms, judge, quick, tries)
    result.tried = tries.done
    result.stopped = tries.is_over and result.near.equal < 1.0
    return result


def _is_whole(c: Candidate) -> bool:
    return c.plan.normalise_first


def _on_tiles(c: Candidate, size: int) -> Candidate:
    rows = candidates.rows_of(c.plan, size, c.block_q)
    return replace(c, block_k=size, block_q=rows, change=f"key tiles of {size}")


def _ties(ranked: Ranked) -> list[Candidate]:
    """Return the candidates after the first that also give every bit."""
    return [c for c, n in ranked if n.equal == 1.0][1:]


def _tiled(
    x: Inputs,
    nearest: Found,
    forms: list[Candidate],
    judge: Judge,
    quick: Judge,
    tries: Tries,
    seen: Sequence[tuple[int, KeyOrder | None]] = (),
) -> tuple[Found, list[Candidate]]:
    """Try all structures on other tiles; also return every structure on its best tiles.

    All are tried on a few rows, the nearest of them then on more. If tiles that were seen give
    every bit, no others are tried.
    """
    tries.stage = "tiles"
    keys = x.k.shape[1]
    screened = _ranked(quick, candidates.on_seen_tiles(forms, seen, keys), tries)
    ranked = _ranked(judge, (c for c, _ in screened[:CONFIRMED]), tries)
    if not ranked or ranked[0][1].equal < 1.0:
        every = (t for c in forms for t in candidates.tilings(c, keys))
        more = _ranked(quick, every, tries, known=screened)
        screened = sorted((*screened, *more), key=lambda pair: pair[1], reverse=True)
        ranked = _ranked(judge, (c for c, _ in screened[:CONFIRMED]), tries)
    if ranked and ranked[0][1] > nearest.near:
        nearest.best, nearest.near = ranked[0]
        nearest.changes.append((f"{nearest.best.plan.name}, {nearest.best.change}", nearest.near))
        nearest.ties = _ties(ranked)
        tries.tell(f"tiles: {nearest.changes[-1][0]}; {nearest.near}")
    best: dict[str, tuple[Candidate, Nearness]] = {}
    for c in forms:  # whole rows, and tiles that are as good as any
        if (near := quick(c)) is not None:
            best[c.plan.name] = (c, near)
    for c, near in screened:
        name = c.plan.name
        if name not in best or near > best[name][1]:
            best[name] = (c, near)
    order = sorted(best.values(), key=lambda pair: pair[1], reverse=True)
    # on the own tiles too: where an event is wrong, the nearest tiles need not be the right ones
    own = {c.plan.name: c for c in forms}
    pairs = ((own[c.plan.name], c) for c, _ in order)
    return nearest, list(dict.fromkeys(c for pair in pairs for c in pair))


def _widely(
    x: Inputs,
    nearest: Found,
    forms: list[Candidate],
    judge: Judge,
    quick: Judge,
    tries: Tries,
) -> Found:
    """Try changes of one event of every structure, then of the best few of them, again and again.

    The nearest structure may not be the one that one change makes right. A third of the plans that
    are left is kept for the further changes.
    """
    tries.stage = "changes of every structure"
    screened: Ranked = []
    # changes that give every bit: only these are tried on the other structures, for ties
    hits: set[str] = set()
    half = Tries(2 * (tries.most - tries.done) // 3, tries.tell)
    half.stage = tries.stage
    for form in dict.fromkeys((nearest.best, *forms)):
        screened += _ranked(
            quick,
            (c for c in candidates.forward_changes(form) if not hits or c.change in hits),
            half,
        )
        hits = {c.change for c, n in screened if n.equal == 1.0}
    tries.done += half.done
    screened.sort(key=lambda pair: pair[1], reverse=True)
    ranked = _ranked(judge, (c for c, _ in screened[:CONFIRMED]), tries)
    starts: dict[str, Found] = {}
    for c, n in ranked:
        name = c.plan.name
        if name not in starts and _helps(n, nearest.near):
            before = nearest.changes if name == nearest.best.plan.name else []
            starts[name] = replace(
                nearest, best=c, near=n, changes=[*before, (f"{name}: {c.change}", n)], ties=[]
            )
    if ranked and ranked[0][1].equal == 1.0:
        exact = next(iter(starts.values()))
        exact.ties = _ties(ranked)
        return exact
    keys = x.k.shape[1]

    def changes(c: Candidate) -> Iterator[Candidate]:
        yield from candidates.tilings(c, keys)
        yield from candidates.forward_changes(c)

    tries.stage = "further changes"
    reached = []
    for start in (*list(starts.values())[:FORMS], nearest):
        reached.append(_improved(start, judge, changes, tries))
        if reached[-1].near.equal == 1.0:
            break
    return max(reached, key=lambda f: f.near)


def backward(
    x: Inputs, outputs: Outputs, found: Found, tell: Told, most: int = MOST // SHARE
) -> Found:
    """Find the plan whose gradients are nearest: changes of the forward's plan are tried.

    The backwards of the twins are tried as well.

    most   the number of plans after which no further one is tried
    """
    tries = Tries(most + 1 + TIES, tell)  # the forward's own backwards are always tried
    tries.stage = "backward"
    judge = _backward_judge(x, outputs)
    wanted = {n: a for n, a in outputs.named() if n in ("dq", "dk", "dv")}
    own, *tied = (candidates.leaving(c, wanted) for c in (found.best, *found.ties[:TIES]))
    ranked = _ranked(judge, (own, *tied), tries)
    ties = _ties(ranked)
    if ranked and ranked[0][1].equal < 1.0:
        begun = [c for c, _ in ranked]
        proposed = (
            *(b for c in begun for b in candidates.again(c)),
            *(b for c in begun for b in _backwards(x, c, wanted)),
        )
        more = _ranked(judge, proposed, tries, is_one_enough=True)
        ranked = sorted((*ranked, *more), key=lambda pair: pair[1], reverse=True)
    result = Found(best=own, near=Nearness(0.0, 0.0))
    if ranked:
        result = Found(best=ranked[0][0], near=ranked[0][1], ties=ties)
    tell(f"backward: {result.near}")
    is_atomic = result.best.plan.gradients_apart is GradientsApart.DQ
    # no plan has the order in which atomics added
    if not (is_atomic and result.near.equal >= ATOMIC):
        starts = {c.plan.name: Found(best=c, near=n) for c, n in reversed(ranked[:1])}
        for c, n in ranked[1:]:
            if c.plan.name not in starts and len(starts) < 2:
                starts[c.plan.name] = Found(best=c, near=n)
        reached = []
        for start in (result, *list(starts.values())[1:]):
            reached.append(_improved(start, judge, candidates.backward_changes, tries))
            if reached[-1].near.equal == 1.0:
                break
        result = max(reached, key=lambda f: f.near)
    result.tried = tries.done
    result.stopped = tries.is_over and result.near.equal < 1.0
    return result


def _backwards(x: Inputs, own: Candidate, wanted: dict[str, np.ndarray]) -> Iterator[Candidate]:
    """Yield the plan with the backwards of all structures, each on its own query tiles.

    Then yield all of them, and the plan with its own backward, on other query tiles.
    """
    begun = []
    for c in structures(x, wanted):
        try:
            begun.append(replace(own, plan=_with_backward(own.plan, c.plan), block_q=c.block_q))
        except ValueError:
            continue  # the forward has no such backward: an L in base 2 of rows that were split
    yield from begun
    for c in (own, *begun):
        for rows in dict.fromkeys((c.block_k, *(n for n in QUERY_TILES if n <= x.q.shape[1]))):
            yield replace(c, block_q=rows)


def _with_backward(plan: Plan, other: Plan) -> Plan:
    """Return the plan with another plan's backward.

    It also takes what the other keeps of a row for it: the logarithm of the sum, the maximum.
    """
    sites = (*candidates.BACKWARD, *candidates.OF_ROWS)
    changed = plan.rounded({site: other.event(site) for site in sites})
    for site in PRODUCTS:
        if site.stage == "backward":
            changed = changed.adding(site, other.accumulator(site))
    follow = {n: getattr(other, n) for n, own in CHOICES.items() if own.moves.follows}
    return replace(changed, name=plan.name, **follow)


def _improved(
    found: Found,
    judge: Judge,
    changes: Callable[[Candidate], Iterable[Candidate]],
    tries: Tries,
) -> Found:
    """Make the change that helps most, again and again, until none helps or no plan is left."""
    for _ in range(CHANGES):
        if found.near.equal == 1.0 or tries.is_over:
            return found
        ranked = _ranked(
            judge,
            (c for c in changes(found.best) if c.key != found.best.key),
            tries,
            is_one_enough=True,
        )
        found.others = [(c.change, n) for c, n in ranked]
        found.ties = []
        if not ranked or not _helps(ranked[0][1], found.near):
            return found
        found.best, found.near = ranked[0]
        found.others = []
        found.changes = [*found.changes, (found.best.change, found.near)]
        tries.tell(f"{found.best.change}: {found.near}")
    return found


def _helps(new: Nearness, old: Nearness) -> bool:
    return new.equal > old.equal + GAIN + PART * (1.0 - old.equal)


def _ranked(
    judge: Judge,
    proposed: Iterable[Candidate],
    tries: Tries,
    *,
    is_one_enough: bool = False,
    known: Sequence[tuple[Candidate, Nearness]] = (),
) -> Ranked:
    """Return candidates with their nearness, nearest first.

    Plans that cannot run are left out, and each plan is tried once, those that are known not at
    all. Nothing is tried once no plan is left, or, if one is enough, after one that gives every
    bit.
    """
    seen = {c.key for c, _ in known}
    judged: Ranked = []
    for candidate in proposed:
        if tries.is_over:
            break
        if candidate.key in seen:
            continue
        seen.add(candidate.key)
        near = judge(candidate)
        if near is None:
            continue
        tries.count()
        judged.append((candidate, near))
        if is_one_enough and near.equal == 1.0:
            break
    return sorted(judged, key=lambda pair: pair[1], reverse=True)


def _forward_judge(x: Inputs, out: np.ndarray, count: int) -> Judge:
    """Return a judge of candidates by their outputs in the last `count` rows."""
    rows = slice(max(0, x.q.shape[1] - count), None)
    whole, want = np.ascontiguousarray(x.q[:1, :, :1]), out[:1, rows, :1]
    last = np.ascontiguousarray(whole[:, rows])
    k, v = (np.ascontiguousarray(a[:1, :, :1]) for a in (x.k, x.v))
    whole_mask = None if x.mask is None else x.mask[:1, :1]
    mask = None if whole_mask is None else whole_mask[:, :, rows]
    cuts = x.is_causal or bool(x.window)
    if cuts:
        near = visible(replace(x, mask=None))[:1, :1, rows]
        mask = near if mask is None else near & mask
    one_head = candidates.options_of(x) | {
        "sinks": None if x.sinks is None else x.sinks[:1],
        "mask": whole_mask,
    }

    def judge(c: Candidate) -> Nearness | None:
        # plans whose arithmetic depends on query tiles, and on causality or a window, which a mask
        # does not tell
        of_tiles = c.plan.key_order is KeyOrder.MASKED_FIRST or c.plan.unfused_if_cut
        try:
            if cuts and of_tiles:
                got = emulated(c, whole, k, v, **one_head).out[:, rows]
            else:
                got = emulated(
                    replace(c, block_q=ROWS),
                    last,
                    k,
                    v,
                    **one_head | {"is_causal": False, "window": None, "mask": mask},
                ).out
        except ValueError:
            return None  # the plan cannot run: its tensor core does not read its factors
        return nearness(got, want)

    return judge


def _backward_judge(x: Inputs, outputs: Outputs) -> Judge:
    """Return a judge of candidates by their gradients.

    It uses the first key head and the query heads that share it.
    """
    group = x.q.shape[2] // x.k.shape[2]
    q, do = (np.ascontiguousarray(a[:1, :, :group]) for a in (x.q, x.do))
    k, v = (np.ascontiguousarray(a[:1, :, :1]) for a in (x.k, x.v))
    heads = {"dq": group, "dk": 1, "dv": 1}
    wanted = {n: a[:1, :, : heads[n]] for n, a in outputs.named() if n in heads}
    options = candidates.options_of(x) | {
        "sinks": None if x.sinks is None else x.sinks[:group],
        "mask": None if x.mask is None else x.mask[:1, :group],
    }

    def judge(c: Candidate) -> Nearness | None:
        try:
            got = emulated(c, q, k, v, do, **options)
        except ValueError:
            return None
        each = [nearness(getattr(got, n), a) for n, a in wanted.items()]
        return Nearness(
            float(np.mean([n.equal for n in each])), float(np.mean([n.distance for n in each]))
        )

    return judge
