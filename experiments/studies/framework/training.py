"""Trainings of the small GPT as launches of a study; arms of one structure share an executable."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from roundscope.experiments.results.run import C, Run, key_of
from roundscope.experiments.studies.framework.store import Store
from roundscope.experiments.studies.framework.study import Launch, Progress
from roundscope.experiments.studies.framework.words import NAMED
from roundscope.experiments.train.config import WORD, Config, deciding
from roundscope.experiments.train.divergence import Follow
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group, numbers
from roundscope.experiments.train.loop import blocks, drawing
from roundscope.experiments.train.settings import Arm, Settings

Look = Callable[[Any], Any]  # the parameters of all arms -> a number for each arm (arms,)


def launches(
    store: Store,
    config: Config,
    arms: Mapping[C, Arm],
    *,
    look: Look | None = None,
    about: Hashable = None,
) -> list[Launch]:
    """A launch for each structure of plans among the arms, one of which each condition has.

    Arms that the store has are a launch of their own, so that more seeds train only what is new.

    config  its lr and min_lr are not used: an arm's lr stays after the warm-up
    look    as in `trained`;  about: what `look` is, where it is given, for the name of a run
    """
    rate_of_arms = replace(config, lr=1.0, min_lr=1.0, decay_steps=None)
    settings = Settings(config=rate_of_arms, arms=tuple(arms.values()))
    there = store.keys()
    found = []
    for group in numbers(settings):
        known = [i for i in group if key(config, settings.arms[i], about) in there]
        parts = known, [i for i in group if i not in known]
        found += [_launch(settings, list(arms), part, look, about) for part in parts if part]
    return found


def read(
    store: Store, config: Config, arms: Mapping[C, Arm], *, about: Hashable = None
) -> dict[C, Run[C]]:
    """What a store has of these arms."""
    return store.read({condition: key(config, arm, about) for condition, arm in arms.items()})


def whole(
    store: Store,
    config: Config,
    arms: Mapping[C, Arm],
    *,
    by: Callable[[C], str],
    about: Hashable = None,
) -> dict[str, list[Run[C]]] | None:
    """The runs of these arms by a word of their conditions; None unless all are there."""
    runs = read(store, config, arms, about=about)
    found: dict[str, list[Run[C]]] = {by(condition): [] for condition in arms}
    for condition, run in runs.items():
        found[by(condition)].append(run)
    return found if len(runs) == len(arms) else None


def key(config: Config, arm: Arm, about: Hashable = None) -> str:
    """The name of a run: of all that decides it but versions, the device and the arm's name."""
    kept = {name: value for name, value in deciding(config).items() if name not in NAMED}
    own = (*config.changes, *arm.changes), arm.lr, arm.seed
    return key_of(kept, config.steps, *own, about)


def _launch(
    settings: Settings,
    conditions: Sequence[Any],
    group: Sequence[int],
    look: Look | None,
    about: Hashable,
) -> Launch:
    """The arms of these numbers."""
    config, arms = settings.config, tuple(settings.arms[i] for i in group)
    keys, own = tuple(key(config, arm, about) for arm in arms), [conditions[i] for i in group]

    def run(progress: Progress) -> dict[str, Run[Any]]:
        runs = trained(replace(settings, arms=arms), own, progress, look=look)
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
    """The runs of arms of one structure, one for each condition, in their order.

    look   more columns of the curves: every 25 steps, and before the first
    early  ends once every arm has diverged

    An arm that has diverged goes on: arms are entries of one vmap, and nothing crosses them. Curves
    hold (steps done, mean loss since the point before, what `look` gave).
    """
    config, arms = settings.config, settings.arms
    state = one_step.start(
        config, len(arms), [(config.init_seed + arm.seed) % WORD for arm in arms]
    )
    group, drawn = Group(settings, list(range(len(arms))), state), drawing(settings)
    follow, points = Follow(len(arms)), []
    if look is not None:
        points.append((0, np.full(len(arms), np.nan), np.asarray(look(group.state.params))))

    def seen(done: int) -> list[Any]:
        return [] if look is None else [look(group.state.params)]

    for block in blocks(
        lambda n: group.advance(n, drawn(n)), 0, config.steps, look=seen, ahead=not early
    ):
        losses = block.losses.astype(float)
        for number, loss in enumerate(losses, block.done - len(losses)):
            follow.update(number, loss)
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
            curve=tuple((done, *(float(x[a]) for x in columns)) for done, *columns in points),
        )
        for a, condition in enumerate(conditions)
    ]
