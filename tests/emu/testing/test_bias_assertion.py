"""The assertion of errors without a bias: how often it is wrong, and what it finds."""

import math
import re
from fractions import Fraction

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.emu.testing import assert_unbiased

ULP = 2.0**-7  # of bf16 in [1, 2)


def message_of(*args, **named) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_unbiased(*args, **named)
    return str(caught.value)


def fails(*args, **named) -> bool:
    try:
        assert_unbiased(*args, **named)
    except AssertionError:
        return True
    return False


def symmetric(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """Return independent errors that are symmetric about 0, of one of several distributions."""
    return {
        "uniform": lambda: rng.uniform(-0.5, 0.5, n),
        "coins": lambda: rng.choice([-0.5, 0.5], n),
        "rare": lambda: rng.choice([-1.0, 0.0, 1.0], n, p=[0.01, 0.98, 0.01]),
        "heavy": lambda: rng.standard_cauchy(n),
        "of several sizes": lambda: rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n),
    }[kind]()


@pytest.mark.parametrize("kind", ["uniform", "coins", "rare", "heavy", "of several sizes"])
@pytest.mark.parametrize("n", [3, 60])
def test_false_alarms_are_as_rare_as_promised(kind: str, n: int) -> None:
    """A limit from the normal distribution, which small samples and heavy tails exceed.

    With false_alarm=0.2 at most 0.2 of the calls may fail; of 800, more than 200 would be four
    standard deviations above that.
    """
    rng = np.random.default_rng(3)
    exact = 1.5 * rng.choice([-1.0, 1.0], (800, n))
    errors = np.array([symmetric(rng, kind, n) for _ in range(800)])
    alarms = sum(
        fails(y + d * ULP, y, "bf16", false_alarm=0.2) for y, d in zip(exact, errors, strict=True)
    )
    assert alarms <= 200


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (lambda y: -np.sign(y), "biased toward zero"),
        (lambda y: np.sign(y), "biased away from zero"),
        (lambda y: np.ones_like(y), "biased up"),
        (lambda y: -np.ones_like(y), "biased down"),
    ],
)
def test_each_direction_is_found_and_named(shift, words: str) -> None:
    """A bias along the numbers, which cancels between signs, or one that the message misnames."""
    rng = np.random.default_rng(4)
    exact = rng.uniform(1, 2, 4000) * rng.choice([-1.0, 1.0], 4000)
    noise = rng.uniform(-0.5, 0.5, 4000)
    assert_unbiased(exact + noise * ULP, exact, "bf16")
    message = message_of(exact + (noise + 0.05 * shift(exact)) * ULP, exact, "bf16", what="out")
    assert message.startswith(f"out: the errors are {words}")
    for part in ("ulp of bf16", "point toward zero", "4,000 that are independent", "because"):
        assert part in message


def test_truncation_to_bfloat16_is_found_in_200_numbers() -> None:
    """A cast that cuts the lower 16 bits; ml_dtypes' cast of the same numbers is not biased."""
    x = np.random.default_rng(5).standard_normal(200).astype(np.float32)
    cut = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert_unbiased(x.astype(ml_dtypes.bfloat16), x, "bf16")
    message = message_of(jnp.asarray(cut), jnp.asarray(x), "bf16")
    assert "toward zero" in message and "100 % point toward zero" in message


def test_the_message_has_the_numbers_of_the_definition() -> None:
    """A mean or a z of other units: S / sqrt(V) and S / n, computed here in fractions."""
    errors = [Fraction(k, 8) for k in (-3, -2, -4, -1, -3, 1, -2, -4, -4, -3)]
    exact = np.full(10, 1.5)
    actual = exact + np.array([float(e) for e in errors]) * ULP
    message = message_of(actual, exact, "bf16", false_alarm=0.9)
    z, mean = float(sum(errors)) / math.sqrt(sum(e * e for e in errors)), sum(errors) / 10
    found = re.search(r"up +mean (\S+) ulp of bf16, z = (\S+)", message)
    assert found is not None
    assert float(found[1]) == pytest.approx(float(mean), abs=0.005)
    assert float(found[2]) == pytest.approx(z, abs=0.005)
    assert f"limit of {math.sqrt(2 * math.log(4 / 0.9)):.3g}" in message
    assert "10 of 10 numbers have an error, of which 90 % point toward zero" in message
    assert "index 2" in message and "error     -0.5 ulp of bf16" in message


def test_units_that_share_an_error_count_once() -> None:
    """Numbers of one row that share an error, counted as a thousand independent ones."""
    rng = np.random.default_rng(8)
    row = rng.uniform(-0.5, 0.5, 20)
    exact = np.full((20, 1000), 1.5)
    actual = exact + row[:, None] * ULP
    assert fails(actual, exact, "bf16")
    assert_unbiased(actual, exact, "bf16", groups=0)
    assert_unbiased(actual.T, exact.T, "bf16", groups=-1)
    names = np.broadcast_to(np.arange(20)[:, None] * 7 - 3, exact.shape)
    assert_unbiased(actual, exact, "bf16", groups=names)
    shifted = actual + ULP
    messages = [message_of(shifted, exact, "bf16", groups=g, false_alarm=0.1) for g in (0, names)]
    assert messages[0] == messages[1] and "20 that are independent" in messages[0]


def test_numbers_that_are_not_finite() -> None:
    """An infinity in the output, which would make every sum NaN and every comparison false."""
    exact = np.array([1.0, 2.0, np.inf, np.nan])
    assert_unbiased(np.array([1.0, 2.0, 0.0, 1.0]), exact, "bf16")
    message = message_of(np.array([1.0, np.nan, 0.0, 1.0]), exact, "bf16")
    assert "1 of 4 numbers are not finite" in message and "index 1" in message
    assert "shape (4,), exact (2, 2)" in message_of(exact, exact.reshape(2, 2), "bf16")
    assert_unbiased(np.zeros(0), np.zeros(0), "bf16")


def test_arguments_that_are_refused() -> None:
    """A probability in per cent, or groups that are floats."""
    x = np.ones(3)
    with pytest.raises(ValueError, match="false_alarm=5"):
        assert_unbiased(x, x, "bf16", false_alarm=5)
    with pytest.raises(ValueError, match="axis=1"):
        assert_unbiased(x, x, "bf16", groups=1)
    with pytest.raises(ValueError, match=r"groups: shape \(2,\)"):
        assert_unbiased(x, x, "bf16", groups=np.array([1, 2]))
    with pytest.raises(TypeError, match="groups: dtype float64"):
        assert_unbiased(x, x, "bf16", groups=x)
