"""The training of a launch, all its arms in one executable, and what is measured in it.

The rest of dS is what its rows sum to, where exact arithmetic gives 0. It enters the gradient of
W_Q:

    r[t] = sum_s dS[t,s] = sum_s P[t,s] (dP[t,s] - delta[t])
    R = alpha sum_t r[t] X[t]^T (PK)[t]   (D, H): equation 2 of the paper with r in place of the
        error of delta
    share = sum |R| / sum |dW_Q|   over looks at a run and heads, |.| Frobenius
    steady = |sum R| / sum |R|     sums over looks inside |.|: 1 if R points the same way every
        time, 1 / sqrt(looks) if it has no direction

r comes out of the emulated backward itself (`experiments.train.gpt.row_sums`).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.papers.failure_2510_04212.conditions import Scale
from roundscope.experiments.papers.failure_2510_04212.trials import Trial, settings_of
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.linear import FULL
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.groups import Group, blocks, drawing
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.results.run import Run

# steps done, losses (A,) since the look before, ||W_Q,h|| (A, L, N)
Look = tuple[int, np.ndarray, np.ndarray]


def launch(
    scale: Scale, trials: Sequence[Trial], progress: Callable[[int], None]
) -> list[Run[Trial]]:
    """Return the runs of trials of one structure, in their order.

    It ends at the last step, or once every arm has diverged; `progress` is told the steps done.
    What is reported of an arm is of the time up to its divergence, so nothing depends on the arms
    beside it but the order of native sums.
    """
    settings, steps = settings_of(scale, trials), trials[0].steps
    state = one_step.start(
        settings.config, len(trials), [settings.config.init_seed + t.seed for t in trials]
    )
    group, drawn = Group(settings, list(range(len(trials))), state), drawing(settings)
    follow, rest = Follow(len(trials)), Rest(settings.config)

    def look(_: int) -> Any:
        return monitor.query_norms(group.state.params["layers"]["qkv"])

    def advance(number: int) -> Any:
        batches = drawn(number)
        if rest.due(number):
            rest.look(group.state.params, group.own(batches), group.plans(number)[0], number)
        return group.advance(number, batches)

    looks: list[Look] = [(0, np.full(len(trials), np.nan), np.asarray(look(0)))]
    for block in blocks(advance, 0, steps, look=look, ahead=False):
        follow.add(block.done, block.losses)
        looks.append((block.done, np.mean(block.losses, axis=0), block.look))
        progress(block.done)
        if (follow.first >= 0).all():
            break
    final, rests = follow.final(), rest.found(len(trials))
    return [
        _run(t, a, int(follow.first[a]), float(final[a]), looks, rests[a])
        for a, t in enumerate(trials)
    ]


def _run(
    trial: Trial, arm: int, first: int, final: float, looks: Sequence[Look], rest: np.ndarray
) -> Run[Trial]:
    """Return what is reported of an arm.

    extra has norm, the largest ||W_Q,h||_2 up to divergence; heads, those of layers and heads at
    the last look before it; and rest, as `Rest.found` gives it. The curve has (steps done, mean
    loss since the last entry, largest ||W_Q,h||_2), every 25 steps from 0.
    """
    before = [look for look in looks if first < 0 or look[0] <= first]  # the one at step 0 always
    norms = np.stack([seen[arm] for _, _, seen in before])
    norms = norms[np.isfinite(norms).all((1, 2))]
    return Run(
        condition=trial,
        steps=trial.steps,
        diverged=None if first < 0 else first,
        loss=final if first < 0 else math.nan,
        curve=tuple((done, float(loss[arm]), float(seen[arm].max())) for done, loss, seen in looks),
        extra={"norm": float(norms.max()), "heads": norms[-1].tolist(), "rest": rest.tolist()},
    )


SEQUENCES, EVERY = 4, 5  # how many sequences of a batch are read; steps between looks


class Rest:
    """Looks at all arms of a launch, from step `config.warmup` to twice that.

    These steps are early, and the same for every arm.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.totals = config, None

    def due(self, step: int) -> bool:
        """Return whether to look before this step."""
        return self.config.warmup <= step < 2 * self.config.warmup and step % EVERY == 0

    def look(self, params: Any, tokens: np.ndarray, plans: Tables | None, step: int) -> None:
        """Add R and dW_Q at these weights to the totals; tokens are (B, T + 1) or (A, B, T + 1)."""
        now = _looking(one_step.numbers_only(self.config))(
            params, tokens[..., :SEQUENCES, :], plans, np.int32(step)
        )
        self.totals = now if self.totals is None else jax.tree.map(jnp.add, self.totals, now)

    def found(self, arms: int) -> np.ndarray:
        """Return |sum R|, sum |R|, sum |dW_Q| by layer and head, (A, L, N, 3), or NaN."""
        if self.totals is None:
            return np.full((arms, self.config.layers, self.config.heads, 3), np.nan)
        rest, size, gradient = (np.asarray(x, float) for x in jax.device_get(self.totals))
        return np.stack([np.sqrt((rest**2).sum((-2, -1))), size, gradient], axis=-1)


@lru_cache(64)
def _looking(config: Config) -> Any:
    """Return the program that gives (R, |R|, |dW_Q|) of every arm, layer and head."""

    def one(params: Any, tokens: Array, plans: Tables, step: Any) -> tuple[Array, Array, Array]:
        own = row_sums(config, params, tokens, plans, step)
        rest = jnp.einsum("lbtn,lbtd,lbtnh->lndh", own.r, own.x, own.pk, precision=FULL)
        gradient = jnp.einsum("lbtd,lbtnh->lndh", own.x, own.dq, precision=FULL)
        size, norm = (jnp.sqrt((x * x).sum((-2, -1))) for x in (rest, gradient))
        return rest, size, norm

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        axes = (0, 0 if tokens.ndim == 3 else None, 0, None)
        return jax.vmap(one, in_axes=axes)(params, tokens, plans, step)

    return jax.jit(all_arms)
