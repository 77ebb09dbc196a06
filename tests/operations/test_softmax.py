"""softmax: torch's bits on a CPU, and a judge."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from roundscope.emu.sums.accumulator import Order
from roundscope.experiments.questions.kernels.passport import record
from roundscope.experiments.questions.kernels.passport.writer import calls
from roundscope.operations import run
from roundscope.operations.definitions.softmax import Form, torch_cuda
from tests.operations.by_torch import every_type, share, shares_of_gradients, torch_of
from tests.operations.exactly import numbers, to, total
from tests.operations.test_losses import precise

PASSPORT = Path(__file__).parents[2] / "docs" / "runs" / "passport.json"


@every_type
@pytest.mark.parametrize("classes", [64, 100, 1000, 4096])
def test_every_bit_of_torch(suffix, classes):
    """Another exp or order, a division in place of a product; in 16 bits torch adds the numbers
    beyond a multiple of 16 last.
    """
    torch, dtype = torch_of(suffix, "AVX512")
    x = (3.0 * torch.randn(30, classes, generator=torch.Generator().manual_seed(1))).to(dtype)
    least = 1.0 if suffix == "-fp32" or classes % 16 == 0 else 0.99
    plan, softmax = f"torch-cpu{suffix}", lambda x: torch.softmax(x, -1)
    assert share("softmax", plan, {"x": x}, softmax(x)) >= least
    least = 1.0 if least == 1.0 else 0.95
    assert shares_of_gradients("softmax", plan, softmax, {"x": x})["x"] >= least


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_the_judge_agrees(form, kind):
    """A maximum that is left in, a quotient that is rounded elsewhere."""
    x = numbers(np.random.default_rng(7), (5, 6), kind)
    plan = "torch-cuda" + {"bf16": "", "fp32": "-fp32"}[kind]
    plan = f"{plan}; exp=correct S.sum=ascending form={form}"
    found = run("softmax", plan, {"x": x}).outputs["out"]
    for row, given in zip(found, x, strict=True):
        y = [Fraction(v) for v in given]
        e = [to(precise("exp", to(v - max(y), "fp32")), "fp32") for v in y]
        s = total(e)
        for v, got in zip(e, row, strict=True):
            p = v * to(1 / s, "fp32") if form is Form.RECIPROCAL else v / s
            assert Fraction(float(got)) == to(to(p, "fp32"), kind)


def test_rows_of_the_cuda_plan():
    """The kernel for other numbers of a row."""
    orders = [torch_cuda(n, b).accumulator("S") for n, b in ((2048, 16), (4096, 32), (32000, 32))]
    assert [a.order for a in orders] == [Order.STRIDED, Order.OCTET_STRIDES, Order.QUAD_STRIDES]


def test_a_sum_of_exponentials_that_are_not_rounded():
    """A sum of the exponentials that EXP has rounded, in fractions; and of the real library."""
    x = numbers(np.random.default_rng(8), (5, 6), "bf16")
    found = run("softmax", "jax-cpu", {"x": x}).outputs["out"]
    for row, given in zip(found, x, strict=True):
        y = [Fraction(v) for v in given]
        e = [to(precise("exp", to(v - max(y), "bf16")), "fp32") for v in y]
        for v, got in zip(e, row, strict=True):
            want = to(to(to(v, "bf16") / to(total(e), "bf16"), "fp32"), "bf16")
            assert Fraction(float(got)) == want
    whole = record.read(PASSPORT)
    [jax] = [
        r for r in whole.releases
        if (r.kernel, r.type, r.version) == ("jax-softmax", "bf16", "0.10.2")
    ]  # fmt: skip
    found = run("softmax", "jax-cpu", calls.inputs("softmax")).outputs["out"]
    assert calls.digest(found) == whole.bits[jax.bits].results["out"].digest
