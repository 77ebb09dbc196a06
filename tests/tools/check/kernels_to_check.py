"""Kernels that the tests of `roundscope check` name as module:function."""

import numpy as np

from roundscope.attention import examine
from tests.checks.mutants.reference import attention as good

__all__ = ["forward_only", "good", "masked_by_one", "picky", "short"]


def short(q, k, v, do, *, scale, is_causal):
    """A kernel whose output is half a percent too short."""
    out, dq, dk, dv = good(q, k, v, do, scale=scale, is_causal=is_causal)
    return out * np.float32(0.995), dq, dk, dv


def masked_by_one(q, k, v, *, scale, is_causal):
    """A kernel whose causal mask hides a query's own key, but for the first query."""
    if not is_causal:
        return good(q, k, v, scale=scale, is_causal=False)
    mask = np.tri(q.shape[1], k.shape[1], -1, dtype=bool)
    mask[0, 0] = True
    return good(q, k, v, scale=scale, is_causal=False, mask=mask[None, None])


def forward_only(q, k, v, *, scale, is_causal):
    """A kernel that is the plan, without gradients."""
    options = {"plan": "fa2-bf16", "scale": scale, "is_causal": is_causal}
    return examine(q, k, v, record=None, **options).out


def windowed(q, k, v, *, scale, is_causal, window=None, alignment="top-left"):
    """A kernel that is the plan and takes a window."""
    options = {"scale": scale, "is_causal": is_causal, "window": window, "alignment": alignment}
    return examine(q, k, v, record=None, plan="fa2-bf16", **options).out


def deaf(q, k, v, *, scale, is_causal, window_size=(-1, -1)):
    """A kernel that takes a window and does not look at it."""
    return forward_only(q, k, v, scale=scale, is_causal=is_causal)


def picky(q, k, v, *, scale, is_causal):
    """A kernel that takes 128 tokens and nothing else."""
    if q.shape[1] != 128:
        raise RuntimeError("tokens must be 128")
    return good(q, k, v, scale=scale, is_causal=is_causal)


not_a_function = 3


def exits(q, k, v, *, scale, is_causal):
    """A script that was never meant to be called."""
    raise SystemExit(0)


def without_gpu(q, k, v, *, scale, is_causal):
    """A kernel for a GPU, on a machine that has none."""
    raise AssertionError("Torch not compiled with CUDA enabled")


def crashes(q, k, v, *, scale, is_causal):
    """A kernel that breaks on the real tensors, and on nothing else."""
    if q.shape[3] == 32:
        raise KeyError("no tile for 32 features")
    return good(q, k, v, scale=scale, is_causal=is_causal)


def lost(q, k, v, *, scale, is_causal):
    """A kernel with an infinity and a NaN in every output that is not tiny."""
    out = good(q, k, v, scale=scale, is_causal=is_causal)
    if q.shape[1] > 3:
        out[0, 3, 0, 5], out[-1, 2, 0, 1] = np.inf, np.nan
    return out
