"""`roundscope reproduce truncation`: what casts toward zero do, and what repairs it.

AMD's aiter compiles its BF16 attention with casts toward zero (`attention.plans.untried`). Builds
of that plan that differ in their casts (`builds`) are measured without training (`static`), and
train a small GPT here, all of a seed with the same weights at the start and the same batches.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure as Picture

from roundscope.experiments.catalogue import TRUNCATION
from roundscope.experiments.framework import training
from roundscope.experiments.framework.counts import counted, diverged, signs, times
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge, verdict_on
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.questions.truncation import static
from roundscope.experiments.questions.truncation.builds import (
    AWAY,
    BASE,
    CENTRED,
    KEPT,
    MODES,
    NEAREST,
    TITLES,
    ZERO,
    alone,
    remedied,
    whole,
)
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import Arm
from roundscope.tools.report.pictures import COLOURS, canvas
from roundscope.tools.results.run import Run

OUTPUT = "output"
ARMS = {
    NEAREST: whole(NEAREST),
    AWAY: whole(AWAY),
    ZERO: whole(ZERO),
    OUTPUT: alone("output", ZERO),
    KEPT: remedied(KEPT),
    CENTRED: remedied(CENTRED),
}
NAMES = MODES | TITLES | {OUTPUT: "the output alone toward zero"}
MARGIN = 0.02  # nats within which two losses count as equal, set before the runs
CAPTION = (
    "Loss against steps, a line for each seed, which ends where the run diverged. All runs of a"
    " seed have the same weights at the start and the same batches."
)
RULES = (
    "Earlier: a one-sided sign test over seeds of which of two runs diverges first. As well: where"
    " neither diverged, the 95 % t interval of the paired difference of final losses (mean of the"
    f" last 50 steps) lies below {MARGIN} nats.",
    "Without training: a gain counts as none if its 95 % t interval over cells lies within 0.0005.",
)
CAVEATS = (
    "The plan is read from aiter's public code and was not compared with an MI300. Sums are the"
    " device's own, linear layers round their operands to nearest, and there is one small model."
)
HEADS = ("casts", "rate", "diverged", "loss above nearest, nats", "final losses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What decides a run."""

    casts: str
    rate: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, the number of seeds, and the arms by learning rate."""

    name: str
    config: Config
    seeds: int
    arms: Mapping[float, Sequence[str]]


# the model of the study `scaling` at its width where one cast toward zero kills in BF16
FULL = Scale(
    name="full",
    config=Config(
        layers=4, heads=4, width=256, context=128, batch=16, warmup=100, steps=1000, plan=BASE
    ),
    seeds=5,
    arms={1e-2: tuple(ARMS), 3e-3: (NEAREST, AWAY, ZERO)},
)
QUICK = Scale(
    name="quick",
    config=Config(
        layers=2, heads=2, width=32, context=32, batch=8, warmup=25, steps=100, plan=BASE
    ),
    seeds=2,
    arms={3e-2: (NEAREST, ZERO, CENTRED)},
)
Key = tuple[str, float]
Results = dict[Key, list[Run[Condition]]]  # in the order of seeds


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale) -> Study[Results]:
    """Return the study at a scale."""
    quick = scale.name == "quick"
    return Study(
        name=TRUNCATION.name,
        question=TRUNCATION.question,
        scale=scale.name,
        launches=lambda store: launches(scale, store),
        results=lambda store: results(scale, store),
        answer=answer,
        claims=claims,
        source="of",
        figures=[Figure(title="Which casts train?", draw=draw, caption=CAPTION)],
        tables=[
            Table(
                name="runs",
                title="Trainings",
                heads=HEADS,
                rows=rows,
                records=records,
                shown=(0, 1, 2, 3),
            )
        ],
        rules=RULES,
        caveats=CAVEATS,
        static=lambda progress: static.measured(progress, quick),
        parts=static.parts(quick),
        about={"model": in_words(scale.config), "plan": f"{BASE}, with the device's own sums"},
        config=unnamed(scale.config),
    )


def arms_of(scale: Scale) -> dict[Condition, Arm]:
    """Return how each condition trains."""
    conditions = [
        Condition(casts=casts, rate=rate, seed=seed)
        for rate, each in scale.arms.items()
        for casts in each
        for seed in range(scale.seeds)
    ]
    return {
        c: Arm(
            name=f"{c.casts}, {c.rate:g}, {c.seed}",
            changes=(f"-> {ARMS[c.casts]}",),
            lr=c.rate,
            seed=c.seed,
        )
        for c in conditions
    }


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return the launches of each rate, so that those of one are kept before the next begins."""
    every = arms_of(scale)
    parts = ({c: arm for c, arm in every.items() if c.rate == rate} for rate in scale.arms)
    return [one for part in parts for one in training.launches(store, scale.config, part)]


