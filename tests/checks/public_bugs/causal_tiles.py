"""A causal mask off by a tile: kernels that decide from tile indices which tiles need no mask.

Rebuilt from the threads, not the projects' own code.

triton-lang/triton #8853 (merged): in the forward of tutorial 06, tiles of keys before a tile of
queries are computed without a mask, from key 0 up to ceil(start_m BLOCK_M / BLOCK_N) BLOCK_N. With
BLOCK_M = 64 and BLOCK_N = 128, which autotuning could choose, the bound lies beyond the first query
of every second tile, so queries see future keys. The repair drops such tiles from the choices.

jax-ml/jax #17314 (merged, from issue #17267): the Pallas kernel's number of key tiles is computed
from the first query of a tile and not from its last. It is too small where block_q > block_k: with
block_q = 3, block_k = 1 and the second tile of queries it gives 4 where 6 are needed. The test that
was added has 384 tokens, block_q = 128 and block_k = 64.

Both are right for equal tiles, and where nothing is causal. On 384 Gaussian tokens the relative rms
error of the functions below is 0.24 and 0.27, and 0.0020 once they are repaired
(`python -m tests.checks.public_bugs.causal_tiles`).
"""

import math

import numpy as np

from tests.checks.mutants.reference import (
    bf16,
    heads_first,
    heads_last,
    padded,
    shared,
    tiles,
    turned,
)


def attention(q, k, v, *, scale, is_causal, block_q, block_k, ranges):
    """Return softmax(scale Q K^T) V, tile by tile, with the given rule for causal tiles.

    Args:
        q: Queries, (B, T, N, H), float32 arrays of BF16 numbers, as all tensors are.
        k: Keys, (B, S, G, H), where G divides N.
        v: Values, (B, S, G, H).
        scale: The factor of the scores.
        is_causal: Whether query t sees only keys s <= t.
        block_q: Queries of a tile.
        block_k: Keys of a tile.
        ranges: A function of the first query of a tile, block_q and block_k that returns pairs: a
            range of first keys of tiles, and whether their scores are masked.

    Returns:
        The output (B, T, N, H), a float32 array of BF16 numbers.
    """
    queries, keys = q.shape[1], k.shape[1]
    q = padded(heads_first(q), block_q)
    k, v = (shared(heads_first(x), q.shape[1]) for x in (k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for rows in tiles(0, q.shape[2], block_q):
        m = np.full((*q.shape[:2], block_q, 1), -np.inf, np.float32)
        l, o = np.zeros_like(m), np.zeros_like(out[:, :, rows])
        parts = (
            ranges(rows.start, block_q, block_k) if is_causal else [(range(0, keys, block_k), 0)]
        )
        for first, is_masked in ((f, masked) for firsts, masked in parts for f in firsts):
            if first >= keys:
                continue
            columns = slice(first, min(first + block_k, keys))
            s = q[:, :, rows] @ turned(k[:, :, columns]) * np.float32(scale)
            row, column = np.ogrid[rows, columns]
            s = np.where(column <= row, s, -np.inf) if is_masked else s
            m_new = np.maximum(m, s.max(-1, keepdims=True))
            base = np.where(np.isneginf(m_new), 0, m_new)
            p, alpha = np.exp(s - base), np.exp(m - base)
            l = l * alpha + p.sum(-1, keepdims=True)
            o = o * alpha + bf16(p) @ v[:, :, columns]
            m = m_new
        out[:, :, rows] = bf16(o / l)
    return heads_last(out)[:, :queries]


def too_far(start, block_q, block_k):
    """Return the ranges of triton #8853: no mask on tiles that begin before the first query."""
    return [
        (range(0, start, block_k), False),
        (range(start, start + block_q, block_k), True),
    ]


def not_far_enough(start, block_q, block_k):
    """Return the range of jax #17314: up to the key tile of the first query."""
    return [(range(0, (start // block_k + 1) * block_k, block_k), True)]


def right(start, block_q, block_k):
    """Return the range of the repair: up to the key tile of the last query."""
    return [(range(0, math.ceil((start + block_q) / block_k) * block_k, block_k), True)]


def triton_tutorial(q, k, v, *, scale, is_causal):
    """The fault of triton #8853: queries of every second tile see future keys."""
    return attention(
        q, k, v, scale=scale, is_causal=is_causal, block_q=64, block_k=128, ranges=too_far
    )


def triton_tutorial_repaired(q, k, v, *, scale, is_causal):
    """The repair of triton #8853: the same rule where it is right."""
    return attention(
        q, k, v, scale=scale, is_causal=is_causal, block_q=128, block_k=64, ranges=too_far
    )


def jax_pallas(q, k, v, *, scale, is_causal):
    """The fault of jax #17314: the last keys of a tile of queries are left out."""
    return attention(
        q, k, v, scale=scale, is_causal=is_causal, block_q=128, block_k=64, ranges=not_far_enough
    )


def jax_pallas_repaired(q, k, v, *, scale, is_causal):
    """The repair of jax #17314."""
    return attention(
        q, k, v, scale=scale, is_causal=is_causal, block_q=128, block_k=64, ranges=right
    )


KERNELS = {
    f.__name__: f
    for f in (triton_tutorial, triton_tutorial_repaired, jax_pallas, jax_pallas_repaired)
}


def main() -> None:
    """Print relative rms errors of the two kernels and their repairs, causal and not."""
    rng = np.random.default_rng(0)
    q, k, v = (bf16(rng.standard_normal((1, 384, 8, 64))) for _ in range(3))
    q64, k64, v64 = (np.swapaxes(x.astype(np.float64), 1, 2) for x in (q, k, v))
    for is_causal in (False, True):
        s = q64 @ turned(k64) / 8
        s = np.where(np.tri(384, dtype=bool) | (not is_causal), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        truth = np.swapaxes(p @ v64 / p.sum(-1, keepdims=True), 1, 2)
        for name, kernel in KERNELS.items():
            out = kernel(q, k, v, scale=1 / 8, is_causal=is_causal)
            error = np.linalg.norm(out - truth) / np.linalg.norm(truth)
            print(f"{'causal' if is_causal else 'full':8}{name:26}{error:9.5f}")


if __name__ == "__main__":
    main()
