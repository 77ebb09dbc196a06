"""NVFP4 under a scale of the whole array that is given, and steps of it in float32.

The quantizers are written here in NumPy and ml_dtypes, by the formulas of libraries.
"""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from roundscope.emu.roundings.modes import rounding
from roundscope.emu.testing.casts import block_probes, examine_cast
from roundscope.emu.testing.casts.elements import bias_row
from roundscope.emu.testing.casts.records import Status
from tests.emu.testing.casts.cast_planted import E4M3, F32, nvfp4

T = float(F32(0.0037))


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    """A quarter of the blocks, so that a test takes less than a second."""
    monkeypatch.setattr(block_probes, "BUDGET", 1 << 15)


def single(x, *, inverse=True, least=2.0**-6, scale=T):
    """Each step in float32: scales a / 6 / T, and numbers times (1 / T) / X, as torchao has it;
    or scales a / 6 (1 / T), and numbers over X / (1 / T), as compressed-tensors has it.
    """
    v, t, one = x.reshape(-1, 16), F32(scale), F32(1)
    a = np.abs(v).max(axis=1, keepdims=True)
    wanted = a / F32(6) / t if inverse else a / F32(6) * (one / t)
    s = np.clip(wanted, F32(least), F32(448)).astype(E4M3).astype(F32)
    s = np.where(s == 0, F32(2.0**-9), s)
    q = v * ((one / t) / s) if inverse else v / (s / (one / t))
    p = np.clip(q, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return p.reshape(x.shape), s.reshape(len(x), -1)


def test_a_right_quantizer_passes():
    """A calibrated scale that cannot be told, or what exceeds it being called a fault."""
    report = examine_cast(partial(nvfp4, tensor=T), "nvfp4", tensor_scale=T)
    assert report.passed, [(r.name, r.examples[:1]) for r in report.failed]
    assert report.sentence.startswith("nvfp4 under 0.0037 with rule nearest as asked")


def test_the_scale_need_not_be_returned():
    """A tensor scale of 1 taken for the one that a function was given."""
    report = examine_cast(lambda x: nvfp4(x, tensor=T)[:2], "nvfp4", tensor_scale=T)
    assert report.passed, [(r.name, r.examples[:1]) for r in report.failed]


@pytest.mark.thorough
def test_another_scale_than_the_given_one_fails():
    """A scale that the function derives in place of using the one that it was given."""
    report = examine_cast(nvfp4, "nvfp4", tensor_scale=T)
    assert {"tensor scale", "scales"} <= {r.name for r in report.failed}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({}, "E = 1 / T, scales a / m / T, elements v (E / X), scales of 0.015625 or more"),
        (
            {"inverse": False, "least": 0.0},
            "E = 1 / T, scales a / m E, elements v / (X / E)",
        ),
    ],
    ids=["torchao", "compressed-tensors"],
)
def test_steps_in_float32_are_named(fault, words):
    """What libraries compute, called unknown."""
    report = examine_cast(partial(single, **fault), "nvfp4", tensor_scale=T)
    assert report.instead == f"rule nearest, in float32: {words}", report.behaviors[:3]


def test_only_nvfp4_has_such_a_scale():
    """A scale that is ignored where blocks have none."""
    with pytest.raises(ValueError, match="is for NVFP4, a format of numbers"):
        examine_cast(lambda x: x, "mxfp4", tensor_scale=0.5)


STATIC = 1 / 64


def fixed(x, step=np.rint):
    return (np.clip(step(x / STATIC), -127, 127) * STATIC).astype(F32)


def test_int8_of_one_given_scale():
    """A quantizer of a constant scale, of which nothing can be asked, or any of which passes."""
    right = (fixed, lambda x: (fixed(x) / STATIC).astype(np.int8))
    assert all(examine_cast(f, "int8[tensor]", tensor_scale=STATIC).passed for f in right)
    for wrong in (partial(fixed, step=np.trunc), lambda x: fixed(np.clip(x, -1, 1))):
        assert not examine_cast(wrong, "int8[tensor]", tensor_scale=STATIC).passed
    with pytest.raises(ValueError, match=r"or int8\[tensor\]"):
        examine_cast(fixed, "int8[token]", tensor_scale=STATIC)


def test_a_bias_of_the_rounding_itself_is_no_bias():
    """A row that passes beside a z of -100 and "toward zero", without a word of why."""
    q = 1.0 + np.arange(1, 4001) / 4000 * 2.0**-5  # below the tie of E4M3: all become 1
    row = bias_row(q, np.ones_like(q), rounding("e4m3fn"))
    assert row.status is Status.PASS and "no more than e4m3fn" in row.note
    assert "no more than" not in bias_row(q, q, rounding("e4m3fn")).note
