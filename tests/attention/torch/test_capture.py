"""Capturing the attention of PyTorch models: no bit changes, and the file has what was computed."""

import json
import struct

import numpy as np
import pytest
import torch

from roundscope.attention.torch.capture import capture
from tests.attention.torch.captured_models import (
    bits,
    of_transformers,
    plain_gpt,
    step,
    tokens,
)

PLAIN = {
    "plain": {},
    "grouped": {"key_heads": 2},
    "reentrant": {"reentrant": True},
    "checkpointed": {"reentrant": False},
}
FAMILIES = [(f, i) for f in ("llama", "qwen", "gpt2") for i in ("eager", "sdpa")]


def metadata(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size])["__metadata__"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "qkv.safetensors"


def padding(ids, left):
    """A mask of tokens that leaves some of the first sequence and none of the second out."""
    mask = torch.ones_like(ids)
    mask[0, : ids.shape[1] - left] = 0
    return mask


def captured_as_is(model, path, run, **options):
    """Run a model with and without capture, and check that every bit is the same."""
    before = bits(run(model))
    with capture(model, path, **options) as calls:
        during = bits(run(model))
    after = bits(run(model))
    assert before == during == after
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_gpt_keeps_its_bits(kind, dtype, path):
    model = plain_gpt(**PLAIN[kind]).to(dtype)
    calls = captured_as_is(model, path, lambda m: step(m, tokens()))
    assert [(c.number, c.name) for c in calls] == [
        (0, "blocks.0.attention"),
        (1, "blocks.1.attention"),
    ]
    check_gradients(calls)


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("family", "implementation"), FAMILIES)
def test_models_of_transformers_keep_their_bits(family, implementation, is_padded, path):
    model, ids = of_transformers(family, implementation), tokens()
    more = {"attention_mask": padding(ids, 10)} if is_padded else {}
    calls = captured_as_is(model, path, lambda m: step(m, ids, **more), batch=None)
    assert len(calls) == 2
    assert all(c.implementation.startswith(implementation) for c in calls)
    assert all(c.is_causal is not is_padded for c in calls)
    check_gradients(calls)


def reference(call):
    """The output in binary64 by torch, and its function of q, k and v for autograd."""
    q, k, v = (torch.from_numpy(np.float64(x)).requires_grad_() for x in (call.q, call.k, call.v))
    group = q.shape[1] // k.shape[1]
    scores = call.scale * q @ k.repeat_interleave(group, 1).mT
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if call.is_causal:
        mask = mask.tril()
    if call.mask is not None:
        mask = mask & torch.from_numpy(call.mask)
    p = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return p @ v.repeat_interleave(group, 1), (q, k, v), mask.any(-1).expand(q.shape[:3])


def check_gradients(calls):
    """What was captured is attention and its gradients in binary64, to the type's accuracy.

    The bound is 2 ulps of the type for each of the few roundings of a sum's terms, of the largest
    number of an array. Rows that see no key are left out.
    """
    assert calls
    for call in calls:
        out, inputs, sees = reference(call)
        ulp = 2.0**-7 if call.q.dtype.itemsize == 2 else 2.0**-23
        do = torch.from_numpy(np.float64(call.do)) * sees[..., None]
        near(call.out * sees[..., None].numpy(), (out * sees[..., None]).nan_to_num(), 4 * ulp)
        if sees.all():
            for name, want in zip("qkv", torch.autograd.grad(out, inputs, do), strict=True):
                near(getattr(call, f"d{name}"), want, 8 * ulp)


def near(got, want, bound):
    want = want.detach().numpy()
    assert got.shape == want.shape and got.any()
    assert np.abs(np.float64(got) - want).max() <= bound * np.abs(want).max()
