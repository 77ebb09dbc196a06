"""The Hadamard rotation of Q and K."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan, attend, rotated
from tests.checks.engines import normal


def matrix(h, seed=0):
    """(R, R'): the rotation of the unit vectors."""
    unit = np.eye(h)[None, :, None, :]
    return tuple(x[0, :, 0] for x in rotated(unit, unit, seed=seed))


@pytest.mark.parametrize("h", [1, 2, 8, 64, 128])
def test_it_is_orthogonal_with_entries_of_one_size(h):
    """Catches a factor that is no power of two, a butterfly that pairs wrong features, signs that
    differ between q and k.
    """
    r, s = matrix(h)
    np.testing.assert_array_equal(r @ s.T, np.eye(h))
    for x in (r, s):
        assert np.unique(np.abs(x)).size == 1 and np.frexp(abs(x[0, 0]))[0] == 0.5
    assert 0 < (r < 0).mean() < 1 or h == 1
    assert h < 8 or not np.array_equal(r, matrix(h, seed=1)[0])


def test_scores_are_exact_for_short_numbers():
    """Catches a rotation that changes scores: BF16 numbers leave room for every sum in binary64."""
    q, k = (normal(80 + i, 1, 5, 1, 32) for i in range(2))
    exact = [
        [
            sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True))
            for y in k[0, :, 0]
        ]
        for x in q[0, :, 0]
    ]
    a, b = rotated(q.astype(np.float64), k.astype(np.float64))
    ours = [
        [
            sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(p, r, strict=True))
            for r in b[0, :, 0]
        ]
        for p in a[0, :, 0]
    ]
    assert ours == exact


@pytest.mark.thorough
def test_both_libraries_agree_and_gradients_turn_back():
    """Catches signs drawn by a library, a result of another type, and a gradient left in the
    rotated frame.
    """
    q, k, v = (normal(84 + i, 1, 16, 2, 16) for i in range(3))
    for ours, theirs in zip(
        rotated(q, k, seed=3), rotated(jnp.asarray(q), jnp.asarray(k), seed=3), strict=True
    ):
        assert theirs.dtype == jnp.float32 and np.array_equal(ours, np.asarray(theirs))

    def turned(q):
        return attend(*rotated(q, jnp.asarray(k)), jnp.asarray(v), plan="fp32").sum()

    def plain(q):
        return attend(q, jnp.asarray(k), jnp.asarray(v), plan="fp32").sum()

    np.testing.assert_allclose(
        jax.grad(turned)(jnp.asarray(q)), jax.grad(plain)(jnp.asarray(q)), atol=3e-6
    )
    assert rotated(jnp.asarray(q, jnp.bfloat16), jnp.asarray(k))[0].dtype == jnp.float32


def test_it_tames_an_outlier_channel():
    """Catches a rotation that spreads nothing: with one feature of K 20 times as large, INT8 scores
    in blocks of 32 are closer after it.
    """
    q, k, v = (normal(88 + i, 1, 128, 1, 64).astype(np.float64) for i in range(3))
    k[..., 5] *= 20.0
    plan = Plan.preset("exact").at("Q", "mxint8").at("K", "mxint8")
    golden = attend(q, k, v, plan="exact", engine="numpy")
    error = [
        np.square(attend(*x, v, plan=plan, engine="numpy") - golden).mean()
        for x in ((q, k), rotated(q, k))
    ]
    assert error[1] < error[0] / 4


def test_errors():
    """Catches features that no Hadamard matrix of this kind has."""
    x, y = np.zeros((1, 1, 1, 12)), np.zeros((1, 1, 1, 16))
    for q, k in ((x, x), (x, y)):
        with pytest.raises(ValueError, match=r"12 and 1[26] features.*power of two"):
            rotated(q, k)
