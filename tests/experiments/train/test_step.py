"""The training step: it learns, the same bits twice, arms that do not see each other, the learning
rate as data, fresh random bits.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from roundscope.attention import Plan
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model, plans, step
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.step import optimiser, rate

# a model small enough that compiling is what takes the time
CONFIG = Config(
    layers=2,
    heads=2,
    width=16,
    context=16,
    vocab=32,
    batch=4,
    steps=50,
    warmup=5,
    lr=1e-2,
    min_lr=1e-3,
    weight_decay=0.1,
)
QIU_YAO = plans.base(CONFIG)
JAX = replace(
    CONFIG, plan="jax", clip=1e-3
)  # where attention does not matter: it compiles in a tenth of the time


def tokens_of(number, config=CONFIG):
    return (
        np.random.default_rng(number)
        .integers(0, config.vocab, (config.batch, config.context + 1))
        .astype(np.int32)
    )


def trained(config, tables, lr, steps=3, tokens=None, seeds=None):
    """(state, losses (steps, A), norms) after some steps."""
    state, seen = step.start(config, len(lr), seeds), []
    own = plans.by_arm(tables)
    for n in range(steps):
        state, *numbers = step.advance(config)(
            state, tokens_of(n, config) if tokens is None else tokens, own, np.float32(lr)
        )
        seen.append(numbers)
    losses, norms = (np.stack([np.asarray(s[i]) for s in seen]) for i in (0, 1))
    return state, losses, norms


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


@pytest.mark.thorough
def test_two_runs_have_the_same_bits():
    """An order of addition left to chance."""
    runs = [trained(CONFIG, [plans.uniform(CONFIG)], [1e-2]) for _ in range(2)]
    assert same(runs[0][0], runs[1][0]) and np.array_equal(runs[0][1], runs[1][1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"plan": "fa2-bf16", "sums": "preset"},
        {"changes": ("-> P=e5m2:toward-zero; site=O -> fp16:away-from-zero",), "block": 8},
    ],
    ids=["native", "preset", "other-modes"],
)
def test_a_plan_that_is_part_of_the_step_changes_no_bit(changed):
    """A rounding that differs where its format is a constant; sums that take another order."""
    config = replace(CONFIG, layers=1, **changed)
    plan = plans_of(config)[0][0]
    states, seen = [], []
    for sole, tables in ((None, plans.by_arm([plans.uniform(config, plan)])), (plan, None)):
        state = step.start(config, 1)
        for n in range(3):
            state, losses, norms = step.advance(config, sole)(
                state, tokens_of(n, config), tables, np.float32([1e-2])
            )
            seen.append(np.array([losses, norms]))
        states.append(state)
    assert same(*states) and np.array_equal(seen[:3], seen[3:])


def test_it_learns_one_batch():
    """An update with the wrong sign or size."""
    _, losses, norms = trained(JAX, [None], [1e-2], steps=40, tokens=tokens_of(0))
    assert losses[0, 0] == pytest.approx(np.log(32), abs=0.1) and losses[-1, 0] < losses[0, 0] - 1.0
    assert norms.shape == (40, 1) and (norms > 0.0).all()


@pytest.mark.thorough
def test_an_arm_among_others_is_the_arm_alone():
    """An arm that sees another's weights, plan, seed or learning rate.

    Products of matrices are batched over arms, so sums may take another order: the losses agree to
    1e-4 of a nat and the first, whose weights are the same, to 1e-6. Arms of one call that are
    equal have equal bits.
    """
    config = replace(CONFIG, layers=1)  # compiles in half of the time
    coarse = plans.uniform(config, QIU_YAO.at("P", "e8m1"))
    base = plans.uniform(config)
    together, losses, _ = trained(config, [base, coarse, base], [1e-2, 1e-2, 3e-3], seeds=[4, 4, 7])
    for n, (table, lr, seed) in enumerate([(base, 1e-2, 4), (coarse, 1e-2, 4), (base, 3e-3, 7)]):
        alone, own, _ = trained(config, [table], [lr], seeds=[seed])
        assert np.allclose(losses[0, n], own[0, 0], atol=1e-6) and np.allclose(
            losses[:, n], own[:, 0], atol=1e-4
        )
        assert step.arm(together, n).step == alone.step[0] == 3
    assert not np.array_equal(losses[:, 0], losses[:, 1])
    twins, own, _ = trained(config, [base] * 3, [1e-2] * 3, seeds=[4] * 3)
    assert np.array_equal(own[:, 0], own[:, 1]) and same(step.arm(twins, 0), step.arm(twins, 2))


def test_learning_rates_and_batches_are_each_arm_s_own():
    """A learning rate that is static or shared; batches of arms that mix: at lr 0 weights stand
    still.
    """
    own = np.stack([tokens_of(0), tokens_of(1)])
    state, losses, _ = trained(JAX, [None] * 2, [0.0, 1e-2], steps=2, tokens=own)
    first = step.start(JAX, 2)
    assert same(step.arm(state, 0).params, step.arm(first, 0).params)
    assert not np.array_equal(state.params["norm"][1], first.params["norm"][1])
    shared = [trained(JAX, [None] * 2, [0.0, 1e-2], steps=2, tokens=tokens)[1] for tokens in own]
    assert np.array_equal(losses[:, 0], shared[0][:, 0]) and np.array_equal(
        losses[:, 1], shared[1][:, 1]
    )


@pytest.mark.thorough
def test_stochastic_roundings_are_fresh_and_repeatable():
    """The same random bits at every step, in every layer or for every seed; different ones for
    equal seeds in other places.
    """
    tables = [
        plans.uniform(CONFIG, QIU_YAO.at("O", "e8m1", mode="stochastic", seed=s)) for s in (1, 2, 1)
    ]
    _, losses, _ = trained(CONFIG, tables, [0.0] * 3, steps=3, tokens=tokens_of(0))
    assert (
        len(set(losses[:, 0])) == 3 and losses[1, 0] != losses[1, 1]
    )  # weights and batch stand still: only the bits change
    assert np.array_equal(losses[:, 0], losses[:, 2])
    at = [step.plans_at(tables[0], n).table[0, 0, :, -1, 1] for n in (0, 1)]
    assert not np.array_equal(*at) and step.plans_at(own := plans.uniform(CONFIG), 1) is own


def test_schedule():
    """A warm-up or cosine off by a step: nanoGPT's own numbers, and an arm's peak scales all of
    them.
    """
    config = replace(CONFIG, warmup=10, steps=110, lr=1e-3, min_lr=1e-4)
    rates = [float(rate(config, jnp.int32(n), jnp.float32(1e-3))) for n in (0, 9, 10, 60, 110, 500)]
    assert rates == pytest.approx([1e-3 / 11, 1e-2 / 11, 1e-3, 5.5e-4, 1e-4, 1e-4], rel=1e-5)
    assert float(rate(config, jnp.int32(60), jnp.float32(4e-3))) == pytest.approx(2.2e-3, rel=1e-5)


def test_the_optimiser_is_adamw():
    """Decay of a norm's scale, a clip after Adam, a wrong sign: one step against optax.adamw, two
    parameters.
    """
    params = {"up": jnp.ones((3,)), "norm": jnp.full((2,), 2.0)}
    grads = {"up": jnp.array([3.0, -1.0, 2.0]), "norm": jnp.array([1.0, 5.0])}
    ours = optimiser(CONFIG)
    theirs = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(3e-3, b1=0.9, b2=0.95, weight_decay=0.1, mask={"up": True, "norm": False}),
    )
    with jax.numpy_dtype_promotion("standard"):
        found, _ = ours.update(grads, ours.init(params), params, lr=jnp.float32(3e-3))
        expected, _ = theirs.update(grads, theirs.init(params), params)
    assert all(
        np.allclose(a, b, rtol=1e-6)
        for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True)
    )


def test_arms_must_share_a_structure():
    """Arms whose plans cannot share an executable, computed by one of them; an arm without plan
    among those with.
    """
    other = plans.uniform(CONFIG, Plan.preset("fa2-bf16"))
    for arms in ([plans.uniform(CONFIG), other], [None, other]):
        with pytest.raises(ValueError, match="run them separately"):
            plans.by_arm(arms)
    assert plans.by_arm([None, None]) is None and plans.uniform(replace(CONFIG, plan="jax")) is None
    with pytest.raises(ValueError, match="one for each of the 2 arms"):
        step.start(CONFIG, 2, seeds=[1])


def test_gradient_norm_is_that_before_clipping():
    """A norm that can never exceed the clip, which monitors would read as calm."""
    _, _, norms = trained(JAX, [None], [1e-2], steps=1)
    params = step.arm(step.start(JAX, 1), 0).params
    found = optax.tree.norm(
        jax.jit(jax.grad(lambda p: model.loss(p, tokens_of(0), None, JAX)))(params)
    )
    assert float(found) == pytest.approx(float(norms[0, 0]), rel=1e-4) and float(found) > JAX.clip
