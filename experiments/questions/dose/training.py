"""The training of a launch: all its arms in one executable, from the first step to the last.

Arms that have diverged go on too. Every 100 steps the rows of attention can be counted in which
several P are 1, with scores rounded as the plan rounds them.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention import Record, Site
from roundscope.attention.engines import xla as engine
from roundscope.attention.plans.traced import HeadPlans
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Inputs
from roundscope.experiments.framework.study import Progress
from roundscope.experiments.questions.dose.doses import Dose, settings_of
from roundscope.experiments.train.config import WORD, Config
from roundscope.experiments.train.gpt import model, monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.offset import WINDOW
from roundscope.experiments.train.groups import Group, blocks, drawing
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.results.run import Run

TIES_EVERY = 100  # steps between two counts of rows with several P = 1


def launch(
    config: Config, doses: Sequence[Dose], progress: Progress, ties: bool = False
) -> list[Run[Dose]]:
    """Return the results of doses that share structure, words and steps, in their order.

    With `ties` they have their `shares`. An arm whose weights are no longer finite goes on: arms
    are entries of one vmap, so nothing crosses them and no branch depends on values. The same doses
    give the same results on the same device; native sums may differ between numbers of arms in one
    launch.
    """
    settings, steps = settings_of(config, doses), doses[0].steps
    seeds = [(config.init_seed + dose.seed) % WORD for dose in doses]
    state = one_step.start(settings.config, len(doses), seeds)
    group, drawn = Group(settings, list(range(len(doses))), state), drawing(settings)
    follow = Follow(len(doses))
    looks = [(0, np.full(len(doses), np.nan), np.asarray(largest(group.state.params)))]
    counted: list[tuple[int, np.ndarray]] = []

    def look(done: int) -> Any:
        if ties and (done % TIES_EVERY == 0 or done == steps):
            plans = group.plans(0)[0]
            assert isinstance(plans, HeadPlans)  # doses change all layers alike
            tokens = group.own(drawn(done))
            found = shares(settings.config, group.state.params, tokens, plans)
            counted.append((done, np.stack([found.mean((1, 2)), found.max((1, 2))], axis=1)))
        return largest(group.state.params)

    for block in blocks(lambda n: group.advance(n, drawn(n)), 0, steps, look=look):
        follow.add(block.done, block.losses)
        looks.append((block.done, np.mean(block.losses, axis=0), block.look))
        progress(block.done)
    diverged, final = follow.diverged(), follow.final()
    return [
        Run(
            condition=dose,
            steps=steps,
            diverged=diverged[a],
            loss=float(final[a]),
            curve=tuple((n, float(loss[a]), float(norm[a])) for n, loss, norm in looks),
            extra={"shares": tuple((n, float(x[a, 0]), float(x[a, 1])) for n, x in counted)},
        )
        for a, dose in enumerate(doses)
    ]


@jax.jit
def largest(params: Any) -> Array:
    """Return the largest ||W_Q,h||_2 of all layers and heads, (arms,)."""
    return jnp.max(monitor.query_norms(params["layers"]["qkv"]), axis=(1, 2))


def shares(config: Config, params: Any, tokens: np.ndarray, plans: HeadPlans) -> np.ndarray:
    """Return the share of rows with several scores within 1.955e-3 of the largest.

    There P rounds to 1 in BF16. The result is (arms, layers, heads). params and plans are those of
    arms; tokens are (B, T + 1) or (A, B, T + 1), of which the first sequence is read. Scores are as
    the plan rounds them (SCALED).
    """
    one = tokens[..., :1, :].astype(np.int32)
    q, k = _reading(one_step.numbers_only(config))(params, one, plans)
    with jax.enable_x64(True):
        return np.asarray(_shares(_setup(config, plans), jnp.asarray(plans.table), q, k))


@lru_cache(8)
def _reading(config: Config) -> Any:
    """Return the jitted function that gives q and k, (A, L, 1, T, N, H)."""

    def one(params: Any, tokens: Array, plans: HeadPlans) -> tuple[Array, Array]:
        return model.attention_inputs(params, tokens, plans, config)[:2]

    def all_arms(params: Any, tokens: Array, plans: HeadPlans) -> tuple[Array, Array]:
        return jax.vmap(one, in_axes=(0, 0 if tokens.ndim == 3 else None, 0))(params, tokens, plans)

    return jax.jit(all_arms)


def _setup(config: Config, plans: HeadPlans) -> Setup:
    t, scale = config.context, config.head_width**-0.5
    return Setup(
        plan=plans.like,
        queries=t,
        keys=t,
        block_q=t,
        block_k=t,
        heads=1,
        key_heads=1,
        scale=scale,
        whole_scale=scale,
        is_causal=True,
        record=Record(events=(Site.SCALED,)),
    )


@partial(jax.jit, static_argnums=0)
def _shares(setup: Setup, table: Array, q: Array, k: Array) -> Array:
    """Return the shares, with every (arm, layer, head) as a batch entry of one head.

    K takes the place of V, which no score reads.
    """
    t = setup.queries
    entries = [x[:, :, 0].swapaxes(2, 3).reshape(-1, t, 1, x.shape[5]) for x in (q, k)]
    each = engine.Each(table.reshape(-1, *table.shape[3:]), np.arange(entries[0].shape[0]))
    rounded = [
        engine.round_inputs(setup, s, engine.enter(x, t), each)[0]
        for s, x in zip((Site.Q, Site.K), entries, strict=True)
    ]
    own_q, own_k = rounded
    _, seen = engine.forward(setup, Inputs(own_q, own_k, own_k), each)
    scores = seen["tiles"]["SCALED.events"][1].reshape(-1, t, t)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    ones = (scores >= scores.max(-1, keepdims=True) - WINDOW).sum(-1)
    return (ones > 1).mean(1).reshape(q.shape[0], q.shape[1], q.shape[4])
