"""The launches of both models, and how one of the GPT runs.

It trains all arms and seeds of one rate in one executable, and audits the BF16 arms on the way.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from roundscope.experiments.framework import student
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.papers.mxfp8_2506_08027.audit import Row, audit
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    Scale,
    Trial,
    key,
    proxy_arms,
    settings_of,
    trials,
)
from roundscope.experiments.train.divergence import followed
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import EVERY, blocks, drawing
from roundscope.tools.results.run import Run


def planned(scale: Scale, store: Store) -> list[Launch]:
    """Return the proxy's launches by rate and executable, then the GPT's, one for each rate."""
    proxy = [
        student.launch(f"proxy, lr {arms[0].lr:g}", scale.proxy, arms) for arms in proxy_arms(scale)
    ]
    return [*proxy, *(_gpt(scale, own) for own in trials(scale))]


def _gpt(scale: Scale, own: Sequence[Trial]) -> Launch:
    return Launch(
        title=f"GPT, lr {own[0].lr:g}: {len(own)} runs",
        steps=scale.gpt.steps,
        config=asdict(scale.gpt),
        keys=tuple(key(scale, trial) for trial in own),
        run=lambda progress: {key(scale, r.condition): r for r in launch(scale, own, progress)},
    )


def launch(scale: Scale, own: Sequence[Trial], progress: Progress) -> list[Run[Trial]]:
    """Return the runs of trials, in their order. Same trials, same device: same bits.

    curve           (steps done, mean loss since the last entry)
    extra["audit"]  of a BF16 arm: `audit.audit` at the steps of the scale, each row with its step
    """
    settings, steps = settings_of(scale, list(own)), scale.gpt.steps
    state = one_step.start(
        settings.config, len(own), [settings.config.init_seed + t.seed for t in own]
    )
    group, drawn = Group(settings, list(range(len(own))), state), drawing(settings)
    audits, looks = {t: list[Row]() for t in own if t.name == BF16}, list[np.ndarray]()

    def step(number: int) -> Any:
        tokens = drawn(number)
        if number in scale.audited:
            _audit(scale, own, group.state.params, tokens, number, audits)
        return group.advance(number, tokens)

    for block in blocks(step, 0, steps):
        looks.append(block.losses.astype(float))
        progress(block.done)
    losses = np.concatenate(looks)
    follow = followed(losses)
    diverged, final = follow.diverged(), follow.final()
    return [
        Run(
            condition=t,
            steps=steps,
            diverged=diverged[a],
            loss=float(final[a]),
            curve=_curve(losses[:, a]),
            extra={"audit": tuple(audits.get(t, ()))},
        )
        for a, t in enumerate(own)
    ]


def _curve(losses: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Return (steps done, mean loss since the last entry), every EVERY steps."""
    steps = len(losses)
    first = range(0, steps, EVERY)
    return tuple((min(n + EVERY, steps), float(losses[n : n + EVERY].mean())) for n in first)


def _audit(
    scale: Scale,
    own: Sequence[Trial],
    params: Any,
    drawn: dict[int, np.ndarray],
    number: int,
    audits: dict[Trial, list[Row]],
) -> None:
    """Audit every BF16 arm, at its weights and the batch of the step."""
    for a, trial in enumerate(own):
        if trial in audits:
            mine = jax.tree.map(lambda leaf, a=a: leaf[a], params)
            audits[trial] += [
                {"step": number, **row} for row in audit(scale.gpt, mine, drawn[trial.seed])
            ]
