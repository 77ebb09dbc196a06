"""The interventions of the paper's figure 4 and ours.

Did they avert the divergence, delay it, or do nothing, beyond what the shams do?
"""

import math
from collections.abc import Iterator

from roundscope.experiments.framework.counts import (
    LEVEL,
    at_least,
    counted,
    diverged,
    share,
    signs,
)
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, number
from roundscope.experiments.papers.microscaling_2506_20752.conditions import (
    FORWARD,
    HYBRID,
    PAPER,
    SHAM,
    Scale,
)
from roundscope.experiments.papers.microscaling_2506_20752.found import Found
from roundscope.experiments.papers.microscaling_2506_20752.outcomes import Effect, Outcome, outcomes
from roundscope.experiments.train.student.arms import UNCHANGED
from roundscope.experiments.train.student.results import paired

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


def judged(found: Found, scale: Scale) -> list[Verdict]:
    """Return a verdict for every arm and lead, and how far shams scatter."""
    leads = [lead for lead in scale.leads if any(at == lead for _, at in found.parted)]
    rows = [
        v
        for lead in leads
        for v in (*scatter(found, lead), *(_arm(o) for o in outcomes(found.parted, lead)))
    ]
    if not rows:
        claim = "precision of LN or activations averts the divergence"
        why = "no base run diverged where FP32 lived, or its arms are not there"
        return [_untestable(claim, "-", why)]
    there = {name for runs in found.parted.values() for name in runs}
    why = f"not an arm of {scale.mx}: it is RCEIL for E4M3"
    absent = [f"{ours} ({own})" for own, ours in PAPER.items() if ours not in there]
    return rows + [_untestable("averts or delays", case, why) for case in absent]


def _untestable(claim: str, case: str, why: str) -> Verdict:
    return Verdict(
        figure="4", claim=claim, case=case, sizes="", word=Word.NOT_TESTABLE, measured=why
    )


def hybrids(found: Found, scale: Scale) -> Iterator[Verdict]:
    """Yield verdicts on the recipes from the first step on: stable, unlike the format alone?"""
    base = found.of(scale.base.name, scale.mx, scale.rate)
    for name in HYBRIDS:
        own = found.of(scale.base.name, f"{scale.mx}, {name}")
        if own and base:
            wins = signs(paired(base, own))
            failed = share(diverged(own), len(own))[0] >= 0.5 or diverged(own) == len(own)
            stable = wins.word is Word.AGREES and not diverged(own)
            yield Verdict(
                figure="recipe",
                claim="the hybrid recipe is stable from the first step on",
                case=name,
                sizes="",
                word=Word.AGREES if stable else Word.CONTRADICTS if failed else Word.UNDECIDED,
                measured=(
                    f"{counted(own)}; {scale.mx} alone {counted(base)}; later in {wins.earlier} of"
                    f" {len(own)} seeds"
                ),
            )


def scatter(found: Found, lead: int) -> Iterator[Verdict]:
    """Yield how much the step of divergence moves by itself."""
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
    yield Verdict(
        figure="4",
        claim="ours: a change of half an ulp in one step moves the divergence",
        case=f"shams, {lead} steps before",
        sizes="",
        word=Word.AGREES if any(moved) else Word.CONTRADICTS,
        measured=f"by {distance}; {lived} of {len(moved)} did not diverge",
    )


def _arm(o: Outcome) -> Verdict:
    """Return the verdict on one arm at one lead."""
    own = next((name for name, ours in PAPER.items() if ours == o.name), None)
    lived = sum(map(math.isinf, o.runs.values()))
    delay = "no seed"
    if o.runs:
        delay = f"delay {'at least ' if o.censored else ''}{interval(o.delay, ' steps')}"
    effect = (
        f"{o.effect}: {lived} of {len(o.runs)} never diverged; {delay}; shams scatter by"
        f" {number(o.scatter)}"
    )
    wins = f"outlives all shams in {o.outlived} of {len(o.runs)}, precedes them in {o.preceded}"
    return Verdict(
        figure="4",
        claim=_claim(o.name),
        case=f"{o.name}{f' ({own})' if own else ''}, {o.lead} steps before",
        sizes="",
        word=_word(o, own),
        measured=f"{effect}; {wins}",
        estimate=o.delay,
        note=NOT_STATED if own and o.name not in STATED else "",
    )


def _claim(name: str) -> str:
    if name in STATED:
        return "raising the precision of LN or activations averts or delays"
    if name in HYBRIDS:
        return "the hybrid recipe is stable"
    return "averts or delays" if name in PAPER.values() else "ours: averts or delays"


def _word(o: Outcome, own: str | None) -> Word:
    """Return the word for "averts or delays", or for "stable" for hybrids."""
    if o.effect is Effect.HASTENED:
        return Word.CONTRADICTS
    if o.name in HYBRIDS and o.effect is Effect.AVERTED:
        return Word.AGREES
    if o.name in HYBRIDS:
        return Word.CONTRADICTS if _all_failed(o) else Word.UNDECIDED
    return Word.AGREES if o.effect in (Effect.AVERTED, Effect.DELAYED) else Word.UNDECIDED


def _all_failed(o: Outcome) -> bool:
    """Return whether so many seeds diverged that a chance of one in two would not explain it."""
    died = sum(map(math.isfinite, o.runs.values()))
    return bool(o.runs) and at_least(died, len(o.runs), 0.5) <= LEVEL
