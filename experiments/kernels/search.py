"""Which plan gives a kernel's outputs: structures, then tiles, then one change at a time for as long as one helps.

The forward is looked for on the last rows, which see all keys; then the backward on all rows, with the forward's plan kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from roundscope.attention import examine
from roundscope.attention.plan import Plan
from roundscope.experiments.kernels import candidates
from roundscope.experiments.kernels.candidates import Candidate
from roundscope.experiments.kernels.compare import Nearness, nearness
from roundscope.experiments.kernels.outputs import Inputs, Outputs

ROWS = 128  # of the forward's search
FORMS = 3  # structures whose tiles are tried
CHANGES = 8  # made one after the other, at most
GAIN = 2e-5  # of equal bits, below which a change explains nothing
Told = Callable[[str], None]


@dataclass(slots=True)
class Found:
    """The nearest plan of one direction.

    best      the candidate
    near      how near its output is
    structures   every structure with its nearness, nearest first
    changes   what was changed on the way, with the nearness after it
    others    each change of the last pass and the nearness it gives, nearest first
    """

    best: Candidate
    near: Nearness
    structures: list[tuple[str, Nearness]] = field(default_factory=list)
    changes: list[tuple[str, Nearness]] = field(default_factory=list)
    others: list[tuple[str, Nearness]] = field(default_factory=list)


Judge = Callable[[Candidate], Nearness | None]


def forward(x: Inputs, out: np.ndarray, tell: Told) -> Found:
    """The plan whose output is nearest to `out` (B, T, N, H)."""
    judge = _forward_judge(x, out)
    keys = x.k.shape[1]
    found = _ranked(judge, candidates.structures(x.q.shape[-1], keys))
    tell(f"structures: {found[0][0].plan.name} is nearest, {found[0][1]}")
    tiled = _ranked(judge, (c for best, _ in found[:FORMS] for c in candidates.tilings(best, keys)))
    best, near = max((found[0], *tiled[:1]), key=lambda pair: pair[1])
    tell(f"tiles: {best.plan.name}, keys by {best.block_k}, {best.plan.key_order}; {near}")
    result = Found(best=best, near=near, structures=[(c.plan.name, n) for c, n in found])
    return _improved(result, judge, candidates.forward_changes, tell)


def backward(x: Inputs, outputs: Outputs, found: Found, tell: Told) -> Found:
    """The plan whose gradients are nearest, by changes of the forward's; and by those of the twins, whose backward may be it."""
    judge = _backward_judge(x, outputs)
    own = found.best
    begun = [own, *(replace(c, plan=_with_backward(own.plan, c.plan)) for c in candidates.structures(x.q.shape[-1], x.k.shape[1]))]
    begun = [replace(c, block_k=own.block_k) for c in begun]
    ranked = _ranked(judge, begun)
    best, near = ranked[0]
    tell(f"backward: {near}")
    return _improved(Found(best=best, near=near), judge, candidates.backward_changes, tell)


def _with_backward(plan: Plan, other: Plan) -> Plan:
    """The plan with another's backward."""
    fields = ("delta_from", "query_order", "gradients_apart", "score_gradient", "gradient_scale")
    changed = plan.rounded({site: other.event(site) for site in candidates.BACKWARD})
    for site in candidates.BACKWARD:
        try:
            changed = changed.adding(site, other.accumulator(site))
        except ValueError:
            continue  # no sum of products
    return replace(changed, name=plan.name, **{name: getattr(other, name) for name in fields})


def _improved(found: Found, judge: Judge, changes: Callable[[Candidate], Iterable[Candidate]], tell: Told) -> Found:
    """With the change that helps most made, again and again."""
    for _ in range(CHANGES):
        if found.near.equal == 1.0:
            return found
        ranked = _ranked(judge, (c for c in changes(found.best) if c.plan != found.best.plan))
        found.others = [(c.change, n) for c, n in ranked]
        if not ranked or not _helps(ranked[0][1], found.near):
            return found
        found.best, found.near = ranked[0]
        found.changes.append((found.best.change, found.near))
        tell(f"{found.best.change}: {found.near}")
    return found


def _helps(new: Nearness, old: Nearness) -> bool:
    return new.equal > old.equal + GAIN


def _ranked(judge: Judge, made: Iterable[Candidate]) -> list[tuple[Candidate, Nearness]]:
    """Candidates with their nearness, nearest first, plans that cannot run left out; each plan once."""
    seen: dict[tuple[Plan, int], tuple[Candidate, Nearness]] = {}
    for candidate in made:
        key = (replace(candidate.plan, name=""), candidate.block_k)
        if key not in seen and (near := judge(candidate)) is not None:
            seen[key] = (candidate, near)
    return sorted(seen.values(), key=lambda pair: pair[1], reverse=True)


def _forward_judge(x: Inputs, out: np.ndarray) -> Judge:
    rows = slice(max(0, x.q.shape[1] - ROWS), None)
    q, want = np.ascontiguousarray(x.q[:1, rows, :1]), out[:1, rows, :1]
    group = x.q.shape[2] // x.k.shape[2]
    k, v = (np.ascontiguousarray(a[:1, :, : max(1, 1 // group)]) for a in (x.k, x.v))
    mask = None
    if x.is_causal:
        mask = np.tri(x.q.shape[1], x.k.shape[1], dtype=bool)[None, None, rows]

    def judge(c: Candidate) -> Nearness | None:
        try:
            got = examine(q, k, v, plan=c.plan, block_q=ROWS, block_k=c.block_k, scale=x.scale, mask=mask, record=None, engine="numpy")
        except ValueError:
            return None  # a plan that cannot run: a tensor core that does not read its factors
        return nearness(got.out, want)

    return judge


def _backward_judge(x: Inputs, outputs: Outputs) -> Judge:
    one = [np.ascontiguousarray(a[:1, :, :1]) for a in (x.q, x.k, x.v, x.do)]
    wanted = {n: a[:1, :, :1] for n, a in outputs.named() if n in ("dq", "dk", "dv")}

    def judge(c: Candidate) -> Nearness | None:
        try:
            got = examine(
                *one, plan=c.plan, block_q=128, block_k=c.block_k, scale=x.scale, is_causal=x.is_causal, record=None, engine="numpy"
            )
        except ValueError:
            return None
        each = [nearness(getattr(got, n), a) for n, a in wanted.items()]
        return Nearness(float(np.mean([n.equal for n in each])), float(np.mean([n.distance for n in each])))

    return judge
