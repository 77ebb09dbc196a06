"""The running error of P V along the keys: arXiv 2510.04212, equation 5, on any tensors.

    Err(t) = round(sum_{s <= t} P[T,s] V[s,i]) - sum_{s <= t} P[T,s] V[s,i]

The sum is the ascending binary32 fold of the rounded P and V, with exact products; `round` is the
rounding of the first event after it that is narrower than binary32: PV, else O, else OUT (for OUT
the sum is first divided by the row sum l). The row is computed as one key tile, so that P is
relative to the row's own maximum, and without injections.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention import Record, Site
from roundscope.attention.engines.fused import as_for
from roundscope.attention.inputs.alignment import shift_of
from roundscope.emu.api import dot
from roundscope.emu.backends.numpy_rounding import rounded
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.tools.trace.run import Observed, call
from roundscope.tools.trace.served import options, visible

CANDIDATES = 32  # rows that are searched for one with several P = 1 when it is one key tile
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The running error of P V at one (batch, head, row, feature), by key.

    where    (batch, head, row, feature)
    several  whether the row has several P = 1
    site     the event whose rounding is applied
    p, v     P and V as rounded
    total    the running sum;  error: its error in value
    ulp      that of the whole sum
    """

    where: Place
    several: bool
    site: str
    p: np.ndarray
    v: np.ndarray
    total: np.ndarray
    error: np.ndarray
    ulp: float


def most_biased(seen: Observed, several: np.ndarray | None, count: int = 1) -> list[Place]:
    """Return (batch, head, row, feature) of the `count` rows with the largest |error| in value.

    The error is that of PV and O, summed over tiles, or that of OUT if neither rounds. If any rows
    have several P = 1 (`several`, (B, N, T)), only these are considered. The list is empty if
    nothing rounds.
    """
    sites: list[str] = [s for s in ("PV", "O") if s in seen.focus and seen.focus[s].rounds]
    if not sites and seen.focus["OUT"].rounds:
        sites = ["OUT"]
    if not sites:
        return []
    errors: list[Any] = [seen.focus[s].value for s in sites]
    size = np.abs(np.sum(errors, axis=0))
    largest = size.max(-1)
    if several is not None and several.any():
        largest = np.where(several, largest, -1.0)
    best = np.argsort(-largest, axis=None, kind="stable")[:count]
    places: list[Place] = []
    for k in best:
        if largest.flat[k] >= 0.0:
            b, n, t = (int(i) for i in np.unravel_index(k, largest.shape))
            places.append((b, n, t, int(size[b, n, t].argmax())))
    return places


def running(seen: Observed, several: np.ndarray | None) -> Running | None:
    """Evaluate equation 5 at the most biased place where the whole row has several P = 1.

    If there is none among the candidates, the most biased place of all is taken. Returns None if no
    event after P V is narrower than binary32, and if the sum or its rounding is not finite.
    """
    site, first = _rounding_site(seen), None
    if site is None:
        return None
    candidates = CANDIDATES if several is not None and several.any() else 1
    for place in most_biased(seen, several, candidates):
        row = _row(seen, *place)
        first = first or (place, row)
        if (row[0] == 1.0).sum() > 1:
            return _of_finite(_running(seen, site, place, row))
    return None if first is None else _of_finite(_running(seen, site, *first))


def _of_finite(run: Running) -> Running | None:
    return run if np.isfinite(run.error).all() and np.isfinite(run.total).all() else None


def _running(
    seen: Observed, site: Site, place: Place, row: tuple[np.ndarray, np.ndarray, float]
) -> Running:
    p, v, l = row
    total = _fold(p, v) / (l if site is Site.OUT else 1.0)
    r = seen.request.plan[site]
    nearest = replace(r, mode=RoundingMode.TIES_TO_EVEN) if r.mode is RoundingMode.STOCHASTIC else r
    error = rounded(total, nearest) - total
    ulp = float(np.ldexp(1.0, int(np.frexp(total[-1])[1]) - r.format.precision))
    return Running(
        where=place,
        several=int((p == 1.0).sum()) > 1,
        site=str(site),
        p=p,
        v=v,
        total=total,
        error=error,
        ulp=ulp,
    )


def _rounding_site(seen: Observed) -> Site | None:
    plan = seen.request.plan
    sites = (Site.O, Site.OUT) if plan.pv_into_o else (Site.PV, Site.O, Site.OUT)
    return next((s for s in sites if plan[s].format.precision < 24), None)


def _row(seen: Observed, b: int, n: int, t: int, i: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return P and V of one row as one key tile, and its row sum (1 if P is normalized)."""
    layer, request = seen.layer, seen.request
    g = n * layer.k.shape[2] // layer.q.shape[2]
    queries, count = layer.q.shape[1], layer.k.shape[1]
    last = t + 1 + shift_of(request.alignment, queries, count)
    keys = slice(0, max(1, min(last, count)) if request.causal else count)
    # a window counts from a query's own place, so it is in the mask; one key tile is one split
    plan = replace(request.plan, window=0, split_tiles=0)
    whole = replace(request, block_k=layer.k.shape[1], causal=False, engine="numpy")
    own, sees = options(layer, n, n + 1), visible(layer, request)
    if sees is not None:
        own["mask"] = sees[b % len(sees), n % sees.shape[1], t, keys]
    if (bias := own["bias"]) is not None:
        own["bias"] = bias[b % len(bias), 0, t, keys]

    def cut(x: np.ndarray) -> np.ndarray:
        return x[b : b + 1, keys, g : g + 1]

    record = Record(events=(Site.P, Site.V, Site.L, Site.LANES))
    row = layer.q[b : b + 1, t : t + 1, n : n + 1]
    # programs as for the whole layer, so that Numba need not start; but causal rows are of many
    # lengths, each of which would compile programs
    scores = 0 if request.causal else math.prod(layer.q.shape[:3]) * layer.k.shape[1]
    with as_for(scores):
        events = call(
            row, cut(layer.k), cut(layer.v), None, whole, plan, seen.scale, record=record, **own
        ).trace.events
    l = 1.0
    if not request.plan.normalise_first:  # LANES is the sum of all lanes, where L is one of them
        l = float(events["LANES" if "LANES" in events else "L"][1].reshape(-1)[-1])
    return events["P"][1].reshape(-1), events["V"][1][0, 0, :, i], l


def _fold(p: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return every prefix of the ascending sum of p v, each step rounded to binary32.

    NumPy adds up products that are binary32 numbers; other products are never rounded themselves.
    """
    products = p * v
    if np.isfinite(products).all() and np.array_equal(products, products.astype(np.float32)):
        terms = np.concatenate([[0.0], products]).astype(np.float32)
        return np.add.accumulate(terms)[1:].astype(np.float64)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    dot(p[None, :], v[:, None], steps=steps)
    return np.concatenate([after.reshape(-1) for _, after in steps])


def tied(run: Running) -> Any:
    """Return the numbers of the keys whose P is 1."""
    return np.flatnonzero(run.p == 1.0)
