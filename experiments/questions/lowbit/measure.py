"""What an arithmetic does to the gradients of one call: its row sums, by route, and its gains.

With P_f the probabilities of the forward, exp(S - L), and P, dP and delta as the backward has them,
a row of dS sums before its rounding to

    sum P dP - delta sum P  =   sum P_f dP - delta                                (route 1: O)
                              + sum (P - P_f) dP - delta sum (P - P_f)            (route 2: P again)
                              - delta (sum P_f - 1)                               (route 3: row sum)

and the rounding of dS adds the rest. Route 1 is the error of what delta reads as O, against the V
that dP reads. With a centered delta the three cancel.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundscope.attention import Plan, Record, Site, examine

Floats = NDArray[np.float64]
ROUTES = ("route_1", "route_2", "route_3", "rounding")
COLUMNS = ("rows", "drift", *ROUTES, "dq_gain", "dq_error", "dk_gain", "dk_error")
EVENTS = (Site.SCALED, Site.EXP_B, Site.DP, Site.DS)


def exact(q: Floats, k: Floats, v: Floats, do: Floats, is_causal: bool) -> tuple[Floats, ...]:
    """Return dQ, dK and P K of attention in binary64; all arrays (B, T, N, H)."""
    scale = q.shape[-1] ** -0.5
    s = scale * np.einsum("btnh,bsnh->bnts", q, k)
    s = np.where(seen(s.shape, is_causal), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("btnh,bsnh->bnts", do, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    dq = scale * np.einsum("bnts,bsnh->btnh", ds, k)
    dk = scale * np.einsum("bnts,btnh->bsnh", ds, q)
    return dq, dk, np.einsum("bnts,bsnh->btnh", p, k)


def seen(shape: tuple[int, ...], is_causal: bool) -> NDArray[np.bool_]:
    """Return which scores exist, of the last two axes."""
    there = np.ones(shape[-2:], np.bool_)
    return np.tril(there) if is_causal else there


def measured(
    plan: Plan,
    q: Floats,
    k: Floats,
    v: Floats,
    do: Floats,
    x: Floats | None = None,
    **call: Any,
) -> dict[str, float]:
    """Return the numbers of `COLUMNS` for one call; drift is NaN without x.

    rows      rms of the row sums of dS over the rms of the rows' sums of |dS|
    routes    the same of the parts of the row sums
    drift     sum |R| / sum |dW_Q| over heads (`gpt.monitor`); x (B, T, D) is what W_Q reads
    dq_gain   <dq - exact, exact> / |exact|^2; below 0 the gradient is too short
    dq_error  |dq - exact| / |exact|; dk_gain and dk_error of dK

    Numbers that are not finite stay so; where every dS was rounded to 0 some are.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _measured(plan, q, k, v, do, x, call)


def _measured(
    plan: Plan,
    q: Floats,
    k: Floats,
    v: Floats,
    do: Floats,
    x: Floats | None,
    call: dict[str, Any],
) -> dict[str, float]:
    is_causal = bool(call.get("is_causal"))
    found = examine(q, k, v, do, plan=plan, record=Record(events=EVENTS), engine="numpy", **call)
    scaled, p, dp, ds = (np.asarray(found.trace.events[name][1], np.float64) for name in EVENTS)
    mask = seen(p.shape, is_causal)
    lse, delta = (np.asarray(a, np.float64).swapaxes(1, 2) for a in (found.lse, found.delta))
    p, dp, ds = (np.where(mask, a, 0.0) for a in (p, dp, ds))
    p_f = np.where(mask, np.exp(scaled - lse[..., None]), 0.0)
    sums = ds.sum(-1)
    parts = {
        "route_1": (p_f * dp).sum(-1) - delta,
        "route_2": ((p - p_f) * dp).sum(-1) - delta * (p - p_f).sum(-1),
        "route_3": -delta * (p_f.sum(-1) - 1.0),
        "rounding": sums - (p * (dp - delta[..., None])).sum(-1),
    }
    size = np.float64(_rms(np.abs(ds).sum(-1)))  # 0 if every dS was rounded to 0
    dq, dk, pk = exact(q, k, v, do, is_causal)
    own_q, own_k = (np.asarray(a, np.float64) for a in (found.dq, found.dk))
    drift = np.nan
    if x is not None:
        if plan.smoothed_keys:  # dQ is of keys less their mean
            pk = pk - np.asarray(k, np.float64).mean(1, keepdims=True)
        r = sums * q.shape[-1] ** -0.5
        rest = np.einsum("bnt,btd,btnh->bndh", r, x, pk)
        whole = np.einsum("btd,btnh->bndh", x, own_q)
        drift = float(np.float64(_size(rest)) / _size(whole))
    numbers = {"rows": _rms(sums) / size, "drift": drift}
    numbers |= {name: _rms(part) / size for name, part in parts.items()}
    for name, own, want in (("dq", own_q, dq), ("dk", own_k, dk)):
        square = np.square(want).sum()
        numbers[f"{name}_gain"] = float(((own - want) * want).sum() / square)
        numbers[f"{name}_error"] = float(np.sqrt(np.square(own - want).sum() / square))
    return {name: float(numbers[name]) for name in COLUMNS}


def mean_key_errors(
    plan: Plan, q: Floats, k: Floats, v: Floats, do: Floats, **call: Any
) -> tuple[float, float]:
    """Return the error of dQ in a plan with smoothed keys, and that with rowsum(dS) mean(K) added.

    In exact arithmetic the sum is 0, and dS (K - mean) is dS K. Kernels that smooth K add the term.
    """
    found = examine(q, k, v, do, plan=plan, record=Record(events=(Site.DS,)), **call)
    ds = np.asarray(found.trace.events[Site.DS][1], np.float64)
    sums = np.where(seen(ds.shape, bool(call.get("is_causal"))), ds, 0.0).sum(-1)
    term = q.shape[-1] ** -0.5 * sums.swapaxes(1, 2)[..., None] * k.mean(1, keepdims=True)
    want = exact(q, k, v, do, bool(call.get("is_causal")))[0]
    own = np.asarray(found.dq, np.float64)
    size = np.sqrt(np.square(want).sum())
    without, added = (float(np.sqrt(np.square(x - want).sum()) / size) for x in (own, own + term))
    return without, added


def _rms(x: Floats) -> float:
    return float(np.sqrt(np.square(x).mean()))


def _size(x: Floats) -> float:
    """Return the sum over heads of Frobenius norms, of (B, N, D, H)."""
    return float(np.sqrt(np.square(x).sum((-2, -1))).sum())
