"""What an intervention did: averted the divergence, delayed it, or nothing.

What counts is beyond what the smallest change of the state does by itself. Training is chaotic: a
change of half an ulp in one step moves the step of divergence. So every seed has shams beside its
arms, and an arm counts where it outlives the unchanged run and all shams of its seed. If the arm
were one of them, it would be the last with probability 1 / (shams + 2) or less, whatever moves
them; so many wins over seeds have a binomial probability.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from roundscope.experiments.framework.counts import LEVEL, at_least
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.papers.microscaling_2506_20752.conditions import SHAM
from roundscope.experiments.train.student.arms import UNCHANGED, Arm
from roundscope.tools.results.run import Run

Parted = Mapping[tuple[int, int], Mapping[str, Run[Arm]]]  # (seed, lead) -> arm -> run


class Effect(StrEnum):
    """What an arm did."""

    AVERTED = "averted"  # outlives its shams in more seeds than chance, and never diverged
    DELAYED = "delayed"  # outlives its shams in more seeds than chance
    HASTENED = "earlier"  # precedes its shams in more seeds than chance
    NONE = "no effect seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One arm at one lead.

    runs      steps of divergence by seed, infinite without
    outlived  seeds in which it diverged after the unchanged run and all shams, or never while all
              of them did
    preceded  seeds in which it diverged before all of them
    delay     steps by which it outlives the median of the unchanged run and shams, over seeds; at
              least that where it never diverged
    scatter   over seeds and shams: the standard deviation of their steps of divergence about that
              median
    """

    name: str
    lead: int
    runs: Mapping[int, float]
    outlived: int
    preceded: int
    delay: Estimate
    censored: bool
    scatter: float
    shams: int

    @property
    def effect(self) -> Effect:
        """The word for the outcome."""
        chance = 1.0 / (self.shams + 2)
        if self.runs and at_least(self.outlived, len(self.runs), chance) <= LEVEL:
            lived = all(math.isinf(x) for x in self.runs.values())
            return Effect.AVERTED if lived else Effect.DELAYED
        if self.runs and at_least(self.preceded, len(self.runs), chance) <= LEVEL:
            return Effect.HASTENED
        return Effect.NONE


def outcome(found: Parted, lead: int, name: str) -> Outcome:
    """Return the outcome over the seeds whose unchanged run diverged after the arms parted.

    Censored runs count as the last step.
    """
    own = {
        seed: runs
        for (seed, at), runs in found.items()
        if at == lead and name in runs and math.isfinite(runs[UNCHANGED].time)
    }
    nulls = {
        seed: [r.time for n, r in runs.items() if n == UNCHANGED or n.startswith(SHAM)]
        for seed, runs in own.items()
    }
    steps = {seed: runs[name].time for seed, runs in own.items()}
    last = {seed: float(runs[name].steps) for seed, runs in own.items()}
    middle = {seed: float(np.median(np.minimum(null, last[seed]))) for seed, null in nulls.items()}
    around = [min(x, last[seed]) - middle[seed] for seed, null in nulls.items() for x in null]
    return Outcome(
        name=name,
        lead=lead,
        runs=steps,
        outlived=sum(steps[s] > max(nulls[s]) for s in own),
        preceded=sum(steps[s] < min(nulls[s]) for s in own),
        delay=mean({s: min(steps[s], last[s]) - middle[s] for s in own}),
        censored=any(map(math.isinf, steps.values())),
        scatter=float(np.sqrt(np.mean(np.square(around)))) if around else math.nan,
        shams=min((len(null) - 1 for null in nulls.values()), default=0),
    )


def outcomes(found: Parted, lead: int) -> list[Outcome]:
    """Return the outcomes of all arms but the unchanged run and the shams, in their order."""
    names = dict.fromkeys(
        n for runs in found.values() for n in runs if n != UNCHANGED and not n.startswith(SHAM)
    )
    return [outcome(found, lead, name) for name in names]


def averted(found: Sequence[Outcome]) -> list[str]:
    """Return the names of the arms that averted the divergence."""
    return [o.name for o in found if o.effect is Effect.AVERTED]
