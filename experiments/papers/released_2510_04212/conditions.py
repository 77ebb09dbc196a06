"""What is trained: two arithmetics of one published algorithm, cases that may fail, and changes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import BF16
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import Arm

PRESET, COMPILED = "qiu-yao", "qiu-yao-compiled"
ARITHMETICS = (PRESET, COMPILED)
ITSELF = "as it is"
EXACT = "FP32"
OUTPUT = "O path in FP32"
OTHER = "delta = rowsum(P dP)"
CENTRED = "delta centered"
SWAPPED = "scores of the backward swapped"
SLOW = "the rate of the other cases"
FAST = "three times the rate"
ZERO = "O path toward zero, 6 bits"
FEWER = "6 bits at every BF16 event"
PDP = OTHER
CHANGES = {
    ITSELF: (),
    EXACT: ("-> fp32",),
    OUTPUT: ("site=PV,AO,O,OUT -> fp32",),
    OTHER: ("-> delta_from=P_DP",),
    CENTRED: ("-> delta_from=CENTRED",),
}
# the preset's backward does not round its scores as the forward did; the compiled code's does
SWAPS = {
    PRESET: ("site=S -> fp32", "site=SCALED,SCALED_B -> bf16"),
    COMPILED: ("site=S_B -> fp32",),
}
SINGLES = {  # rows of the compiled code at three times the rate: what alone is exact
    "scores in FP32": "S,S_B",
    "m and l kept in FP32": "MS,LANES",
    "P in FP32": "P,P_B",
    "dP in FP32": "DP",
    "dS in FP32": "DS",
    "q, k, v, dO in FP32": "Q,K,V,DO",
    "gradients in FP32": "DQP,DKP,DVP,DQ_OUT,DK_OUT,DV_OUT",
}
# the events of the scores, with the maximum and the row sum
OF_SCORES = {
    *(Site.S, Site.SCALED, Site.X, Site.M, Site.DM, Site.L, Site.MS, Site.LANES),
    *(Site.S_B, Site.SCALED_B),
}
ROWS = {  # case -> its rows
    SLOW: (ITSELF, EXACT, CENTRED),
    FAST: (ITSELF, EXACT, OUTPUT, OTHER, CENTRED, SWAPPED),
    ZERO: (ITSELF, OUTPUT, CENTRED),
    FEWER: (ITSELF, OUTPUT, CENTRED, SWAPPED),
    PDP: (ITSELF, OUTPUT, SWAPPED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What decides a run."""

    arithmetic: str
    case: str
    row: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its rate after the warm-up, and the seeds of the fast case and of the others."""

    name: str
    config: Config
    rate: float
    fast: int
    seeds: int


QUICK = Scale(
    name="quick",
    rate=2e-2,
    fast=3,
    seeds=2,
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, steps=300),
)
FULL = Scale(
    name="full",
    rate=1e-2,
    fast=10,
    seeds=5,
    config=Config(layers=4, heads=4, width=128, context=128, batch=16, warmup=100, steps=1000),
)


def conditions(scale: Scale) -> Iterator[Condition]:
    """Yield every run's condition."""
    for arithmetic in ARITHMETICS:
        for case, rows in ROWS.items():
            for row in rows:
                for seed in range(scale.fast if case == FAST else scale.seeds):
                    yield Condition(arithmetic=arithmetic, case=case, row=row, seed=seed)
    for row in SINGLES:
        for seed in range(scale.fast):
            yield Condition(arithmetic=COMPILED, case=FAST, row=row, seed=seed)


def config_of(scale: Scale, arithmetic: str) -> Config:
    """Return the model with this plan in its attention, one tile, and the device's own sums."""
    return replace(scale.config, plan=arithmetic, block=scale.config.context)


def arm(scale: Scale, c: Condition) -> Arm:
    """Return the arm that a condition trains: what its case changes, then what its row does."""
    changes = list(CHANGES[OTHER]) if c.case == PDP else []
    if c.case == ZERO:  # the paper's mechanism alone: scores and statistics exact
        exact = [site for site in low(c.arithmetic) if site in OF_SCORES]
        changes = [f"site={','.join(exact)} -> fp32", "site=PV,AO,O,OUT -> e8m5:toward-zero"]
    if c.case == FEWER:
        changes = [f"site={','.join(low(c.arithmetic))} -> e8m5"]
    if c.row in SINGLES:
        changes.append(f"site={SINGLES[c.row]} -> fp32")
    else:
        changes += SWAPS[c.arithmetic] if c.row == SWAPPED else CHANGES[c.row]
    return Arm(
        name=f"{c.case}, {c.row}, {c.seed}",
        changes=tuple(changes),
        lr=scale.rate * (3 if c.case == FAST else 1),
        seed=c.seed,
    )


def low(arithmetic: str) -> list[Site]:
    """Return the events that a plan has in BF16."""
    plan = Plan.preset(arithmetic)
    return [site for site in Site if plan[site] == BF16]
