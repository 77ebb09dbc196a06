"""The answer of `roundscope reproduce su` in a few sentences, from the counts alone."""

from collections.abc import Sequence
from dataclasses import replace

from roundscope.experiments.framework.counts import diverged, signs
from roundscope.experiments.papers.microscaling_2506_20752.conditions import FROZEN, Scale
from roundscope.experiments.papers.microscaling_2506_20752.found import Found, limit_ratio
from roundscope.experiments.papers.microscaling_2506_20752.launches import Runs
from roundscope.experiments.papers.microscaling_2506_20752.outcomes import Effect, Outcome, outcomes
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import paired
from roundscope.tools.report.wording import listed

LIKELY = {
    "agrees": "more than chance",
    "contradicts": "FP32 earlier, more than chance",
    "undecided": "not more than chance allows",
}


def answer(found: Found, scale: Scale) -> str:
    """Return who diverged, in how many steps, at which rates, and what the interventions did."""
    own, exact = (found.of(scale.base.name, f, scale.rate) for f in (scale.mx, EXACT))
    if not own or not exact:
        return "The base runs are not there yet."
    counts = f"{scale.mx} diverged in {_of(own)} runs and FP32 on the same rows in {_of(exact)}"
    sure = LIKELY[signs(paired(own, exact)).word.value]
    parts = (_longer(found, scale), _limit(found, scale), ".", _frozen(found, scale), " ")
    return f"{counts} ({sure}){''.join(parts)}{_interventions(found, scale)}"


def _of(runs: Runs) -> str:
    return f"{diverged(runs)} of {len(runs)}"


def _longer(found: Found, scale: Scale) -> str:
    """Return what FP32 does at the same rate in more steps.

    It tells whether the format causes the divergence or hastens it.
    """
    for setting in scale.settings[1:]:
        own = found.of(setting.name, EXACT, scale.rate)
        if own and setting.config == replace(scale.base.config, steps=setting.config.steps):
            return f"; within {setting.config.steps} steps FP32 diverged in {_of(own)}"
    return ""


def _limit(found: Found, scale: Scale) -> str:
    e = limit_ratio(found.of(scale.base.name, scale.mx), found.of(scale.base.name, EXACT))
    if e.seeds < 2:
        return ""
    return f"; it fails at {e.mean:.2f} [{e.low:.2f}, {e.high:.2f}] of the rate at which FP32 does"


def _frozen(found: Found, scale: Scale) -> str:
    own = found.of(scale.base.name, f"{scale.mx}, {FROZEN}", scale.rate)
    if not own:
        return ""
    start = "With LayerNorm's shift frozen from the first step"
    return f" {start} {scale.mx} diverged in {_of(own)}."


def _interventions(found: Found, scale: Scale) -> str:
    whole = {lead: [o for o in outcomes(found.parted, lead) if o.runs] for lead in scale.leads}
    parts = [_lead(own, lead) for lead, own in whole.items() if own]
    if not parts:
        why = "no base run diverged where FP32 did not, or they are not there yet"
        return f"No interventions: {why}."
    return f"Changed {'. '.join(parts)}."


def _lead(own: Sequence[Outcome], lead: int) -> str:
    """Return what the arms did that were changed so many steps before the divergence."""
    names = {effect: [o.name for o in own if o.effect is effect] for effect in Effect}
    none = len(names.pop(Effect.NONE))
    parts = [f"{listed(those)} {effect}" for effect, those in names.items() if those]
    parts.append(f"{none} of {len(own)} arms had no effect beyond the shams")
    return f"{lead} steps before: {'; '.join(parts)}"
