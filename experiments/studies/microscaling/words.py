"""The question, the answer in two sentences, and what is not shown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from roundscope.experiments.report.wording import listed
from roundscope.experiments.studies.microscaling.arms import FROZEN
from roundscope.experiments.studies.microscaling.found import Found
from roundscope.experiments.studies.microscaling.judging import diverged, limit_ratio, signs
from roundscope.experiments.studies.microscaling.outcomes import Effect, Outcome, outcomes
from roundscope.experiments.studies.microscaling.scale import Scale
from roundscope.experiments.train.student.arms import EXACT

QUESTION = "Does block scaling make training diverge, and what averts it?"
LEFT_OUT = (
    "Not shown: the paper's language models, and its own instability unless the table says so: the rates here are those at which FP32 is "
    "about to fail too, hundreds of times the published one. The released code has no MX in LN, freezes its shift and rounds ties away "
    "from zero; base runs here train the shift and round to even, and arms tell the differences. Adam at a constant rate after the "
    "warm-up. Sums are FP32 in the device's order: numbers repeat on one kind of device only."
)


def answer(found: Found, scale: Scale) -> str:
    """From the counts alone."""
    own, exact = (found.of(scale.base.name, f, scale.rate) for f in (scale.mx, EXACT))
    if not own or not exact:
        return "The base runs are not there yet."
    start = f"{scale.mx} diverged in {diverged(own)} of {len(own)} runs and FP32 on the same rows in {diverged(exact)} of {len(exact)}"
    sure = signs(own, exact).word
    return f"{start} ({LIKELY[sure.value]}){_longer(found, scale)}{_limit(found, scale)}.{_frozen(found, scale)} {_arms(found, scale)}"


LIKELY = {"agrees": "more than chance", "contradicts": "FP32 earlier, more than chance", "undecided": "not more than chance allows"}


def _longer(found: Found, scale: Scale) -> str:
    """FP32 at the same rate in more steps: does the format cause the divergence or hasten it?"""
    for setting in scale.settings[1:]:
        own = found.of(setting.name, EXACT, scale.rate)
        if own and setting.config == replace(scale.base.config, steps=setting.config.steps):
            return f"; within {setting.config.steps} steps FP32 diverged in {diverged(own)} of {len(own)}"
    return ""


def _frozen(found: Found, scale: Scale) -> str:
    own = found.of(scale.base.name, f"{scale.mx}, {FROZEN}", scale.rate)
    return f" With LayerNorm's shift frozen from the first step {scale.mx} diverged in {diverged(own)} of {len(own)}." if own else ""


def _limit(found: Found, scale: Scale) -> str:
    e = limit_ratio(found.of(scale.base.name, scale.mx), found.of(scale.base.name, EXACT))
    return f"; it fails at {e.mean:.2f} [{e.low:.2f}, {e.high:.2f}] of the rate at which FP32 does" if e.seeds > 1 else ""


def _arms(found: Found, scale: Scale) -> str:
    parts = [part for lead in scale.leads if (part := _lead([o for o in outcomes(found.parted, lead) if o.runs], lead))]
    if not parts:
        return "No interventions: no base run diverged where FP32 did not, or they are not there yet."
    return f"Changed {'. '.join(parts)}."


def _lead(own: Sequence[Outcome], lead: int) -> str:
    """What arms did that were changed so many steps before; empty without any."""
    if not own:
        return ""
    names = {effect: [o.name for o in own if o.effect is effect] for effect in Effect}
    none = len(names.pop(Effect.NONE))
    said = [f"{listed(those)} {effect}" for effect, those in names.items() if those]
    return f"{lead} steps before: {'; '.join([*said, f'{none} of {len(own)} arms had no effect beyond the shams'])}"


def missing(run: Mapping[str, Any]) -> str:
    """What a page lacks that was written after Ctrl-C; empty for a whole one."""
    if "there" not in run:
        return ""
    return (
        f"Interrupted: {run['there']} of the {run['launches']} launches known so far are there. Left out: what is not complete. "
        "The same command goes on and completes this page."
    )
