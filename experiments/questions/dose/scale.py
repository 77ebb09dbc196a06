"""What `roundscope dose` measures: --quick for two cores, full for a GPU.

KEY=VALUE words change either.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roundscope.attention.grammar.ranges import numbers
from roundscope.attention.sites import Site, site_named
from roundscope.emu.roundings.modes import RoundingMode, mode_named
from roundscope.experiments.framework.words import pairs, seeds_of
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import typed
from roundscope.tools.errors import UsageError, bad

EVEN = RoundingMode.TIES_TO_EVEN
AWAY = RoundingMode.TIES_TO_AWAY
ZERO = RoundingMode.TOWARD_ZERO
RANDOM = RoundingMode.STOCHASTIC
OUTWARD = RoundingMode.AWAY_FROM_ZERO
OWN = (
    "lr",
    "min_lr",
    "steps",
    "decay_steps",
    "changes",
    "data_seed",
    "init_seed",
    "checkpoint_every",
    "keep",
    "monitor_every",
)
MOST_BITS = 24  # the precision of binary32, in which everything is that is not rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All combinations of events, modes, significand bits (p) and peak rates.

    Each of them runs for `steps` steps, and so does the exact arm of each rate.
    """

    sites: tuple[Site, ...]
    modes: tuple[RoundingMode, ...]
    bits: tuple[int, ...]
    rates: tuple[float, ...]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model in which everything but one event is FP32, linear layers too; and its studies.

    Its sums are native.
    """

    name: str
    config: Config
    studies: tuple[Study, ...]
    seeds: tuple[int, ...] = field(default=(0, 1, 2, 3, 4))


PLAIN = {"plan": "fp32", "matmul": "fp32", "sums": "native"}
QUICK = Scale(
    name="quick",
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, **PLAIN),  # type: ignore[arg-type]
    studies=(
        Study(
            sites=(Site.OD,),
            modes=(EVEN, RANDOM, ZERO, OUTWARD),
            bits=(2, 3, 4),
            rates=(3e-2,),
            steps=400,
        ),
    ),
)
# the probe's model; 2,000 steps at 1e-2 and 6,000 at 1e-3, and other events at 2 and 4 bits
FULL = Scale(
    name="full",
    config=Config(layers=4, heads=4, width=128, context=128, batch=16, warmup=100, **PLAIN),  # type: ignore[arg-type]
    studies=(
        Study(
            sites=(Site.OD,),
            modes=(EVEN, AWAY, RANDOM, ZERO, OUTWARD),
            bits=(2, 3, 4, 5, 6, 7, 8),
            rates=(1e-2,),
            steps=2000,
        ),
        Study(
            sites=(Site.O, Site.OUT, Site.P, Site.DP, Site.DS),
            modes=(EVEN, ZERO),
            bits=(2, 4),
            rates=(1e-2,),
            steps=2000,
        ),
        Study(sites=(Site.OD,), modes=(EVEN, ZERO), bits=(2, 3, 4), rates=(1e-3,), steps=6000),
    ),
)


def scale(words: Sequence[str], *, quick: bool, seeds: str | None) -> Scale:
    """Return the scale that was asked for.

    words   for every study, such as  site=OD,O mode=toward-zero p=2-4 lr=1e-2,1e-3 steps=2000;
            or for the model, such as  width=64

    Raises UsageError naming key, value and repair.
    """
    found = QUICK if quick else FULL
    given = pairs(
        words, (*STUDY, *(f.name for f in dataclasses.fields(Config) if f.name not in OWN))
    )
    of_study = {
        STUDY[name][0]: STUDY[name][1](name, given.pop(name))
        for name in list(given)
        if name in STUDY
    }
    studies = tuple(dict.fromkeys(replace(study, **of_study) for study in found.studies))
    config = replace(found.config, **{name: typed(name, value) for name, value in given.items()})
    return replace(found, config=config, studies=studies, seeds=seeds_of(seeds) or found.seeds)


def _each(read: Callable[[str], Any]) -> Callable[[str, str], tuple[Any, ...]]:
    def reader(name: str, text: str) -> tuple[Any, ...]:
        try:
            return tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))
        except ValueError as error:
            raise UsageError(f"{name}={text}: {error}") from None

    return reader


def _bits(name: str, text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(numbers(text)))
    except ValueError as error:
        raise UsageError(f"{name}={text}: {error}") from None
    if not all(2 <= p <= MOST_BITS for p in found):
        raise bad(
            name, text, f"significand bits, the leading one counted: 2 to {MOST_BITS}; BF16 has 8"
        )
    return found


def steps_of(name: str, text: str) -> int:
    """Return a number of steps. Raises UsageError."""
    steps: int = typed("steps", text)
    if steps < 1:
        raise bad(name, text, "give at least 1 step")
    return steps


def _rate(text: str) -> float:
    lr: float = typed("lr", text)
    if not lr > 0.0:
        raise ValueError("a learning rate is above 0")
    return lr


STUDY: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "site": ("sites", _each(site_named)),
    "mode": ("modes", _each(mode_named)),
    "p": ("bits", _bits),
    "lr": ("rates", _each(_rate)),
    "steps": ("steps", steps_of),
}
