"""What is trained: arithmetics that leak and that do not, in models of several sizes.

The runs of `CHOOSE` choose the threshold of the alarm. The runs of `TEST` say how often it is
right: they have other events, other rates, other sizes, other algorithms and other seeds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import Arm

CHOOSE, TEST = "choose", "test"
EXACT = "FP32"
FLASH, PAPER, COMPILED = "fa2-bf16", "qiu-yao", "qiu-yao-compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An arithmetic: a preset and changes, in a model, at a rate.

    part     CHOOSE or TEST
    preset   the plan that is changed
    name     the changes in words
    changes  as in `roundscope train --arm`
    rate     times the scale's
    size     a key of `SIZES`
    """

    part: str
    preset: str
    name: str
    changes: tuple[str, ...] = ()
    rate: float = 1.0
    size: str = "width 128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The settings of a run: its case and its seed."""

    case: Case
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its rate after the warm-up, the number of seeds of each case, and the cases."""

    name: str
    config: Config
    rate: float
    seeds: int
    cases: tuple[Case, ...]


SIZES: dict[str, dict[str, Any]] = {
    "width 128": {},
    "width 64": {"width": 64, "heads": 2},
    "width 256": {"width": 256, "heads": 8},
}


def _od(bits: int, mode: str = "toward-zero") -> tuple[str, ...]:
    """Return the change that rounds the output as delta reads it to so many significant bits."""
    return _site("OD", bits, mode)


def _site(site: str, bits: int, mode: str) -> tuple[str, ...]:
    return (f"site={site} -> e8m{bits - 1}:{mode}",)


_EVEN, _AWAY = "ties-to-even", "away-from-zero"
_CENTERED = "-> delta_from=CENTERED"
_CHOOSE = (
    Case(part=CHOOSE, preset=FLASH, name=EXACT, changes=("-> fp32",)),
    Case(part=CHOOSE, preset=FLASH, name="as it is"),
    *(
        Case(part=CHOOSE, preset=FLASH, name=f"delta's O toward zero, {p} bits", changes=_od(p))
        for p in (2, 4, 5, 6, 8)
    ),
    Case(part=CHOOSE, preset=FLASH, name="delta's O to nearest, 4 bits", changes=_od(4, _EVEN)),
    *(
        Case(
            part=CHOOSE,
            preset=FLASH,
            name=f"{name} toward zero, 4 bits",
            changes=_site(site, 4, "toward-zero"),
        )
        for name, site in (("P", "P"), ("dS", "DS"))
    ),
)
_EVENTS = tuple(
    Case(part=TEST, preset=FLASH, name=f"{name}, {p} bits", changes=_site(site, p, mode))
    for name, site, p, mode in (
        ("O toward zero", "O", 4, "toward-zero"),
        ("dP toward zero", "DP", 4, "toward-zero"),
        ("dP to nearest", "DP", 3, _EVEN),
        ("O to nearest", "O", 3, _EVEN),
        ("P to nearest", "P", 3, _EVEN),
        ("delta's O away from zero", "OD", 7, _AWAY),
    )
)
_RATES = tuple(
    Case(part=TEST, preset=FLASH, name=name, changes=changes, rate=3.0)
    for name, changes in (
        (EXACT, ("-> fp32",)),
        ("as it is", ()),
        ("delta's O toward zero, 6 bits", _od(6)),
    )
)
_PRESETS = tuple(
    Case(part=TEST, preset=preset, name=name, changes=changes, rate=rate)
    for preset in (PAPER, COMPILED)
    for rate, rows in (
        (1.0, (("as it is", ()), ("delta = rowsum(P dP)", ("-> delta_from=P_DP",)))),
        (3.0, (("as it is", ()),)),
    )
    for name, changes in rows
)
_CURED = (
    Case(
        part=TEST,
        preset=FLASH,
        name="delta's O toward zero, 4 bits; delta centered",
        changes=(*_od(4), _CENTERED),
    ),
)
_SIZES = tuple(
    Case(part=TEST, preset=FLASH, name=name, changes=changes, size=size)
    for size in SIZES
    if size != "width 128"
    for name, changes in (
        ("as it is", ()),
        ("delta's O toward zero, 4 bits", _od(4)),
        ("delta's O toward zero, 6 bits", _od(6)),
    )
)
_FULL = Config(
    layers=4, heads=4, width=128, context=128, batch=16, warmup=100, steps=1000, monitor_every=25
)
FULL = Scale(
    name="full",
    rate=1e-2,
    seeds=4,
    config=_FULL,
    cases=(*_CHOOSE, *_EVENTS, *_RATES, *_PRESETS, *_CURED, *_SIZES),
)
QUICK = Scale(
    name="quick",
    rate=2e-2,
    seeds=2,
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, steps=300),
    cases=(
        *(c for c in _CHOOSE if c.name in (EXACT, "as it is", "delta's O toward zero, 2 bits")),
        *(c for c in _EVENTS if c.name in ("O toward zero, 4 bits", "dP toward zero, 4 bits")),
        Case(part=TEST, preset=FLASH, name=EXACT, changes=("-> fp32",)),
        Case(part=TEST, preset=FLASH, name="as it is"),
    ),
)


def conditions(scale: Scale) -> Iterator[Condition]:
    """Yield every run's condition; runs that choose and runs that test share no seed."""
    for case in scale.cases:
        first = 0 if case.part == CHOOSE else scale.seeds
        for seed in range(first, first + scale.seeds):
            yield Condition(case=case, seed=seed)


def config_of(scale: Scale, case: Case) -> Config:
    """Return the model of a case, with its preset in its attention."""
    size = SIZES[case.size]
    block = size.get("context", scale.config.context) if case.preset != FLASH else None
    return replace(scale.config, plan=case.preset, block=block, **size)


def arm(scale: Scale, c: Condition) -> Arm:
    """Return the arm that a condition trains."""
    case = c.case
    name = f"{case.preset}, {case.name}, {case.size}, {case.rate:g}, {c.seed}"
    return Arm(name=name, changes=case.changes, lr=scale.rate * case.rate, seed=c.seed)
