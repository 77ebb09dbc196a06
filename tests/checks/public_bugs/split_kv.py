"""Split-KV decoding: partial outputs are rounded to BF16 before they are merged.

Rebuilt from the issue threads, not the projects' own code: flashinfer-ai/flashinfer #5107 (an
issue), #5166 (its repair), #799 and #900; the kernel of vllm-project/vllm-xpu-kernels #204 had the
same fault.

What the threads say. The keys of a long sequence are split into chunks, and each chunk's softmax
output is stored with the logarithm of its row sum; then the chunks are merged. The store casts the
float32 accumulator to the type of the output (`decode.cuh` calls `cast_store`), although the
workspace was allocated for float32 (#5107). On a B200, 2090 of 4096 outputs of the paged prefill
differed from the rounded float32 reference, against 1725 without the split (#5166).
flashinfer #4749 gives relative L2 errors, for 4096 and 8192 keys, 32 heads of q and 8 of k, and
head size 128: 0.00169 to 0.00220 without the split, 0.00227 to 0.00263 with it.

`python -m tests.checks.public_bugs.split_kv` prints such numbers for the functions below: 0.0028
and 0.0022 on 4096 Gaussian keys, where 2059 and 1684 of 4096 outputs are not the exact ones
rounded.
"""

import math

import numpy as np

from tests.checks.mutants.reference import bf16, heads_first, heads_last, shared, tiles, turned

CHUNK = 512  # keys of a chunk


def attention(q, k, v, *, scale, is_causal, store):
    """Return softmax(scale Q K^T) V, chunk of keys by chunk of keys, merged at the end.

    Args:
        q: Queries, (B, T, N, H), float32 arrays of BF16 numbers, as all tensors are.
        k: Keys, (B, S, G, H), where G divides N.
        v: Values, (B, S, G, H).
        scale: The factor of the scores.
        is_causal: Whether query t sees only keys s <= t. A decode step (T = 1) is not causal.
        store: The function through which a chunk's normalized output goes to memory.

    Returns:
        The output (B, T, N, H), a float32 array of BF16 numbers.
    """
    q = heads_first(q)
    k, v = (shared(heads_first(x), q.shape[1]) for x in (k, v))
    partials = []
    for columns in tiles(0, k.shape[2], CHUNK):
        s = q @ turned(k[:, :, columns]) * np.float32(scale)
        if is_causal:
            row, column = np.ogrid[: q.shape[2], columns]
            s = np.where(column[:, : s.shape[3]] <= row, s, -np.inf)
        out, lse = of_chunk(s, v[:, :, columns])
        partials.append((store(out), lse))
    return heads_last(bf16(merged(partials)))


def of_chunk(s, v):
    """Return the normalized output of a chunk in float32, and the logarithm of its row sums."""
    m = s.max(-1, keepdims=True)
    base = np.where(np.isneginf(m), 0, m)
    p = np.exp(s - base)
    l = p.sum(-1, keepdims=True)
    out = bf16(p) @ v / np.where(l == 0, 1, l)
    return out, np.where(l == 0, -np.inf, base + np.log(np.where(l == 0, 1, l)))


def merged(partials):
    """Return the sum of the chunks' outputs, each weighted by its share of the row sum."""
    outs, lses = (np.stack(x) for x in zip(*partials, strict=True))
    weights = np.exp(lses - lses.max(0))
    return (weights * outs).sum(0) / weights.sum(0)


def unchanged(x):
    """Return x: float32 memory."""
    return x


def bf16_partials(q, k, v, *, scale, is_causal):
    """The fault: the output of each chunk is rounded to BF16."""
    return attention(q, k, v, scale=scale, is_causal=is_causal, store=bf16)


def float32_partials(q, k, v, *, scale, is_causal):
    """The repair of #5166: the output of each chunk stays float32."""
    return attention(q, k, v, scale=scale, is_causal=is_causal, store=unchanged)


KERNELS = {f.__name__: f for f in (bf16_partials, float32_partials)}


def main() -> None:
    """Print relative L2 errors, and how many outputs are not the rounded exact ones."""
    rng = np.random.default_rng(0)
    for keys in (4096, 8192):
        q, k, v = (
            bf16(rng.standard_normal((1, n, heads, 128)))
            for n, heads in ((1, 32), (keys, 8), (keys, 8))
        )
        scale = 1 / math.sqrt(128)
        q64, k64, v64 = (np.swapaxes(x.astype(np.float64), 1, 2) for x in (q, k, v))
        k64, v64 = shared(k64, 32), shared(v64, 32)
        s = scale * (q64 @ turned(k64))
        p = np.exp(s - s.max(-1, keepdims=True))
        truth = np.swapaxes(p @ v64 / p.sum(-1, keepdims=True), 1, 2)
        for name, kernel in KERNELS.items():
            out = kernel(q, k, v, scale=scale, is_causal=False)
            error = np.linalg.norm(out - truth) / np.linalg.norm(truth)
            other = (out != bf16(truth)).sum()
            print(f"{keys:6} keys  {name:18}{error:9.5f}  {other:5} of {out.size} not rounded best")


if __name__ == "__main__":
    main()
