"""Launches of the student (`experiments.train.student`), which several studies train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.train.student import run as runner
from roundscope.experiments.train.student.arms import Arm, Config, key
from roundscope.tools.results.run import Run

Compute = Callable[[Progress], Sequence[Run[Arm]]]


def launch(
    title: str, config: Config, arms: Sequence[Arm], compute: Compute | None = None
) -> Launch:
    """Return arms of one executable as a launch; `compute` replaces training from the start."""

    def run(progress: Progress) -> Mapping[str, Run[Arm]]:
        runs = compute(progress) if compute else runner.launch(config, arms, progress)
        return {key(config, r.condition): r for r in runs}

    keys = tuple(key(config, arm) for arm in arms)
    text = f"{title}: {len(arms)} runs"
    return Launch(title=text, steps=config.steps, config=asdict(config), keys=keys, run=run)


def stored(store: Store, config: Config, arms: Sequence[Arm]) -> dict[Arm, Run[Arm]]:
    """Return the runs that are stored, of some arms."""
    return store.read({arm: key(config, arm) for arm in arms})


def whole(store: Store, config: Config, arms: Sequence[Arm]) -> list[Run[Arm]]:
    """Return the runs of all arms; none where one is missing."""
    runs = stored(store, config, arms)
    return [runs[arm] for arm in arms] if len(runs) == len(set(arms)) else []
