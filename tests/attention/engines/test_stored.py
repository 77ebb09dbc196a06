"""What fused kernels keep between forward and backward, in the types that a GPU has, and how they
round inputs there.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Injection, Plan, Site
from roundscope.attention.engines.kernels import engine
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.settings import Options, setup_of
from roundscope.attention.tiles.records import Inputs, Residuals, Results
from roundscope.emu import Rounding
from roundscope.emu.roundings.modes import BF16, FP16, RoundingMode, rounding
from roundscope.events.injection import Bias

PLAN = Plan.preset("fa2-bf16@hopper")
NAMES = "q", "k", "v", "out", "wide", "lse"
SIZES = {"q": (2, 32, 16), "k": (2, 32, 16), "v": (2, 32, 16), "lse": (2, 32)}


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def kept(plan, inject=()):
    """Return arrays whose numbers BF16 holds, but wide and lse, and what is kept of them."""
    like = jax.ShapeDtypeStruct((1, 32, 2, 16), jnp.float32)
    options = Options(block_q=32, block_k=32, inject=inject, engine="xla")
    setup, _ = setup_of(like, like, like, plan, options)
    rng = np.random.default_rng(1)
    x = {name: rng.integers(-9, 9, SIZES.get(name, (2, 32, 16))) / 8.0 for name in NAMES}
    x["wide"], x["lse"] = x["wide"] + 2.0**-40, x["lse"] + 2.0**-20
    with jax.enable_x64(True):
        arrays = tuple(jnp.asarray(x[name], jnp.float64) for name in NAMES)
        given = Residuals(Inputs(*arrays[:3]), Results(*arrays[3:]))
        return arrays, engine.stored(setup, None, given)


def flat(given):
    return (*given.inputs[:3], *given.results[:3])


@pytest.mark.parametrize(
    ("delta_from", "unread"),
    [
        (DeltaFrom.OUT, {"wide"}),
        (DeltaFrom.WIDE_O, {"out"}),
        (DeltaFrom.P_DP, {"out", "wide"}),
        (DeltaFrom.CENTERED, {"out", "wide"}),
    ],
)
def test_what_is_kept_comes_back(delta_from, unread):
    """An array kept as another's, an output kept that nobody reads, or one lost that delta reads;
    the output before its last rounding or L in a type that loses bits.
    """
    arrays, stored = kept(replace(PLAN, delta_from=delta_from))
    for name, before, array, after in zip(
        NAMES, arrays, flat(stored), flat(engine.loaded(stored)), strict=True
    ):
        assert after.dtype == jnp.float64 and after.shape == before.shape
        if name in unread:
            assert array is None and not np.asarray(after).any()
            continue
        assert np.array_equal(np.asarray(after), np.asarray(before))
        types = {"wide": "float64", "lse": "float32"}
        assert array.dtype.name == types.get(name, "bfloat16"), name


@pytest.mark.parametrize("site", [Site.Q, Site.OUT])
def test_what_an_injection_made_is_kept_whole(site):
    """A number that no format has, rounded when it is kept."""
    _, stored = kept(PLAN, (Injection(site=site, what=Bias(value=2.0**-30)),))
    assert flat(stored)[NAMES.index(str(site).lower())].dtype == jnp.float64


@pytest.mark.parametrize(("r", "name"), [(BF16, "bfloat16"), (FP16, "float16")])
def test_inputs_are_rounded_by_the_device(r, name):
    x = jnp.asarray([1.0 + 2.0**-9, -3.0 - 2.0**-12, np.inf, -0.0], jnp.float32)
    found = engine.cast(r, x)
    assert found.dtype.name == name
    expected = np.asarray(x).astype(found.dtype)
    assert np.array_equal(np.asarray(found).view(np.int16), expected.view(np.int16))


@pytest.mark.parametrize(
    "r",
    [
        replace(BF16, mode=RoundingMode.STOCHASTIC),
        replace(BF16, mode=RoundingMode.TOWARD_ZERO),
        rounding("e5m2"),
        rounding("tf32"),
    ],
    ids=str,
)
def test_other_roundings_are_not(r: Rounding):
    """A rounding that no instruction of the device does, done by one."""
    x = jnp.ones(3, jnp.float32)
    assert engine.cast(r, x) is x


def test_binary64_is_rounded_once():
    """The device's conversion used for binary64 numbers, which it would round to binary32 first."""
    with jax.enable_x64(True):
        x = jnp.ones(3, jnp.float64)
        assert engine.cast(BF16, x) is x
