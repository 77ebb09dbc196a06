"""The four topics of `roundscope dose --study`: a question with its cases and the answer of each.

Each is a function of whether --quick was given: then it takes minutes on two cores, else a GPU.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments import catalogue
from roundscope.experiments.framework.verdicts import interval, number
from roundscope.experiments.questions.dose import results
from roundscope.experiments.questions.dose.doses import EVEN, FULL, MOST_BITS, QUICK, ZERO, Dose
from roundscope.experiments.questions.dose.results import (
    EXACT,
    KINDS,
    Case,
    Column,
    Found,
    Runs,
    Topic,
    ties,
)
from roundscope.experiments.train.gpt.offset import BIAS, FIXED, NOISE

SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0, 1, 2)
REPEAT = ("runs of equal tokens, no positions", ("data=repeat", "position=false"))
STDLIB: tuple[str, tuple[str, ...]] = ("sources of Python", ())


def _most_ties(own: Runs) -> float:
    """Return the largest share of rows with several P = 1 of some runs, 0 if none was counted."""
    return max((share for r in own if math.isfinite(share := ties(r))), default=0.0)


def bias(quick: bool) -> Topic:
    """An error of c x half an ulp of V on rows with several P = 1; its sign is V's, or random."""
    rate, steps = (3e-2, 400) if quick else (1e-2, 1500)
    sizes = (16.0, 64.0, 256.0) if quick else (1.0, 4.0, 16.0, 64.0, 256.0)
    offsets = [(kind, c) for c in sizes for kind in KINDS if kind == BIAS or c >= 16.0]
    cases = [
        Case(
            group=name,
            name=f"c = {c:g}, {KINDS[kind][0]}",
            dose=Dose(rate=rate, steps=steps, words=words, offset=(kind, c)),
        )
        for name, words in ([REPEAT] if quick else [STDLIB, REPEAT])
        for kind, c in offsets
    ]
    return Topic(
        question=catalogue.BIAS.question,
        config=(QUICK if quick else FULL).config,
        cases=tuple(cases),
        seeds=QUICK_SEEDS if quick else SEEDS,
        answer=lambda found: " ".join(_of_data(found, *each) for each in found.groups().items()),
        draw=results.offsets,
        caption="c is the size in half ulps (BF16) of the mean |V| of the keys with P = 1. Dots:"
        " seeds; marker: their median, hollow where it is not reached; bar: smallest to largest; an"
        " arrow: runs that ended without divergence, all of them or as many as its number.",
        notes="Everything is FP32. What delta reads as O is off by c x half an ulp on rows in which"
        " the scores of several keys lie within 1.955e-3 of the largest, so that their P would"
        " round to 1 in BF16; the output itself is untouched. The three kinds hit the same rows"
        " with the same |e|; the error of delta, rowsum(dO e), is larger where e and dO go"
        " together over the features. c = 1 is the largest error that one rounding of such a"
        " sum can make if the sum has V's exponent. The share of these rows is counted every"
        " 100 steps, in one sequence, before the run diverges.",
        about="an error injected into what delta reads as O; the exact arm has none",
        ties=True,
    )


def _of_data(found: Found, group: str, own: dict[Case, Runs]) -> str:
    by = {case.dose.offset: case for case in own if case.dose.offset}
    sizes = [c for kind, c in by if kind == BIAS]
    lethal = sorted(c for c in sizes if found.killed(by[BIAS, c]))
    share = 100 * _most_ties([run for runs in own.values() for run in runs])
    where = f"With {group} (up to {number(share)} % of rows have several P = 1)"
    if not lethal:
        most = max(sizes)
        excess = interval(found.results.excess(own[by[BIAS, most]]), " nats")
        return (
            f"{where} no biased error up to c = {most:g} killed most runs; final loss above exact"
            f" at c = {most:g}: {excess}."
        )
    c = lethal[0]
    same_size = [kind for kind in (NOISE, FIXED) if (kind, c) in by]
    others = ", ".join(f"{KINDS[kind][0]} {found.time(by[kind, c]).count}" for kind in same_size)
    against = f"; of the same size there: {others}" if others else ""
    return (
        f"{where} an error biased along V kills from c = {c:g} on"
        f" ({found.time(by[BIAS, c]).words}){against}."
    )


