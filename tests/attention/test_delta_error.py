"""`attend(delta_error=...)`: an error of the output as delta reads it, as data."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan, Site, attend
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.plans.traced import head_plans
from tests.checks.engines import bits, normal

B, T, S, N, G, H = 2, 11, 13, 4, 2, 8
Q, K, V = normal(1, B, T, N, H), normal(2, B, S, G, H), normal(3, B, S, G, H)
DO, E = normal(4, B, T, N, H), 0.1 * normal(5, B, T, N, H)
OPTIONS = {"block_q": 4, "block_k": 8, "scale": 0.25}


def pulled(e, plan="fp32", do=DO, dtype=np.float32):
    """Output and (dQ, dK, dV)."""
    arrays = [jnp.asarray(x.astype(dtype)) for x in (Q, K, V)]
    e = None if e is None else jnp.asarray(e.astype(dtype))
    out, pull = jax.vjp(
        lambda q, k, v: attend(q, k, v, plan=plan, delta_error=e, **OPTIONS), *arrays
    )
    return [np.asarray(x) for x in (out, *pull(jnp.asarray(do.astype(dtype))))]


def test_gradients_move_as_equation_1_says():
    """An error that reaches the output, is added twice, is normalised, or meets the wrong row, head
    or sign.
    """
    with jax.enable_x64(True):
        moved, plain = (pulled(e, "exact", dtype=np.float64) for e in (E, None))
    q, do, e = (x.astype(np.float64) for x in (Q, DO, E))
    k = K.astype(np.float64).repeat(N // G, axis=2)
    p = np.exp(0.25 * np.einsum("btnh,bsnh->bnts", q, k))
    p /= p.sum(-1, keepdims=True)
    error = np.einsum("btnh,btnh->bnt", do, e)  # of delta
    dq = -0.25 * np.einsum("bnt,bnts,bsnh->btnh", error, p, k)  # arXiv 2510.04212, equation 1
    dk = -0.25 * np.einsum("bnt,bnts,btnh->bsnh", error, p, q).reshape(B, S, G, N // G, H).sum(3)
    np.testing.assert_array_equal(moved[0], plain[0])
    np.testing.assert_allclose(moved[1] - plain[1], dq, atol=1e-14)
    np.testing.assert_allclose(moved[2] - plain[2], dk, atol=1e-14)
    np.testing.assert_array_equal(moved[3], plain[3])


@pytest.mark.parametrize("source", [DeltaFrom.OUT, DeltaFrom.WIDE_O])
def test_it_is_added_before_od_rounds(source):
    """An error added to the rounded operand.

    The output, rounded to 8 bits, is a number that OD holds: a sixteenth of its ulp is lost in the
    rounding, and one ulp is not.
    """
    plan = (
        replace(Plan.preset("fa2-bf16"), delta_from=source).at(Site.OUT, "bf16").at(Site.OD, "bf16")
    )
    out, *plain = pulled(None, plan)
    ulp = 2.0 ** (np.floor(np.log2(np.abs(out))) - 7)
    small = pulled(ulp / 16, plan)[1:]
    large = pulled(ulp * np.sign(out), plan)[1:]
    if source is DeltaFrom.OUT:
        assert all(np.array_equal(bits(x), bits(y)) for x, y in zip(small, plain, strict=True))
    assert not np.array_equal(large[0], plain[0])


def test_zero_and_none_are_the_same_bits():
    """An argument that changes the arithmetic by being there."""
    for plan in ("qiu-yao", "fp32"):
        for x, y in zip(pulled(np.zeros_like(E), plan), pulled(None, plan), strict=True):
            assert np.array_equal(bits(x), bits(y))


@pytest.mark.thorough
def test_it_is_data_under_vmap_and_has_no_derivative():
    """An error that is compiled in, an entry that gets its neighbour's, or a gradient that flows
    into what was injected.
    """
    plans = head_plans([Plan.preset("fp32")] * N)
    square = {"plan": plans, "is_causal": True, "block_q": 4, "block_k": 4}
    q, k, v = (jnp.asarray(normal(7 + i, B, T, N, H)) for i in range(3))

    def dq(c, e):
        return jax.grad(lambda q: (attend(q, k, v, delta_error=c * e, **square) * DO).sum())(q)

    sizes = jnp.asarray([0.0, 1.0, 3.0], jnp.float32)
    many = jax.jit(jax.vmap(dq, in_axes=(0, None)))(sizes, jnp.asarray(E))
    np.testing.assert_allclose(many[2] - many[0], 3 * (many[1] - many[0]), atol=2e-6)
    assert np.abs(many[1] - many[0]).max() > 1e-3
    none = jax.grad(lambda e: (attend(q, k, v, delta_error=e, **square) * DO).sum())(jnp.asarray(E))
    assert not np.asarray(none).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delta_error": E[:, :3]}, ("delta_error", "(2, 3, 4, 8)", "(2, 11, 4, 8)")),
        ({"engine": "numpy"}, ("delta_error", "engine='xla'")),
        (
            {"plan": replace(Plan.preset("fp32"), delta_from=DeltaFrom.P_DP)},
            ("delta_error", "P_DP"),
        ),
    ],
)
def test_errors_name_the_argument(change, words):
    """An error that is asked for and silently left out."""
    options = {"plan": "fp32", "engine": "xla", "delta_error": E} | OPTIONS | change
    with pytest.raises(ValueError, match="delta_error") as caught:
        attend(Q, K, V, **options)
    for word in words:
        assert word in str(caught.value)
