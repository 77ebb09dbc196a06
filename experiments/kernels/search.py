"""The search for the plan that gives a kernel's outputs.

It tries structures, then tiles, then one change at a time for as long as one helps. The forward is
searched for on the last rows, which see all keys; then the backward on all rows, with the forward's
plan kept.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roundscope.attention.alignment import visible_keys
from roundscope.attention.plans.choices import GradientsApart, KeyOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.emu.roundings.modes import FP16
from roundscope.experiments.kernels import candidates
from roundscope.experiments.kernels.candidates import Candidate, narrowest
from roundscope.experiments.kernels.compare import Nearness, nearness
from roundscope.experiments.kernels.emulated import emulated

ROWS = 128  # how many of the last rows the forward is searched for on
FEW_ROWS = 32  # how many of them the changes of every structure are first tried on
CONFIRMED = 24  # how many of the nearest changes are then tried on ROWS
FORMS = 3  # how many structures are tried on other tiles
CHANGES = 8  # the largest number of changes made one after the other
GAIN = 2e-5  # the share of equal bits that a change must add to explain anything
PART = 0.01  # the share of the unequal numbers that a change must explain
# the share of equal bits of a dQ that atomics add, beyond which the rest may be due to their order
ATOMIC = 0.9998
QUERY_TILES = (64, 128)  # queries of a tile that are tried for a backward
OF_ROWS = (Site.LN, Site.LSE, Site.MS)  # events between the forward and the backward
OF_BACKWARD = (
    "delta_from",
    "delta_products",
    "query_order",
    "gradients_apart",
    "score_gradient",
    "gradient_scale",
    "exponent_again",
    "ds_from_p",
    "log",
    "lse_base2",
    "dp_from_delta",
)
"""The fields of a plan on which no output depends, but gradients do."""
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
    stopped      whether time ran out while changes still helped
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


def structures(x: Inputs, results: dict[str, np.ndarray]) -> Iterator[Candidate]:
    """Yield every structure in the formats of these inputs and results."""
    is_half = narrowest(x.q, x.k, x.v) == FP16
    for c in candidates.structures(x.q.shape[-1], x.k.shape[1]):
        yield candidates.leaving(candidates.in_half(c) if is_half else c, results)


def forward(x: Inputs, out: np.ndarray, tell: Told, budget: float | None = None) -> Found:
    """Find the plan whose output is nearest to `out` (B, T, N, H).

    budget   seconds after which no further change is tried; None for as long as it takes
    """
    end = None if budget is None else time.monotonic() + budget
    judge = _forward_judge(x, out, ROWS)
    ranked = _ranked(judge, structures(x, {"out": out}))
    best, near = ranked[0]
    tell(f"structures: {best.plan.name} is nearest, {near}")
    result = Found(
        best=best, near=near, tried=len(ranked), structures=[(c.plan.name, n) for c, n in ranked]
    )
    result.ties = _ties(ranked)
    if near.equal < 1.0:
        tiled = _ranked(
            judge, (c for form, _ in ranked[:FORMS] for c in candidates.tilings(form, x.k.shape[1]))
        )
        result.tried += len(tiled)
        if tiled and tiled[0][1] > near:
            result.best, result.near = tiled[0]
            result.ties = _ties(tiled)
            result.changes.append((f"{result.best.plan.name}, {result.best.change}", result.near))
            tell(f"tiles: {result.changes[-1][0]}; {result.near}")
    if result.near.equal < 1.0:
        result = _widely(x, out, result, [c for c, _ in ranked], tell, end)
    return result


def _ties(ranked: Ranked) -> list[Candidate]:
    """Return the candidates after the first that also give every bit."""
    return [c for c, n in ranked[1:] if n.equal == 1.0]


def _widely(
    x: Inputs,
    out: np.ndarray,
    nearest: Found,
    forms: list[Candidate],
    tell: Told,
    end: float | None,
) -> Found:
    """Try changes of one event of every structure, then of the best few of them, again and again.

    The nearest structure may not be the one that one change makes right.
    """
    judge, quick = _forward_judge(x, out, ROWS), _forward_judge(x, out, FEW_ROWS)
    tell("changes of every structure")
    screened: Ranked = []
    # changes that give every bit: only these are tried on the other structures, for ties
    hits: set[str] = set()
    for form in (nearest.best, *forms):
        screened += _ranked(
            quick,
            (c for c in candidates.forward_changes(form) if not hits or c.change in hits),
            end,
        )
        hits = {c.change for c, n in screened if n.equal == 1.0}
    screened.sort(key=lambda pair: pair[1], reverse=True)
    ranked = _ranked(judge, (c for c, _ in screened[:CONFIRMED]))
    nearest.tried += len(screened)
    starts: dict[str, Found] = {}
    for c, n in ranked:
        name = c.plan.name.rstrip("*")
        if name not in starts and _helps(n, nearest.near):
            before = nearest.changes if name == nearest.best.plan.name else []
            starts[name] = replace(
                nearest, best=c, near=n, changes=[*before, (f"{name}: {c.change}", n)]
            )
    if ranked and ranked[0][1].equal == 1.0:
        exact = next(iter(starts.values()))
        exact.ties = _ties(ranked)
        return exact
    reached = []
    for start in (*list(starts.values())[:FORMS], nearest):
        reached.append(_improved(start, judge, candidates.forward_changes, tell, end))
        if reached[-1].near.equal == 1.0:
            break
    best = max(reached, key=lambda f: f.near)
    best.tried = nearest.tried + sum(f.tried - nearest.tried for f in reached)
    return best


def backward(
    x: Inputs, outputs: Outputs, found: Found, tell: Told, budget: float | None = None
) -> Found:
    """Find the plan whose gradients are nearest: changes of the forward's plan are tried.

    The backwards of the twins are tried as well.

    budget   seconds after which no further plan is tried; None for as long as it takes
    """
    end = None if budget is None else time.monotonic() + budget
    judge = _backward_judge(x, outputs)
    wanted = {n: a for n, a in outputs.named() if n in ("dq", "dk", "dv")}
    own, *tied = (candidates.leaving(c, wanted) for c in (found.best, *found.ties))
    ranked = _ranked(judge, (own, *tied), end)
    ties = _ties(ranked)
    if ranked and ranked[0][1].equal < 1.0:
        more = _ranked(
            judge,
            (b for c in (own, *tied) for b in _backwards(x, c, wanted)),
            end,
            is_one_enough=True,
        )
        ranked = sorted((*ranked, *more), key=lambda pair: pair[1], reverse=True)
    result = Found(best=own, near=Nearness(0.0, 0.0))
    if ranked:
        result = Found(best=ranked[0][0], near=ranked[0][1], tried=len(ranked), ties=ties)
    tell(f"backward: {result.near}")
    if result.best.plan.gradients_apart is GradientsApart.DQ and result.near.equal >= ATOMIC:
        return result  # no plan has the order in which atomics added
    return _improved(result, judge, candidates.backward_changes, tell, end)


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
        for rows in QUERY_TILES:
            yield replace(c, block_q=rows)


def _with_backward(plan: Plan, other: Plan) -> Plan:
    """Return the plan with another plan's backward.

    It also takes what the other keeps of a row for it: the logarithm of the sum, the maximum.
    """
    sites = (*candidates.BACKWARD, *OF_ROWS)
    changed = plan.rounded({site: other.event(site) for site in sites})
    for site in PRODUCTS:
        if site.stage == "backward":
            changed = changed.adding(site, other.accumulator(site))
    return replace(changed, name=plan.name, **{name: getattr(other, name) for name in OF_BACKWARD})


def _improved(
    found: Found,
    judge: Judge,
    changes: Callable[[Candidate], Iterable[Candidate]],
    tell: Told,
    end: float | None = None,
) -> Found:
    """Make the change that helps most, again and again, until none helps or time is up."""
    for _ in range(CHANGES):
        if found.near.equal == 1.0:
            return found
        if _is_late(end):
            found.stopped = True
            return found
        ranked = _ranked(
            judge,
            (c for c in changes(found.best) if c.plan != found.best.plan),
            end,
            is_one_enough=True,
        )
        found.tried += len(ranked)
        found.others = [(c.change, n) for c, n in ranked]
        found.stopped = _is_late(end)
        found.ties = []
        if not ranked or not _helps(ranked[0][1], found.near):
            return found
        found.best, found.near = ranked[0]
        found.others = []
        found.changes.append((found.best.change, found.near))
        tell(f"{found.best.change}: {found.near}")
    return found


def _helps(new: Nearness, old: Nearness) -> bool:
    return new.equal > old.equal + GAIN + PART * (1.0 - old.equal)


def _is_late(end: float | None) -> bool:
    return end is not None and time.monotonic() > end


def _ranked(
    judge: Judge,
    proposed: Iterable[Candidate],
    end: float | None = None,
    *,
    is_one_enough: bool = False,
) -> Ranked:
    """Return candidates with their nearness, nearest first.

    Plans that cannot run are left out, and each plan is tried once. Nothing is tried once the time
    is up, or, if one is enough, after one that gives every bit.
    """
    judged: dict[tuple[Plan, int, int], tuple[Candidate, Nearness]] = {}
    for candidate in proposed:
        if _is_late(end):
            break
        key = (replace(candidate.plan, name=""), candidate.block_q, candidate.block_k)
        if key not in judged and (near := judge(candidate)) is not None:
            judged[key] = (candidate, near)
            if is_one_enough and near.equal == 1.0:
                break
    return sorted(judged.values(), key=lambda pair: pair[1], reverse=True)


def _forward_judge(x: Inputs, out: np.ndarray, count: int) -> Judge:
    """Return a judge of candidates by their outputs in the last `count` rows."""
    rows = slice(max(0, x.q.shape[1] - count), None)
    whole, want = np.ascontiguousarray(x.q[:1, :, :1]), out[:1, rows, :1]
    last = np.ascontiguousarray(whole[:, rows])
    k, v = (np.ascontiguousarray(a[:1, :, :1]) for a in (x.k, x.v))
    whole_mask = None if x.mask is None else x.mask[:1, :1]
    mask = None if whole_mask is None else whole_mask[:, :, rows]
    if x.is_causal:
        call: dict[str, Any] = {"is_causal": True, "window": None, "alignment": x.alignment}
        below = visible_keys(x.q.shape[1], x.k.shape[1], **call)[None, None, rows]
        mask = below if mask is None else below & mask
    one_head = x.options | {"sinks": None if x.sinks is None else x.sinks[:1], "mask": whole_mask}

    def judge(c: Candidate) -> Nearness | None:
        # plans whose arithmetic depends on query tiles and on causality, which a mask does not tell
        of_tiles = c.plan.key_order is KeyOrder.MASKED_FIRST or c.plan.unfused_if_cut
        try:
            if x.window or (x.is_causal and of_tiles):
                got = emulated(c, whole, k, v, **one_head).out[:, rows]
            else:
                got = emulated(
                    replace(c, block_q=ROWS),
                    last,
                    k,
                    v,
                    **one_head | {"is_causal": False, "mask": mask},
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
    options = x.options | {
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
