"""`roundscope reproduce su`: does block scaling make training diverge, and what averts it?"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from roundscope.experiments.framework.counts import counted, diverged
from roundscope.experiments.framework.study import Figure, Progress, Static, Study, Table
from roundscope.experiments.papers.microscaling_2506_20752 import (
    claims,
    claims_arms,
    claims_code,
    figures,
    static,
)
from roundscope.experiments.papers.microscaling_2506_20752.answer import answer
from roundscope.experiments.papers.microscaling_2506_20752.conditions import FULL, QUICK, Scale
from roundscope.experiments.papers.microscaling_2506_20752.found import Found, read
from roundscope.experiments.papers.microscaling_2506_20752.launches import Runs, planned
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import RULE, over

QUESTION = "Does block scaling make training diverge, and what averts it?"
LEFT_OUT = (
    "Not shown: the paper's language models, and its own instability unless the table says so: "
    "the rates here are those at which FP32 is about to fail too, hundreds of times the published "
    "one. The released code has no MX in LN, freezes its shift and rounds ties away from zero; "
    "base runs here train the shift and round to even, and arms tell the differences. Adam at a "
    "constant rate after the warm-up. Sums are FP32 in the device's order: numbers repeat on one "
    "kind of device only."
)
PICTURES = (
    (
        "What averts the divergence?",
        figures.opening,
        (
            "A dot per run and seed, from states that are the same to the bit. Blue rows outlive"
            " their shams and never diverged, green rows outlive them, red rows diverged before"
            " them; the others cannot be told from the shams. Dotted: where the run diverged at"
            " first."
        ),
    ),
    (
        "At which rates does training fail?",
        figures.formats,
        f"Runs that diverged of how many, and their median step. {RULE}",
    ),
    (
        "How large is the gradient's error, and where does it come from?",
        figures.growth,
        (
            "Left: every look before the divergence, a line per seed. Two trainings: the released"
            " code's epsilon, which has the distance of the two in it. Right: one event rounded and"
            " all others FP32, at the same states; a dot per seed, the median of its looks."
        ),
    ),
    (
        "How does the loss run?",
        figures.losses,
        "The largest loss of every 25 steps, a line per seed; grey: FP32 on the same rows.",
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
        answer=partial(answer, scale=scale),
        claims=partial(claims.judged, scale=scale),
        figures=[Figure(title=t, draw=partial(f, scale=scale), caption=c) for t, f, c in PICTURES],
        tables=(TABLE,),
        rules=(claims.RULES, claims_arms.RULES, claims_code.RULES, static.RULES),
        caveats=LEFT_OUT,
        about={"student": f"{size}, {len(scale.seeds)} seeds", "settings": "; ".join(rates)},
        config=asdict(c),
        scale=scale.name,
        static=arithmetic,
    )


def arithmetic(progress: Progress) -> Static:
    """Return what is computed from drawn numbers."""
    return Static(verdicts=static.judged())


def conditions(found: Found) -> Iterator[tuple[str, str, float, Runs]]:
    """Yield (setting or parting, arm, rate, the runs of its seeds)."""
    lines: dict[tuple[str, str, float], list[Any]] = {}
    trained = [(setting, f, runs) for (setting, f), runs in found.trained.items()]
    published = [("published", f, runs) for f, runs in found.paper.items()]
    leads = sorted(found.parted.items(), key=lambda item: -item[0][1])
    parted = [(f"{lead} steps before", f, [r]) for (_, lead), own in leads for f, r in own.items()]
    for place, name, runs in [*trained, *published, *parted]:
        for r in runs:
            lines.setdefault((place, name, r.condition.lr), []).append(r)
    return ((*line, runs) for line, runs in lines.items())


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