def scaling(quick: bool) -> Topic:
    """The most bits at which toward zero still kills, against rate, width, depth and context."""
    config, rate = (QUICK.config, 3e-2) if quick else (FULL.config, 1e-2)
    factors: dict[str, tuple[float, ...]] = {
        "lr": (3e-3, 1e-2, 3e-2),
        "width": (64, 128, 256),
        "depth": (2, 4, 8),
        "context": (64, 128, 256),
    }
    if quick:
        factors = {"lr": (1e-2, 3e-2), "depth": (1, 2)}
    usual = {"lr": rate, "width": config.width, "depth": config.layers, "context": config.context}
    columns = [
        Column(factor, value, value == usual[factor])
        for factor, values in factors.items()
        for value in values
    ]
    cases = []
    for column in columns:
        name = "layers" if column.factor == "depth" else column.factor
        own = Dose(
            site=Site.OD,
            mode=ZERO,
            rate=column.value if name == "lr" else rate,
            steps=400 if quick else 1000,
            words=() if column.usual or name == "lr" else (f"{name}={column.value:g}",),
        )
        cases.append(Case(group=column.group, name=EXACT, dose=own.exact))
        for p in (6, 4, 2) if quick else (8, 7, 6, 5, 4):
            cases.append(Case(group=column.group, name=f"p = {p}", dose=replace(own, bits=p)))
    return Topic(
        question=catalogue.SCALING.question,
        config=config,
        cases=tuple(cases),
        seeds=QUICK_SEEDS if quick else SEEDS,
        answer=lambda found: scaling_answer(found, columns),
        draw=lambda found: results.thresholds(found, columns),
        caption="Runs that diverged of all seeds, by p and by one factor at a time; the frame is"
        " p*, the most significand bits at which more than half did. The value in bold is the same"
        " model in every panel. Top: nothing rounded but to FP32.",
        notes="Toward zero at O as delta reads it (OD), all else FP32; the other sizes stay as they"
        " are (heads too: a wider model has wider heads). A smaller rate is slower, so part of"
        " its higher threshold is that a run of as many steps gets less far; runs are of"
        " equally many steps.",
        about="one factor at a time around this model",
        alone=True,
    )


def scaling_answer(found: Found, columns: Sequence[Column]) -> str:
    """Return p* along each factor, in a sentence."""
    bits = {case.dose.bits for case in found.cases} - {MOST_BITS}
    parts = []
    for factor in dict.fromkeys(c.factor for c in columns):
        panel = [c for c in columns if c.factor == factor]
        values = ", ".join(number(c.value) for c in panel)
        stars = ", ".join(_star(found.threshold(c.group), bits) for c in panel)
        parts.append(f"{factor} {values}: {stars}")
    # by dose, since the usual model's exact arm is in every panel
    exact = {case.dose: found.time(case) for case in found.cases if case.name == EXACT}
    lost, runs = sum(t.diverged for t in exact.values()), sum(t.runs for t in exact.values())
    return (
        f"p* is the most bits at which toward zero made more than half of {len(found.topic.seeds)}"
        f" seeds diverge. It is for {'; '.join(parts)}. In FP32 {lost} of {runs} diverged."
    )


def _star(p: int | None, bits: set[int]) -> str:
    if p is None:
        return f"below {min(bits)}"
    if p == MOST_BITS:
        return "not defined (FP32 diverges)"
    return f"{p} or more" if p == max(bits) else str(p)


QIU_YAO = "-> plan=qiu-yao"
MATMUL = ("matmul=bf16",)
CONDITIONS = {
    **dict((STDLIB, REPEAT)),
    "a sink, no positions": ("data=sink", "position=false"),
    "no clipping": ("clip=none",),
    "twice the context": ("context=double",),  # replaced by twice the model's own context
    "RMS norm of q and k": ("qk_norm=true",),
}
FASTER = "three times the rate"  # follows the last condition of --quick, and "no clipping"


