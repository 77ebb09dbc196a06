"""The monitors against their definitions, computed in other ways."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan, examine
from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.questions.lowbit import measure
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import monitor, offset, step
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.offset import wrongs_of
from roundscope.experiments.train.gpt.plans import by_arm, by_layer

CONFIG = Config(layers=2, heads=2, width=16, context=12)
LEAD = (1, 2, 1, 12, 2, 8)  # arms, layers, one sequence, T, N, H


def test_query_norms_are_singular_values():
    """Another matrix than W_Q, heads mixed up, or an iteration that stops early."""
    rng = np.random.default_rng(0)
    qkv = rng.normal(size=(2, 3, 20, 3, 4, 5)).astype(np.float32)
    expected = np.linalg.svd(qkv[:, :, :, 0].transpose(0, 1, 3, 2, 4), compute_uv=False)[..., 0]
    np.testing.assert_allclose(monitor.query_norms(jnp.asarray(qkv)), expected, rtol=1e-5)
    near = np.zeros((1, 1, 20, 3, 1, 5), np.float32)
    near[0, 0, :5, 0, 0] = np.diag([1.0, 0.999, 0.5, 0.1, 0.0])
    assert float(monitor.query_norms(jnp.asarray(near))[0, 0, 0]) == pytest.approx(1.0, abs=2e-4)
    assert float(monitor.query_norms(jnp.zeros((1, 1, 20, 3, 1, 5)))[0, 0, 0]) == 0.0


def test_coherence():
    """A square root too many: 1 sign gives sqrt(T), alternating signs 0, no error 0."""
    x = np.array([[1.0] * 16, [1.0, -1.0] * 8, [0.0] * 16])
    assert monitor.coherence(x.sum(1), (x * x).sum(1)).tolist() == [4.0, 0.0, 0.0]


@pytest.fixture(scope="module")
def measured():
    """What is measured of tensors of two layers and two heads, whose head (1, 0) has equal keys and
    V of one sign; and the tensors.
    """
    rng = np.random.default_rng(1)
    q, k, v, do = (rng.normal(size=LEAD).astype(np.float32) for _ in range(4))
    k[0, 1, 0, :, 0] = k[0, 1, 0, 0, 0]
    v[0, 1, 0, :, 0] = -np.abs(v[0, 1, 0, :, 0])
    plans = plans_of(CONFIG)
    table: HeadPlans = by_arm([by_layer(plans)])
    with jax.enable_x64(True):
        x = jnp.zeros((1, 2, 1, 12, 16))  # what W_Q reads, of which only drift depends
        found = monitor._of_layers(CONFIG, table, *map(jnp.asarray, (q, k, v, do)), None, x)
        return {name: np.asarray(x)[0] for name, x in found.items()}, (q, k, v, do), plans


def head(x, layer, number):
    """One head's tensor as (1, T, 1, H)."""
    return x[0, layer, :, :, number : number + 1]


def exact_delta(q, k, v, do):
    """By loops, in binary64, from BF16 operands."""
    import ml_dtypes

    q, k, v, do = (x[0, :, 0].astype(ml_dtypes.bfloat16).astype(np.float64) for x in (q, k, v, do))
    found = []
    for t in range(len(q)):
        w = np.exp([q[t] @ k[s] / np.sqrt(8) for s in range(t + 1)])
        found.append(sum(w[s] / w.sum() * (do[t] @ v[s]) for s in range(t + 1)))
    return np.array(found)


def test_delta_error_is_that_of_the_plan(measured):
    """Another delta, heads in another order, exact operands that the plan rounds, or a mask that is
    off by one.
    """
    found, tensors, plans = measured
    for layer, number in np.ndindex(2, 2):
        own = [head(x, layer, number) for x in tensors]
        delta = examine(*own, plan=plans[layer][number], is_causal=True, engine="numpy").delta[
            0, :, 0
        ]
        error = delta - exact_delta(*own)
        assert found["delta_sum"][layer, number] == pytest.approx(error.sum(), rel=1e-3, abs=1e-6)
        assert found["delta_square"][layer, number] == pytest.approx((error**2).sum(), rel=1e-3)


