"""Where delta's error comes from, account by account: each token's terms add up to its error.

Exact arithmetic is replaced by the plan's numbers from the front to the back, and delta = rowsum dO
O is taken exactly after each: with the plan's exp (scores), then its row sum, then its P, then its
V. What its output still differs by is the events' own errors, PV, AO, O and OUT, each weighted with
dO exp(m_j - m) / l (key tile j's part in the output), and OD's, OUT's rounding once more as delta's
operand. `rest` is what remains: steps of sums in between, rescaling factors, dO's and delta's own
rounding.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention import DeltaFrom, Examined, Record, Site
from roundscope.attention.inputs.alignment import shift_of
from roundscope.attention.plans.choices import Log2E
from roundscope.attention.plans.plan import Plan
from roundscope.emu.api import round_to
from roundscope.tools.diagnose.tensors.measured import OUTPUT_SITES, Measured, one_head, run
from roundscope.tools.trace.focus import existing
from roundscope.tools.trace.run import blocks

SUMS = (Site.AL, Site.ROWSUM, Site.L, Site.INV)
KEPT = (Site.V, Site.EXP, Site.P, Site.M, *SUMS, Site.PV, Site.AO, Site.O, Site.OUT)
SITES_OF = {
    "scores": (Site.Q, Site.K, Site.S, Site.SCALED, Site.M, Site.X, Site.EXP),
    "row sum": (*SUMS, Site.LANES),
    "P": (Site.P,),
    "V": (Site.V,),
    **{str(s): (s,) for s in OUTPUT_SITES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One head's events under the plan, and what is needed to weight them.

    events   (before, after) by site, batch and head dropped: (tiles, T, ...) where repeated
    low      the call under the plan
    part     (tiles, T): exp(m_j - m);  weight: that over l, a tile's part in the output
    do       (T, H);  exists (tiles, T): rows that have an event in a key tile
    block_k  keys per tile
    """

    events: dict[str, tuple[np.ndarray, np.ndarray]]
    low: Examined
    part: np.ndarray
    weight: np.ndarray
    do: np.ndarray
    exists: np.ndarray
    block_k: int

    def after(self, site: Site) -> np.ndarray:
        """Return the results of a site's events."""
        return self.events[site][1]

    def ones(self) -> Any:
        """Return (tiles, T): the number of keys with P = 1."""
        return np.stack([(p == 1.0).sum(-1) for p in self.tiles(self.after(Site.P))])

    def tiles(self, x: np.ndarray) -> list[np.ndarray]:
        """Return x (T, S) by key tile."""
        return [x[:, lo : lo + self.block_k] for lo in range(0, x.shape[1], self.block_k)]

    def product(self, p: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return P V by key tile, (tiles, T, H), in binary64."""
        starts = range(0, p.shape[1], self.block_k)
        pairs = zip(self.tiles(p), starts, strict=True)
        return np.stack([tile @ v[lo : lo + tile.shape[1]] for tile, lo in pairs])


def head_events(m: Measured, b: int, n: int) -> Head:
    """Run one head of a sequence again, keeping its events; random bits are others."""
    layer, plan = one_head(m, b, n), m.request.plan
    low = run(replace(layer, do=None), m.request, m.scale, plan, record=Record(events=KEPT))
    events = {
        s: (np.asarray(b)[0, 0], np.asarray(a)[0, 0]) for s, (b, a) in low.trace.events.items()
    }
    block_q, block_k = blocks(layer, m.request)
    queries, keys = layer.q.shape[1], layer.k.shape[1]
    shift = shift_of(m.request.alignment, queries, keys)
    causal = bool(m.request.causal)
    exists = existing(queries, keys, block_q, block_k, causal, shift=shift)
    top = np.where(exists, events["M"][1] * _unit(plan, m.scale), -np.inf)
    with np.errstate(invalid="ignore"):
        part = np.where(exists & np.isfinite(top), np.exp(top - top.max(0)), 0.0)
    before, after = (x[0] if x.ndim == 3 else x for x in events["V"])
    events["V"] = before, after
    if plan.delta_from is DeltaFrom.OUT:
        out = events["OUT"][1]
        events["OD"] = out, np.asarray(round_to(out, plan[Site.OD]), np.float64)
    weight = part if plan.normalise_first else part * events["INV"][0]  # 1 / l, not rounded yet
    assert layer.do is not None
    do = layer.do[0, :, 0].astype(np.float64)
    own: dict[str, Any] = {"exists": exists, "block_k": block_k}
    return Head(events=events, low=low, part=part, weight=weight, do=do, **own)


def _unit(plan: Plan, scale: float) -> float:
    """Return what 1 in the units of the plan's maximum is in those of the scaled scores."""
    if plan.log2_e is Log2E.MAXIMUM:
        return scale
    return 1.0 if plan.log2_e is Log2E.NONE else math.log(2)


def accounts(m: Measured, b: int, n: int, h: Head) -> dict[str, np.ndarray]:
    """Return the accounts per token, (T,), that add up to the error of delta."""

    def delta(out: np.ndarray) -> np.ndarray:
        return np.asarray((h.do * out).sum(-1))

    states = [np.asarray(m.exact.out, np.float64)[b, :, n], *_states(m, b, n, h)]
    found = {
        name: delta(new - old)
        for name, old, new in zip(("scores", "row sum", "P", "V"), states, states[1:], strict=False)
    }
    found |= {str(site): delta(error.sum(0)) for site, error in weighed_errors(h).items()}
    if m.request.plan.delta_from is not DeltaFrom.OUT:
        found.pop("OUT")
    return found | {"rest": m.drift.error[b, :, n] - np.sum(list(found.values()), axis=0)}


def _states(m: Measured, b: int, n: int, h: Head) -> list[np.ndarray]:
    """Return the output that is exact from the plan's exp on; from its row sum, its P, its V on."""
    g = n * m.layer.k.shape[2] // m.layer.q.shape[2]
    v = m.layer.v[b, :, g].astype(np.float64)
    if m.request.plan.normalise_first:
        e, (before, p) = h.after(Site.EXP), h.events[Site.P]
        return [(e @ v) / _positive(e.sum(1)), before @ v, p @ v, p @ h.after(Site.V)]
    e = h.product(h.after(Site.EXP), v)
    total = np.stack([x.sum(1) for x in h.tiles(h.after(Site.EXP))])
    own = (h.part * total).sum(0)[:, None]
    unscaled = (h.part[..., None] * e).sum(0)

    def of(values: np.ndarray) -> np.ndarray:
        return np.asarray((h.weight[..., None] * h.product(h.after(Site.P), values)).sum(0))

    return [unscaled / _positive(own), (h.weight[..., None] * e).sum(0), of(v), of(h.after(Site.V))]


def _positive(x: np.ndarray) -> Any:
    shaped = x if x.ndim == 2 else x[:, None]
    return np.where(shaped > 0.0, shaped, np.inf)


def weighed_errors(h: Head) -> dict[Site, np.ndarray]:
    """Return errors of the output's events, weighted: (tiles, T, H), OUT, OD one tile."""
    found = {}
    for site in OUTPUT_SITES:
        if site in h.events:
            before, after = h.events[site]
            with np.errstate(invalid="ignore"):
                error = np.where(np.isfinite(after - before), after - before, 0.0)
            is_last = site in (Site.OUT, Site.OD)
            found[site] = error[None] if is_last else h.weight[..., None] * error
    return found
