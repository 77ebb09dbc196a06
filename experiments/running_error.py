"""The running error of P V along the keys: arXiv 2510.04212, equation 5, on any tensors.

    Err(t) = round(sum_{s <= t} P[T,s] V[s,i]) - sum_{s <= t} P[T,s] V[s,i]

The sum is the ascending binary32 fold of the rounded P and V (exact products); `round` is that of the first event
after it that is narrower than binary32: PV, else O, else OUT (then the sum is divided by the row sum l first). The
row is computed as one key tile, so that P is relative to the row's own maximum. Without injections.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention import Record, Site
from emu.api import round_to
from experiments.trace_run import Observed, _examine


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One (batch, head, row, feature), by key: P and V as rounded, the sum, its running error in value; ulp of the whole sum."""

    where: tuple[int, int, int, int]
    several: bool
    site: str
    p: np.ndarray
    v: np.ndarray
    total: np.ndarray
    error: np.ndarray
    ulp: float


def most_biased(seen: Observed, several: np.ndarray | None) -> tuple[int, int, int, int] | None:
    """(batch, head, row, feature) of the largest |error| in value of P V, O summed over tiles (else of OUT), among rows
    with several P = 1 if there are any; several: (B, N, T). None if nothing rounds."""
    errors = [seen.focus[s].value for s in ("PV", "O") if s in seen.focus and seen.focus[s].histogram.any()]
    errors = errors or [seen.focus[s].value for s in ("OUT",) if seen.focus[s].histogram.any()]
    if not errors:
        return None
    size = np.abs(np.sum(errors, axis=0))
    if several is not None and several.any():
        size = np.where(several[..., None], size, 0.0)
    return tuple(int(i) for i in np.unravel_index(int(size.argmax()), size.shape))  # type: ignore[return-value]


def running(seen: Observed, several: np.ndarray | None) -> Running | None:
    """Equation 5 at the most biased place; None if no event after P V is narrower than binary32."""
    where, site = most_biased(seen, several), _rounding_site(seen)
    if where is None or site is None:
        return None
    b, n, t, i = where
    p, v, l = _row(seen, b, n, t, i)
    total = _fold(p, v)
    if site is Site.OUT:
        total = total / l
    r = seen.request.plan[site]
    nearest = replace(r, mode="ties-to-even") if r.mode == "stochastic" else r
    error = np.asarray(round_to(total, nearest)) - total
    ulp = float(np.ldexp(1.0, int(np.frexp(total[-1])[1]) - r.format.precision))
    return Running(where=where, several=bool(several is not None and several[b, n, t]), site=str(site), p=p, v=v,
                   total=total, error=error, ulp=ulp)  # fmt: skip


def _rounding_site(seen: Observed) -> Site | None:
    plan = seen.request.plan
    sites = (Site.O, Site.OUT) if plan.pv_into_o else (Site.PV, Site.O, Site.OUT)
    return next((s for s in sites if plan[s].format.precision < 24), None)


def _row(seen: Observed, b: int, n: int, t: int, i: int) -> tuple[np.ndarray, np.ndarray, float]:
    """P and V of one row as one key tile, and its row sum (1 if P is normalised)."""
    layer, request = seen.layer, seen.request
    g = n * layer.k.shape[2] // layer.q.shape[2]
    keys = slice(0, t + 1 if request.causal else layer.k.shape[1])
    whole = replace(request, block_k=layer.k.shape[1], causal=False, engine="numpy")
    cut = lambda x: x[b : b + 1, keys, g : g + 1]  # noqa: E731
    record = Record(events=(Site.P, Site.V, Site.L))
    row = layer.q[b : b + 1, t : t + 1, n : n + 1]
    events = _examine(row, cut(layer.k), cut(layer.v), None, whole, request.plan, seen.scale, record).trace.events
    l = 1.0 if request.plan.normalise_first else float(events["L"][1].reshape(-1)[-1])
    return events["P"][1].reshape(-1), events["V"][1][0, 0, :, i], l


def _fold(p: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Every prefix of the ascending sum, each step rounded to binary32."""
    total, prefix = 0.0, np.empty(p.size)
    with np.errstate(over="ignore", invalid="ignore"):
        for s, x in enumerate(p * v):
            total = float(np.float32(total + x))
            prefix[s] = total
    return prefix


def tied(run: Running) -> Any:
    """The keys whose P is 1."""
    return np.flatnonzero(run.p == 1.0)