def test_equal_keys_are_several_ones_and_gaps_of_zero(measured):
    """A monitor that misses the very thing it is there for: rows with several P = 1."""
    found, _, _ = measured
    ties = found["several_ones"]
    assert ties[1, 0] == pytest.approx(11 / 12)  # every row but the first, which has one key
    assert found["gaps"][1, 0].tolist() == [11] + [0] * 6
    assert ties[0, 0] < 0.3 and (found["gaps"].sum(-1) == 11).all()


def test_v_of_one_sign_has_skew_one(measured):
    """Signs that cancel over features before the mean, or the wrong tensor."""
    skew = measured[0]["v_skew"]
    assert skew[1, 0] == 1.0 and skew.ravel()[[0, 1, 3]].max() < 0.7


def test_mean_ulps_of_sites_are_those_of_examine():
    """Another head than the one whose turn it is, or another arm's plan."""
    rng = np.random.default_rng(2)
    tensors = [np.repeat(rng.normal(size=LEAD).astype(np.float32), 2, axis=0) for _ in range(4)]
    plans = [plans_of(CONFIG), plans_of(CONFIG, ["site=OUT -> fp32"])]
    found = monitor.sites(CONFIG, tensors, plans, turn=3)
    total = np.zeros(2)
    for layer in range(2):
        own = [x[0, layer, :, :, 1:2] for x in tensors]
        stats = examine(
            *own, plan=Plan.preset("qiu-yao"), is_causal=True, engine="numpy"
        ).trace.stats["OUT"]
        total += stats.ulps.sum(), stats.n.sum()
    assert found[0]["OUT"][0] == pytest.approx(
        total[0] / total[1], abs=0.02
    )  # native sums differ in their last bits
    assert found[0]["OUT"] != found[1]["OUT"] and found[0]["S"] == found[1]["S"]


def test_mean_ulps_by_kernels_are_those_of_each_arm(monkeypatch):
    """Layers counted for another arm, or not at all; more or fewer tiles than are meant; another
    engine.
    """
    asked = []

    def by_numpy(*x, engine, record, **options):
        asked.append((engine, record.every))
        return examine(*x, engine="numpy", record=record, **options)

    monkeypatch.setattr(monitor, "examine", by_numpy)
    rng, plan = np.random.default_rng(2), Plan.preset("fa2-bf16")
    tensors = [rng.normal(size=(2, *LEAD[1:])).astype(np.float32) for _ in range(4)]
    config = replace(CONFIG, block=8)
    found = monitor.sites(config, tensors, [], 0, plan)
    assert asked == [("pallas", 1)] * 2
    for arm in range(2):
        q, k, v, do = (x[arm, :, 0] for x in tensors)
        stats = examine(
            q, k, v, do, plan=plan, block_q=8, block_k=8, is_causal=True, engine="numpy"
        ).trace.stats
        assert found[arm]["OUT"] == pytest.approx(
            (stats["OUT"].ulps.sum() / stats["OUT"].n.sum(), stats["OUT"].mean_abs_ulps.mean())
        )
    assert found[0]["OUT"] != found[1]["OUT"]
    long = [np.repeat(np.tile(x[:1], (1, 1, 1, 4, 1, 1)), 2, axis=0) for x in tensors]
    first, second = monitor.sites(replace(config, context=48), long, [], 0, plan)
    assert asked[-1] == ("pallas", 3)
    assert first == second  # equal arms, looked at in the same tiles


def toward_zero(x, bits):
    """x with so many bits of significand, what is beyond them cut off."""
    significand, exponent = np.frexp(x)
    return np.ldexp(np.trunc(significand * 2.0**bits) / 2.0**bits, exponent)


