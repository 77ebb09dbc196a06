"""FlashAttention-4 in FP8: P clips at 448, the row sum does not, so the output is too short.

Rebuilt from the issue threads of Dao-AILab/flash-attention, not the project's own code. #2109 added
FP8 to the Blackwell forward kernel; #2131, #2577 and #2716 report errors; #2578, #2694, #2713,
#2717 and #2731 are pull requests about it (#2717 and #2731 are merged), and
vllm-project/flash-attention #166 is the same repair in a fork.

What the threads say. P is computed as 2^(score - row maximum + 8), so that it lies in (0, 256]
before its cast to E4M3, whose largest number is 448. To save rescaling O, the row maximum is kept
while a tile raises it by less than 4 (in the exponent of 2). A kept maximum lets P reach
2^(8 + 4) = 4096; the cast saturates, while the row sum adds the number before the cast. A key can
thus lose up to 89 % of its weight (#2713); the logarithm of the row sum stays exact. E5M2, up to
57344, is not affected (#2716).

Their numbers. #2694 measures the relative error against the BF16 kernel on FP8 numbers with scales
of 1, 8192 keys, by the standard deviation of the scores:

    standard deviation   0.25    0.5     1.0     1.5     2.0
    offset 8             0.027   0.031   0.136   0.305   0.361
    offset 4             0.027   0.028   0.027   0.024   0.022

#2577 measures a cosine similarity that falls from 0.9987 at 127 keys to 0.8628 at 128.
`python -m tests.checks.public_bugs.fp8_clipping` prints such a table for the functions below, which
are compared with exact attention in float64 on Gaussian E4M3 numbers (256 queries, one head):

    clipping             0.027   0.030   0.161   0.366   0.387
    always_rescaled      0.027   0.027   0.025   0.022   0.016
    bounded_threshold    0.027   0.027   0.026   0.023   0.018
    smaller_offset       0.027   0.027   0.027   0.025   0.021
"""

import math

import ml_dtypes
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

BLOCK = 128  # keys of a tile
LARGEST = 448  # of E4M3


def attention(q, k, v, *, scale, is_causal, offset, threshold):
    """Return softmax(scale Q K^T) V in FP8 with a maximum that may lag.

    Args:
        q: Queries, (B, T, N, H), which are rounded to E4M3, like k and v.
        k: Keys, (B, S, G, H), where G divides N.
        v: Values, (B, S, G, H).
        scale: The factor of the scores.
        is_causal: Whether query t sees only keys s <= t.
        offset: P is multiplied by 2^offset before its cast to E4M3.
        threshold: The row maximum is kept while it grows by less than this, in the exponent of 2.

    Returns:
        The output (B, T, N, H), a float32 array of BF16 numbers.
    """
    keys = k.shape[1]
    to_base_2 = np.float32(scale * math.log2(math.e))
    q = e4m3(heads_first(q))
    k, v = (padded(shared(e4m3(heads_first(x)), q.shape[1]), BLOCK) for x in (k, v))
    m = np.full((*q.shape[:3], 1), -np.inf, np.float32)
    l, o = np.zeros_like(m), np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for columns in list(tiles(0, k.shape[2], BLOCK))[::-1]:  # from the last keys to the first
        row, column = np.ogrid[: q.shape[2], columns]
        seen = (column < keys) & ((column <= row) | (not is_causal))
        s = np.where(seen, q @ turned(k[:, :, columns]) * to_base_2, -np.inf)
        m_new = kept(m, np.maximum(m, s.max(-1, keepdims=True)), threshold)
        base = np.where(np.isneginf(m_new), 0, m_new)
        p = np.exp2(s - base + np.float32(offset))
        alpha = np.exp2(m - base)
        l = l * alpha + p.sum(-1, keepdims=True)
        o = o * alpha + e4m3(p) @ v[:, :, columns]
        m = m_new
    return heads_last(bf16(o / l))


def kept(old, new, threshold):
    """Return the new maximum where it grew by more than the threshold, else the old one."""
    with np.errstate(invalid="ignore"):  # -inf - -inf, where no key was seen yet
        return np.where(new - old <= threshold, old, new)


def e4m3(x):
    """Return x rounded to E4M3, saturating, in float32."""
    return np.clip(x, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def clipping(q, k, v, *, scale, is_causal):
    """The fault: P reaches 4096 and clips at 448, the row sum does not."""
    return attention(q, k, v, scale=scale, is_causal=is_causal, offset=8, threshold=4.0)


def always_rescaled(q, k, v, *, scale, is_causal):
    """The repair of #2578: the maximum never lags, so P is 256 at most."""
    return attention(q, k, v, scale=scale, is_causal=is_causal, offset=8, threshold=0.0)


def bounded_threshold(q, k, v, *, scale, is_causal):
    """The repair of #2713: P is 2^8.75 = 431 at most."""
    return attention(q, k, v, scale=scale, is_causal=is_causal, offset=8, threshold=0.75)


def smaller_offset(q, k, v, *, scale, is_causal):
    """The repair of #2694: P is 2^(4 + 4) = 256 at most."""
    return attention(q, k, v, scale=scale, is_causal=is_causal, offset=4, threshold=4.0)


KERNELS = {f.__name__: f for f in (clipping, always_rescaled, bounded_threshold, smaller_offset)}


def main() -> None:
    """Print the table of #2694 for the fault and its three repairs."""
    rng = np.random.default_rng(0)
    q, k, v = (e4m3(rng.standard_normal((1, n, 1, 128))) for n in (256, 8192, 8192))
    for name, kernel in KERNELS.items():
        errors = []
        for deviation in (0.25, 0.5, 1.0, 1.5, 2.0):
            scale = deviation / math.sqrt(q.shape[3])
            s = np.float64(scale) * (q[0, :, 0].astype(np.float64) @ k[0, :, 0].T)
            p = np.exp(s - s.max(-1, keepdims=True))
            truth = p @ v[0, :, 0] / p.sum(-1, keepdims=True)
            out = kernel(q, k, v, scale=scale, is_causal=False)[0, :, 0]
            errors.append(np.linalg.norm(out - truth) / np.linalg.norm(truth))
        print(f"{name:18}" + "".join(f"{error:8.3f}" for error in errors))


if __name__ == "__main__":
    main()
