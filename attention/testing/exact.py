"""Exact attention: the equations in binary64, head by head, without tiles or roundings.

It shares no code with the emulated attention.
"""

from dataclasses import dataclass

import numpy as np

from roundscope.attention.testing.calls import Inputs

RESULTS = ("out", "dq", "dk", "dv")
PIECE = 2**18  # multiplications up to which OpenBLAS uses one thread
LEAST_ROWS = 4  # of a piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The exact results of a call, float64.

    Attributes:
        out: The output, (B, T, N, H).
        dq: The gradient of q, (B, T, N, H).
        dk: The gradient of k, (B, S, G, H), summed over the query heads of a key head.
        dv: The gradient of v, (B, S, G, H).
        rows: The sum of the magnitudes of dS in each row, (B, N, T).
            These four are NaN where only the output was asked for.
        lse: The natural logarithm of the row sums, (B, N, T); -inf in a row that sees no key.
    """

    out: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    rows: np.ndarray
    lse: np.ndarray


def visible(x: Inputs) -> np.ndarray:
    """Return which keys each query sees, booleans that broadcast to (B, N, T, S)."""
    queries, keys = x.q.shape[1], x.k.shape[1]
    sees = np.ones((1, 1, queries, keys), bool) if x.mask is None else np.asarray(x.mask, bool)
    first = keys - queries if x.alignment == "bottom-right" else 0
    apart = np.arange(queries)[:, None] + first - np.arange(keys)
    if x.is_causal:
        sees = sees & (apart >= 0)
    if x.window is not None:
        sees = sees & (apart < x.window) & (x.is_causal | (apart > -x.window))
    return sees


def exact(x: Inputs, backward: bool = True) -> Exact:
    """Return the exact results of a call; without `backward` the output and L, in a third the time.

    A row that sees no key has output 0.
    """
    b, t, n, h = x.q.shape
    s, g, hv = x.v.shape[1:]
    sees = np.broadcast_to(visible(x), (b, n, t, s))
    out, lse = np.zeros((b, t, n, hv)), np.zeros((b, n, t))
    begun = 0.0 if backward else np.nan
    dq, rows = np.full((b, t, n, h), begun), np.full((b, n, t), begun)
    dk, dv = np.full((b, s, g, h), begun), np.full((b, s, g, hv), begun)
    for i, j in np.ndindex(b, n):
        key = j * g // n
        q, k, v, do = (
            np.asarray(a, np.float64)
            for a in (x.q[i, :, j], x.k[i, :, key], x.v[i, :, key], x.do[i, :, j])
        )
        sink = None if x.sinks is None else float(x.sinks[j])
        p, slope, lse[i, j] = _weights(x.scale * product(q, k.T), sees[i, j], x.softcap, sink)
        out[i, :, j] = product(p, v)
        if not backward:
            continue
        dp = product(do, v.T)
        ds = p * (dp - (do * out[i, :, j]).sum(1, keepdims=True)) * slope
        dq[i, :, j] = x.scale * product(ds, k)
        dk[i, :, key] += x.scale * product(ds.T, q)
        dv[i, :, key] += product(p.T, do)
        rows[i, j] = np.abs(ds).sum(1)
    return Exact(out=out, dq=dq, dk=dk, dv=dv, rows=rows, lse=lse)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b of two matrices, small ones in pieces that a BLAS computes in this thread alone.

    With threads a small product takes many times more processor time: after it they wait busily.
    """
    rows = PIECE // max(b.size, 1)
    if rows < LEAST_ROWS or len(a) <= rows:
        return np.asarray(a @ b)
    out = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    for first in range(0, len(a), rows):
        np.matmul(a[first : first + rows], b, out=out[first : first + rows])
    return out


def _weights(
    s: np.ndarray, sees: np.ndarray, softcap: float | None, sink: float | None
) -> tuple[np.ndarray, np.ndarray | float, np.ndarray]:
    """Return P of the scores of a head, the derivative of the softcap at each, and L of each row.

    L is the natural logarithm of the sum of exp of a row's scores.
    """
    slope: np.ndarray | float = 1.0
    if softcap is not None:
        capped = np.tanh(s / softcap)
        s, slope = softcap * capped, 1.0 - capped**2
    s = np.where(sees, s, -np.inf)
    peak = s.max(1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0) if sink is None else np.maximum(peak, sink)
    e = np.exp(s - peak)
    total = e.sum(1, keepdims=True) + (0.0 if sink is None else np.exp(sink - peak))
    with np.errstate(divide="ignore"):
        lse = (peak + np.log(total))[:, 0]
    return e / np.where(total > 0.0, total, 1.0), slope, lse
