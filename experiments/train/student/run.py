"""A launch: arms of one executable from the first step to the last.

Arms that share a beginning share its computation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.experiments.train.divergence import Follow, followed
from roundscope.experiments.train.loop import EVERY, blocks
from roundscope.experiments.train.state import pick
from roundscope.experiments.train.student import step as steps
from roundscope.experiments.train.student.arms import Arm, how_of
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.follow import DOUBLING
from roundscope.experiments.train.student.measure import measure
from roundscope.experiments.train.student.plan import plan_of
from roundscope.experiments.train.student.results import Result
from roundscope.tools.results.run import Run

Progress = Callable[[int], None]  # steps done


class Begin(NamedTuple):
    """Where arms begin.

    step, state     steps done, and states with an axis of arms
    losses, norms   the losses and gradient norms (steps, arms) so far
    """

    step: int
    state: steps.State
    losses: np.ndarray
    norms: np.ndarray

    def take(self, arms: Sequence[int]) -> "Begin":
        """Return the beginning of some arms, which may repeat."""
        return Begin(
            self.step, pick(self.state, arms), self.losses[:, list(arms)], self.norms[:, list(arms)]
        )


def data_of(config: Config, arms: Sequence[Arm], number: int) -> steps.Arms:
    """Return what differs between arms at a step, as data."""
    plans = [plan_of(config, arm.texts(number)) for arm in arms]
    tables = [p.table((config.seed + a.seed) % 2**32) for p, a in zip(plans, arms, strict=True)]
    return steps.Arms(
        table=jnp.asarray(np.stack(tables)),
        lr=jnp.asarray([a.lr for a in arms], jnp.float32),
        beta=jnp.asarray([p.beta for p in plans], jnp.float32),
    )


def fresh(config: Config, arms: Sequence[Arm]) -> Begin:
    """Return the beginning of a run."""
    none = np.zeros((0, len(arms)))
    return Begin(0, steps.start(config, [a.seed for a in arms]), none, none)


def advance(
    config: Config, arms: Sequence[Arm], begin: Begin, until: int, progress: Progress
) -> tuple[Begin, list[tuple[int, dict[str, np.ndarray]]]]:
    """Return the arms at step `until`, and what was measured before.

    The same arms on the same device have the same bits. An arm whose weights are no longer finite
    goes on, since no branch depends on values.
    """
    how, seeds = how_of(config, arms), sorted({a.seed for a in arms})
    words = jnp.asarray([(config.seed + s) % 2**32 for s in seeds], jnp.uint32)
    of = jnp.asarray([seeds.index(a.seed) for a in arms])
    one, rows = steps.advance(config, how), steps.batches(config)
    changing = {begin.step, *(first for a in arms for first in a.firsts)}
    state, data, measured, losses, norms = begin.state, None, [], [begin.losses], [begin.norms]

    def step(number: int) -> tuple[Any, Any]:
        nonlocal state, data
        data = data_of(config, arms, number) if number in changing else data
        x, y = rows(words, np.int32(number))
        if config.measure_every and number % config.measure_every == 0:
            measured.append((number, jax.device_get(measure(config, how)(state, data, x, y, of))))
        state, loss, norm = one(state, data, x, y, of)
        return loss, norm

    for block in blocks(step, begin.step, until):
        losses.append(block.losses.astype(float))
        norms.append(block.norms.astype(float))
        progress(block.done)
    return Begin(until, state, np.concatenate(losses), np.concatenate(norms)), measured


def launch(
    config: Config, arms: Sequence[Arm], progress: Progress, begin: Begin | None = None
) -> list[Result]:
    """Return the results of arms of one group, in their order.

    They run from `begin` (with an axis of arms) or from the first step.
    """
    end, measured = advance(config, arms, begin or fresh(config, arms), config.steps, progress)
    follow = followed(end.losses, DOUBLING)
    final = follow.final()
    return [
        _result(config, arm, i, follow, float(final[i]), end, measured)
        for i, arm in enumerate(arms)
    ]


def _result(
    config: Config, arm: Arm, i: int, follow: Follow, final: float, end: Begin, measured: Any
) -> Result:
    looks = range(0, config.steps, EVERY)
    curve = tuple(
        (
            min(n + EVERY, config.steps),
            float(end.losses[n : n + EVERY, i].max()),
            float(end.norms[n, i]),
        )
        for n in looks
    )
    first = int(follow.first[i])
    measures = tuple(
        (step, {name: float(v[i]) for name, v in found.items()}) for step, found in measured
    )
    return Run(
        condition=arm,
        steps=config.steps,
        diverged=None if first < 0 else first,
        loss=final,
        curve=curve,
        extra={"spikes": int(follow.spikes[i]), "measures": measures},
    )
