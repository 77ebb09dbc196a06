"""`roundscope reproduce su`: does block scaling make training diverge, and what averts it?"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from roundscope.experiments.framework.counts import counted, diverged, signs
from roundscope.experiments.framework.estimates import ratio
from roundscope.experiments.framework.study import Figure, Progress, Static, Study, Table
from roundscope.experiments.framework.verdicts import Verdict
from roundscope.experiments.papers.microscaling_2506_20752 import (
    claims,
    code,
    figures,
    interventions,
)
from roundscope.experiments.papers.microscaling_2506_20752.conditions import (
    FROZEN,
    FULL,
    QUICK,
    Scale,
)
from roundscope.experiments.papers.microscaling_2506_20752.interventions import (
    Effect,
    Outcome,
    outcomes,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import (
    Found,
    Runs,
    planned,
    read,
)
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.run import RULE, over, paired
from roundscope.tools.report.wording import listed

LIKELY = {
    "agrees": "more than chance",
    "contradicts": "FP32 earlier, more than chance",
    "undecided": "not more than chance allows",
}
QUESTION = "Does block scaling make training diverge, and what averts it?"
LEFT_OUT = (
    "Not shown: the paper's language models, and its own instability unless the table says so: "
    "the rates here are those at which FP32 is about to fail too, hundreds of times the published "
    "one. The released code has no MX in LN, freezes its shift and rounds ties away from zero; "
    "base runs here train the shift and round to even, and arms tell the differences. Adam at a "
    "constant rate after the warm-up. Sums are FP32 in the device's order: numbers repeat on one "
    "kind of device only."
)
FIGURES = (
    Figure(
        title="What averts the divergence?",
        draw=figures.opening,
        caption=(
            "A dot per run and seed, from states that are the same to the bit. Blue rows outlive"
            " their shams and never diverged, green rows outlive them, red rows diverged before"
            " them; the others cannot be told from the shams. Dotted: where the run diverged at"
            " first."
        ),
    ),
    Figure(
        title="At which rates does training fail?",
        draw=figures.formats,
        caption=f"Runs that diverged of how many, and their median step. {RULE}",
    ),
    Figure(
        title="How large is the gradient's error, and where does it come from?",
        draw=figures.growth,
        caption=(
            "Left: every look before the divergence, a line per seed. Two trainings: the released"
            " code's epsilon, which has the distance of the two in it. Right: one event rounded and"
            " all others FP32, at the same states; a dot per seed, the median of its looks."
        ),
    ),
    Figure(
        title="How does the loss run?",
        draw=figures.losses,
        caption="The largest loss of every 25 steps, a line per seed; grey: FP32 on the same rows.",
    ),
)


def asked(quick: bool) -> Study[Found]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale = FULL) -> Study[Found]:
    """Return the claims of arXiv 2506.20752, and ours, at a scale, as a study."""
    c = scale.base.config
    rates = [f"{s.name}: lr {' '.join(format(x, 'g') for x in s.rates)}" for s in scale.settings]
    size = f"{c.depth} layers, width {c.width}, {c.phi}, batch {c.batch}, {c.steps} steps"
    return Study(
        name="su",
        question=QUESTION,
        paper="arXiv 2506.20752, in its student and teacher.",
        launches=partial(planned, scale),
        results=partial(read, scale),
        answer=answer,
        claims=judged,
        figures=FIGURES,
        tables=(TABLE,),
        rules=(claims.RULES, interventions.RULES, *code.RULES),
        caveats=LEFT_OUT,
        about={"student": f"{size}, {len(scale.seeds)} seeds", "settings": "; ".join(rates)},
        config=asdict(c),
        scale=scale.name,
        static=arithmetic,
    )


def arithmetic(progress: Progress) -> Static:
    """Return what is computed from drawn numbers."""
    return Static(verdicts=code.arithmetic())


def judged(found: Found) -> list[Verdict]:
    """Return verdicts on every claim of arXiv 2506.20752, and of ours, that runs can test."""
    return [
        *claims.training(found),
        *interventions.judged(found),
        *claims.epsilon(found),
        *code.discrepancies(found),
    ]


def answer(found: Found) -> str:
    """Return who diverged, in how many steps, at which rates, and what the interventions did."""
    mx = found.scale.mx
    own, exact, frozen = map(found.base, (mx, EXACT, f"{mx}, {FROZEN}"))
    if not own or not exact:
        return "The base runs are not there yet."
    sure = LIKELY[signs(paired(own, exact)).word.value]
    counts = f"{mx} diverged in {_of(own)} runs and FP32 on the same rows in {_of(exact)} ({sure})"
    shift = ""
    if frozen:
        start = "With LayerNorm's shift frozen from the first step"
        shift = f" {start} {mx} diverged in {_of(frozen)}."
    return f"{counts}{_longer(found)}{_limit(found)}.{shift} {_interventions(found)}"


def _of(runs: Runs) -> str:
    return f"{diverged(runs)} of {len(runs)}"


def _longer(found: Found) -> str:
    """Return what FP32 does at the same rate in more steps.

    It tells whether the format causes the divergence or hastens it.
    """
    scale = found.scale
    for setting in scale.settings[1:]:
        own = found.of(setting.name, EXACT, scale.rate)
        if own and setting.config == replace(scale.base.config, steps=setting.config.steps):
            return f"; within {setting.config.steps} steps FP32 diverged in {_of(own)}"
    return ""


def _limit(found: Found) -> str:
    own, exact = (found.of(found.scale.base.name, f) for f in (found.scale.mx, EXACT))
    e = ratio(claims.limits(own), claims.limits(exact))
    if e.seeds < 2:
        return ""
    return f"; it fails at {e.mean:.2f} [{e.low:.2f}, {e.high:.2f}] of the rate at which FP32 does"


def _interventions(found: Found) -> str:
    whole = {n: [o for o in outcomes(found.parted, n) if o.runs] for n in found.leads}
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


def conditions(found: Found) -> list[tuple[str, str, float, Runs]]:
    """Return (setting or parting, arm, rate, the runs of its seeds)."""
    lines: dict[tuple[str, str, float], list[Any]] = {}
    trained = [(setting, f, runs) for (setting, f), runs in found.trained.items()]
    published = [("published", f, runs) for f, runs in found.paper.items()]
    leads = sorted(found.parted.items(), key=lambda item: -item[0][1])
    parted = [(f"{lead} steps before", f, [r]) for (_, lead), own in leads for f, r in own.items()]
    for place, name, runs in [*trained, *published, *parted]:
        for r in runs:
            lines.setdefault((place, name, r.condition.lr), []).append(r)
    return [(*line, runs) for line, runs in lines.items()]


def records(found: Found) -> list[dict[str, Any]]:
    """Return a record for each setting, arm and rate."""
    return [
        {
            "setting": place,
            "arm": name,
            "lr": lr,
            "seeds": [r.seed for r in runs],
            "diverged": [r.diverged for r in runs],
            "losses": [r.loss for r in runs],
            "changes": [r.condition.changes for r in runs],
            "steps": runs[0].steps,
        }
        for place, name, lr, runs in conditions(found)
    ]


def rows(found: Found) -> list[list[str]]:
    """Return the same in words: the columns of TABLE."""
    lines = []
    for place, name, lr, runs in conditions(found):
        published = place == "published"
        exact = found.paper.get(EXACT, ()) if published else found.of(place, EXACT)
        loss = "" if not exact or diverged(runs) else f"{over(runs, exact):.3g}"
        lines.append([place, name, f"{lr:g}", counted(runs), "" if loss == "inf" else loss])
    return lines


TABLE = Table(
    name="arms",
    title="Every arm",
    heads=("setting", "arm", "lr", "diverged [95 %], step", "final loss\nover FP32"),
    rows=rows,
    records=records,
)
