"""The study `identity`: errors that break rowsum(dS) = 0 against errors that keep it.

All have one size.
"""

import math

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.verdicts import number
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.scale import EVEN, FULL, QUICK, ZERO
from roundscope.experiments.questions.dose.topics.cases import Case, Found, Topic
from roundscope.experiments.questions.dose.topics.strips import strips
from roundscope.experiments.train.config import Config

QUESTION = "Does an error kill because the rows of dS stop summing to zero?"
BREAKS, KEEPS = "the rows of dS no longer sum to 0", "the rows of dS still sum to 0"
P_DP, CENTRED = "-> delta_from=P_DP", "-> delta_from=CENTRED"
CAPTION = (
    "A dot for each seed at the step where it diverged; hollow at the end: it did not. Above and"
    " below, the same events err by as much."
)
NOTES = (
    "dS = P (dP - delta) and sum P = 1, so a row of dS sums to rowsum(P dP) - delta = 0 in exact"
    " arithmetic. Everything is FP32 but the events named, which round to p significand bits."
    " Scores rounded in the forward alone: P of the backward no longer sums to 1; rounded in the"
    " backward as well: it does, with as large an error. dP toward zero: delta = rowsum(dO O) does"
    " not know of it, delta = rowsum(P dP) reads the same rounded dP. P of the backward toward"
    " zero: with delta = rowsum(P dP) the row sums to delta (1 - sum P), with rowsum(P dP) / sum P"
    " to 0. Growth of ||W_Q|| is over the FP32 arm of the same seed."
)


def quick() -> Topic:
    """Return the topic for two cores, which take minutes."""
    return _topic(QUICK.config, bits=2, steps=400, rate=3e-2, seeds=(0, 1, 2))


def full() -> Topic:
    """Return the topic for a GPU."""
    return _topic(FULL.config, bits=4, steps=1500, rate=1e-2, seeds=(0, 1, 2, 3, 4))


def _topic(config: Config, *, bits: int, steps: int, rate: float, seeds: tuple[int, ...]) -> Topic:
    def case(group: str, name: str, site: Site, mode: RoundingMode, *also: str) -> Case:
        dose = Dose(site=site, mode=mode, bits=bits, rate=rate, steps=steps, also=also)
        return Case(group=group, name=f"{name}, p = {bits}", dose=dose)

    scores = f"site=SCALED -> e8m{bits - 1}"
    cases = (
        case(BREAKS, "O as delta reads it, toward zero", Site.OD, ZERO),
        case(BREAKS, "dP toward zero, delta = rowsum(dO O)", Site.DP, ZERO),
        case(BREAKS, "P of the backward toward zero, delta = rowsum(P dP)", Site.EXP_B, ZERO, P_DP),
        case(BREAKS, "scores of the forward alone, nearest", Site.SCALED, EVEN),
        case(KEEPS, "dP toward zero, delta = rowsum(P dP)", Site.DP, ZERO, P_DP),
        case(
            KEEPS,
            "P of the backward toward zero, delta = rowsum(P dP) / sum P",
            Site.EXP_B,
            ZERO,
            CENTRED,
        ),
        case(KEEPS, "scores of forward and backward, nearest", Site.SCALED_B, EVEN, scores),
    )
    return Topic(
        question=QUESTION,
        config=config,
        cases=cases,
        seeds=seeds,
        answer=answer,
        draw=strips,
        caption=CAPTION,
        notes=NOTES,
        about="FP32 but for the events named",
    )


def answer(found: Found) -> str:
    """Return how many runs diverged on either side, and what the loss of the others says."""
    broken, kept = (_count(found, list(own)) for own in found.groups().values())
    if broken[0] and not kept[0]:
        start = "As far as these runs go, yes"
    else:
        start = "Partly" if kept[0] / kept[1] < 0.5 * broken[0] / broken[1] else "Not by these runs"
    return (
        f"{start}: where the rows of dS no longer sum to 0, {broken[0]} of {broken[1]} runs"
        f" diverged and the final loss is {broken[2]} nats above exact; where they do, with the"
        f" same events as wrong, {kept[0]} of {kept[1]} and {kept[2]} nats."
    )


def _count(found: Found, own: list[Case]) -> tuple[int, int, str]:
    """Return runs that diverged, runs, and the range of the excess loss (of the cases' means)."""
    times = [found.time(case) for case in own]
    means = [found.results.excess(found.cases[case]).mean for case in own]
    excess = [x for x in means if math.isfinite(x)] or [math.nan]
    return (
        sum(t.diverged for t in times),
        sum(t.runs for t in times),
        f"{number(min(excess))} to {number(max(excess))}",
    )
