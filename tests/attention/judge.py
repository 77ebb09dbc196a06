"""A second opinion on attention, so that the package is not its own judge.

Every line follows from the equations of FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2),
of arXiv 2510.04212, and of the documents of this repository: README.md, docs/reference/grammar.md
and docs/notes/decisions.md. Whoever wrote it had not read `attention/` or `emu/`, and it imports
neither. It is plain NumPy, one head and one tile at a time, and as slow as that is.

Numbers live in binary64. An event is one operation in binary64 and one rounding to nearest even;
a sum of products begins at its first term, or at +0, and rounds to binary32 after every addition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Format(NamedTuple):
    """A binary format: its significand's bits, its least exponent and its largest number."""

    precision: int
    emin: int
    largest: float
    saturates: bool = False


FORMATS = {
    "fp64": None,
    "fp32": Format(24, -126, float(np.finfo(np.float32).max)),
    "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127),
    "fp16": Format(11, -14, 65504.0),
    "e4m3fn": Format(4, -6, 448.0, saturates=True),
    "e5m2": Format(3, -14, 57344.0, saturates=True),
}


@dataclass(frozen=True)
class Arithmetic:
    """The events that do not round to binary32, and the three choices in which the papers differ.

    pv_into_o      P V is added into alpha O, one sum; otherwise it is rounded before it is added
    unfused        there is one tile of keys, and P is divided by its sum before it meets V
    delta_from_p   delta is rowsum(P dP); otherwise it is rowsum(dO O)
    """

    formats: Mapping[str, str] = field(default_factory=dict)
    pv_into_o: bool = False
    unfused: bool = False
    delta_from_p: bool = False

    def at(self, event: str, x):
        """The value as it leaves an event."""
        return round_to(x, FORMATS[self.formats.get(event, "fp32")])

    def but(self, **formats: str) -> "Arithmetic":
        """Return this arithmetic with other formats at the events that are named."""
        changed = {**self.formats, **formats}
        return Arithmetic(changed, self.pv_into_o, self.unfused, self.delta_from_p)


def bf16_at(events: str) -> dict[str, str]:
    return dict.fromkeys(events.split(), "bf16")


ARITHMETICS = {
    "fa2-bf16": Arithmetic(bf16_at("Q K V DO P OUT P_B DS DQ_OUT DK_OUT DV_OUT"), pv_into_o=True),
    "qiu-yao": Arithmetic(
        bf16_at("Q K V DO S SCALED M X P DM L AO PV O OUT DQ_OUT DK_OUT DV_OUT") | {"INV": "fp64"}
    ),
    "baseline-bf16": Arithmetic(
        bf16_at("Q K V DO S SCALED P PV OUT S_B SCALED_B P_B DP DS DQ_OUT DK_OUT DV_OUT"),
        unfused=True,
        delta_from_p=True,
    ),
}


class Judged(NamedTuple):
    """What `roundscope.examine` returns: (B, T, N, H), and (B, T, N) for lse and delta."""

    out: np.ndarray
    lse: np.ndarray
    delta: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def round_to(x, format: Format | None):
    """Numbers rounded once to the nearest of a format, ties to even, subnormals kept."""
    if format is None:
        return x
    exponent = np.frexp(x)[1] - 1
    ulp = np.ldexp(1.0, np.maximum(exponent, format.emin) - (format.precision - 1))
    rounded = np.rint(x / ulp) * ulp
    beyond = format.largest if format.saturates else np.inf
    return np.where(np.abs(rounded) > format.largest, np.copysign(beyond, x), rounded)


def add(total, term):
    """The exact sum of two binary64 numbers, rounded once to binary32.

    Where binary64 drops something, the last bit is made odd first: 53 bits are then enough to tell
    the second rounding, to 24 bits, on which side of a tie the exact sum lies.
    """
    near = total + term
    back = near - total
    dropped = (total - (near - back)) + (term - back)
    is_even = near.view(np.int64) % 2 == 0
    moves = np.isfinite(near) & (dropped != 0) & is_even
    odd = np.where(moves, np.nextafter(near, np.copysign(np.inf, dropped)), near)
    return odd.astype(np.float32).astype(np.float64)


