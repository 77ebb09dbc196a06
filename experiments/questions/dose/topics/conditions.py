"""The study `conditions`: the BF16 attention of arXiv 2510.04212 where ties are common.

Where they are not, it is run with fewer bits.
"""

import math
from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.experiments.framework.verdicts import interval, number
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.scale import FULL, QUICK
from roundscope.experiments.questions.dose.topics.cases import Case, Found, Topic, most_ties, of
from roundscope.experiments.questions.dose.topics.strips import strips
from roundscope.experiments.train.config import Config

QUESTION = (
    "Does BF16 attention diverge where ties are common, and with how few bits does it where they"
    " are not?"
)
QIU_YAO = "-> plan=qiu-yao"
BF16 = ("matmul=bf16",)
CONDITIONS = {
    "sources of Python": (),
    "runs of equal tokens, no positions": ("data=repeat", "position=false"),
    "a sink, no positions": ("data=sink", "position=false"),
    "no clipping": ("clip=none",),
    "twice the context": ("context=double",),  # replaced by twice the model's own context
    "RMS norm of q and k": ("qk_norm=true",),
}
FASTER = "three times the rate"
CAPTION = "A dot for each seed at the step where it diverged; hollow at the end: it did not."
NOTES = (
    "Attention as the preset qiu-yao has it (all its BF16 events) with the device's own sums, one"
    " tile; linear layers read BF16 operands (matmul=bf16 in every arm). The exact arm of each seed"
    " has FP32 attention and is otherwise the same, its condition included. At p bits: all BF16"
    " events of the preset round to p significand bits with BF16's exponents. Rows with several"
    " P = 1: scores as the plan rounds them within 1.955e-3 of the row's largest, every 100 steps"
    " in one sequence, before the run"
    " diverges; at FP32 the same window."
)


def quick() -> Topic:
    """Return the topic for two cores, which take minutes."""
    return _topic(
        QUICK.config,
        ("sources of Python", "runs of equal tokens, no positions"),
        (4, 6),
        steps=300,
        rate=3e-2,
        seeds=(0, 1, 2),
    )


def full() -> Topic:
    """Return the topic for a GPU."""
    return _topic(
        FULL.config, tuple(CONDITIONS), (4, 5, 6, 7), steps=1500, rate=1e-2, seeds=(0, 1, 2, 3, 4)
    )


def _topic(
    config: Config,
    names: tuple[str, ...],
    bits: tuple[int, ...],
    *,
    steps: int,
    rate: float,
    seeds: tuple[int, ...],
) -> Topic:
    low, exact = "BF16 attention, 8 bits", "FP32 attention"
    cases = []
    for name in names:
        words = tuple(
            w.replace("double", str(2 * config.context)) for w in (*BF16, *CONDITIONS[name])
        )
        cases += _pair(name, low, exact, Dose(rate=rate, steps=steps, words=words))
        if name == "no clipping" or (len(names) == 2 and name == names[-1]):
            cases += _pair(FASTER, low, exact, Dose(rate=3 * rate, steps=steps, words=BF16))
    group = f"{names[0]}: the same events at p bits"
    cases += [
        Case(
            group=group,
            name=f"p = {p}",
            dose=Dose(rate=rate, steps=steps, words=BF16, also=(QIU_YAO, fewer(p))),
        )
        for p in reversed(bits)
    ]
    return Topic(
        question=QUESTION,
        config=config,
        cases=tuple(cases),
        seeds=seeds,
        answer=answer,
        draw=strips,
        caption=CAPTION,
        notes=NOTES,
        about="all of qiu-yao's events against FP32 attention",
        ties=True,
    )


def _pair(group: str, low: str, exact: str, dose: Dose) -> list[Case]:
    return [
        Case(group=group, name=low, dose=replace(dose, also=(QIU_YAO,))),
        Case(group=group, name=exact, dose=dose),
    ]


def fewer(bits: int) -> str:
    """Return the change that rounds all BF16 events of qiu-yao to so many bits."""
    plan = Plan.preset("qiu-yao")
    return f"site={','.join(s for s in Site if plan[s].format.name == 'bf16')} -> e8m{bits - 1}"


def answer(found: Found) -> str:
    """Return what failed, and where fewer bits begin to fail."""
    low = [case for case in found.cases if case.dose.also == (QIU_YAO,)]
    failed = [f"{case.group} ({of(found.time(case))})" for case in low if found.time(case).diverged]
    runs = sum(found.time(case).runs for case in low)
    first = (
        f"BF16 attention diverged in: {', '.join(failed)}"
        if failed
        else f"BF16 attention diverged in none of {runs} runs under {len(low)} conditions"
    )
    return f"{first}{_loss(found, low)}. {_bits(found)}"


def _loss(found: Found, low: list[Case]) -> str:
    excesses = {case: found.results.excess(found.cases[case]).mean for case in low}
    worst = max(
        low, key=lambda case: excesses[case] if math.isfinite(excesses[case]) else -math.inf
    )
    excess = interval(found.results.excess(found.cases[worst]), " nats")
    most = max(low, key=lambda case: most_ties(found.cases[case]))
    share = number(100 * most_ties(found.cases[most]))
    return (
        f"; the largest excess loss is {excess} ({worst.group}), the most rows with several P = 1"
        f" are {share} % ({most.group})"
    )


def _bits(found: Found) -> str:
    fewer = [case for case in found.cases if len(case.dose.also) == 2]
    lethal = [case for case in fewer if found.killed(case)]
    times = "; ".join(f"{case.name}: {of(found.time(case))}" for case in fewer)
    most = f"diverge from {lethal[0].name} down" if lethal else "do not diverge"
    return f"With fewer bits at the same events most runs {most} ({times})."
