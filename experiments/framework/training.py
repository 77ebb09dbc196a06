"""Trainings of the small GPT as launches of a study; arms of one structure share an executable."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.train.config import WORD, Config, deciding
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Batches, Group, blocks, drawing, numbers
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.results.run import C, Run, key_of

# all arms, the steps done, tokens of the next step by seed -> a column, or rows (arms, columns)
Look = Callable[[Group, int, Batches], Any]


def launches(
    store: Store,
    config: Config,
    arms: Mapping[C, Arm],
    *,
    look: Look | None = None,
    about: Hashable = None,
) -> list[Launch]:
    """Return a launch for each structure of plans among the arms; each condition has one arm.

    Arms that the store has are a launch of their own, so that more seeds train only what is new.

    config  the model; its lr and min_lr are not used: an arm's lr is constant after the warm-up
    look    as in `trained`
    about   what `look` is, where it is given: a part of the key of a run
    """
    rate_of_arms = replace(config, lr=1.0, min_lr=1.0, decay_steps=None)
    settings = Settings(config=rate_of_arms, arms=tuple(arms.values()))
    there = store.keys()
    each = []
    for group in numbers(settings):
        known = [i for i in group if key(config, settings.arms[i], about) in there]
        parts = known, [i for i in group if i not in known]
        each += [_launch(settings, list(arms), part, look, about) for part in parts if part]
    return each


def read(
    store: Store, config: Config, arms: Mapping[C, Arm], *, about: Hashable = None
) -> dict[C, Run[C]]:
    """Return what a store has of these arms."""
    return store.read({condition: key(config, arm, about) for condition, arm in arms.items()})


def whole(
    store: Store,
    config: Config,
    arms: Mapping[C, Arm],
    *,
    by: Callable[[C], str],
    about: Hashable = None,
) -> dict[str, list[Run[C]]] | None:
    """Return the runs of these arms by a word of their conditions; None unless all are stored."""
    runs = read(store, config, arms, about=about)
    groups: dict[str, list[Run[C]]] = {by(condition): [] for condition in arms}
    for condition, run in runs.items():
        groups[by(condition)].append(run)
    return groups if len(runs) == len(arms) else None


def key(config: Config, arm: Arm, about: Hashable = None) -> str:
    """Return the key of a run: of all that decides it but versions, device and the arm's name."""
    kept = {name: value for name, value in deciding(config).items() if name not in NAMED}
    changes = (*config.changes, *arm.changes)
    return key_of(kept, config.steps, changes, arm.lr, arm.seed, about)


def _launch(
    settings: Settings,
    conditions: Sequence[Any],
    group: Sequence[int],
    look: Look | None,
    about: Hashable,
) -> Launch:
    """Return the launch of the arms with these numbers."""
    config, arms = settings.config, tuple(settings.arms[i] for i in group)
    keys, chosen = tuple(key(config, arm, about) for arm in arms), [conditions[i] for i in group]

    def run(progress: Progress) -> dict[str, Run[Any]]:
        runs = trained(replace(settings, arms=arms), chosen, progress, look=look)
        return dict(zip(keys, runs, strict=True))

    title = f"GPT of {config.layers} layers: {len(arms)} runs"
    return Launch(title=title, steps=config.steps, config=asdict(config), keys=keys, run=run)


def trained(
    settings: Settings,
    conditions: Sequence[C],
    progress: Progress,
    *,
    look: Look | None = None,
    early: bool = False,
) -> list[Run[C]]:
    """Return the runs of arms of one structure, one for each condition, in their order.

    look   further columns of the curves: computed every 25 steps, and before the first
    early  whether to end once every arm has diverged

    An arm that has diverged goes on: arms are entries of one vmap, and none affects another. Curves
    consist of (steps done, mean loss since the point before, what `look` gave).
    """
    config, arms = settings.config, settings.arms
    seeds = [(config.init_seed + arm.seed) % WORD for arm in arms]
    state = one_step.start(config, len(arms), seeds)
    group, drawn = Group(settings, list(range(len(arms))), state), drawing(settings)
    follow, points = Follow(len(arms)), []
    if look is not None:
        points.append((0, np.full(len(arms), np.nan), np.asarray(look(group, 0, drawn(0)))))

    def advance(number: int) -> tuple[Any, Any]:
        return group.advance(number, drawn(number))

    def columns_of(done: int) -> list[Any]:
        return [] if look is None else [look(group, done, drawn(done))]

    for block in blocks(advance, 0, config.steps, look=columns_of, ahead=not early):
        losses = block.losses.astype(float)
        follow.add(block.done, losses)
        points.append((block.done, losses.mean(0), *block.look))
        progress(block.done)
        if early and (follow.first >= 0).all():
            break
    diverged, final = follow.diverged(), follow.final()
    return [
        Run(
            condition=condition,
            steps=config.steps,
            diverged=diverged[a],
            loss=float(final[a]),
            curve=tuple(
                (done, *(float(y) for x in columns for y in np.ravel(x[a])))
                for done, *columns in points
            ),
        )
        for a, condition in enumerate(conditions)
    ]