def results(scale: Scale, store: Store) -> Results | None:
    """Return the conditions that are complete; None if there are none."""
    found: Results = {}
    for c, run in training.read(store, scale.config, arms_of(scale)).items():
        found.setdefault((c.casts, c.rate), []).append(run)
    return {key: runs for key, runs in found.items() if len(runs) == scale.seeds} or None


def rates(r: Results) -> list[float]:
    """Return the rates of the results, in their order."""
    return list(dict.fromkeys(rate for _, rate in r))


def gaps(r: Results, casts: str, other: str, rate: float) -> dict[int, float]:
    """Return by seed the final loss of some casts less that of others."""
    pairs = zip(r[casts, rate], r[other, rate], strict=True)
    return {one.seed: one.loss - two.loss for one, two in pairs}


def answer(r: Results) -> str:
    """Return how many runs diverged at each rate."""
    each = []
    for rate in rates(r):
        told = "; ".join(f"{NAMES[c]} {times(x)}" for (c, own), x in r.items() if own == rate)
        each.append(f"Diverged at rate {rate:g}: {told}.")
    return " ".join(each)


def claims(r: Results) -> Iterator[Verdict]:
    """Yield whether casts toward zero diverge earlier, and whether others train as well."""
    for rate in rates(r):
        for casts in (ZERO, OUTPUT):
            if {(casts, rate), (NEAREST, rate)} <= r.keys():
                own, other = r[casts, rate], r[NEAREST, rate]
                word = signs(zip(own, other, strict=True)).word
                told = f"{times(own)}; to nearest {times(other)}"
                claim = f"{NAMES[casts]}: diverges earlier than to nearest"
                yield verdict_on("training", claim, f"rate {rate:g}", word, told)
        for casts in (AWAY, KEPT, CENTRED):
            if {(casts, rate), (NEAREST, rate)} <= r.keys():
                yield no_higher(r, casts, rate)


def no_higher(r: Results, casts: str, rate: float) -> Verdict:
    """Return whether some casts train as well as to nearest."""
    own, other = r[casts, rate], r[NEAREST, rate]
    claim, case = f"{NAMES[casts]}: trains as well as to nearest", f"rate {rate:g}"
    values = gaps(r, casts, NEAREST, rate)
    if diverged(own) or diverged(other) or not all(map(math.isfinite, values.values())):
        earlier = signs(zip(own, other, strict=True)).word
        word = Word.CONTRADICTS if earlier is Word.AGREES else Word.UNDECIDED
        told = f"diverged {times(own)}; to nearest {times(other)}"
        return verdict_on("training", claim, case, word, told)
    above = mean(values)
    word = judge(above, (-math.inf, MARGIN)) if len(values) > 1 else Word.NOT_TESTABLE
    told = f"{interval(above, ' nats above')} (n = {len(values)})"
    return verdict_on("training", claim, case, word, told, above)


def draw(r: Results) -> Picture:
    """Draw the losses, a panel for each rate."""
    panels = rates(r)
    figure, axes = canvas(3.4, 1, len(panels), sharey=True)
    for ax, rate in zip(axes[0], panels, strict=True):
        own = [(casts, runs) for (casts, at), runs in r.items() if at == rate]
        for colour, (casts, runs) in zip(COLOURS, own, strict=False):
            for run in runs:
                end = math.inf if run.diverged is None else run.diverged + 25
                curve = [(x, y) for x, y, *_ in run.curve if x <= end and math.isfinite(y)]
                if curve:
                    ax.plot(*zip(*curve, strict=True), color=colour, lw=0.8, alpha=0.7)
            ax.plot([], [], color=colour, label=NAMES[casts])
        ax.set_title(f"rate {rate:g}", fontsize=9.5, loc="left")
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("loss, nats")
    axes[0, 0].legend(fontsize=7.5, frameon=False)
    return figure


def rows(r: Results) -> list[list[str]]:
    """Return a line for each condition."""
    return [
        [
            NAMES[casts],
            f"{rate:g}",
            counted(runs),
            _above(r, casts, rate),
            " ".join(f"{run.loss:.3f}" for run in runs),
        ]
        for (casts, rate), runs in r.items()
    ]


def _above(r: Results, casts: str, rate: float) -> str:
    """Return the loss above nearest, with how many runs have none that is finite first."""
    if casts == NEAREST or (NEAREST, rate) not in r:
        return "-"
    values = gaps(r, casts, NEAREST, rate)
    gone = sum(not math.isfinite(x) for x in values.values())
    first = f"{gone} of {len(values)} not finite; " if gone else ""
    return f"{first}{interval(mean(values))} (n = {len(values) - gone})"


def records(r: Results) -> list[dict[str, Any]]:
    """Return every run as data."""
    return [asdict(run) for runs in r.values() for run in runs]
