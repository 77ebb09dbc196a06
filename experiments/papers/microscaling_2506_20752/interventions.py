"""Interventions, of the paper's figure 4 and ours: did they avert the divergence, or delay it?

What counts is beyond what the smallest change of the state does by itself. Training is chaotic: a
change of half an ulp in one step moves the step of divergence. So every seed has shams beside its
arms, and an arm counts where it outlives the unchanged run and all shams of its seed. If the arm
were one of them, it would be the last with probability 1 / (shams + 2) or less, whatever moves
them; so many wins over seeds have a binomial probability.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from roundscope.experiments.framework.counts import (
    LEVEL,
    at_least,
    counted,
    diverged,
    share,
    signs,
)
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, number
from roundscope.experiments.papers.microscaling_2506_20752.claims import row
from roundscope.experiments.papers.microscaling_2506_20752.conditions import (
    FORWARD,
    HYBRID,
    PAPER,
    SHAM,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import Found, Parted
from roundscope.experiments.train.student.arms import UNCHANGED
from roundscope.experiments.train.student.run import paired

RULES = (
    "Interventions. Shams leave the same state and differ in the rounding of one gradient in one"
    " step. An arm has an effect if it outlives (or precedes) the unchanged run and every sham of"
    " its seed in more seeds than chance, 1 / (shams + 2) each, allows at the 5 % level: averted if"
    " it then never diverged, delayed if it did. Delays are against the median of the unchanged run"
    " and shams, and lower bounds where a run lived to the last step."
)
# the interventions of which the paper's text says that they avert or delay
STATED = ("LN in FP32", "activations BF16 forward", "activations BF16")
HYBRIDS = (HYBRID, FORWARD)  # recipes of the paper's language models, where both were stable
NOT_STATED = "the outcome is in a figure that we have not"


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


def judged(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on recipes from the first step on, and on every arm at every lead.

    Beside the arms of a lead is how far its shams scatter.
    """
    yield from _hybrids(found)
    for lead in found.leads:
        yield _scatter(found, lead)
        yield from map(_arm, outcomes(found.parted, lead))
    if not found.leads:
        claim = "precision of LN or activations averts the divergence"
        why = "no base run diverged where FP32 lived, or its arms are not there"
        yield row("4", claim, "-", Word.NOT_TESTABLE, why)
        return
    there = {name for runs in found.parted.values() for name in runs}
    why = f"not an arm of {found.scale.mx}: it is RCEIL for E4M3"
    for own, ours in PAPER.items():
        if ours not in there:
            yield row("4", "averts or delays", f"{ours} ({own})", Word.NOT_TESTABLE, why)


def _hybrids(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the recipes from the first step on: stable, unlike the format alone?"""
    mx = found.scale.mx
    base, claim = found.base(mx), "the hybrid recipe is stable from the first step on"
    for name in HYBRIDS:
        own = found.base(f"{mx}, {name}")
        if own and base:
            wins = signs(paired(base, own))
            failed = share(diverged(own), len(own))[0] >= 0.5 or diverged(own) == len(own)
            stable = wins.word is Word.AGREES and not diverged(own)
            word = Word.AGREES if stable else Word.CONTRADICTS if failed else Word.UNDECIDED
            measured = f"{counted(own)}; {mx} alone {counted(base)}; later in {wins.earlier} of"
            yield row("recipe", claim, name, word, f"{measured} {len(own)} seeds")


def _scatter(found: Found, lead: int) -> Verdict:
    """Return how much the step of divergence moves by itself."""
    moved = [
        abs(r.time - runs[UNCHANGED].time)
        for (_, at), runs in found.parted.items()
        if at == lead
        for name, r in runs.items()
        if name.startswith(SHAM)
    ]
    lived = sum(map(math.isinf, moved))
    steps = sorted(x for x in moved if math.isfinite(x))
    distance = "none diverged"
    if steps:
        distance = f"median {number(steps[len(steps) // 2])}, largest {number(steps[-1])} steps"
    claim = "ours: a change of half an ulp in one step moves the divergence"
    word = Word.AGREES if any(moved) else Word.CONTRADICTS
    measured = f"by {distance}; {lived} of {len(moved)} did not diverge"
    return row("4", claim, f"shams, {lead} steps before", word, measured)


def _arm(o: Outcome) -> Verdict:
    """Return the verdict on one arm at one lead."""
    own = next((name for name, ours in PAPER.items() if ours == o.name), None)
    lived = sum(map(math.isinf, o.runs.values()))
    delay = "no seed"
    if o.runs:
        delay = f"delay {'at least ' if o.censored else ''}{interval(o.delay, ' steps')}"
    measured = (
        f"{o.effect}: {lived} of {len(o.runs)} never diverged; {delay}; shams scatter by"
        f" {number(o.scatter)}; outlives all shams in {o.outlived} of {len(o.runs)}, precedes them"
        f" in {o.preceded}"
    )
    case = f"{o.name}{f' ({own})' if own else ''}, {o.lead} steps before"
    note = NOT_STATED if own and o.name not in STATED else ""
    return row("4", _claim(o.name), case, _word(o), measured, o.delay, note)


def _claim(name: str) -> str:
    if name in STATED:
        return "raising the precision of LN or activations averts or delays"
    if name in HYBRIDS:
        return "the hybrid recipe is stable"
    return "averts or delays" if name in PAPER.values() else "ours: averts or delays"


def _word(o: Outcome) -> Word:
    """Return the word for "averts or delays", or for "stable" for hybrids."""
    if o.effect is Effect.HASTENED:
        return Word.CONTRADICTS
    if o.name in HYBRIDS and o.effect is Effect.AVERTED:
        return Word.AGREES
    if o.name in HYBRIDS:  # did more seeds diverge than a chance of one in two explains?
        died = sum(map(math.isfinite, o.runs.values()))
        failed = bool(o.runs) and at_least(died, len(o.runs), 0.5) <= LEVEL
        return Word.CONTRADICTS if failed else Word.UNDECIDED
    return Word.AGREES if o.effect in (Effect.AVERTED, Effect.DELAYED) else Word.UNDECIDED