def test_drift_is_what_wrong_rows_of_ds_make_of_a_gradient():
    """A drift without the scale, of other rows or another head; one that sees something where the
    arithmetic is exact.

    By loops in binary64: O as delta reads it has 2 bits, all else is FP32, so rowsum(dS) =
    rowsum(dO O) - rowsum(dO O_2 bits).
    """
    config = replace(CONFIG, plan="fp32")
    rng = np.random.default_rng(4)
    q, k, v, do = (np.repeat(rng.normal(size=LEAD).astype(np.float32), 2, axis=0) for _ in range(4))
    x = np.repeat(rng.normal(size=(1, 2, 1, 12, 16)).astype(np.float32), 2, axis=0)
    table: HeadPlans = by_arm(
        [by_layer(plans_of(config, texts)) for texts in ((), ("site=OD -> e8m1:toward-zero",))]
    )
    with jax.enable_x64(True):
        tensors = map(jnp.asarray, (q, k, v, do))
        found = monitor._of_layers(config, table, *tensors, None, jnp.asarray(x))
    assert np.asarray(found["drift"])[0].max() < 1e-5
    for layer, head in np.ndindex(2, 2):
        a, b, c, d = (np.asarray(y[1, layer, 0, :, head], float) for y in (q, k, v, do))
        s = np.where(np.tri(12, dtype=bool), a @ b.T / np.sqrt(8), -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        delta = (d * toward_zero(p @ c, 2)).sum(-1)
        ds = p * (d @ c.T - delta[:, None])
        own = np.asarray(x[1, layer, 0], float)
        made = sum(np.outer(own[t], (p @ b)[t]) * ds[t].sum() for t in range(12))
        whole = sum(np.outer(own[t], (ds @ b)[t]) for t in range(12))
        wanted = np.linalg.norm(made) / np.linalg.norm(whole)
        assert wanted > 0.02 and np.asarray(found["drift"])[1, layer, head] == pytest.approx(
            wanted, rel=1e-3
        )
        assert np.asarray(found["w_q_gradient"])[1, layer, head] == pytest.approx(
            np.linalg.norm(whole) / np.sqrt(8), rel=1e-3
        )


@pytest.mark.thorough
def test_drift_is_that_of_the_backwards_own_operands():
    """A monitor whose backward reads what the forward read, or keys that were turned and scaled."""
    words = "inputs_again=true KB=e8m2 VB=e8m2 hadamard=true"
    config = replace(CONFIG, plan="fp32")
    rng = np.random.default_rng(4)
    q, k, v, do = (rng.normal(size=LEAD).astype(np.float32) for _ in range(4))
    x = rng.normal(size=(1, 2, 1, 12, 16)).astype(np.float32)
    table: HeadPlans = by_arm([by_layer(plans_of(config, (f"-> {words}",)))])
    with jax.enable_x64(True):
        tensors = map(jnp.asarray, (q, k, v, do))
        found = monitor._of_layers(config, table, *tensors, None, jnp.asarray(x))
    plan = Plan.preset("fp32").changed(words)
    for layer, head in np.ndindex(2, 2):
        own = (np.ascontiguousarray(y[0, layer, :, :, head : head + 1]) for y in (q, k, v, do))
        alone = measure.measured(plan, *own, x[0, layer], is_causal=True)
        assert alone["drift"] > 0.02
        assert np.asarray(found["drift"])[0, layer, head] == pytest.approx(alone["drift"], rel=1e-3)


@pytest.mark.thorough
def test_an_injected_error_counts_as_delta_s():
    """A monitor that says delta is exact while an error is injected, or that counts another layer's
    or head's.
    """
    config = replace(CONFIG, plan="fp32", matmul="fp32", vocab=16)
    state, table = step.start(config, 1), by_arm([by_layer(plans_of(config))])
    wrongs = [
        wrongs_of(config, ["layer=1 -> offset=64:bias; layer=0 head=1 -> offset=-8:fixed:all"])
    ]
    tokens = np.random.default_rng(0).integers(0, 4, (1, 13))
    own = offset.offsets(wrongs, [3])
    found, seen = monitor.look(config, state.params, tokens, table, 5, own)
    one = jax.tree.map(lambda x: jnp.asarray(x[0]), own)._replace(step=jnp.int32(5))
    for layer in range(2):
        q, k, v, do = (x[0, layer] for x in seen)
        wanted = np.einsum(
            "btnh,btnh->nt",
            *(np.asarray(x, np.float64) for x in (offset.error(one, layer, q, k, v), do)),
        )
        np.testing.assert_allclose(
            found["delta_sum"][0, layer], wanted.sum(-1), rtol=1e-3, atol=1e-9
        )
        np.testing.assert_allclose(
            found["delta_square"][0, layer], (wanted**2).sum(-1), rtol=1e-3, atol=1e-12
        )
    assert found["delta_square"][0, 0, 0] < 1e-6 * found["delta_square"][0, 0, 1]
