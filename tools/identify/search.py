"""The search for the plan that gives a kernel's outputs.

It tries structures, then tiles, then one change at a time for as long as one helps. The forward is
searched for on the last rows, which see all keys; then the backward on all rows, with the forward's
plan kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from types import MappingProxyType

import numpy as np

from roundscope.attention.plans.choices import GradientsApart, KeyOrder, RescaledSum
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import CHOICES
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import visible
from roundscope.attention.tiles.loops import of_backward
from roundscope.emu.roundings.modes import BF16, E4M3, FP16
from roundscope.emu.stats.comparison import agree
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.tools.errors import bad
from roundscope.tools.identify import candidates
from roundscope.tools.identify.backwards import Arrays, Backwards, has_parts
from roundscope.tools.identify.candidates import Candidate, emulated, narrowest
from roundscope.tools.identify.compare import Nearness, nearness
from roundscope.tools.identify.meanings import exact_rows
from roundscope.tools.report.progress import Pace, left

ROWS = 128  # how many of the last rows the forward is searched for on
FEW_ROWS = 32  # how many of them the changes of every structure are first tried on
GLANCE_ROWS = 8  # how many of them those of structures that are far off are tried on
CLOSE = 0.7  # the share of equal bits of a structure from which small changes of it are tried
TOLD = 0.2  # the share from which its tiles are told apart by it
CONFIRMED = 24  # how many of the nearest changes are then tried on ROWS
MOST = 8000  # plans that the search of a forward tries
LEAST = 200  # plans of a budget; who gives fewer means seconds
# of a backward so many times fewer are tried, since one costs as much as many on few rows
SHARE = 16
TIES = 10  # plans that give every bit of the output, whose backwards are tried
EACH = 16  # plans between two lines of progress
FORMS = 3  # how many structures are tried on other tiles
# so many times more numbers of a structure may differ than of the nearest, or it is not changed
FAR_OFF = 30.0
CHANGES = 8  # the largest number of changes made one after the other
GAIN = 2e-5  # the share of equal bits that a change must add to explain anything
PART = 0.01  # the share of the unequal numbers that a change must explain
# the share of equal bits of a dQ that atomics add, beyond which the rest may be due to their order
ATOMIC = 0.9998
QUERY_TILES = (64, 128, 256, 512)  # queries of a tile that are tried for a backward
PIECE = 128  # queries, or keys, of the part of a backward that is compared first
WORTH = 0.7  # the share of a call up to which a part of it is compared first
WORSE = Nearness(-1.0, -np.inf)  # of a plan that is no nearer in the part that is compared first
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


# None is said of a plan that cannot run, and WORSE of one that need not be compared further
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
    tell   is told which plan of a stage is tried, and of a stage whose plans are known before how
           much time is left; the whole search may end with any plan, so that of it nothing is said
    """

    def __init__(self, most: int, tell: Told) -> None:
        self.most, self.tell, self.done = most, tell, 0
        self.begin("")

    def begin(self, stage: str, plans: int = 0) -> None:
        """Begin a stage of so many plans, or of a number that is not known before, 0."""
        self.stage, self.plans = stage, min(plans, self.most - self.done)
        self._pace, self._first = Pace(), self.done

    @property
    def is_over(self) -> bool:
        """Whether no plan is left."""
        return self.done >= self.most

    def count(self) -> None:
        """Count a plan that was tried."""
        self.done += 1
        number = self.done - self._first
        if number % EACH:
            return
        self._pace.mark(number)
        of, rest = "", ""
        if number <= self.plans:
            of, rest = f" of {self.plans}", left(self.plans - number, self._pace.rate)
        self.tell(", ".join(filter(None, (f"{self.stage}: plan {number}{of}", rest))))


