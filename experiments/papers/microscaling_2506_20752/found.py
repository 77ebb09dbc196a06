"""`Found`: the stored runs of a scale, whole parts only, by their place in the argument."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundscope.experiments.framework.estimates import Estimate, Values, ratio
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.student import whole
from roundscope.experiments.papers.microscaling_2506_20752.conditions import (
    Scale,
    Setting,
    changed,
    config_of,
    parted,
    trained,
)
from roundscope.experiments.papers.microscaling_2506_20752.launches import (
    Runs,
    at_rate,
    epsilon,
    starts,
)
from roundscope.experiments.papers.microscaling_2506_20752.outcomes import Parted
from roundscope.experiments.train.student.arms import Arm
from roundscope.tools.results.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The stored runs.

    trained  (setting, format) -> runs of all rates and seeds
    epsilon  the base's runs with measures
    parted   (seed, lead) -> arm -> run
    paper    format -> runs of the published setting
    """

    trained: Mapping[tuple[str, str], Runs]
    epsilon: Runs = ()
    parted: Parted = field(default_factory=dict)
    paper: Mapping[str, Runs] = field(default_factory=dict)

    def of(self, setting: str, format: str, rate: float | None = None) -> Runs:
        """Return the runs of a setting in a format, at one rate or at all; empty without any."""
        runs = self.trained.get((setting, format), ())
        return [r for r in runs if rate is None or r.condition.lr == rate]


def read(scale: Scale, store: Store) -> Found | None:
    """Return what the store holds, None if that is nothing.

    A format of a setting is there if all its rates and seeds are; a parting if all its arms are.
    """
    watched = epsilon(scale)
    found = Found(
        trained={place: runs for place, runs in _trained(scale, store).items() if runs},
        epsilon=whole(store, watched.config, watched.arms),
        parted={place: runs for place, runs in _parted(scale, store).items() if runs},
        paper={name: runs for name, runs in _paper(scale, store).items() if runs},
    )
    return found if found.trained else None


def _trained(scale: Scale, store: Store) -> dict[tuple[str, str], Runs]:
    few = scale.seeds[: scale.parted]
    wanted = [(scale.base, f, scale.seeds) for f in scale.formats]
    wanted += [(s, f, scale.seeds) for s in scale.settings[1:] for f in scale.few]
    wanted += [(at_rate(scale), f, few) for f in changed(scale.mx)]

    def runs(s: Setting, f: str, seeds: Sequence[int]) -> Runs:
        return whole(store, config_of(s), trained(s, [f], seeds))

    return {(s.name, f): runs(s, f, seeds) for s, f, seeds in wanted}


def _parted(scale: Scale, store: Store) -> dict[tuple[int, int], dict[str, Run[Arm]]]:
    config = config_of(scale.base, scale.rate)
    found = {}
    for seed, lead, first in starts(scale, store):
        runs = whole(store, config, parted(scale, seed, first))
        found[seed, lead] = {r.condition.name: r for r in runs}
    return found


def _paper(scale: Scale, store: Store) -> dict[str, Runs]:
    if scale.paper is None:
        return {}
    setting, formats, seeds = scale.paper
    return {f: whole(store, config_of(setting), trained(setting, [f], seeds)) for f in formats}


def limits(runs: Runs) -> Values:
    """Return the lowest rate at which each seed diverged.

    Seeds that diverged at no rate, or at the lowest, are left out.
    """
    lowest = min((r.condition.lr for r in runs), default=0.0)
    failed = [r for r in runs if r.diverged is not None]
    seeds = sorted({r.seed for r in failed})
    by_seed = {s: min(r.condition.lr for r in failed if r.seed == s) for s in seeds}
    return {seed: rate for seed, rate in by_seed.items() if rate > lowest}


def limit_ratio(over: Runs, under: Runs) -> Estimate:
    """Return the ratio of two limits, as a geometric mean over seeds."""
    return ratio(limits(over), limits(under))


def shown(limit: Values) -> str:
    """Return the median of the seeds' limits and their range, in words."""
    rates = sorted(limit.values())
    if not rates:
        return "none inside the rates"
    return f"{rates[len(rates) // 2]:g} [{rates[0]:g}, {rates[-1]:g}]"