def conditions(quick: bool) -> Topic:
    """The BF16 attention of arXiv 2510.04212 where ties are common; elsewhere with fewer bits."""
    config, rate, steps = (QUICK.config, 3e-2, 300) if quick else (FULL.config, 1e-2, 1500)
    cases = []
    for name in (STDLIB[0], REPEAT[0]) if quick else CONDITIONS:
        double = str(2 * config.context)
        words = tuple(word.replace("double", double) for word in (*MATMUL, *CONDITIONS[name]))
        cases += _pair(name, Dose(rate=rate, steps=steps, words=words))
        if name == (REPEAT[0] if quick else "no clipping"):
            cases += _pair(FASTER, Dose(rate=3 * rate, steps=steps, words=MATMUL))
    for p in (6, 4) if quick else (7, 6, 5, 4):
        dose = Dose(rate=rate, steps=steps, words=MATMUL, also=(QIU_YAO, fewer(p)))
        group = f"{STDLIB[0]}: the same events at p bits"
        cases.append(Case(group=group, name=f"p = {p}", dose=dose))
    return Topic(
        question=catalogue.CONDITIONS.question,
        config=config,
        cases=tuple(cases),
        seeds=QUICK_SEEDS if quick else SEEDS,
        answer=conditions_answer,
        draw=results.strips,
        caption="A dot for each seed at the step where it diverged; hollow at the end: it did not.",
        notes="Attention as the preset qiu-yao has it (all its BF16 events) with the device's own"
        " sums, one tile; linear layers read BF16 operands (matmul=bf16 in every arm). The"
        " exact arm of each seed has FP32 attention and is otherwise the same, its condition"
        " included. At p bits: all BF16 events of the preset round to p significand bits with"
        " BF16's exponents. Rows with several P = 1: scores as the plan rounds them within"
        " 1.955e-3 of the row's largest, every 100 steps in one sequence, before the run"
        " diverges; at FP32 the same window.",
        about="all of qiu-yao's events against FP32 attention",
        ties=True,
    )


def _pair(group: str, dose: Dose) -> list[Case]:
    return [
        Case(group=group, name="BF16 attention, 8 bits", dose=replace(dose, also=(QIU_YAO,))),
        Case(group=group, name="FP32 attention", dose=dose),
    ]


def fewer(bits: int) -> str:
    """Return the change that rounds all BF16 events of qiu-yao to so many bits."""
    plan = Plan.preset("qiu-yao")
    return f"site={','.join(s for s in Site if plan[s].format.name == 'bf16')} -> e8m{bits - 1}"


def conditions_answer(found: Found) -> str:
    """Return what failed, and where fewer bits begin to fail."""
    low = [case for case in found.cases if case.dose.also == (QIU_YAO,)]
    failed = [f"{c.group} ({found.time(c).count})" for c in low if found.time(c).diverged]
    runs = sum(found.time(case).runs for case in low)
    first = f"BF16 attention diverged in none of {runs} runs under {len(low)} conditions"
    if failed:
        first = f"BF16 attention diverged in: {', '.join(failed)}"
    excesses = {case: found.results.excess(found.cases[case]) for case in low}
    finite = [case for case in low if math.isfinite(excesses[case].mean)] or low
    worst = max(finite, key=lambda case: excesses[case].mean)
    tied = {case: _most_ties(found.cases[case]) for case in low}
    most = max(low, key=lambda case: tied[case])
    less = [case for case in found.cases if len(case.dose.also) == 2]
    lethal = [case for case in less if found.killed(case)]
    times = "; ".join(f"{case.name}: {found.time(case).count}" for case in less)
    kills = f"diverge from {lethal[0].name} down" if lethal else "do not diverge"
    return (
        f"{first}; the largest excess loss is {interval(excesses[worst], ' nats')} ({worst.group}),"
        f" the most rows with several P = 1 are {number(100 * tied[most])} % ({most.group}). With"
        f" fewer bits at the same events most runs {kills} ({times})."
    )


