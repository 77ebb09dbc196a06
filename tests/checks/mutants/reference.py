"""A good attention kernel: FlashAttention-2 in BF16, as a kernel author would write it in NumPy.

It is what `faults_kernel` plants faults in, so it uses nothing of this project. Tensors are float32
arrays of BF16 numbers. Both operands of every matrix product are BF16, every sum and the softmax
are float32, and P, dS and the results are cast to BF16 (arXiv 2307.08691, algorithms 1 and 2).
"""

import math

import ml_dtypes
import numpy as np

BLOCK_Q, BLOCK_K = 128, 64  # rows and keys of a tile


def attention(q, k, v, do=None, *, scale, is_causal, mask=None):
    """Return softmax(scale Q K^T) V, and its gradients if `do` is given.

    Args:
        q: Queries, (B, T, N, H).
        k: Keys, (B, S, G, H), where G divides N: heads of q share heads of k in groups, in order.
        v: Values, (B, S, G, H).
        do: The gradient of the output, (B, T, N, H).
        scale: The factor of the scores.
        is_causal: Whether query t sees only keys s <= t.
        mask: Booleans that broadcast to (B, N, T, S), True where a query sees a key. A row that
            sees no key gives 0.

    Returns:
        The output, or with `do` the tuple (out, dq, dk, dv), all float32 arrays of BF16 numbers.
    """
    queries, keys, heads = q.shape[1], k.shape[1], k.shape[2]
    scale = np.float32(scale)
    if mask is not None:
        mask = np.broadcast_to(mask, (q.shape[0], q.shape[2], queries, keys))
        mask = padded(padded(mask, BLOCK_Q, axis=2), BLOCK_K, axis=3)
    q = padded(heads_first(q), BLOCK_Q)
    k, v = (padded(shared(heads_first(x), q.shape[1]), BLOCK_K) for x in (k, v))

    def seen(rows, columns):
        """Return which keys the queries of a tile see; it broadcasts to (B, N, rows, columns)."""
        row, column = np.ogrid[rows, columns]
        exists = column < keys
        if is_causal:
            exists = exists & (column <= row)
        return exists if mask is None else exists & mask[:, :, rows, columns]

    out, lse = forward(q, k, v, scale, is_causal, seen)
    returned = heads_last(out)[:, :queries]
    if do is None:
        return returned
    do = padded(heads_first(do), BLOCK_Q)
    dq, dk, dv = backward(q, k, v, out, lse, do, scale, is_causal, seen)
    dk, dv = gathered(dk, heads), gathered(dv, heads)
    dq, dk, dv = (heads_last(bf16(x)) for x in (dq, dk, dv))
    return returned, dq[:, :queries], dk[:, :keys], dv[:, :keys]


def forward(q, k, v, scale, is_causal, seen):
    """Return the output in BF16 and the logarithm of the row sums, tile by tile."""
    batch, heads, queries, _ = q.shape
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    lse = np.zeros((batch, heads, queries, 1), np.float32)
    for rows in tiles(0, queries, BLOCK_Q):
        m = np.full(lse[:, :, rows].shape, -np.inf, np.float32)
        l = np.zeros_like(m)
        o = np.zeros_like(out[:, :, rows])
        for columns in tiles(0, last_key(rows, k.shape[2], is_causal), BLOCK_K):
            s = scores(q[:, :, rows], k[:, :, columns], scale)
            s = np.where(seen(rows, columns), s, -np.inf)
            m_new = np.maximum(m, s.max(-1, keepdims=True))
            base = np.where(np.isneginf(m_new), 0, m_new)  # a row without keys: exp(-inf - 0) = 0
            p = np.exp(s - base)
            alpha = np.exp(m - base)
            l = l * alpha + p.sum(-1, keepdims=True)
            o = o * alpha + bf16(p) @ v[:, :, columns]
            m = m_new
        l = np.where(l == 0, 1, l)  # a row without keys has output 0
        out[:, :, rows] = bf16(o / l)
        lse[:, :, rows] = np.where(np.isneginf(m), 0, m) + np.log(l)
    return out, lse


def backward(q, k, v, out, lse, do, scale, is_causal, seen):
    """Return dQ, dK and dV in float32; P is recomputed from the row sums' logarithm."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    delta = (do * out).sum(-1, keepdims=True)
    for columns in tiles(0, k.shape[2], BLOCK_K):
        k_tile, v_tile = k[:, :, columns], v[:, :, columns]
        for rows in tiles(first_row(columns, is_causal), q.shape[2], BLOCK_Q):
            q_tile, do_tile = q[:, :, rows], do[:, :, rows]
            s = scores(q_tile, k_tile, scale)
            p = np.where(seen(rows, columns), np.exp(s - lse[:, :, rows]), 0)
            dp = do_tile @ turned(v_tile)
            ds = bf16(p * (dp - delta[:, :, rows]))
            dv[:, :, columns] += turned(bf16(p)) @ do_tile
            dk[:, :, columns] += turned(ds) @ q_tile
            dq[:, :, rows] += ds @ k_tile
    return dq * scale, dk * scale, dv


def scores(q, k, scale):
    """Return the scaled scores of a tile."""
    return q @ turned(k) * scale


def bf16(x):
    """Return x rounded to the nearest BF16 number, ties to even, in float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def tiles(start, end, size):
    """Yield the slices of whole tiles from `start` up to `end`."""
    for first in range(start, end, size):
        yield slice(first, first + size)


def last_key(rows, keys, is_causal):
    """Return how many keys, in whole tiles, the queries of a tile need."""
    return min(keys, math.ceil(rows.stop / BLOCK_K) * BLOCK_K) if is_causal else keys


def first_row(columns, is_causal):
    """Return the first query of the first tile that sees a tile of keys."""
    return columns.start // BLOCK_Q * BLOCK_Q if is_causal else 0


def turned(x):
    """Return the transposed matrices."""
    return np.swapaxes(x, -1, -2)


def heads_first(x):
    """Return a (B, T, N, H) tensor as (B, N, T, H)."""
    return np.ascontiguousarray(np.swapaxes(np.asarray(x, np.float32), 1, 2))


def heads_last(x):
    """Return a (B, N, T, H) tensor as (B, T, N, H)."""
    return np.ascontiguousarray(np.swapaxes(x, 1, 2))


def padded(x, size, axis=2):
    """Return x with zeros at the end of an axis, up to whole tiles."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % size)
    return np.pad(x, widths)


def shared(x, heads):
    """Return heads of k or v, each repeated for the heads of q that share it."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def gathered(x, heads):
    """Return the gradient of shared heads: the sum over the heads of q that share each."""
    return x.reshape(x.shape[0], heads, -1, *x.shape[2:]).sum(2)