def structures(x: Inputs, results: dict[str, np.ndarray]) -> Iterator[Candidate]:
    """Yield every structure in the formats of these inputs and results.

    Results in FP16 are those of a kernel in FP16, even if BF16 holds the inputs.
    """
    given = narrowest(*candidates.stored(x))
    is_half = FP16 in (given, narrowest(*results.values()))
    cast = None
    if (out := results.get("out")) is not None:
        one = candidates.held(out)
        if one.format.precision < BF16.format.precision and one != E4M3:
            cast = candidates.cast_of(out, exact_rows(x, np.arange(x.q.shape[1])))
    for c in candidates.structures(x.q.shape[-1], x.k.shape[1], x.is_cut):
        own = candidates.leaving(candidates.in_half(c) if is_half else c, results)
        yield own if cast is None else replace(own, plan=own.plan.rounded({Site.OUT: cast}))
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
    judge, quick, glance = (
        _forward_judge(x, out, _last(x, n)) for n in (ROWS, FEW_ROWS, GLANCE_ROWS)
    )
    tries.begin("structures")
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
        result = _widely(x, out, result, forms, judge, quick, glance, tries)
    if result.near.equal == 1.0:
        result = _in_all_rows(x, out, result, tries)
    result.tried = tries.done
    result.stopped = tries.is_over and result.near.equal < 1.0
    return result