BREAKS, KEEPS = "the rows of dS no longer sum to 0", "the rows of dS still sum to 0"
P_DP, CENTRED = "-> delta_from=P_DP", "-> delta_from=CENTRED"


def identity(quick: bool) -> Topic:
    """Errors that break rowsum(dS) = 0 against errors that keep it, all of one size."""
    bits, steps, rate = (2, 400, 3e-2) if quick else (4, 1500, 1e-2)

    def case(group: str, name: str, site: Site, mode: RoundingMode, *also: str) -> Case:
        dose = Dose(site=site, mode=mode, bits=bits, rate=rate, steps=steps, also=also)
        return Case(group=group, name=f"{name}, p = {bits}", dose=dose)

    p_zero = "P of the backward toward zero, delta = rowsum(P dP)"
    scores = f"site=SCALED -> e8m{bits - 1}"
    return Topic(
        question=catalogue.IDENTITY.question,
        config=(QUICK if quick else FULL).config,
        cases=(
            case(BREAKS, "O as delta reads it, toward zero", Site.OD, ZERO),
            case(BREAKS, "dP toward zero, delta = rowsum(dO O)", Site.DP, ZERO),
            case(BREAKS, p_zero, Site.EXP_B, ZERO, P_DP),
            case(BREAKS, "scores of the forward alone, nearest", Site.SCALED, EVEN),
            case(KEEPS, "dP toward zero, delta = rowsum(P dP)", Site.DP, ZERO, P_DP),
            case(KEEPS, f"{p_zero} / sum P", Site.EXP_B, ZERO, CENTRED),
            case(KEEPS, "scores of forward and backward, nearest", Site.SCALED_B, EVEN, scores),
        ),
        seeds=QUICK_SEEDS if quick else SEEDS,
        answer=identity_answer,
        draw=results.strips,
        caption="A dot for each seed at the step where it diverged; hollow at the end: it did not."
        " Above and below, the same events err by as much.",
        notes="dS = P (dP - delta) and sum P = 1, so a row of dS sums to rowsum(P dP) - delta = 0"
        " in exact arithmetic. Everything is FP32 but the events named, which round to p"
        " significand bits. Scores rounded in the forward alone: P of the backward no longer sums"
        " to 1; rounded in the backward as well: it does, with as large an error. dP toward zero:"
        " delta = rowsum(dO O) does not know of it, delta = rowsum(P dP) reads the same rounded dP."
        " P of the backward toward zero: with delta = rowsum(P dP) the row sums to delta (1 - sum"
        " P), with rowsum(P dP) / sum P to 0. Growth of ||W_Q|| is over the FP32 arm of the same"
        " seed.",
        about="FP32 but for the events named",
    )


def identity_answer(found: Found) -> str:
    """Return how many runs diverged on either side, and what the loss of the others says."""
    broken, kept = (_count(found, own) for own in found.groups().values())
    if broken[0] and not kept[0]:
        start = "As far as these runs go, yes"
    else:
        start = "Partly" if kept[0] / kept[1] < 0.5 * broken[0] / broken[1] else "Not by these runs"
    return (
        f"{start}. Where the rows of dS no longer sum to 0, {broken[0]} of {broken[1]} runs"
        f" diverged and the final loss is {broken[2]} nats above exact. Where they do sum to 0, and"
        f" the same events are as wrong, it is {kept[0]} of {kept[1]} and {kept[2]} nats."
    )


def _count(found: Found, own: dict[Case, Runs]) -> tuple[int, int, str]:
    """Return runs that diverged, runs, and the range of the excess loss (of the cases' means)."""
    times = [found.time(case) for case in own]
    means = [found.results.excess(runs).mean for runs in own.values()]
    excess = [x for x in means if math.isfinite(x)] or [math.nan]
    lost, runs = sum(t.diverged for t in times), sum(t.runs for t in times)
    return lost, runs, f"{number(min(excess))} to {number(max(excess))}"


TOPICS = {"bias": bias, "scaling": scaling, "conditions": conditions, "identity": identity}
