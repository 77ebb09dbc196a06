"""A launch of the GPT: all arms and seeds of one rate in one executable, and the audit of the BF16 arms on the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from roundscope.experiments.studies.mxfp8.arms import BF16, Trial, settings_of
from roundscope.experiments.studies.mxfp8.audit import Row, audit
from roundscope.experiments.studies.mxfp8.scale import Scale
from roundscope.experiments.train import step as one_step
from roundscope.experiments.train.divergence import Follow
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import batches_of

EVERY = 25  # steps between two points of a curve
Progress = Callable[[int], None]  # steps done


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One training.

    diverged  the step at which it did (`spikes.RULE`), None if it did not
    loss      mean of the last 50 losses in nats, NaN where one is not finite;  curve: (steps done, mean loss since the last entry)
    audit     of a BF16 arm: `audit.audit` at the steps of the scale, each row with its step
    """

    trial: Trial
    diverged: int | None
    loss: float
    curve: tuple[tuple[int, float], ...]
    audit: tuple[Row, ...] = ()


def launch(scale: Scale, own: Sequence[Trial], progress: Progress) -> list[Result]:
    """The results of trials, in their order. Same trials, same device: same bits."""
    settings, steps = settings_of(scale, list(own)), scale.gpt.steps
    state = one_step.start(settings.config, len(own), [settings.config.init_seed + t.seed for t in own])
    group, batches = Group(settings, list(range(len(own))), state), batches_of(settings)
    follow, waiting, looks, audits = Follow(len(own)), list[Any](), list[np.ndarray](), {t: list[Row]() for t in own if t.name == BF16}
    for number in range(steps):
        drawn = {seed: b.batch(number) for seed, b in batches.items()}
        if number in scale.audited:
            _audit(scale, own, group.state.params, drawn, number, audits)
        waiting.append(group.advance(number, drawn)[0])
        if len(waiting) == EVERY or number == steps - 1:
            looks.append(np.stack(jax.device_get(waiting)).astype(float))
            waiting = []
            progress(number + 1)
    losses = np.concatenate(looks)
    for number, loss in enumerate(losses):
        follow.update(number, loss)
    final = follow.final()
    return [
        Result(
            trial=t, diverged=None if follow.first[a] < 0 else int(follow.first[a]), loss=float(final[a]),
            curve=tuple((min(n + EVERY, steps), float(losses[n : n + EVERY, a].mean())) for n in range(0, steps, EVERY)),
            audit=tuple(audits.get(t, ())),
        )
        for a, t in enumerate(own)
    ]  # fmt: skip


def _audit(
    scale: Scale, own: Sequence[Trial], params: Any, drawn: dict[int, np.ndarray], number: int, audits: dict[Trial, list[Row]]
) -> None:
    """Of every BF16 arm, at its weights and the batch of the step."""
    for a, trial in enumerate(own):
        if trial in audits:
            mine = jax.tree.map(lambda leaf, a=a: leaf[a], params)
            audits[trial] += [{"step": number, **row} for row in audit(scale.gpt, mine, drawn[trial.seed])]
