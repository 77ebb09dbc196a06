"""Trials: copies of one arm of a run that begin at its state and continue with edited plans."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from roundscope.experiments.diagnose.gpt.case import Case
from roundscope.experiments.diagnose.gpt.units import reseeded
from roundscope.experiments.train.gpt.plans import Plans, Tables, by_arm, by_layer
from roundscope.experiments.train.groups import Group, plans_at
from roundscope.experiments.train.settings import Settings
from roundscope.tools.diagnose.replay.fate import Trial
from roundscope.tools.diagnose.replay.replayer import shaken


def plans_of(settings: Settings, trial: Trial, number: int) -> Plans:
    """Return the plans of a trial at a step: an edit of the plans of `settings`' first arm."""
    plans = plans_at(settings, settings.arms[0], number)
    assert plans is not None
    return reseeded(trial.repeat)(trial.change(plans))


class Trials(Group):
    """Copies of one arm, each edited as its trial says."""

    def __init__(self, case: Case, trials: Sequence[Trial], state: Any) -> None:
        self.trials = trials
        many = jax.tree.map(
            lambda *leaves: np.stack(leaves), *(shaken(state, trial.repeat) for trial in trials)
        )
        super().__init__(copies(case, len(trials)), list(range(len(trials))), many)

    def plans(self, number: int) -> tuple[Tables | None, list[Plans | None]]:
        """Return the plans of a step as the parent does, edited."""
        stage = self._stage(number)
        if stage not in self._plans:
            found = [plans_of(self.settings, trial, number) for trial in self.trials]
            tables = by_arm([by_layer(plans) for plans in found])
            self._plans[stage] = self.place.state(tables), list(found)
        return self._plans[stage]


def copies(case: Case, count: int) -> Settings:
    """Return the settings of `count` copies of the case's arm."""
    return replace(case.settings, arms=(case.own,) * count)