def product(a, b, start=0.0):
    """start + a b, every sum in ascending order."""
    total = np.zeros((a.shape[0], b.shape[1])) + start if np.isscalar(start) else start
    for i in range(a.shape[1]):
        total = add(total, a[:, i, None] * b[None, i, :])
    return total


def rowsum(x):
    """The sum of every row, in ascending order; (rows, 1)."""
    return product(x, np.ones((x.shape[1], 1)))


def tiles(length: int, block: int) -> list[slice]:
    return [slice(i, min(i + block, length)) for i in range(0, length, block)]


def forward(q, k, v, sees, scale: float, arithmetic: Arithmetic, block_q: int, block_k: int):
    """The output and L of one head, from operands that have been rounded."""
    out, lse = np.zeros((len(q), v.shape[1])), np.full((len(q), 1), -np.inf)
    for i in tiles(len(q), block_q):
        out[i], lse[i] = forward_rows(q[i], k, v, sees[i], scale, arithmetic, block_k)
    return out, lse


def forward_rows(q, k, v, sees, scale: float, arithmetic: Arithmetic, block_k: int):
    """FlashAttention-2, algorithm 1, lines 5 to 14: one tile of queries, and its tiles of keys.

    O begins at +0, so that O + P V of a first tile is never -0. A tile that nobody sees is left
    out; in the others, P is 0 at keys that a row does not see, and 0 times infinity is NaN. The
    documents do not say so, nor what a row gives whose scores are all -inf: here P is 0, and O is
    divided by 1.
    """
    at = arithmetic.at
    m, l = np.full((len(q), 1), -np.inf), np.zeros((len(q), 1))
    o = np.zeros((len(q), v.shape[1]))
    is_first = True
    for j in tiles(len(k), block_k):
        if not sees[:, j].any():
            continue
        s = at("SCALED", at("S", product(q, k[j].T)) * scale)
        s = np.where(sees[:, j], s, -np.inf)
        new_m = at("M", np.maximum(m, s.max(axis=1, keepdims=True)))
        shift = np.where(new_m == -np.inf, 0.0, new_m)
        e = np.where(sees[:, j], at("EXP", np.exp(at("X", s - shift))), 0.0)
        alpha = at("ALPHA", np.exp(at("DM", m - shift)))
        l = at("L", at("AL", alpha * l) + at("ROWSUM", rowsum(e)))
        inverse = at("INV", 1 / np.where(l == 0, 1.0, l))
        p = at("P", e * inverse if arithmetic.unfused else e)
        ao = at("AO", alpha * o)
        if arithmetic.pv_into_o:
            o = at("O", product(p, v[j], ao))
        else:
            pv = at("PV", product(p, v[j]))
            o = at("O", pv if arithmetic.unfused else ao + pv)
        m, is_first = new_m, False
    if is_first:
        return o, m
    out = at("OUT", o if arithmetic.unfused else o * inverse)
    has_keys = sees.any(axis=1, keepdims=True)
    return np.where(has_keys, out, 0.0), np.where(l == 0, -np.inf, at("LSE", m + np.log(l)))


