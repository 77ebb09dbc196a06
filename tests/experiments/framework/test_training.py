"""Trainings of a study: what comes of an arm, and which runs are told apart by name."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from roundscope.experiments.framework import training
from roundscope.experiments.framework.store import opened
from roundscope.experiments.train import record
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.run import training as loop
from roundscope.experiments.train.run.training import Beginning
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.results.run import Run

TINY = Config(
    layers=1,
    heads=1,
    width=8,
    context=8,
    batch=2,
    steps=30,
    warmup=5,
    plan="fp32",
    matmul="fp32",
    data="repeat",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What decides a run."""

    name: str
    seed: int


def arms():
    """Two structures: plans as they are, and one whose delta is read elsewhere."""
    found = {}
    for seed in (0, 1):
        found[Condition(name="low", seed=seed)] = Arm(
            name="low", changes=("site=O -> e8m1:toward-zero",), lr=3e-2, seed=seed
        )
        found[Condition(name="kept", seed=seed)] = Arm(
            name="kept", changes=("-> delta_from=P_DP",), lr=3e-2, seed=seed
        )
    return found


@pytest.mark.thorough
def test_what_comes_of_arms_is_what_the_trainer_logs(tmp_path):
    """Batches or weights of another seed, a rate that falls, a curve of other steps: against
    `roundscope train`.
    """
    own = arms()
    done = []
    with opened(tmp_path, "x") as store:
        launches = training.launches(
            store, TINY, own, look=lambda group, done, tokens: np.arange(2.0)
        )
        assert [len(launch.keys) for launch in launches] == [2, 2]
        for launch in launches:
            store.add(launch.run(done.append), launch.config, "a device")
        found = training.read(store, TINY, own)
    assert done == [25, 30] * 2 and list(found) == list(own)
    for condition in (Condition(name="low", seed=0), Condition(name="kept", seed=1)):
        run = found[condition]
        losses = trained_alone(own[condition], tmp_path / f"{condition.name}{condition.seed}")
        assert [point[0] for point in run.curve] == [0, 25, 30] and run.steps == 30
        assert run.curve[1][1] == pytest.approx(np.mean(losses[:25]), rel=1e-4)
        assert run.loss == pytest.approx(np.mean(losses), rel=1e-4)  # all of them are its last 50
        assert run.curve[1][2] == condition.seed  # of its own place in the launch


def trained_alone(arm, folder):
    """The losses of every step in the log of the trainer."""
    config = replace(TINY, lr=1.0, min_lr=1.0, monitor_every=100)
    settings = Settings(config=config, arms=(arm,))
    folder.mkdir()
    begin = Beginning(step=0, state=one_step.start(config, 1, [arm.seed]))
    with record.writing(folder) as log:
        loop.Run(settings, folder, log, begin).go(lambda view: None, lambda: False)
    return [row["loss"] for row in record.rows(folder, "steps")]


def test_a_run_ends_early_only_when_asked():
    """Steps after the last divergence that nobody needs, or runs that end while one arm goes on."""
    own = {Condition(name="hot", seed=0): Arm(name="hot", lr=1e4, seed=0)}
    settings = Settings(
        # no emulated attention, which would take most of the time to compile
        config=replace(TINY, plan="jax", steps=200, lr=1.0, min_lr=1.0),
        arms=tuple(own.values()),
    )
    done = []
    (run,) = training.trained(settings, list(own), done.append, early=True)
    assert run.diverged is not None and done[-1] < 200 and run.curve[-1][0] == done[-1]
    calm = {Condition(name="calm", seed=0): Arm(name="calm", lr=1e-4, seed=0)}
    done.clear()
    both = Settings(config=settings.config, arms=(*settings.arms, *calm.values()))
    training.trained(both, [*own, *calm], done.append, early=True)
    assert done[-1] == 200


def test_names_hold_all_that_decides_a_run():
    """A stored run that is taken for another one."""
    arm = next(iter(arms().values()))
    names = [
        training.key(TINY, arm),
        training.key(replace(TINY, steps=31), arm),
        training.key(replace(TINY, width=16), arm),
        training.key(replace(TINY, changes=("site=P -> bf16",)), arm),
        training.key(TINY, replace(arm, changes=())),
        training.key(TINY, replace(arm, lr=1e-2)),
        training.key(TINY, replace(arm, seed=9)),
        training.key(TINY, arm, "norms"),
    ]
    assert len(set(names)) == len(names)
    assert training.key(replace(TINY, lr=0.5, keep=9), replace(arm, name="other")) == names[0]


def test_more_seeds_train_only_what_is_new(tmp_path):
    """Runs that are there and are trained once more."""
    own = arms()
    first = {condition: arm for condition, arm in own.items() if condition.seed == 0}
    with opened(tmp_path, "x") as store:
        for condition, arm in first.items():
            run = Run(condition=condition, steps=30, diverged=None, loss=1.0)
            store.add({training.key(TINY, arm): run}, {}, "a device")
        assert training.whole(store, TINY, own, by=lambda c: c.name) is None
        launches = training.launches(store, TINY, own)
        there = store.keys()
        assert [len(there.intersection(launch.keys)) for launch in launches] == [1, 0, 1, 0]
        assert {name for launch in launches for name in launch.keys} == {
            training.key(TINY, a) for a in own.values()
        }
        found = training.whole(store, TINY, first, by=lambda c: c.name)
    assert {name: [run.seed for run in runs] for name, runs in found.items()} == {
        "low": [0],
        "kept": [0],
    }
