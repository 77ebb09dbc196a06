"""Same-state pairs: equations 1 and 2 of arXiv 2510.04212 to the last bits of binary64, and what
breaks them.
"""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import DeltaFrom
from roundscope.attention.differentiable import Pulled, pulled
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model, plans

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
ALPHA = CONFIG.head_width**-0.5  # the scale of the scores
TOKENS = np.random.default_rng(2).integers(0, 32, (3, 13)).astype(np.int32)


def sharpened():
    """Weights whose attention is not uniform and whose gradients are not tiny, float64."""
    params = model.init(CONFIG, jax.random.key(3))
    params["layers"]["qkv"] = params["layers"]["qkv"] * 20.0
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), params)


def pair_of(low):
    """What both plans give from the q, k, v and dO that the exact one reaches, P K, and X; float64
    with a leading axis of layers.
    """

    def one(own, *x):
        return pulled(*x, plan=own, block_q=CONFIG.tile, block_k=CONFIG.tile, is_causal=True)

    with jax.enable_x64(True):
        tables = plans.uniform(CONFIG), plans.uniform(CONFIG, low)
        do, (x, q, k, v) = model.read(sharpened(), TOKENS, tables[0], CONFIG)
        found = [plans.over_layers(one, own, q, k, v, do) for own in tables]
        s = jnp.einsum("lbtnh,lbsnh->lbnts", q, k) * ALPHA
        p = jax.nn.softmax(jnp.where(jnp.tri(q.shape[2], dtype=bool), s, -jnp.inf), axis=-1)
        pk = jnp.einsum("lbnts,lbsnh->lbtnh", p, k)
    high, low = (Pulled(*map(np.asarray, own)) for own in found)
    error = low.delta - high.delta
    return SimpleNamespace(high=high, low=low, x=x, do=do, pk=np.asarray(pk), delta_error=error)


def equation_1(pair):
    """dQ_hp - dQ_lp = alpha diag(delta_lp - delta_hp) (P K)"""
    return pair.high.dq - pair.low.dq, ALPHA * pair.delta_error[..., None] * pair.pk


def equation_2(pair):
    """dW^Q_hp - dW^Q_lp = alpha sum_T (delta_lp - delta_hp)[T] (PK)[T]^T X[T]"""
    return [np.einsum("lbtd,lbtnh->lndh", pair.x, side) for side in equation_1(pair)]


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
    left, right = equation_1(pair)
    assert left.shape == (2, 3, 12, 2, 8) and near(left, right)
    left, right = equation_2(pair)
    assert left.shape == (2, 2, 16, 8) and near(left, right)


def test_delta_error_is_that_of_the_operand(pair):
    """An error of delta that comes from elsewhere: sum over features of dO (bf16(O) - O)."""
    assert np.array_equal(pair.high.out, pair.low.out) and np.array_equal(pair.high.dv, pair.low.dv)
    rounded = np.asarray(
        pair.high.out.astype(jnp.bfloat16), np.float64
    )  # through binary32, where no tie arises here
    do = np.asarray(pair.do)
    assert near(pair.delta_error, (do * (rounded - pair.high.out)).sum(-1), 1e-12)


def test_delta_from_p_dp_is_delta():
    """rowsum(P dP) against rowsum(dO O): two ways to one number in exact arithmetic, so the rest of
    the backward agrees too.
    """
    both = pair_of(replace(EXACT, delta_from=DeltaFrom.P_DP))
    assert near(both.low.delta, both.high.delta, 1e-13) and near(both.low.dq, both.high.dq, 1e-12)


def test_the_model_s_own_gradients_differ_by_equation_2(pair):
    """An equation that holds for tensors that the model does not use: whole gradients in float64,
    last layer, where both dO are one.
    """
    with jax.enable_x64(True):
        params = sharpened()
        tables = [plans.uniform(CONFIG, p) for p in (EXACT, EXACT.at("OD", "bf16"))]
        gradients = jax.jit(jax.value_and_grad(model.loss), static_argnums=3)
        (loss, high), (again, low) = (gradients(params, TOKENS, t, CONFIG) for t in tables)
    assert loss == again
    difference = np.moveaxis(
        np.asarray(high["layers"]["qkv"] - low["layers"]["qkv"])[-1, :, 0], 1, 0
    )
    assert near(difference, equation_2(pair)[1][-1], 1e-10)
    first = [np.asarray(g["layers"]["qkv"][0, :, 2]) for g in (high, low)]
    assert not np.array_equal(*first)  # what layer 1 does to dO reaches layer 0


def test_what_delta_does_not_explain_shows():
    """Equations that hold whatever the plans, because both sides come from one number."""
    assert not near(*equation_1(pair_of(EXACT.at("OD", "bf16").at("DS", "bf16"))), 1e-3)
