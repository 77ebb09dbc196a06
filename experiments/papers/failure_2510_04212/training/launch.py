"""The training of a launch: all its arms in one executable.

It ends at the last step, or once every arm has diverged.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roundscope.experiments.papers.failure_2510_04212.conditions.scale import Scale
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import Trial, settings_of
from roundscope.experiments.papers.failure_2510_04212.training.rest import Rest
from roundscope.experiments.train.divergence import Follow
from roundscope.experiments.train.gpt import monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import blocks, drawing
from roundscope.tools.results.run import Run

Progress = Callable[[int], None]  # steps done
# steps done, losses (A,) since the look before, ||W_Q,h|| (A, L, N)
Look = tuple[int, np.ndarray, np.ndarray]


def launch(scale: Scale, trials: Sequence[Trial], progress: Progress) -> list[Run[Trial]]:
    """Return the runs of trials of one structure, in their order.

    What is reported of an arm is of the time up to its divergence, so nothing depends on the arms
    beside it but the order of native sums.
    """
    settings, steps = settings_of(scale, trials), trials[0].steps
    state = one_step.start(
        settings.config, len(trials), [settings.config.init_seed + t.seed for t in trials]
    )
    group, drawn = Group(settings, list(range(len(trials))), state), drawing(settings)
    follow, rest, looks = Follow(len(trials)), Rest(settings.config), [_first(group)]

    def look(_: int) -> Any:
        return monitor.query_norms(group.state.params["layers"]["qkv"])

    for block in blocks(
        lambda n: _step(group, drawn(n), n, rest), 0, steps, look=look, ahead=False
    ):
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


def _first(group: Group) -> Look:
    norms = np.asarray(monitor.query_norms(group.state.params["layers"]["qkv"]))
    return 0, np.full(len(norms), np.nan), norms


def _step(group: Group, batches: dict[int, np.ndarray], number: int, rest: Rest) -> Any:
    if rest.due(number):
        rest.look(group.state.params, group.own(batches), group.plans(number)[0], number)
    return group.advance(number, batches)


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
        extra={"norm": float(norms.max()), "heads": nested(norms[-1]), "rest": nested(rest)},
    )


def nested(x: np.ndarray) -> Any:
    """Return an array's numbers as nested tuples."""
    return tuple(nested(row) for row in x) if x.ndim else float(x)
