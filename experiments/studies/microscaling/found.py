"""`Found`: what is there of a scale, whole parts only, by the place that it takes in the argument."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundscope.experiments.studies.microscaling.arms import changed, config_of, parted, trained
from roundscope.experiments.studies.microscaling.launches import at_rate, epsilon, leaving
from roundscope.experiments.studies.microscaling.outcomes import Parted
from roundscope.experiments.studies.microscaling.scale import Scale, Setting
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """trained: (setting, format) -> runs of all rates and seeds; epsilon: the base's runs with measures; parted: (seed, lead) -> arm ->
    run; paper: format -> runs of the published setting.
    """

    trained: Mapping[tuple[str, str], Sequence[Result]]
    epsilon: Sequence[Result] = ()
    parted: Parted = field(default_factory=dict)
    paper: Mapping[str, Sequence[Result]] = field(default_factory=dict)

    def of(self, setting: str, format: str, rate: float | None = None) -> list[Result]:
        """The runs of a setting in a format, at one rate or at all; empty where they are not there."""
        return [r for r in self.trained.get((setting, format), ()) if rate is None or r.arm.lr == rate]


def read(scale: Scale, store: Any) -> Found:
    """What the store holds. A format of a setting is there if all its rates and seeds are; a parting if all its arms are."""
    found = {
        (setting.name, f): runs
        for i, setting in enumerate(scale.settings) for f in (scale.few if i else scale.formats)
        if (runs := _whole(store, setting, [f], scale.seeds))
    }  # fmt: skip
    few = scale.seeds[: scale.parted]
    found |= {(scale.base.name, f): runs for f in changed(scale.mx) if (runs := _whole(store, at_rate(scale), [f], few))}
    places = starts(scale, Found(trained=found))
    config = config_of(scale.base, scale.rate)
    gone = {(seed, lead): store.read(config, arms) for seed, lead, first in places for arms in [parted(scale, seed, first)]}
    sizes = {(seed, lead): len(parted(scale, seed, first)) for seed, lead, first in places}
    watched = epsilon(scale)
    seen = store.read(watched.config, watched.arms)
    return Found(
        trained=found, epsilon=list(seen.values()) if len(seen) == len(watched.arms) else [],
        parted={at: {arm.name: r for arm, r in runs.items()} for at, runs in gone.items() if len(runs) == sizes[at]},
        paper=_paper(scale, store),
    )  # fmt: skip


def starts(scale: Scale, found: Found) -> list[tuple[int, int, int]]:
    """Where interventions part; empty before the base and FP32 are there."""
    base, exact = (found.of(scale.base.name, f, scale.rate) for f in (scale.mx, EXACT))
    return leaving(scale, base, exact)


def _whole(store: Any, setting: Setting, formats: Sequence[str], seeds: Sequence[int]) -> list[Result]:
    arms = trained(setting, formats, seeds)
    runs = store.read(config_of(setting), arms)
    return list(runs.values()) if len(runs) == len(arms) else []


def _paper(scale: Scale, store: Any) -> dict[str, list[Result]]:
    if scale.paper is None:
        return {}
    config, formats, seeds = scale.paper
    setting = Setting(name="paper", config=config, rates=(config.lr,))
    return {f: runs for f in formats if (runs := _whole(store, setting, [f], seeds))}