def backward(q, k, v, do, out, lse, sees, scale, arithmetic: Arithmetic, block_q, block_k):
    """FlashAttention-2, algorithm 2, for one head: delta, and dQ, dK and dV before their scale.

    P is 0 at keys that a row does not see, where DP and DPD are not rounded. A row of dQ that sees
    no key of a tile, and a key that no row of it sees, stay as they were. The documents leave this
    open for infinities and NaN; it is what FlashAttention's kernels do with 0 times infinity, and
    Roundscope's results agree with it.
    """
    at = arithmetic.at
    delta = np.zeros_like(lse)
    if not arithmetic.delta_from_p:
        delta = at("DELTA", rows_of_products(do, at("OD", out)))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in tiles(len(q), block_q):
        for j in tiles(len(k), block_k):
            if not sees[i, j].any():
                continue
            seen = sees[i, j] & (lse[i] != -np.inf)
            s = at("SCALED_B", at("S_B", product(q[i], k[j].T)) * scale)
            x = at("X_B", np.where(seen, s, -np.inf) - np.where(lse[i] == -np.inf, 0.0, lse[i]))
            p = at("EXP_B", np.exp(x))
            sums = product(do[i], v[j].T)
            dp = np.where(seen, at("DP", sums), sums)
            if arithmetic.delta_from_p:
                delta[i] = at("DELTA", rows_of_products(p, dp))
            difference = dp - delta[i]
            ds = at("DS", p * np.where(seen, at("DPD", difference), difference))
            rows, keys = sees[i, j].any(axis=1)[:, None], sees[i, j].any(axis=0)[:, None]
            dq[i] = np.where(rows, at("DQ", product(ds, k[j], dq[i])), dq[i])
            dk[j] = np.where(keys, at("DK", product(ds.T, q[i], dk[j])), dk[j])
            dv[j] = np.where(keys, at("DV", product(at("P_B", p).T, do[i], dv[j])), dv[j])
    return delta, dq, dk, dv


def rows_of_products(a, b):
    """The sum of a b along every row, in ascending order; (rows, 1)."""
    total = np.zeros((len(a), 1))
    for i in range(a.shape[1]):
        total = add(total, a[:, i, None] * b[:, i, None])
    return total


def seen_by(t: int, s: int, is_causal: bool, mask) -> np.ndarray:
    """Which keys each query sees, (..., T, S): of a causal call those up to its own number."""
    causal = np.arange(s) <= np.arange(t)[:, None] if is_causal else np.ones((t, s), dtype=bool)
    return causal if mask is None else causal & mask


def judge(
    q,
    k,
    v,
    do,
    *,
    plan: Arithmetic,
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    mask=None,
) -> Judged:
    """Attention and its gradients, (B, T, N, H); heads of queries share those of keys in order."""
    batch, t, heads, width = q.shape
    s, key_heads = k.shape[1:3]
    scale = float(np.float32(width**-0.5 if scale is None else scale))
    block_k = s if plan.unfused else block_k
    sees = np.broadcast_to(seen_by(t, s, is_causal, mask), (batch, heads, t, s))
    inputs = {"Q": q, "K": k, "V": v, "DO": do}
    q, k, v, do = (plan.at(name, np.asarray(x, np.float64)) for name, x in inputs.items())
    out, dq = np.zeros(do.shape), np.zeros(q.shape)
    lse, delta = np.zeros(q.shape[:3]), np.zeros(q.shape[:3])
    dk, dv = np.zeros(k.shape), np.zeros(v.shape)
    for b, n in np.ndindex(batch, heads):
        g, first = n // (heads // key_heads), n % (heads // key_heads) == 0
        how = sees[b, n], scale, plan, block_q, block_k
        ours = q[b, :, n], k[b, :, g], v[b, :, g]
        out[b, :, n], rows = forward(*ours, *how)
        deltas, dq[b, :, n], its_dk, its_dv = backward(*ours, do[b, :, n], out[b, :, n], rows, *how)
        lse[b, :, n], delta[b, :, n] = rows[:, 0], deltas[:, 0]
        dk[b, :, g] = its_dk if first else dk[b, :, g] + its_dk
        dv[b, :, g] = its_dv if first else dv[b, :, g] + its_dv
    gradients = plan.at("DQ_OUT", scale * dq), plan.at("DK_OUT", scale * dk), plan.at("DV_OUT", dv)
    return Judged(*(x.astype(np.float32) for x in (out, lse, delta, *gradients)))
