"""The rest of dS against its definition, worked out in binary64 from the same inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import attend
from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.papers.failure_2510_04212.trials import Rest, drift, share, steady
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.plans import by_layer
from roundscope.experiments.train.gpt.row_sums import dq_and_sums, pk
from tests.experiments.papers.failure_2510_04212.made import run

CONFIG = Config(
    layers=1, heads=2, width=16, context=12, batch=2, warmup=10, plan="fp32", matmul="fp32"
)
COARSE = ("site=PV,AO,O,OUT -> e8m2:toward-zero",)  # delta is what is wrong
SCORES = ("site=S,SCALED,M,X -> e8m3", "-> delta_from=P_DP")  # the sum of P is


def planned(*texts: str) -> HeadPlans:
    plans = plans_of(CONFIG, texts)
    assert plans is not None
    found = by_layer(plans)
    return HeadPlans(found.like, found.table[0])


def inputs() -> list[jax.Array]:
    rng = np.random.default_rng(5)
    return [jnp.asarray(rng.standard_normal((2, 12, 2, 8)), jnp.float32) for _ in range(4)]


def softmax(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and P of causal attention, (B, N, T, S)."""
    s = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(8)
    s = np.where(np.tri(12, dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return s, e / e.sum(-1, keepdims=True)


@pytest.mark.thorough
def test_rest_of_a_wrong_delta_is_its_error() -> None:
    """Catches a rest with another sign, scale or axis: with exact P it is alpha (delta_exact -
    delta), from the output as rounded.
    """
    q, k, v, do = inputs()
    plans = planned(*COARSE)
    out = attend(q, k, v, plan=plans, block_q=12, block_k=12, is_causal=True)
    dq, r = dq_and_sums(CONFIG, plans, q, k, v, do)
    q, k, v, do, out = (np.asarray(x, float) for x in (q, k, v, do, out))
    _, p = softmax(q, k)
    exact = np.einsum("bnts,bsnh->btnh", p, v)
    wanted = ((exact - out) * do).sum(-1) / np.sqrt(8)
    assert np.abs(wanted).max() > 0.05  # there is something to measure
    np.testing.assert_allclose(r, wanted, rtol=1e-3, atol=1e-5)
    dp = np.einsum("btnh,bsnh->bnts", do, v)
    ds = p * (dp - (out * do).sum(-1).swapaxes(1, 2)[..., None])
    np.testing.assert_allclose(
        dq, np.einsum("bnts,bsnh->btnh", ds, k) / np.sqrt(8), rtol=1e-3, atol=1e-4
    )


def test_rest_is_zero_where_the_identity_holds() -> None:
    """Catches a measure that sees errors that are none: exact attention, and the centred delta
    whatever P lost.
    """
    for changes, most in (((), 1e-5), ((*SCORES, "-> delta_from=CENTRED"), 1e-5)):
        _, r = dq_and_sums(CONFIG, planned(*changes), *inputs())
        assert np.abs(r).max() < most
    _, r = dq_and_sums(CONFIG, planned(*SCORES), *inputs())
    assert np.abs(r).max() > 1e-2  # without it the same scores break the rows


def test_pk_is_what_softmax_says() -> None:
    """Catches keys after the query in P K, and a missing scale."""
    q, k, *_ = inputs()
    _, p = softmax(np.asarray(q, float), np.asarray(k, float))
    np.testing.assert_allclose(
        pk(q[None], k[None])[0], np.einsum("bnts,bsnh->btnh", p, k), rtol=1e-4, atol=1e-5
    )


def test_sums_over_looks_keep_direction() -> None:
    """Catches a norm of R taken before the sum over looks, which could not tell one direction from
    none; and one over heads.
    """
    rest = Rest(CONFIG)
    total = np.zeros((2, 1, 2, 2, 2))
    total[0, 0, 1] = [[3.0, 0.0], [0.0, 4.0]]  # of arm 0, head 1 leans
    rest.totals = (total, np.full((2, 1, 2), 8.0), np.full((2, 1, 2), 9.0))
    assert rest.found(2).tolist() == [[[[0.0, 8.0, 9.0], [5.0, 8.0, 9.0]]], [[[0.0, 8.0, 9.0]] * 2]]


def test_shares_are_of_all_heads() -> None:
    """Catches a share of one head, and steadiness and drift that do not multiply."""
    _, found = run("A", "0", 0, rest=(((1.0, 2.0, 10.0), (2.0, 4.0, 30.0)),))
    assert (share(found), steady(found)) == (6.0 / 40.0, 0.5)
    assert drift(found) == pytest.approx(share(found) * steady(found))


def test_looks_lie_after_the_warm_up() -> None:
    """Catches looks that depend on when an arm diverges, or at weights that have not moved yet."""
    rest = Rest(CONFIG)
    assert [n for n in range(60) if rest.due(n)] == [10, 15]
    assert rest.found(3).shape == (3, 1, 2, 3)
    assert np.isnan(rest.found(3)).all()


@pytest.mark.thorough
def test_look_adds_up_over_steps() -> None:
    """Catches a look that forgets the one before, or arms that share what is their own."""
    from roundscope.experiments.train.gpt import step as one_step
    from roundscope.experiments.train.gpt.plans import by_arm

    arms = [
        by_layer(plans) for texts in ((), COARSE) if (plans := plans_of(CONFIG, texts)) is not None
    ]
    state = one_step.start(CONFIG, 2)
    tokens = np.random.default_rng(1).integers(0, 256, (2, 13))
    rest = Rest(CONFIG)
    for number in (10, 15):
        rest.look(state.params, np.stack([tokens, tokens]), by_arm(arms), number)
    summed, size, gradient = rest.found(2).sum((1, 2)).T
    assert size[0] < 1e-4 * gradient[0]
    assert size[1] > 1e-3 * gradient[1]
    np.testing.assert_allclose(summed[1], size[1], rtol=1e-5)  # the same weights and tokens twice
