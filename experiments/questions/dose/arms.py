"""`Dose`: what is wrong in one run, its rate and its seed; and which doses share an executable."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.questions.dose.scale import EVEN, MOST_BITS, Scale
from roundscope.experiments.train.config import Config, deciding
from roundscope.experiments.train.gpt.offset import BIAS
from roundscope.experiments.train.groups import numbers
from roundscope.experiments.train.settings import Arm, Settings, typed
from roundscope.tools.results.run import key_of

# fields that were added later: where they are empty, the key is that of a dose without them
ADDED = ("words", "also", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """One run. If site is None no event is named: it is exact unless `also` or `offset` says more.

    bits     the precision p of the significand, the leading bit included
    words    settings of the model over the scale's, such as data=repeat; the exact arm has them too
    also     changes of its attention in the trainer's words, made before that of `site`
    offset   (kind, c): the error of delta's operand, see `experiments.train.gpt.offset`; the exact
             arm has c = 0
    """

    site: Site | None = None
    mode: RoundingMode = EVEN
    bits: int = MOST_BITS
    rate: float
    steps: int
    seed: int = 0
    words: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    offset: tuple[str, float] | None = None

    @property
    def change(self) -> tuple[str, ...]:
        """The dose in the trainer's words: one format at one event, with the exponents of BF16.

        BF16 and binary32 have the same exponents.
        """
        if self.site is None:
            return self.also
        return (*self.also, f"site={self.site} -> e8m{self.bits - 1}:{self.mode}")

    @property
    def point(self) -> "Dose":
        """The condition without its seed: the dose of seed 0."""
        return replace(self, seed=0)

    @property
    def exact(self) -> "Dose":
        """The arm that is exact and differs in nothing else."""
        return replace(
            self, site=None, mode=EVEN, bits=MOST_BITS, also=(), offset=self.offset and (BIAS, 0.0)
        )


def doses(scale: Scale) -> list[Dose]:
    """Return every run of a scale, each once, exact arms first."""
    found = [
        Dose(site=site, mode=mode, bits=bits, rate=rate, steps=study.steps, seed=seed)
        for study in scale.studies
        for site in study.sites
        for mode in study.modes
        for bits in study.bits
        for rate in study.rates
        for seed in scale.seeds
    ]
    return with_exact(found)


def with_exact(wanted: Sequence[Dose]) -> list[Dose]:
    """Return doses and their exact arms, each once; the exact arms come first."""
    return list(dict.fromkeys([*(dose.exact for dose in wanted), *wanted]))


def key(config: Config, dose: Dose) -> str:
    """Return the key of a result: of all that decides it but versions and device."""
    kept = {name: value for name, value in deciding(config).items() if name not in NAMED}
    own = {name: value for name, value in described(dose).items() if name not in ADDED or value}
    return key_of(kept, own)


def settings_of(config: Config, wanted: Sequence[Dose]) -> Settings:
    """Return doses of equally many steps and the same words as arms of one run.

    The rate stays at its peak after the warm-up, so that it does not depend on the number of steps.
    """
    steps, config = wanted[0].steps, config_of(config, wanted[0])
    one = replace(config, steps=max(steps, config.warmup), lr=1.0, min_lr=1.0, decay_steps=None)
    arms = [
        Arm(name=str(i), changes=(*dose.change, *_injected(dose)), lr=dose.rate, seed=dose.seed)
        for i, dose in enumerate(wanted)
    ]
    return Settings(config=one, arms=tuple(arms))


def _injected(dose: Dose) -> tuple[str, ...]:
    """Return a dose's offset in the trainer's words."""
    return () if dose.offset is None else (f"-> offset={dose.offset[1]}:{dose.offset[0]}",)


def launches(config: Config, wanted: Sequence[Dose]) -> list[list[Dose]]:
    """Return doses by executable: equally many steps, the same words and one structure of plans.

    Plans with stochastic roundings or with an offset have another structure. Raises UsageError for
    an event that the plan does not have.
    """
    alike: dict[tuple[int, tuple[str, ...]], list[Dose]] = {}
    for dose in wanted:
        alike.setdefault((dose.steps, dose.words), []).append(dose)
    return [
        [own[i] for i in arms]
        for own in alike.values()
        for arms in numbers(settings_of(config, own))
    ]


def config_of(config: Config, dose: Dose) -> Config:
    """Return the config with the words of a dose over it. Raises UsageError."""
    pairs = (word.partition("=") for word in dose.words)
    return replace(config, **{name: typed(name, value) for name, _, value in pairs})


def described(dose: Dose) -> dict[str, Any]:
    """Return a dose as plain data."""
    return asdict(dose) | {
        "site": None if dose.site is None else str(dose.site),
        "mode": str(dose.mode),
    }
