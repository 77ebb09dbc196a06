"""`corrected`: exact gradients of a kernel whose delta is wrong by a known error."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import Plan, attend
from roundscope.jax import corrected
from tests.attention.jax import exact

Q, K, V, W = np.random.default_rng(0).standard_normal((4, 3, 16, 4, 8))


def gradients(attention, *arrays):
    with jax.enable_x64(True):
        out, pull = jax.vjp(attention, *map(jnp.asarray, arrays))
        return [np.asarray(x) for x in (out, *pull(jnp.asarray(W)))]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "remat"])
def test_gradients_are_exact_to_1e_12(is_causal, wrap):
    own = wrap(partial(corrected(exact.faulty(0.3)), is_causal=is_causal))
    expected = exact.attention(Q, K, V, W, is_causal=is_causal)
    for found, x in zip(gradients(own, Q, K, V), expected, strict=True):
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)
    # and the fault is large enough to be seen
    uncorrected = gradients(partial(exact.faulty(0.3), is_causal=is_causal), Q, K, V)
    assert abs(uncorrected[1] - expected[1]).max() > 0.01
    assert abs(uncorrected[2] - expected[2]).max() > 0.01


def test_without_a_scale():
    own = corrected(exact.faulty_without_scale(0.3))
    expected = exact.attention(Q, K, V, W, is_causal=True)
    for found, x in zip(gradients(own, Q, K, V), expected, strict=True):
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


def test_a_scale_and_grouped_queries():
    k, v = K[:, :, :2], V[:, :, :2]
    own = partial(corrected(exact.faulty(0.3)), scale=0.7)
    out, dq, dk, dv = gradients(own, Q, k, v)
    expected = exact.attention(Q, *(np.repeat(x, 2, axis=2) for x in (k, v)), W, scale=0.7)
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(dq, expected[1], rtol=0, atol=1e-12)
    for found, x in ((dk, expected[2]), (dv, expected[3])):
        whole = x.reshape(3, 16, 2, 2, 8).sum(3)
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)


def test_an_emulated_plan_in_bf16_comes_nearer_to_exact():
    """A plan whose delta reads an O of two bits: what is left is the plan's other errors."""
    biased = Plan.preset("fa2-bf16").changed("OD=e8m1:toward-zero")
    q, k, v, w = (jnp.asarray(x, "bfloat16") for x in (Q, K, V, W))
    expected = exact.attention(*(np.asarray(x, "f8") for x in (q, k, v, w)), is_causal=True)

    def errors(attention):
        out, pull = jax.vjp(partial(attention, is_causal=True), q, k, v)
        found = pull(w.astype(out.dtype))
        return out, [
            np.linalg.norm(np.asarray(x, "f8") - y) / np.linalg.norm(y)
            for x, y in zip(found, expected[1:], strict=True)
        ]

    out, before = errors(partial(attend, plan=biased))
    same, after = errors(corrected(partial(attend, plan=biased)))
    _, plain = errors(partial(attend, plan="fa2-bf16"))
    assert np.array_equal(out, same)
    assert before[0] > 10 * plain[0] and before[1] > 10 * plain[1]
    assert after[0] < 2 * plain[0] and after[1] < 2 * plain[1] and after[2] == plain[2]


def test_it_is_of_a_function():
    q = jnp.ones((1, 4, 2, 8))
    for option in ({"softcap": 0.5}, {"sinks": jnp.zeros(2)}):
        with pytest.raises(ValueError, match=rf"{next(iter(option))}=.* not modelled"):
            corrected(partial(attend, plan="fp32"))(q, q, q, **option)
    with pytest.raises(TypeError, match="attention='fa2': give a function"):
        corrected("fa2")
