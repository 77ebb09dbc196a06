"""Kernels of few bits that no twin has, right and wrong: what `identify` says of them."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, examine
from roundscope.attention.testing.calls import Inputs, Outputs
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
    assert "in E4M3 make" in found.verdict


def test_what_few_rows_have_is_no_format():
    """Rows in another order, whose error is on the whole as large as that of a format."""
    out = returned("Q=bf16")
    out[:, 100:130] = out[:, 101:131].copy()
    found = verdict(out)
    assert found.kind is Kind.NO_ROUNDING
    assert (
        "It is not the error of a low-bit format either: tried were q and k in INT8"
        in found.verdict
    )


def test_an_error_along_the_result_is_no_format():
    """A scale that is not applied, which changes every row alike."""
    x = call()
    exact = returned("Q=bf16", plan="exact")
    assert of_low_bits(x, returned(E4M3))[0] is not None
    alike, tried = of_low_bits(x, exact * np.float32(1.06))
    assert alike is None and any(s.is_like(0.06) for s in tried)
