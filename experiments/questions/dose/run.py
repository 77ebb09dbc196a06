"""The training of a launch: all its arms in one executable, from the first step to the last.

Arms that have diverged go on too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.questions.dose.arms import Dose, settings_of
from roundscope.experiments.questions.dose.ties import shares as shares_of
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.divergence import Follow
from roundscope.experiments.train.gpt import monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import blocks, drawing
from roundscope.tools.results.run import Run

TIES_EVERY = 100  # steps between two counts of rows with several P = 1
Progress = Callable[[int], None]  # steps done


def launch(
    config: Config, doses: Sequence[Dose], progress: Progress, ties: bool = False
) -> list[Run[Dose]]:
    """Return the results of doses that share structure, words and steps, in their order.

    With `ties` they have their `shares`. An arm whose weights are no longer finite goes on: arms
    are entries of one vmap, so nothing crosses them and no branch depends on values. The same doses
    give the same results on the same device; native sums may differ between numbers of arms in one
    launch.
    """
    settings = settings_of(config, doses)
    state = one_step.start(
        settings.config, len(doses), [(config.init_seed + d.seed) % 2**32 for d in doses]
    )
    group, drawn = Group(settings, list(range(len(doses))), state), drawing(settings)
    follow = Follow(len(doses))
    looks = [(0, np.full(len(doses), np.nan), np.asarray(largest(group.state.params)))]
    steps, shares = doses[0].steps, []

    def look(done: int) -> Any:
        if ties and (done % TIES_EVERY == 0 or done == steps):
            shares.append((done, _ties(group, drawn(done))))
        return largest(group.state.params)

    for block in blocks(lambda n: group.advance(n, drawn(n)), 0, steps, look=look):
        follow.add(block.done, block.losses)
        looks.append((block.done, np.mean(block.losses, axis=0), block.look))
        progress(block.done)
    final = follow.final()
    return [
        _result(dose, a, int(follow.first[a]), float(final[a]), looks, shares)
        for a, dose in enumerate(doses)
    ]


def _ties(group: Group, batches: dict[int, np.ndarray]) -> np.ndarray:
    """Return the mean and the largest share of rows with several P = 1 over heads, (arms, 2)."""
    plans = group.plans(0)[0]
    assert isinstance(plans, HeadPlans)  # doses change all layers alike
    found = shares_of(group.settings.config, group.state.params, group.own(batches), plans)
    return np.stack([found.mean((1, 2)), found.max((1, 2))], axis=1)


@jax.jit
def largest(params: Any) -> Array:
    """Return the largest ||W_Q,h||_2 of all layers and heads, (arms,)."""
    return jnp.max(monitor.query_norms(params["layers"]["qkv"]), axis=(1, 2))


def _result(
    dose: Dose,
    arm: int,
    first: int,
    final: float,
    looks: Sequence[tuple[int, np.ndarray, np.ndarray]],
    shares: Sequence[tuple[int, np.ndarray]],
) -> Run[Dose]:
    curve = tuple((step, float(loss[arm]), float(norm[arm])) for step, loss, norm in looks)
    return Run(
        condition=dose,
        steps=dose.steps,
        diverged=None if first < 0 else first,
        loss=final,
        curve=curve,
        extra={"shares": tuple((n, float(x[arm, 0]), float(x[arm, 1])) for n, x in shares)},
    )
