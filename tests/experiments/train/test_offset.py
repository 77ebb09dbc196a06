"""The error injected into delta's operand: which rows, how large, which sign, and what it does to a
training step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model, offset, step
from roundscope.experiments.train.gpt.offset import BIAS, FIXED, NOISE, Wrong
from roundscope.experiments.train.gpt.plans import by_arm, uniform

CONFIG = Config(
    layers=2,
    heads=2,
    width=16,
    context=12,
    batch=3,
    vocab=16,
    plan="fp32",
    matmul="fp32",
    steps=4,
    warmup=1,
)


def everywhere(c, kind, heads=3, rows=False):
    """The same in all heads of two layers."""
    return ((Wrong(c=c, kind=kind, everywhere=rows),) * heads,) * 2


def one(kind=BIAS, c=1.0, seed=0, at=0, heads=3, rows=False):
    arms = offset.offsets([everywhere(c, kind, heads, rows)], [seed])
    return jax.tree.map(lambda x: jnp.asarray(x[0]), arms)._replace(step=jnp.int32(at))


def arrays(seed=0, shape=(2, 9, 3, 8)):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape).astype(np.float32)) for _ in range(3)]


def tied(q, k):
    """Keys 1, 2 and 5 are equal and a query from 5 on likes them best."""
    direction = np.zeros(q.shape[-1], np.float32)
    direction[0] = 1
    k = k.at[:, jnp.array([1, 2, 5])].set(40 * direction)
    return q.at[:, 5:].set(direction), k


def test_size_sign_and_rows_by_hand():
    """A row without a tie that is hit, keys that are not tied or not seen counted, an ulp of
    another number, a factor of 2.
    """
    q, k, v = arrays()
    q, k = tied(q, k)
    got = np.asarray(offset.error(one(c=4.0), 0, q, k, v))
    s = np.einsum("btnh,bsnh->bnts", q, k, dtype=np.float64) * 8**-0.5
    s = np.where(np.tril(np.ones((9, 9), bool)), s, -np.inf)
    want = np.zeros(v.shape)
    for b, n, t in np.ndindex(2, 3, 9):
        keys = np.flatnonzero(s[b, n, t] >= s[b, n, t].max() - 1.955e-3)
        if len(keys) > 1:
            own = np.asarray(v, np.float64)[b, keys, n]
            want[b, t, n] = (
                4 * np.sign(own.sum(0)) * 2.0 ** (np.floor(np.log2(np.abs(own).mean(0))) - 8)
            )  # BF16 has 8 bits: ulp 2^(e-7)
    assert (want != 0).any(axis=(0, 2, 3)).tolist()[5:] == [True] * 4 and (want == 0).all(
        axis=-1
    ).any()
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_all_rows_follow_the_largest_key():
    """Rows that are left out still, or rows with several P = 1 whose error is no longer the
    same.
    """
    q, k, v = arrays()
    few, every = (np.asarray(offset.error(one(rows=rows), 0, q, k, v)) for rows in (False, True))
    assert not few.any()  # no ties in random scores
    s = np.where(
        np.tril(np.ones((9, 9), bool)),
        np.einsum("btnh,bsnh->bnts", q, k, dtype=np.float64),
        -np.inf,
    )
    largest = np.take_along_axis(
        np.asarray(v).swapaxes(1, 2), s.argmax(-1)[..., None], axis=2
    ).swapaxes(1, 2)
    np.testing.assert_array_equal(
        every, np.sign(largest) * 2.0 ** (np.floor(np.log2(np.abs(largest))) - 8)
    )
    q, k = tied(q, k)
    few, every = (np.asarray(offset.error(one(rows=rows), 0, q, k, v)) for rows in (False, True))
    np.testing.assert_array_equal(every[few != 0], few[few != 0])
    assert (few != 0).any() and (every != 0).all()


def test_heads_and_layers_have_their_own():
    """An error in another layer or head than the one that has it, or one size or kind for all."""
    q, k, v = arrays(1)
    q, k = tied(q, k)
    a, b = Wrong(c=2.0, kind=BIAS), Wrong(c=-3.0, kind=FIXED)
    arms = offset.offsets([((None, a, b), (b, None, None))], [5])
    own = jax.tree.map(lambda x: jnp.asarray(x[0]), arms)
    whole = {
        kind: [np.asarray(offset.error(one(kind, seed=5), layer, q, k, v)) for layer in (0, 1)]
        for kind in (BIAS, FIXED)
    }
    for layer, factors in enumerate(
        [{BIAS: (0, 2, 0), FIXED: (0, 0, -3)}, {BIAS: (0, 0, 0), FIXED: (-3, 0, 0)}]
    ):
        want = sum(whole[kind][layer] * np.float32(c)[:, None] for kind, c in factors.items())
        np.testing.assert_array_equal(np.asarray(offset.error(own, layer, q, k, v)), want)


def test_kinds_hit_the_same_rows_with_the_same_sizes():
    """Noise that is smaller than the bias, or a control on other rows: then a difference says
    nothing about sign.
    """
    q, k, v = arrays(1)
    q, k = tied(q, k)
    bias, noise, fixed = (
        np.asarray(offset.error(one(kind), 1, q, k, v)) for kind in (BIAS, NOISE, FIXED)
    )
    np.testing.assert_array_equal(np.abs(noise), np.abs(bias))
    np.testing.assert_array_equal(np.abs(fixed), np.abs(bias))
    hit = bias != 0
    assert 0.3 < (noise[hit] > 0).mean() < 0.7
    turned = np.where(hit, fixed / np.where(hit, bias, 1), 0)
    assert all(
        len(set(turned[:, :, n, h][hit[:, :, n, h]])) == 1 for n, h in np.ndindex(3, 8)
    )  # one sign per head and feature
    assert {-1.0, 1.0} <= set(turned.ravel())


def test_noise_is_fresh_and_the_others_stay():
    """Noise that is the same in every step is a bias; a sign that changes with the step is
    noise.
    """
    q, k, v = arrays(2)
    q, k = tied(q, k)
    for kind, changes in ((NOISE, True), (BIAS, False), (FIXED, False)):
        now, later = (np.asarray(offset.error(one(kind, at=at), 0, q, k, v)) for at in (3, 4))
        assert np.array_equal(now, later) is not changes
    assert not np.array_equal(*(offset.error(one(NOISE, seed=s), 0, q, k, v) for s in (0, 1)))
    assert not np.array_equal(*(offset.error(one(NOISE), layer, q, k, v) for layer in (0, 1)))


@pytest.mark.parametrize("x", [1.0, 1.9999999, -3.0, 0.007, 1e30])
def test_half_ulp(x):
    """An exponent one too high or low."""
    mantissa, exponent = np.frexp(np.float32(x))  # |mantissa| in [1/2, 1)
    assert 0.5 <= abs(mantissa) < 1
    assert float(offset.half_ulp(jnp.float32(x))) == 2.0 ** (int(exponent) - 1 - 8)


@pytest.mark.thorough
def test_only_the_query_and_key_path_feels_it():
    """An error that changes the loss, or the gradient of V; that c = 0 is no error to the bit is
    tests/attention/test_delta_error.py.
    """
    params = model.init(CONFIG, jax.random.key(0))
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 4, (3, 13)), jnp.int32)
    plans = uniform(CONFIG)
    run = jax.jit(jax.value_and_grad(model.loss), static_argnums=3)
    none, some = (run(params, tokens, plans, CONFIG, one(c=c, heads=2)) for c in (0.0, 64.0))
    assert float(none[0]) == float(some[0])
    before, after = none[1]["layers"], some[1]["layers"]
    np.testing.assert_array_equal(
        before["qkv"][1, :, 2], after["qkv"][1, :, 2]
    )  # of V, in the last layer
    assert not np.array_equal(before["qkv"][1, :, :2], after["qkv"][1, :, :2])


@pytest.mark.thorough
def test_arms_of_one_executable_have_their_own():
    """An arm that trains with its neighbour's error, or with its place in the launch."""
    plans, lr = by_arm([uniform(CONFIG)] * 3), np.full(3, 1e-2, np.float32)
    tokens = np.random.default_rng(4).integers(0, 4, (3, 13))
    given = [everywhere(c, kind, heads=2) for c, kind in ((0.0, BIAS), (64.0, BIAS), (64.0, NOISE))]

    def trained(order):
        state = step.start(CONFIG, 3)
        for _ in range(4):
            state, losses, _ = step.advance(CONFIG)(
                state, tokens, plans, lr, offset.offsets([given[i] for i in order], [0] * 3)
            )
        return np.asarray(losses)

    one, other = trained([0, 1, 2]), trained([2, 0, 1])
    assert len(set(one.tolist())) == 3
    np.testing.assert_array_equal(other, one[[2, 0, 1]])
