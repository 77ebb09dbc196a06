"""Diffusion transformers: attention without a mask, conditioned by adaLN, behind a processor."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundscope import attend
from roundscope.torch import attention_layers, capture, use
from tests.attention.torch.dit import Attention, dit, split

IMAGES = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([3, 7])
TIMESTEPS = (20, 500)


def outputs(model):
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        return [
            model(IMAGES.to(dtype), timestep=torch.full((2,), t), class_labels=LABELS).sample
            for t in TIMESTEPS
        ]


def exact(q, k, v):
    """Attention without a mask in binary64; (B, N, T, H)."""
    s = np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(s)
    return np.einsum("bnts,bnsh->bnth", p / p.sum(-1, keepdims=True), v)


def test_capture_changes_no_bit_and_has_every_timestep(tmp_path):
    """In BF16, as it runs; what a plan makes of the same tensors is computed beside it."""
    model = dit().to(torch.bfloat16)
    before = outputs(model)
    with capture(model, tmp_path / "dit.safetensors", steps=None, batch=None) as calls:
        beside = outputs(model)
    assert all(torch.equal(a, b) for a, b in zip(before, beside, strict=True))
    places = [(call.step, call.name) for call in calls]
    assert places == [(n, f"blocks.{layer}.attn") for n in range(2) for layer in range(2)]
    assert not any(call.is_causal or call.mask is not None for call in calls)
    assert (calls[0].q != calls[2].q).any()  # the timestep reaches the queries
    for call in calls:
        qkv = [np.asarray(x, np.float64) for x in (call.q, call.k, call.v)]
        golden, rows = exact(*qkv), [x.swapaxes(1, 2) for x in qkv]
        own = attend(*rows, plan="exact", block_q=4, block_k=4).swapaxes(1, 2)
        np.testing.assert_allclose(own, golden, rtol=1e-12, atol=1e-13)
        for found in (attend(*rows, plan="fa2-bf16", block_k=4).swapaxes(1, 2), call.out):
            error = np.asarray(found, np.float64) - golden
            relative = np.sqrt(np.square(error).sum() / np.square(golden).sum())
            assert 2**-12 < relative < 2**-7  # half an ulp is 2^-9; 0 would be another type's


def test_a_plan_runs_in_its_blocks():
    """Exact attention is the model's own in binary64; one that rounds is not."""
    model = dit().double()
    before = outputs(model)
    with use(model, "exact"):
        own = outputs(model)
    with use(model, "fa2-bf16"):
        rounded = outputs(model)
    for a, b, c in zip(before, own, rounded, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert (a - c).abs().max() > 1e-5


def dispatch_attention_fn(q, k, v):
    """A registry of kernels, as diffusers has it: which one runs cannot be read from its code."""
    return {"native": F.scaled_dot_product_attention}["native"](q, k, v)


class Dispatched:
    def __call__(self, attn, x):
        return dispatch_attention_fn(*split(attn, x)).transpose(1, 2).flatten(2)


class Idle:
    def __call__(self, attn, x):
        return x


def test_a_module_is_found_by_its_processor():
    names = [layer.name for layer in attention_layers(dit(processor=Dispatched()))]
    assert names == ["blocks.0.attn", "blocks.1.attn"]
    for other in (Idle(), nn.Identity(), None, "native"):
        with pytest.raises(ValueError, match="no module of this Sequential calls"):
            attention_layers(nn.Sequential(Attention(4, 2, other)))
