"""Conditions of `reproduce mechanism`: kinds of layers, arithmetics and seeds; and their runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.warning import moves
from roundscope.experiments.papers.mechanism_2510_04212.looks import NAMES
from roundscope.experiments.train.config import MUON, Config
from roundscope.experiments.train.settings import Arm
from roundscope.tools.results.run import Run

PLAIN, NORM, GATED, LLAMA, OPTIMIZER = "GPT-2", "QK-norm", "gated output", "Llama", "Muon"
SINK, REPEAT = "sink tokens", "equal tokens"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    NORM: {"qk_norm": True},
    GATED: {"gated": True},
    SINK: {"data": "sink"},
    REPEAT: {"data": "repeat"},
    LLAMA: {"llama": True, "position": False},
    OPTIMIZER: {"optimizer": MUON},
}
EXACT, AS_IT_IS, ZERO, FASTER = "FP32", "as it is", "O toward zero", "three times the rate"
ARITHMETICS = (EXACT, AS_IT_IS, ZERO)
MORE = {PLAIN: (FASTER,), REPEAT: (FASTER,)}  # of some kinds of layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The kind of layers, the arithmetic and the seed that decide a run."""

    variant: str
    arithmetic: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its rate after the warm-up, the bits of O where it is toward zero, and the seeds."""

    name: str
    config: Config
    rate: float
    bits: int
    seeds: int


def conditions(scale: Scale) -> Iterator[Condition]:
    """Yield every run's condition."""
    for variant in VARIANTS:
        for arithmetic in (*ARITHMETICS, *MORE.get(variant, ())):
            for seed in range(scale.seeds):
                yield Condition(variant=variant, arithmetic=arithmetic, seed=seed)


def arms_of(scale: Scale) -> dict[Config, dict[Condition, Arm]]:
    """Return the arms of every kind of layers, one tile, on the preset qiu-yao."""
    zero = f"site=PV,AO,O,OUT -> e8m{scale.bits - 1}:toward-zero"
    changes = {
        EXACT: ("-> fp32",),
        AS_IT_IS: (),
        # the paper's mechanism alone, amplified: scores and statistics exact
        ZERO: ("site=S,SCALED,X,M,DM,L -> fp32", zero),
        FASTER: (),
    }
    found: dict[Config, dict[Condition, Arm]] = {}
    for c in conditions(scale):
        config = replace(scale.config, block=scale.config.context, **VARIANTS[c.variant])
        own = Arm(
            name=f"{c.variant}, {c.arithmetic}, {c.seed}",
            changes=changes[c.arithmetic],
            lr=scale.rate * (3 if c.arithmetic == FASTER else 1),
            seed=c.seed,
        )
        found.setdefault(config, {})[c] = own
    return found


MOVED, DIVERGED, END = "moved", "diverged", "end"
Runs = Sequence[Run[Condition]]
Place = tuple[str, str]  # kind of layers, arithmetic


class Results:
    """The runs by kind of layers and arithmetic, in the order of seeds."""

    def __init__(self, scale: Scale, by: Mapping[Place, Runs]) -> None:
        self.scale, self.by = scale, by

    def of(self, variant: str, arithmetic: str) -> Runs:
        """Return the runs of a condition; none where it was not run."""
        return self.by.get((variant, arithmetic), [])

    def looks(self, run: Run[Condition], until: str = DIVERGED) -> np.ndarray:
        """Return the looks (K, columns) of a run after the warm-up, in the order of steps.

        Columns are the step, the loss, NAMES, and the error of delta of each head. until: END, or
        of a run that diverged only those before it did, or before its loss MOVED.
        """
        last = run.diverged if until == DIVERGED else None
        if until == MOVED and run.diverged is not None:
            last = moves(run)
        steps = self.scale.config.warmup, math.inf if last is None else last
        own = [p for p in run.curve if steps[0] <= p[0] < steps[1]]
        return np.array(own).reshape(len(own), len(run.curve[0]))

    def column(self, run: Run[Condition], name: str, until: str = DIVERGED) -> np.ndarray:
        """Return one of NAMES at these looks, (K,)."""
        found: np.ndarray = self.looks(run, until)[:, 2 + NAMES.index(name)]
        return found

    def errors(self, run: Run[Condition]) -> np.ndarray:
        """Return the mean error of delta of each head at these looks, (K, L N)."""
        found: np.ndarray = self.looks(run)[:, 2 + len(NAMES) :]
        return found

    def middle(self, run: Run[Condition], name: str) -> float:
        """Return the median of one of NAMES over these looks, NaN without any."""
        own = self.column(run, name)
        own = own[np.isfinite(own)]
        return float(np.median(own)) if own.size else math.nan

    def values(self, runs: Runs, name: str) -> dict[int, float]:
        """Return these medians by seed."""
        return {run.seed: self.middle(run, name) for run in runs}

    def estimate(self, runs: Runs, name: str) -> Estimate:
        """Return the mean over seeds of these medians."""
        return mean(self.values(runs, name))
