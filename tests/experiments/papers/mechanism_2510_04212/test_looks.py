"""What a look measures, against atoms that are formed in NumPy, and singular values of NumPy's."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.experiments.papers.mechanism_2510_04212.looks import measured, several

L, N, T, D, H = 1, 2, 6, 5, 3


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(3)
    x, pk, dq = (rng.standard_normal((L, N, T, n)) + 0.5 for n in (D, H, H))
    return x, pk, rng.standard_normal((L, N, T)), dq


def test_atoms_are_as_alike_as_they_are(drawn):
    """Cosines of X for those of PK or of the atoms, pairs of a token with itself among them, a
    share of singular values that are not squared, and a gradient without its own values.
    """
    x, pk, r, dq = drawn
    found, _ = measured(*(jnp.asarray(y, jnp.float32) for y in (x, pk, r, dq)), jax.random.key(0))
    wanted = {name: [] for name in ("x", "pk", "atom", "first", "gradient", "random")}
    for n in range(N):
        atoms = np.einsum("td,th->tdh", x[0, n], pk[0, n])
        for name, rows in (("x", x[0, n]), ("pk", pk[0, n]), ("atom", atoms.reshape(T, -1))):
            unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            wanted[name].append(np.mean([unit[a] @ unit[b] for a, b in permutations(range(T), 2)]))
        made = np.einsum("t,tdh->dh", r[0, n], atoms)
        whole = np.einsum("td,th->dh", x[0, n], dq[0, n])
        for name, y in (("first", made), ("gradient", whole)):
            sigma = np.linalg.svd(y, compute_uv=False)
            wanted[name].append(sigma[0] ** 2 / (sigma**2).sum())
        sizes = np.abs(r[0, n]) * np.linalg.norm(atoms.reshape(T, -1), axis=1)
        wanted["random"].append(np.linalg.norm(made) / np.sqrt((sizes**2).sum()))
    for name, values in wanted.items():
        assert float(found[name]) == pytest.approx(np.mean(values), rel=1e-4), name


def test_permuted_tokens_lose_what_the_pairs_have(drawn):
    """A null that keeps the pairs: rows of PK that follow X, and errors that follow the atoms."""
    rng = np.random.default_rng(5)
    signs = rng.choice((-1.0, 1.0), T)
    own = np.ones(H)
    x = rng.standard_normal((L, N, T, D)) * 0.05 + signs[:, None] * np.arange(1, D + 1)
    pk = rng.standard_normal((L, N, T, H)) * 0.05 + signs[:, None] * own  # signs cancel in atoms
    r = np.ones((L, N, T))
    found, _ = measured(*(jnp.asarray(y, jnp.float32) for y in (x, pk, r, pk)), jax.random.key(1))
    assert float(found["atom"]) > 0.95 > 0.8 > float(found["unpaired"])
    assert float(found["first"]) > 0.95 and float(found["shuffled"]) == pytest.approx(
        float(found["first"]), abs=0.05
    )  # equal errors do not change by it


def test_rows_with_several_maxima_are_counted():
    """Masked keys that tie, a row's only key, and FP32 scores that tie in BF16 only."""
    q = np.ones((1, 1, 4, 1, 1), np.float32)
    k = np.array([8.0, 8.0, 8.01, 1.0], np.float32).reshape(1, 1, 4, 1, 1)
    tied, ones = (float(x) for x in several(jnp.asarray(q), jnp.asarray(k)))
    assert tied == 0.75  # rows 1 to 3: 8.01 is 8 in BF16
    assert ones == 0.25  # row 1: there the third is masked, and 0.01 is no gap that BF16 closes


def test_ties_are_those_of_bf16_p():
    """A window that is not that of P in BF16: gaps just inside and just outside."""
    import ml_dtypes

    gaps = np.array([1.9e-3, 2.0e-3])
    assert [float(np.exp(-g).astype(ml_dtypes.bfloat16)) == 1.0 for g in gaps] == [True, False]
    for gap, wanted in zip(gaps, (0.5, 0.0), strict=True):
        k = np.array([1.0, 1.0 - gap], np.float32).reshape(1, 1, 2, 1, 1)
        assert float(several(jnp.ones((1, 1, 2, 1, 1)), jnp.asarray(k))[1]) == wanted


def test_real_heads_have_the_gradient_that_autograd_gives():
    """dQ of another scale, or with delta left out; P K of scores without the scale."""
    from roundscope.experiments.papers.mechanism_2510_04212.real import _exact

    q, k, v, do = np.random.default_rng(1).standard_normal((4, 5, 3))

    def out(q):
        p = jax.nn.softmax(q @ jnp.asarray(k.T) * 0.7, axis=-1)
        return (p @ jnp.asarray(v) * do).sum()

    with jax.enable_x64(True):
        wanted = np.asarray(jax.grad(out)(jnp.asarray(q)))
        p = np.asarray(jax.nn.softmax(jnp.asarray(q @ k.T * 0.7), axis=-1))
    pk, dq = _exact(q, k, v, do, 0.7)
    np.testing.assert_allclose(dq, wanted, rtol=1e-9)
    np.testing.assert_allclose(pk, p @ k, rtol=1e-9)
