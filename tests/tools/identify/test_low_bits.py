"""Kernels of few bits that no twin has, right and wrong: what `identify` says of them."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, examine
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.tools.identify.candidates import (
    Candidate,
    emulated,
    forward_changes,
    large_changes,
    narrow_sums,
    options_of,
)
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.low_bits import of_low_bits

TOKENS, WIDTH = 192, 32
E4M3 = "Q=e4m3fn:saturate K=e4m3fn:saturate V=e4m3fn:saturate P=e4m3fn:saturate"


@cache
def call():
    rng = np.random.default_rng(5)
    q, k, v, do = rng.standard_normal((4, 1, TOKENS, 1, WIDTH), np.float32).astype(
        ml_dtypes.bfloat16
    )
    q, k, v, do = (x.astype(np.float32) for x in (q, k, v, do))
    return Inputs(q=q, k=k, v=v, do=do, scale=WIDTH**-0.5, is_causal=True)


def returned(words, factor=1.0, plan="fa2-bf16", **options):
    """What a kernel of a plan returns, whose output is multiplied by a factor."""
    x = call()
    given = {"scale": x.scale, "is_causal": True, **options}
    plan = Plan.preset(plan).changed(words)
    out = examine(x.q, x.k, x.v, plan=plan, block_k=48, engine="numpy", record=None, **given).out
    return np.asarray(out) * np.float32(factor)


def verdict(out):
    return identify(call(), Outputs(out=out), lambda words: None, budget=200)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"Q=int8[1x{WIDTH}] K=int8[1x{WIDTH}]", "INT8"),
        ("Q=e5m2:saturate K=e5m2:saturate V=e5m2:saturate P=e5m2", "E5M2"),
        (f"Q=int4[1x{WIDTH}] K=int4[1x{WIDTH}]", "INT4"),
    ],
)
def test_the_error_of_a_format_is_named(words, said):
    """A healthy kernel of low bits, of which it is said that no rounding explains it."""
    found = verdict(returned(words))
    assert found.kind is Kind.LOW_BITS and said in found.verdict
    assert "No rounding explains" not in found.verdict


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 64}, "Explained if window = 64, "),
        ({"factor": 1.5}, "Explained if the output is multiplied by 1."),
        ({"is_causal": False}, "Explained if the call is full, not causal, "),
    ],
)
def test_a_fault_in_a_kernel_of_low_bits_is_no_rounding(options, said):
    """A wrong descale, a window or a mask that is taken for the error of FP8."""
    found = verdict(returned(E4M3, **options))
    assert found.kind is Kind.MEANING and found.verdict.startswith(said)
    # MXFP8 makes errors of the size that E4M3 makes
    assert "in E4M3 would make" in found.verdict or "in MXFP8 would make" in found.verdict


def test_what_few_rows_have_is_no_format():
    """Rows in another order, whose error is on the whole as large as that of a format."""
    out = returned("Q=bf16")
    out[:, 100:130] = out[:, 101:131].copy()
    found = verdict(out)
    assert found.kind is Kind.NO_ROUNDING
    assert "It is not the error of a low-bit format either: tried were P in E4M3" in found.verdict


def test_an_error_along_the_result_is_no_format():
    """A scale that is not applied, which changes every row alike."""
    x = call()
    exact = returned("Q=bf16", plan="exact")
    assert of_low_bits(x, returned(E4M3))[0] is not None
    alike, tried = of_low_bits(x, exact * np.float32(1.06))
    assert alike is None and any(s.is_like(0.06) for s in tried)


def test_errors_that_go_together_tell_formats_of_one_size_apart():
    """P in an E4M3 of another bias, called q and k in INT8, whose errors are as large."""
    x = call()
    s = x.scale * (x.q[0, :, 0] @ x.k[0, :, 0].T)
    s = np.where(np.tri(TOKENS, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True)).astype(np.float32)
    narrow = p.astype(ml_dtypes.float8_e4m3b11fnuz).astype(np.float32)
    out = (narrow @ x.v[0, :, 0] / p.sum(1, keepdims=True)).astype(ml_dtypes.bfloat16)
    found, _ = of_low_bits(x, out.astype(np.float32)[None, :, None])
    assert found.words == "P in 4 significant bits of any range" and found.along > 0.5


@pytest.mark.parametrize("cast", ["e8m4:toward-zero", "e8m3", "e8m4:away-from-zero"])
def test_an_output_of_few_bits_is_named(cast):
    """An output that was cut to a few bits, called a factor, or something no rounding explains."""
    out = returned(f"OUT={cast}", plan="baseline-bf16")
    found = identify(call(), Outputs(out=out), lambda words: None, budget=0)
    assert found.kind is Kind.SAME and f"OUT={cast}" in found.verdict


def by_hand(x, adds_in_bf16):
    """Attention in float32 with exp, and the sum of it, in BF16: added key by key, or once."""
    t = x.q.shape[1]
    s = np.float32(x.scale) * (x.q[0, :, 0] @ x.k[0, :, 0].T)
    s = np.where(np.tri(t, dtype=bool), s, -np.inf).astype(np.float32)
    e = np.exp(s - s.max(1, keepdims=True)).astype(ml_dtypes.bfloat16)
    l = np.zeros(t, ml_dtypes.bfloat16)
    if adds_in_bf16:
        for j in range(t):
            l = l + e[:, j]
    else:
        l = e.astype(np.float64).sum(1).astype(np.float32).astype(ml_dtypes.bfloat16)
    exact = e.astype(np.float64) @ x.v[0, :, 0] / l.astype(np.float64)[:, None]
    out = exact.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    return out[None, :, None]


def in_tensors(x, adds_in_bf16):
    """The same as PyTorch computes it on BF16 tensors, the scores and the weights in BF16 too."""
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(a[:, :, 0].copy()).to(torch.bfloat16) for a in (x.q, x.k, x.v))
    s = q @ k.transpose(-1, -2) * x.scale
    s = s.masked_fill(~torch.tril(torch.ones(s.shape[-2:], dtype=torch.bool)), float("-inf"))
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True) @ v).float().numpy()[:, :, None]


KERNELS = [
    (by_hand, True, "fa2-bf16"),
    (by_hand, False, "fa2-bf16"),
    (in_tensors, False, "gpt-oss"),
]


@pytest.mark.parametrize(("kernel", "adds_in_bf16", "name"), KERNELS)
def test_a_narrow_sum_of_narrow_exp_is_tried(kernel, adds_in_bf16, name):
    """EXP and its sum both in BF16, where neither change alone is nearer."""
    x = call()
    keys, out = x.q.shape[1], kernel(x, adds_in_bf16)
    structure = Candidate(plan=Plan.preset(name), block_k=keys)

    def share(c):
        return (emulated(c, x.q, x.k, x.v, **options_of(x)).out == out).mean()

    tried = {c.change: share(c) for c in narrow_sums(structure, keys)}
    assert share(structure) < 0.8 and max(tried.values()) > 0.999, tried
    wanted = {c.key for c in narrow_sums(structure, keys)}
    assert wanted <= {c.key for some in large_changes(structure, keys) for c in some}
    assert wanted <= {c.key for c in forward_changes(structure)}


@pytest.mark.thorough
@pytest.mark.parametrize(("kernel", "adds_in_bf16", "name"), KERNELS)
def test_a_narrow_sum_is_named(kernel, adds_in_bf16, name):
    """ "No rounding explains this" of a softmax by hand in BF16."""
    found = identify(call(), Outputs(out=kernel(call(), adds_in_bf16)), lambda words: None)
    assert found.kind in (Kind.SAME, Kind.NEAR) and "EXP=bf16" in found.verdict
    assert ("ROWSUM.sum=ascending:bf16" if adds_in_bf16 else "ROWSUM=bf16") in found.verdict
