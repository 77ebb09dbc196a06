"""LayerNorm: torch's bits on a CPU, and a judge in exact fractions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from roundscope.emu.sums.accumulator import Order
from roundscope.operations import OPERATIONS, run
from roundscope.operations.definitions.layer_norm import Form, Statistics
from roundscope.operations.functions import Root
from roundscope.operations.run import plan_of
from tests.operations.by_torch import every_type, numbers, torch_of
from tests.operations.exactly import numbers as exact_numbers
from tests.operations.exactly import root, to, total

LAYER_NORM = OPERATIONS["layer_norm"]
ROWS = 24


def with_rows(plan, torch):
    """The plan whose sums over the rows are dealt to the threads of torch."""
    part = -(-ROWS // min(torch.get_num_threads(), ROWS))
    for site in ("DW", "DBI"):
        own = replace(plan.accumulator(site), order=Order.CHUNKED, chunk=part)
        plan = plan.adding(site, own)
    return plan


def compared(suffix, features, has_parameters=True):
    """Shares of torch's numbers that the plan gives: of the output and of each gradient."""
    torch, dtype = torch_of(suffix)
    generator = torch.Generator().manual_seed(features)
    x, dout = torch.randn(2, ROWS, features, generator=generator)
    weight, bias = torch.randn(2, features, generator=generator)
    given = {"x": 1.5 * x + 0.3, "weight": 1.0 + 0.2 * weight, "bias": 0.2 * bias}
    given = {n: v.to(dtype).requires_grad_() for n, v in given.items()}
    if not has_parameters:
        given = {"x": given["x"]}
    out = torch.nn.functional.layer_norm(
        given["x"], (features,), given.get("weight"), given.get("bias")
    )
    out.backward(dout.to(dtype))
    plan = with_rows(plan_of(LAYER_NORM, f"torch-cpu{suffix}"), torch)
    arrays = {n: numbers(v) for n, v in given.items()}
    found = run(LAYER_NORM, plan, arrays, gradients={"out": numbers(dout.to(dtype))})
    shares = {"out": (found.outputs["out"].astype(np.float32) == numbers(out)).mean()}
    return shares | {n: (found.gradients[n] == numbers(v.grad)).mean() for n, v in given.items()}


@every_type
@pytest.mark.parametrize("features", [16, 100, 768, 1000, 4096])
def test_every_bit_of_torch(suffix, features):
    """Moments that are merged in another order, a multiply-add elsewhere, a sum over other rows.

    torch rounds each sum of the weight's gradient twice in 16 bits; in FP32 the features beyond a
    multiple of 8 have another multiply-add in the gradient of x.
    """
    shares = compared(suffix, features)
    assert shares["out"] == shares["bias"] == 1.0
    assert shares["weight"] >= (1.0 if suffix == "-fp32" else 0.99)
    assert shares["x"] >= (0.9 if suffix == "-fp32" and features % 8 else 1.0)


@every_type
def test_every_bit_without_parameters(suffix):
    """A product with a weight of ones that is a multiply-add."""
    assert set(compared(suffix, 768, has_parameters=False).values()) == {1.0}


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("moments", [Statistics.TWO_PASS, Statistics.SQUARES])
def test_the_judge_agrees(kind, form, moments):
    """Each result of the equations in fractions; the sums are added ascending."""
    rng = np.random.default_rng(5)
    x, weight, bias = (exact_numbers(rng, s, kind) for s in ((4, 5), (5,), (5,)))
    plan = plan_of(LAYER_NORM, "torch-cpu" + {"bf16": "", "fp32": "-fp32"}[kind])
    plan = replace(plan, form=form, moments=moments, root=Root.DIVIDED)
    found = run(LAYER_NORM, plan, {"x": x, "weight": weight, "bias": bias}).outputs["out"]
    for row, given in zip(found, x, strict=True):
        y = [Fraction(v) for v in given]
        mean = to(total(y) / 5, "fp32")
        if moments is Statistics.SQUARES:
            squares = to(total([to(v * v, "fp32") for v in y]) / 5, "fp32")
            variance = max(to(squares - to(mean * mean, "fp32"), "fp32"), Fraction(0))
        else:
            away = [to(v - mean, "fp32") for v in y]
            variance = to(total([to(v * v, "fp32") for v in away]) / 5, "fp32")
        ve = to(variance + Fraction(float(np.float32(1e-5))), "fp32")
        rs = to(1 / to(root(ve), "fp32"), "fp32")
        for v, w, b, got in zip(y, weight, bias, row, strict=True):
            if form is Form.FOLDED:  # one multiply-add
                xn = to(v * rs + to(-mean * rs, "fp32"), "fp32")
            else:
                xn = to(to(v - mean, "fp32") * rs, "fp32")
            assert Fraction(float(got)) == to(to(xn * Fraction(w) + Fraction(b), "fp32"), kind)


@pytest.mark.parametrize("moments", [Statistics.VECTORS, Statistics.THREADS])
@pytest.mark.parametrize("features", [4, 36, 1044])
def test_moments_in_one_pass_are_the_moments(moments, features):
    """A part of a row that is left out or counted twice; here every step is in binary64."""
    x = 3.0 + np.random.default_rng(features).normal(size=(3, features))
    plan = replace(plan_of(LAYER_NORM, "exact"), moments=moments)
    found = run(LAYER_NORM, plan, {"x": x}).outputs["out"]
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_threads_read_four_features():
    """A row whose last features nobody reads."""
    with pytest.raises(ValueError, match=r"x of 6 features: .* give a multiple of 4"):
        run(LAYER_NORM, "torch-cuda", {"x": np.ones((2, 6))})
