"""`Dose`: one event, rounded one way, at one rate, with one seed; and which doses run in one executable."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from attention.sites import Site
from emu.rounding import RoundingMode
from experiments.dose.scale import EVEN, MOST_BITS, Scale
from experiments.train.config import Config
from experiments.train.groups import numbers
from experiments.train.settings import Arm, Settings

NAMED = ("steps", "lr", "min_lr", "decay_steps", "changes", "checkpoint_every", "keep", "monitor_every")  # by the dose, or without effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """One run. site None: nothing is rounded but to FP32, the exact arm. bits: p of the significand, the leading one counted."""

    site: Site | None
    mode: RoundingMode
    bits: int
    rate: float
    steps: int
    seed: int

    @property
    def change(self) -> tuple[str, ...]:
        """As the trainer's words: one format at one event, with the exponents of BF16 and of binary32."""
        return () if self.site is None else (f"site={self.site} -> e8m{self.bits - 1}:{self.mode}",)

    @property
    def exact(self) -> "Dose":
        """The arm that differs in nothing else."""
        return replace(self, site=None, mode=EVEN, bits=MOST_BITS)


def doses(scale: Scale) -> list[Dose]:
    """Every run of a scale, each once, exact arms first."""
    found = [
        Dose(site=site, mode=mode, bits=bits, rate=rate, steps=study.steps, seed=seed)
        for study in scale.studies for site in study.sites for mode in study.modes for bits in study.bits
        for rate in study.rates for seed in scale.seeds
    ]  # fmt: skip
    return list(dict.fromkeys([*(dose.exact for dose in found), *found]))


def key(config: Config, dose: Dose) -> str:
    """The name of a result: of all that decides it but versions and device."""
    kept = {name: value for name, value in asdict(config).items() if name not in NAMED}
    own = asdict(dose) | {"site": None if dose.site is None else str(dose.site), "mode": str(dose.mode)}
    return hashlib.sha256(json.dumps([kept, own], sort_keys=True).encode()).hexdigest()[:24]


def settings_of(config: Config, wanted: Sequence[Dose]) -> Settings:
    """Doses of equally many steps as arms of one run. The rate stays at its peak after the warm-up, so that it does not
    depend on the number of steps.
    """
    steps = wanted[0].steps
    one = replace(config, steps=max(steps, config.warmup), lr=1.0, min_lr=1.0, decay_steps=None)
    arms = [Arm(name=str(i), changes=dose.change, lr=dose.rate, seed=dose.seed) for i, dose in enumerate(wanted)]
    return Settings(config=one, arms=tuple(arms))


def launches(config: Config, wanted: Sequence[Dose]) -> list[list[Dose]]:
    """Doses by executable: equally many steps, one structure (stochastic roundings are another). Raises UsageError for an
    event that the plan has not.
    """
    by_steps: dict[int, list[Dose]] = {}
    for dose in wanted:
        by_steps.setdefault(dose.steps, []).append(dose)
    return [[own[i] for i in arms] for own in by_steps.values() for arms in numbers(settings_of(config, own))]


def described(dose: Dose) -> dict[str, Any]:
    """As plain data."""
    return asdict(dose) | {"site": None if dose.site is None else str(dose.site), "mode": str(dose.mode)}
