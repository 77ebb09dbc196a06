"""Adapters of kernels that repeat key heads: grouped heads against a call with a key head each."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention.testing.calls import Inputs
from roundscope.tools.identify.adapters import kernel

torch = pytest.importorskip("torch")
TOKENS, WIDTH, HEADS, GROUP = 64, 16, 4, 2


def grouped():
    """A causal call of four query heads on two key heads."""
    drawn = np.random.default_rng(3).standard_normal((4, 1, TOKENS, HEADS, WIDTH))
    q, k, v, do = drawn.astype(ml_dtypes.bfloat16).astype(np.float32)
    return Inputs(q=q, k=k[:, :, ::GROUP], v=v[:, :, ::GROUP], do=do, scale=0.25, is_causal=True)


def repeated(x):
    """The same call with a key head for each query head."""
    return replace(x, k=x.k.repeat(GROUP, axis=2), v=x.v.repeat(GROUP, axis=2))


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_eager_attention_repeats_key_heads():
    """Its gradients of K and V are BF16 in each query head, and are added in FP32."""
    pytest.importorskip("transformers")
    x, run = grouped(), kernel("eager")
    got, each = run(x), run(repeated(x))
    assert np.array_equal(got.out, each.out) and np.array_equal(got.dq, each.dq)
    for name in ("dk", "dv"):
        heads = getattr(each, name).reshape(1, TOKENS, HEADS // GROUP, GROUP, WIDTH)
        assert np.array_equal(heads, bf16(heads))
        assert np.array_equal(getattr(got, name), bf16(heads[..., 0, :] + heads[..., 1, :])), name


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has another kernel for either call")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_grouped_heads(monkeypatch):
    """A CPU has its forward alone."""
    from torch.nn.attention.flex_attention import flex_attention

    from roundscope.tools.identify.adapters import torch_flex

    monkeypatch.setattr(torch_flex, "_compiled", lambda: flex_attention)
    x, run = grouped(), kernel("flex")
    got, each = run(x), run(repeated(x))
    assert np.array_equal(got.out, each.out) and got.dq is None
