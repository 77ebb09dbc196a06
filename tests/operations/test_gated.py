"""silu, gated layers, additions and embeddings: torch's bits on a CPU, and formulas."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from roundscope import emu
from roundscope.operations import OPERATIONS, run
from roundscope.operations.definitions.gated import Sigmoid
from roundscope.operations.run import plan_of
from tests.operations.by_torch import every_type, share, shares_of_gradients, torch_of
from tests.operations.exactly import numbers, to, total


@every_type
def test_every_bit_of_torch(suffix):
    """Another exp; a product with the other half that reads more bits than eager programs keep."""
    torch, dtype = torch_of(suffix)
    generator = torch.Generator().manual_seed(2)
    x, up = ((4.0 * torch.randn(300, 176, generator=generator)).to(dtype) for _ in range(2))
    silu = torch.nn.functional.silu(x)
    plan = f"torch-cpu{suffix}"
    assert share("silu", plan, {"x": x}, silu) == 1.0
    assert share("silu_mul", plan, {"gate": x, "up": up}, silu * up) == 1.0
    assert share("add", plan, {"a": x, "b": up}, x + up) == 1.0


@every_type
def test_every_bit_of_the_gradients(suffix):
    """A slope of two roundings; a gradient of the other half that reads silu in binary32."""
    torch, dtype = torch_of(suffix)
    generator = torch.Generator().manual_seed(3)
    gate, up = ((4.0 * torch.randn(300, 176, generator=generator)).to(dtype) for _ in range(2))
    silu, plan = torch.nn.functional.silu, f"torch-cpu{suffix}"
    assert shares_of_gradients("silu", plan, silu, {"x": gate}) == {"x": 1.0}
    found = shares_of_gradients(
        "silu_mul", plan, lambda gate, up: silu(gate) * up, {"gate": gate, "up": up}
    )
    assert found == {"gate": 1.0, "up": 1.0}


@every_type
def test_every_bit_of_an_embedding(suffix):
    """Rows of other tokens; a scale that keeps more bits than the type of the table."""
    torch, dtype = torch_of(suffix)
    table = torch.randn(50, 24, generator=torch.Generator().manual_seed(4)).to(dtype)
    tokens = torch.arange(63).reshape(7, 9) % 50
    rows = torch.nn.functional.embedding(tokens, table)
    given = {"weight": table, "tokens": tokens}
    assert share("embedding", f"torch-cpu{suffix}", given, rows) == 1.0
    wanted = rows * torch.tensor(24**0.5, dtype=dtype)
    assert share("embedding", f"torch-cpu{suffix}", given, wanted, scale=24**0.5) == 1.0
    given["tokens"] = torch.randint(0, 12, (40, 9), generator=torch.Generator().manual_seed(5))
    found = shares_of_gradients(
        "embedding",
        f"torch-cpu{suffix}",
        lambda weight, tokens: torch.nn.functional.embedding(tokens, weight),
        given,
        ("tokens",),
    )
    assert found == {"weight": 1.0}


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_a_gradient_that_is_not_finite_stays_with_its_token(engine):
    """Zero times infinity in the rows of other tokens."""
    given = {"weight": np.ones((4, 2)), "tokens": np.array([0, 1, 1, 2, 2])}
    dout = np.array([[1.0, np.inf], [2.0, -np.inf], [3.0, 1.0], [np.inf, np.nan], [-np.inf, 1.0]])
    found = run("embedding", "exact", given, gradients={"out": dout}, engine=engine).gradients
    wanted = [[1.0, np.inf], [5.0, -np.inf], [np.nan, np.nan], [0.0, 0.0]]
    assert np.array_equal(found["weight"], wanted, equal_nan=True)


def test_the_judge_of_an_embedding_s_gradient_agrees():
    """Tokens that are added in another order, or in more bits."""
    rng = np.random.default_rng(6)
    dout, tokens = numbers(rng, (30, 2), "bf16"), rng.integers(0, 3, 30)
    given = {"weight": np.zeros((3, 2)), "tokens": tokens}
    told = {"scale": 24**0.5}
    found = run("embedding", "torch-cpu", given, settings=told, gradients={"out": dout})
    scale = to(told["scale"], "bf16")
    for v, f in np.ndindex(3, 2):
        terms = [to(Fraction(x) * scale, "bf16") for x in dout[tokens == v, f]]
        assert Fraction(float(found.gradients["weight"][v, f])) == total(terms, "bf16")


@pytest.mark.parametrize("sigmoid", ["divided", "apart"])
def test_roundings_of_silu_one_by_one(sigmoid):
    """A quotient in place of a product, and the cast before the product with the other half."""
    rng = np.random.default_rng(5)
    x, up = (emu.round_to(3.0 * rng.normal(size=(40, 9)), "bf16") for _ in range(2))
    plan = plan_of(OPERATIONS["silu_mul"], "all:bf16")
    plan = replace(plan, sigmoid=Sigmoid(sigmoid))

    def to(v):
        return emu.round_to(v, "bf16")

    below = to(1.0 + to(np.exp(-x)))
    silu = to(x / below) if sigmoid == "divided" else to(x * to(1.0 / below))
    found = run("silu_mul", plan, {"gate": x, "up": up}).outputs["out"]
    assert np.array_equal(found.astype(np.float64), to(silu * up))
