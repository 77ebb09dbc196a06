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


def picky(q, k, v, *, scale, is_causal):
    """A kernel that takes 128 tokens and nothing else."""
    if q.shape[1] != 128:
        raise RuntimeError("tokens must be 128")
    return good(q, k, v, scale=scale, is_causal=is_causal)
