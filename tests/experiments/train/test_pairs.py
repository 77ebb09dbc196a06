"""Same-state pairs: equations 1 and 2 of arXiv 2510.04212 to the last bits of binary64, and what
breaks them.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import DeltaFrom
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model, pairs, plans
from roundscope.tools.errors import UsageError

pytestmark = pytest.mark.thorough  # minutes of training and replays


CONFIG = Config(
    layers=2,
    heads=2,
    width=16,
    context=12,
    vocab=32,
    batch=3,
    plan="exact",
    sums="preset",
    matmul="fp32",
)
EXACT = plans.base(CONFIG)
TOKENS = np.random.default_rng(2).integers(0, 32, (3, 13)).astype(np.int32)


def sharpened():
    """Weights whose attention is not uniform and whose gradients are not tiny, float64."""
    params = model.init(CONFIG, jax.random.key(3))
    params["layers"]["qkv"] = params["layers"]["qkv"] * 20.0
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), params)


def pair_of(low):
    """Exact, and another plan."""
    with jax.enable_x64(True):
        return pairs.pair(
            sharpened(), TOKENS, plans.uniform(CONFIG), plans.uniform(CONFIG, low), CONFIG
        )


@pytest.fixture(scope="module")
def pair():
    """Exact, and exact but for the operand of delta in BF16."""
    return pair_of(EXACT.at("OD", "bf16"))


def near(left, right, tolerance=1e-11):
    size = np.abs(right).max()
    return size > 0.0 and np.abs(left - right).max() <= tolerance * size


def test_equations_1_and_2(pair):
    """A missing alpha, a sign, an axis of heads and features in the wrong order, arithmetic
    narrower than binary64.
    """
    left, right = pairs.equation_1(pair)
    assert left.shape == (2, 3, 12, 2, 8) and near(left, right)
    left, right = pairs.equation_2(pair)
    assert left.shape == (2, 2, 16, 8) and near(left, right)


def test_delta_error_is_that_of_the_operand(pair):
    """An error of delta that comes from elsewhere: sum over features of dO (bf16(O) - O)."""
    assert np.array_equal(pair.high.out, pair.low.out) and np.array_equal(pair.high.dv, pair.low.dv)
    rounded = np.asarray(
        pair.high.out.astype(jnp.bfloat16), np.float64
    )  # through binary32, where no tie arises here
    with jax.enable_x64(True):
        seen, do = pairs._state(CONFIG)(sharpened(), TOKENS, plans.uniform(CONFIG))
    assert near(pair.delta_error, (np.asarray(do) * (rounded - pair.high.out)).sum(-1), 1e-12)
    assert np.array_equal(pair.x, seen.x)


def test_delta_from_p_dp_is_delta():
    """rowsum(P dP) against rowsum(dO O): two ways to one number in exact arithmetic, so the rest of
    the backward agrees too.
    """
    both = pair_of(replace(EXACT, delta_from=DeltaFrom.P_DP))
    assert near(both.low.delta, both.high.delta, 1e-13) and near(both.low.dq, both.high.dq, 1e-12)


def test_atoms_add_up_to_equation_2(pair):
    """Factors of another head, layer or order of tokens."""
    whole = pairs.equation_2(pair)[1]
    for layer, head in ((0, 1), (1, 0)):
        own = pairs.atoms(pair, layer, head)
        assert own.weight.shape == (36,) and own.pk.shape == (36, 8) and own.x.shape == (36, 16)
        assert near(np.einsum("t,td,th->dh", own.weight, own.x, own.pk), whole[layer, head], 1e-13)


def test_the_model_s_own_gradients_differ_by_equation_2(pair):
    """An equation that holds for tensors that the model does not use: whole gradients in float64,
    last layer, where both dO are one.
    """
    with jax.enable_x64(True):
        params = sharpened()
        tables = [plans.uniform(CONFIG, p) for p in (EXACT, EXACT.at("OD", "bf16"))]
        (loss, high), (again, low) = (pairs.gradients(params, TOKENS, t, CONFIG) for t in tables)
    assert loss == again
    difference = np.moveaxis(
        np.asarray(high["layers"]["qkv"] - low["layers"]["qkv"])[-1, :, 0], 1, 0
    )
    assert near(difference, pairs.equation_2(pair)[1][-1], 1e-10)
    first = [np.asarray(g["layers"]["qkv"][0, :, 2]) for g in (high, low)]
    assert not np.array_equal(*first)  # what layer 1 does to dO reaches layer 0


def test_what_delta_does_not_explain_shows():
    """Equations that hold whatever the plans, because both sides come from one number."""
    assert not near(*pairs.equation_1(pair_of(EXACT.at("OD", "bf16").at("DS", "bf16"))), 1e-3)


def test_the_baseline_has_no_pair():
    """plan = "jax" emulates nothing."""
    with pytest.raises(UsageError, match="two emulated plans"):
        pairs.pair({}, TOKENS, None, None, replace(CONFIG, plan="jax"))
