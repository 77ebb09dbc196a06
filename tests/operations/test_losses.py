"""log_softmax and cross entropy: torch's bits on a CPU, and a judge."""

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from roundscope import emu
from roundscope.operations import OPERATIONS, run
from roundscope.operations.definitions.losses import Form
from roundscope.operations.functions import Exponential
from roundscope.operations.run import plan_of
from tests.operations.by_torch import every_type, share, shares_of_gradients, torch_of
from tests.operations.by_torch import numbers as in_numpy
from tests.operations.exactly import numbers, to, total


@every_type
@pytest.mark.parametrize("classes", [256, 1000, 32000])
def test_every_bit_of_torch(suffix, classes):
    """The types of the row's sum and its logarithm, another exp; in FP32 a logarithm of torch may
    differ by an ulp, and with it a row.
    """
    torch, dtype = torch_of(suffix, "AVX512")
    generator = torch.Generator().manual_seed(classes)
    x = (3.0 * torch.randn(50, classes, generator=generator)).to(dtype)
    least = 0.95 if suffix == "-fp32" else 1.0
    wanted = torch.log_softmax(x, -1)
    assert share("log_softmax", f"torch-cpu{suffix}", {"x": x}, wanted) >= least
    target = torch.randint(0, classes, (50,), generator=generator)
    target[3] = -100
    wanted = torch.nn.functional.cross_entropy(x, target, reduction="none")
    given = {"x": x, "target": target}
    assert share("cross_entropy", f"torch-cpu{suffix}", given, wanted, reduction="none") >= least


@every_type
@pytest.mark.parametrize("rows", [1, 17, 999, 5000])
def test_every_bit_of_a_sum_and_a_mean(suffix, rows):
    """Blocks of rows that begin with the first one; a number of rows that BF16 does not have."""
    torch, dtype = torch_of(suffix, "AVX512")
    loss, generator = torch.nn.functional.cross_entropy, torch.Generator().manual_seed(rows)
    x = (3.0 * torch.randn(rows, 16, generator=generator)).to(dtype)
    target = torch.randint(0, 16, (rows,), generator=generator)
    if rows > 17:
        target[torch.tensor([3, 17])] = -100
    plan = plan_of(OPERATIONS["cross_entropy"], f"torch-cpu{suffix}")
    each = in_numpy(loss(x, target, reduction="none"))[:, None]
    total = emu.dot(each[1:].T, np.ones((rows - 1, 1)), plan.accumulator("TOTAL"), init=each[:1])
    assert total == in_numpy(loss(x, target, reduction="sum"))
    if suffix != "-fp32":  # in which a logarithm of torch may be another one
        given = {"x": x, "target": target}
        for reduction in ("sum", "mean"):
            wanted = loss(x, target, reduction=reduction)
            assert share("cross_entropy", plan, given, wanted, reduction=reduction) == 1.0


@every_type
def test_every_bit_of_the_gradient_of_log_probabilities(suffix):
    """A difference of two roundings."""
    torch, dtype = torch_of(suffix, "AVX512")
    x = (3.0 * torch.randn(50, 1000, generator=torch.Generator().manual_seed(8))).to(dtype)
    found = shares_of_gradients(
        "log_softmax", f"torch-cpu{suffix}", lambda x: torch.log_softmax(x, -1), {"x": x}
    )
    assert found["x"] >= (0.98 if suffix == "-fp32" else 1.0)  # rows of another logarithm


@every_type
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_every_bit_of_the_gradient_of_a_loss(suffix, reduction):
    """A count of rows that do not count, a gradient at the wrong class."""
    torch, dtype = torch_of(suffix, "AVX512")
    generator = torch.Generator().manual_seed(6)
    x = (3.0 * torch.randn(50, 1000, generator=generator)).to(dtype).requires_grad_()
    target = torch.randint(0, 1000, (50,), generator=generator)
    target[3] = -100
    loss = torch.nn.functional.cross_entropy(x, target, reduction=reduction)
    after = torch.randn(loss.shape, generator=generator).to(dtype)
    loss.backward(after)
    found = run(
        "cross_entropy",
        f"torch-cpu{suffix}",
        {"x": in_numpy(x), "target": target.numpy()},
        gradients={"loss": in_numpy(after)},
        settings={"reduction": reduction},
    ).gradients["x"]
    assert np.array_equal(found, in_numpy(x.grad))


def precise(function, x):
    """exp or ln of a fraction in 200 bits."""
    with mpmath.workprec(200):
        y = getattr(mpmath, function)(mpmath.mpf(x.numerator) / x.denominator)
        return Fraction(int(mpmath.floor(mpmath.ldexp(y, 180)))) / 2**180


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_the_judge_agrees(form, kind):
    """A maximum that is left in, a sum of other rows, a mean over rows that do not count."""
    rng = np.random.default_rng(7)
    x, target = numbers(rng, (5, 6), kind), np.array([0, 5, -100, 2, 2])
    plan = plan_of(OPERATIONS["cross_entropy"], "torch-cpu" + {"bf16": "", "fp32": "-fp32"}[kind])
    plan = replace(plan, form=form, exp=Exponential.CORRECT)
    plan = plan.adding("S", emu.Accumulator()).at("S", "fp32").at("LN", "fp32")
    found = run("cross_entropy", plan, {"x": x, "target": target}).outputs["loss"]
    rows = []
    for row, t in zip(x, target, strict=True):
        row = [Fraction(v) for v in row]
        d = [to(v - max(row), "fp32") for v in row]
        ln = to(precise("log", total([to(precise("exp", v), "fp32") for v in d])), "fp32")
        lse = to(max(row) + ln, "fp32")
        if t == -100:
            rows.append(Fraction(0))
            continue
        lp = row[t] - lse if form is Form.LSE else d[t] - ln
        rows.append(to(-to(lp, "fp32"), kind))
    wanted = to(total([*rows[1:], rows[0]], kind) / 4, kind)
    assert found.shape == () and Fraction(float(found)) == wanted


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_reductions(engine):
    """A sum that is a mean, a loss of each row in another shape, an unknown word."""
    x, target = np.zeros((2, 3, 4), np.float32), np.array([[0, 1, -100], [3, 3, 3]])
    each = math.log(4.0)
    for reduction, wanted in (
        ("none", np.where(target < 0, 0.0, each)),
        ("sum", 5 * each),
        ("mean", each),
    ):
        given = {"x": x, "target": target}
        settings = {"reduction": reduction}
        got = run("cross_entropy", "exact", given, settings=settings, engine=engine)
        np.testing.assert_allclose(got.outputs["loss"], wanted, rtol=1e-14)
    with pytest.raises(ValueError, match="reduction='man': give mean, sum or none"):
        run("cross_entropy", "exact", given, settings={"reduction": "man"}, engine=engine)


def test_exact_has_the_whole_range():
    """exp of -500, which attention's exp does not go down to."""
    x = np.array([[0.0, -500.0]])
    found = run("log_softmax", "exact", {"x": x}).outputs["out"]
    assert found.tolist() == [[0.0, -500.0]]