def _in_all_rows(x: Inputs, out: np.ndarray, found: Found, tries: Tries) -> Found:
    """Return what was found on the last rows, or what is nearer in all rows of the head.

    The first rows may be computed in another way. Changes are tried if no tie has every bit.
    """
    judge = _forward_judge(x, out, _last(x, x.q.shape[1]))
    ranked = [(c, near) for c in (found.best, *found.ties[:TIES]) if (near := judge(c)) is not None]
    best, near = max(ranked, key=lambda pair: pair[1])
    if not _is_open(near) or len(out[0]) <= ROWS:
        return found
    tries.begin("changes in all rows")
    start = Found(best=best, near=near, changes=found.changes)
    few = Tries(min(tries.most // SHARE, tries.most - tries.done), tries.tell)
    few.begin(tries.stage)
    start = _improved(start, lambda best: judge, candidates.forward_changes, few)
    tries.done += few.done
    if start.best is best:
        return found
    return replace(start, structures=found.structures)


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
    """Try all structures on other tiles; also return those that may be changed, on the best tiles.

    All are tried on a few rows, the nearest of them then on more. If tiles that were seen give
    every bit, no others are tried; if usual tiles do, only these in other orders of the keys.
    """
    tries.begin("tiles")
    keys = x.k.shape[1]
    screened = _ranked(quick, list(candidates.on_seen_tiles(forms, seen, keys)), tries)
    ranked = _ranked(judge, [c for c, _ in screened[:CONFIRMED]], tries)
    for usual in (True, False):  # the usual tiles, and then all others
        if ranked and ranked[0][1].equal == 1.0:
            break
        every = [t for c in forms for t in candidates.tilings(c, keys, usual=usual)]
        more = _ranked(quick, every, tries, known=screened)
        screened = sorted((*screened, *more), key=lambda pair: pair[1], reverse=True)
        ranked = _ranked(judge, [c for c, _ in screened[:CONFIRMED]], tries)
        sizes = {c.block_k for c, n in ranked if n.equal == 1.0}
        if usual and sizes:  # the other orders of the keys on the tiles that give every bit
            every = [t for c in forms for t in candidates.tilings(c, keys) if t.block_k in sizes]
            ranked = [*ranked, *_ranked(judge, every, tries, known=[*screened, *ranked])]
            ranked.sort(key=lambda pair: pair[1], reverse=True)
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
    most = FAR_OFF * (1.0 - nearest.near.equal)
    order = [pair for pair in order if 1.0 - pair[1].equal <= most]
    # on the own tiles too: where an event is wrong, the nearest tiles need not be the right ones
    own = {c.plan.name: c for c in forms}
    pairs = ((own[c.plan.name], c) for c, _ in order)
    return nearest, list(dict.fromkeys(c for pair in pairs for c in pair))


def _widely(
    x: Inputs,
    out: np.ndarray,
    nearest: Found,
    forms: list[Candidate],
    judge: Judge,
    quick: Judge,
    glance: Judge,
    tries: Tries,
) -> Found:
    """Try changes of one event of every structure, then of the best few of them, again and again.

    The nearest structure may not be the one that one change makes right. A third of the plans that
    are left is kept for the further changes.
    """
    tries.begin("changes of every structure")
    half = Tries(2 * (tries.most - tries.done) // 3, tries.tell)
    half.begin(tries.stage)
    every = list(dict.fromkeys((nearest.best, *forms)))
    near = {c: quick(c) or WORSE for c in every}
    # a plan that lacks a small change alone has most numbers of an output of few bits
    is_narrow = candidates.held(out).format.precision <= FP16.format.precision
    far = [c for c in every if is_narrow and near[c].equal < CLOSE]
    close = [c for c in every if c not in far]
    screened, first = _of_large_changes(x.k.shape[1], far, near, glance, half)
    # changes that give every bit: only these are tried on the other structures, for ties
    hits: set[str] = set()
    if first is not None:
        screened += _ranked(quick, candidates.forward_changes(first), half)
        hits = {c.change for c, n in screened if n.equal == 1.0}
    for form in close if first is None else every:
        screened += _ranked(quick, candidates.forward_changes(form, hits), half)
        hits = {c.change for c, n in screened if n.equal == 1.0}
    tries.done += half.done
    screened.sort(key=lambda pair: pair[1], reverse=True)
    ranked = _ranked(judge, [c for c, _ in screened[:CONFIRMED]], tries)
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

    tries.begin("further changes")
    reached = []
    for start in (*list(starts.values())[:FORMS], nearest):
        reached.append(_improved(start, lambda best: _nearer(x, out, best, judge), changes, tries))
        if reached[-1].near.equal == 1.0:
            break
    return max(reached, key=lambda f: f.near)


def _of_large_changes(
    keys: int, forms: list[Candidate], near: dict[Candidate, Nearness], glance: Judge, tries: Tries
) -> tuple[Ranked, Candidate | None]:
    """Try large changes of structures that are far off, the likely ones of all of them first.

    Return what was tried, and the structure of which a change gives every bit; then no further
    changes are tried. Of a structure of which the tiles tell nothing, its own are tried alone.
    """
    told: dict[str, Candidate] = {}
    for c in forms:
        if c.plan.name not in told or near[c].equal >= TOLD:
            told[f"{c.plan.name} {c.block_k}" if c.plan.name in told else c.plan.name] = c
    screened: Ranked = []
    rounds = zip_longest(*(candidates.large_changes(c, keys) for c in told.values()))
    for changes in rounds:
        for form, some in zip(told.values(), changes, strict=True):
            more = _ranked(glance, some or (), tries)
            screened += more
            if any(n.equal == 1.0 for _, n in more):
                return screened, form
    return screened, None


def backward(
    x: Inputs, outputs: Outputs, found: Found, tell: Told, most: int = MOST // SHARE
) -> Found:
    """Find the plan whose gradients are nearest: changes of the forward's plan are tried.

    The backwards of the twins are tried as well.

    most   the number of plans after which no further one is tried
    """
    tries = Tries(most + 1 + TIES, tell)  # the forward's own backwards are always tried
    tries.begin("backward")
    gradients = _Gradients(x, outputs)
    wanted = {n: a for n, a in outputs.named() if n in ("dq", "dk", "dv")}
    own, *tied = (candidates.leaving(c, wanted) for c in (found.best, *found.ties[:TIES]))
    begun = _ranked(gradients.judge, (own, *tied), tries)
    result = Found(best=own, near=Nearness(0.0, 0.0))
    if begun:
        result = Found(best=begun[0][0], near=begun[0][1], ties=_ties(begun))
    tell(f"backward: {result.near}")
    if begun and not _is_final(result):
        forms = [c for c, _ in begun]
        proposed = (
            *(b for c in forms for b in candidates.again(c)),
            *(b for c in forms for b in _backwards(x, c, wanted)),
        )
        nearer = gradients.nearer_than(result.best)
        more = _ranked(nearer, proposed, tries, is_one_enough=True)
        ranked = sorted((*begun, *more), key=lambda pair: pair[1], reverse=True)
        if ranked[0][1].equal == 1.0 or _helps(ranked[0][1], result.near):
            result = Found(best=ranked[0][0], near=ranked[0][1])
        reached = []
        for start in _starts(result, ranked):
            if not _is_final(start):
                changes = candidates.backward_changes
                start = _improved(start, gradients.nearer_than, changes, tries)
            reached.append(start)
            if start.near.equal == 1.0:
                break
        result = max(reached, key=lambda f: f.near)
    result.tried = tries.done
    result.stopped = tries.is_over and result.near.equal < 1.0
    return result


def _is_final(found: Found) -> bool:
    """Return whether no other backward can explain anything: so few numbers differ.

    No plan has the order in which atomics add dQ.
    """
    is_atomic = found.best.plan.gradients_apart is GradientsApart.DQ
    return not _is_open(found.near) or (is_atomic and found.near.equal >= ATOMIC)


def _starts(result: Found, ranked: Ranked) -> list[Found]:
    """Return the candidates from which further changes are tried: the best of two plans."""
    others = (Found(best=c, near=n) for c, n in ranked if c.plan.name != result.best.plan.name)
    return [result, *islice(others, 1)]


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
    judge_of: Callable[[Candidate], Judge],
    changes: Callable[[Candidate], Iterable[Candidate]],
    tries: Tries,
) -> Found:
    """Make the change that helps most, again and again, until none helps or no plan is left.

    judge_of: from the candidate that is changed to a judge of its changes
    """
    for _ in range(CHANGES):
        if not _is_open(found.near) or tries.is_over:
            return found
        ranked = _ranked(
            judge_of(found.best),
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


def _is_open(near: Nearness) -> bool:
    """Return whether a plan that gives every bit would help."""
    return _helps(Nearness(1.0, 0.0), near)


def _ranked(
    judge: Judge,
    proposed: Iterable[Candidate],
    tries: Tries,
    *,
    is_one_enough: bool = False,
    known: Sequence[tuple[Candidate, Nearness]] = (),
) -> Ranked:
    """Return candidates with their nearness, nearest first.

    Plans that cannot run, and those that are WORSE, are left out, and each plan is tried once,
    those that are known not at all. Nothing is tried once no plan is left, or, if one is enough,
    after one that gives every bit.
    """
    seen = {c.key for c, _ in known}
    judged: Ranked = []
    if isinstance(proposed, list):
        tries.begin(tries.stage, len({c.key for c in proposed} - seen))
    for candidate in proposed:
        if tries.is_over:
            break
        if (key := candidate.key) in seen:
            continue
        seen.add(key)
        near = judge(candidate)
        if near is None:
            continue
        tries.count()
        if near is not WORSE:
            judged.append((candidate, near))
        if is_one_enough and near.equal == 1.0:
            break
    return sorted(judged, key=lambda pair: pair[1], reverse=True)


def _forward_judge(x: Inputs, out: np.ndarray, rows: slice) -> Judge:
    """Return a judge of candidates by their outputs in some rows of the first head."""
    emulate, want = _forward_of(x, rows), out[:1, rows, :1]

    def judge(c: Candidate) -> Nearness | None:
        try:
            return nearness(emulate(c), want)
        except ValueError:
            return None  # the plan cannot run: its tensor core does not read its factors

    return judge


def _last(x: Inputs, count: int) -> slice:
    """Return the last rows, which see all keys."""
    return slice(max(0, x.q.shape[1] - count), x.q.shape[1])


def _nearer(x: Inputs, out: np.ndarray, best: Candidate, judge: Judge) -> Judge:
    """Return a judge on the last ROWS of candidates that may be nearer than the best.

    Those few rows come first in which most of the best's numbers differ.
    """
    rows = _last(x, ROWS)
    wrong = ~agree(_forward_of(x, rows)(best), out[:1, rows, :1])
    pieces = range(rows.start, rows.stop, FEW_ROWS)
    counts = [int(wrong[:, p - rows.start :][:, :FEW_ROWS].sum()) for p in pieces]
    first = pieces[int(np.argmax(counts))]
    few = slice(first, min(first + FEW_ROWS, rows.stop))
    emulate, want = _forward_of(x, few), out[:1, few, :1]

    def staged(c: Candidate) -> Nearness | None:
        try:
            is_nearer = _is_fewer(int((~agree(emulate(c), want)).sum()), max(counts))
        except ValueError:
            return None
        return judge(c) if is_nearer else WORSE

    return staged


def _is_fewer(wrong: int, of_best: int) -> bool:
    """Return whether so few numbers differ in a part that the whole may be nearer than the best."""
    return wrong < of_best and wrong <= of_best * (1.0 - PART / 2)


def _forward_of(x: Inputs, rows: slice) -> Callable[[Candidate], np.ndarray]:
    """Return a function from a candidate to its output in some rows of the first head."""
    whole = np.ascontiguousarray(x.q[:1, :, :1])
    some = np.ascontiguousarray(whole[:, rows])
    k, v = (np.ascontiguousarray(a[:1, :, :1]) for a in (x.k, x.v))
    whole_mask = None if x.mask is None else x.mask[:1, :1]
    mask = None if whole_mask is None else whole_mask[:, :, rows]
    cuts = x.is_causal or bool(x.window)
    if cuts:
        near = visible(replace(x, mask=None))[:1, :1, rows]
        mask = near if mask is None else near & mask
    sinks = None if x.sinks is None else x.sinks[:1]
    one_head = candidates.options_of(x) | {"sinks": sinks}
    is_whole = rows.stop - rows.start == x.q.shape[1]
    # whether the last rows stand in a call of their own where they stand in this one
    is_last = x.alignment == "bottom-right" or x.q.shape[1] == x.k.shape[1]

    def emulate(c: Candidate) -> np.ndarray:
        if rows.start and c.plan.rescaled_sum is RescaledSum.FIRST_TILE:
            c = replace(c, plan=replace(c.plan, rescaled_sum=RescaledSum.KEPT))
        # plans whose arithmetic depends on query tiles, and on causality or a window, which a mask
        # does not tell
        of_tiles = c.plan.key_order is KeyOrder.MASKED_FIRST or c.plan.unfused_if_cut
        if is_whole or (cuts and of_tiles):
            first = rows.start // c.block_q * c.block_q if is_last else 0
            own = one_head | {"mask": None if whole_mask is None else whole_mask[:, :, first:]}
            if is_last:
                own["alignment"] = "bottom-right"
            out = emulated(c, np.ascontiguousarray(whole[:, first:]), k, v, **own).out
            return np.asarray(out[:, rows.start - first : rows.stop - first])
        no_cut = one_head | {"is_causal": False, "window": None, "mask": mask}
        return np.asarray(emulated(replace(c, block_q=ROWS), some, k, v, **no_cut).out)

    return emulate


class _Gradients:
    """Judges of candidates by their gradients.

    The gradients are those of the first key head and of the query heads that share it.
    """

    def __init__(self, x: Inputs, outputs: Outputs) -> None:
        """Begin with a call."""
        group = x.q.shape[2] // x.k.shape[2]
        q, do = (np.ascontiguousarray(a[:1, :, :group]) for a in (x.q, x.do))
        k, v = (np.ascontiguousarray(a[:1, :, :1]) for a in (x.k, x.v))
        self.of = Backwards(
            replace(
                x,
                q=q,
                k=k,
                v=v,
                do=do,
                sinks=None if x.sinks is None else x.sinks[:group],
                mask=None if x.mask is None else x.mask[:1, :group],
            )
        )
        heads = {"dq": group, "dk": 1, "dv": 1}
        self.wanted: Arrays = {n: a[:1, :, : heads[n]] for n, a in outputs.named() if n in heads}

    def judge(self, c: Candidate) -> Nearness | None:
        """Return how near all gradients of a candidate are."""
        try:
            got = self.of.gradients(c)
        except ValueError:
            return None
        each = [nearness(got[n], a) for n, a in self.wanted.items()]
        return Nearness(
            float(np.mean([n.equal for n in each])), float(np.mean([n.distance for n in each]))
        )

    def nearer_than(self, best: Candidate) -> Judge:
        """Return a judge of candidates that may be nearer than the best.

        Those queries of one head come first in which most of the best's dQ differs, and those keys
        in which most of its dK and dV does.
        """
        got = self.of.gradients(best)
        wrong = {n: ~agree(got[n], a) for n, a in self.wanted.items()}
        of_queries, of_keys = self._of_queries(wrong), self._of_keys(wrong)
        (_, queries, heads, _), keys = self.of.x.q.shape, self.of.x.k.shape[1]
        cost = PIECE / (queries * heads) * bool(of_queries) + PIECE / keys * bool(of_keys)
        if cost > WORTH:
            return self.judge

        def staged(c: Candidate) -> Nearness | None:
            rows_alone, keys_alone = has_parts(c.plan)
            try:
                if (of_queries and not rows_alone) or (of_keys and not keys_alone):
                    return self.judge(c)
                is_nearer = any(part(c) for part in (of_queries, of_keys) if part)
            except ValueError:
                return None
            return self.judge(c) if is_nearer else WORSE

        return staged

    def _of_queries(self, wrong: dict[str, np.ndarray]) -> Callable[[Candidate], bool] | None:
        """Return whether fewer numbers of dQ differ in some queries; None if none differs."""
        if not wrong.get("dq", np.zeros(1)).any():
            return None
        place, most = _most(wrong["dq"])
        first, head = place

        def is_nearer(c: Candidate) -> bool:
            size = min(c.block_q, self.of.x.q.shape[1])
            start, stop = _tiles_of(first, size)
            got = self.of.gradients(c, head=head, rows=slice(start, stop))["dq"]
            own = slice(first, first + PIECE)
            want = self.wanted["dq"][:, own, head : head + 1]
            here = got[:, first - start :][:, : want.shape[1]]
            return _is_fewer(int((~agree(here, want)).sum()), most)

        return is_nearer

    def _of_keys(self, wrong: dict[str, np.ndarray]) -> Callable[[Candidate], bool] | None:
        """Return whether fewer numbers of dK and dV differ in some keys; None if none differs."""
        names = [n for n in ("dk", "dv") if n in wrong]
        if not any(wrong[n].any() for n in names):
            return None
        (first, _), most = _most(np.concatenate([wrong[n] for n in names], axis=-1))

        def is_nearer(c: Candidate) -> bool:
            start, stop = _tiles_of(first, of_backward(self.of.setup(c)).block_k)
            got = self.of.gradients(c, keys=slice(start, stop))
            count = 0
            for n in names:
                want = self.wanted[n][:, first : first + PIECE]
                count += int((~agree(got[n][:, first - start :][:, : want.shape[1]], want)).sum())
            return _is_fewer(count, most)

        return is_nearer


def _most(wrong: np.ndarray) -> tuple[tuple[int, int], int]:
    """Return where most numbers differ, and how many: the first row of a PIECE, and the head.

    wrong: (1, rows, heads, features) of bool
    """
    firsts = range(0, wrong.shape[1], PIECE)
    counts = np.array([wrong[0, lo : lo + PIECE].sum((0, 2)) for lo in firsts])
    piece, head = np.unravel_index(int(counts.argmax()), counts.shape)
    return (firsts[piece], int(head)), int(counts.max())


def _tiles_of(first: int, size: int) -> tuple[int, int]:
    """Return the first row, and the row after the last, of the tiles that hold a PIECE."""
    return first // size * size, -(-(first + PIECE) // size) * size
