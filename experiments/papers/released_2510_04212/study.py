"""The study: trainings on the preset qiu-yao beside trainings on the released code's arithmetic.

The latter is what that code computes compiled, as its training runs it. The whole ablation table,
on the preset, is in papers.failure_2510_04212; docs/findings/kernels.md says how it was matched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import BF16
from roundscope.experiments.framework import training
from roundscope.experiments.framework.counts import counted, diverged, signs, times
from roundscope.experiments.framework.estimates import grouped
from roundscope.experiments.framework.figures.series import SHARE
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, verdict_on
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import Arm
from roundscope.tools.report.pictures import INK, canvas
from roundscope.tools.results.run import Run

PRESET, COMPILED = "qiu-yao", "qiu-yao-compiled"
ARITHMETICS = (PRESET, COMPILED)
ITSELF = "as it is"
EXACT = "FP32"
OUTPUT = "O path in FP32"
OTHER = "delta = rowsum(P dP)"
CENTRED = "delta centered"
SWAPPED = "scores of the backward swapped"
SLOW = "the rate of the other cases"
FAST = "three times the rate"
ZERO = "O path toward zero, 6 bits"
FEWER = "6 bits at every BF16 event"
PDP = OTHER
CHANGES = {
    ITSELF: (),
    EXACT: ("-> fp32",),
    OUTPUT: ("site=PV,AO,O,OUT -> fp32",),
    OTHER: ("-> delta_from=P_DP",),
    CENTRED: ("-> delta_from=CENTRED",),
}
# the preset's backward does not round its scores as the forward did; the compiled code's does
SWAPS = {
    PRESET: ("site=S -> fp32", "site=SCALED,SCALED_B -> bf16"),
    COMPILED: ("site=S_B -> fp32",),
}
SINGLES = {  # rows of the compiled code at three times the rate: what alone is exact
    "scores in FP32": "S,S_B",
    "m and l kept in FP32": "MS,LANES",
    "P in FP32": "P,P_B",
    "dP in FP32": "DP",
    "dS in FP32": "DS",
    "q, k, v, dO in FP32": "Q,K,V,DO",
    "gradients in FP32": "DQP,DKP,DVP,DQ_OUT,DK_OUT,DV_OUT",
}
# the events of the scores, with the maximum and the row sum
OF_SCORES = {
    *(Site.S, Site.SCALED, Site.X, Site.M, Site.DM, Site.L, Site.MS, Site.LANES),
    *(Site.S_B, Site.SCALED_B),
}
ROWS = {  # case -> its rows
    SLOW: (ITSELF, EXACT, CENTRED),
    FAST: (ITSELF, EXACT, OUTPUT, OTHER, CENTRED, SWAPPED),
    ZERO: (ITSELF, OUTPUT, CENTRED),
    FEWER: (ITSELF, OUTPUT, CENTRED, SWAPPED),
    PDP: (ITSELF, OUTPUT, SWAPPED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The arithmetic, the case, the row of the table and the seed that decide a run."""

    arithmetic: str
    case: str
    row: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its rate after the warm-up, and the seeds of the fast case and of the others."""

    name: str
    config: Config
    rate: float
    fast: int
    seeds: int


QUICK = Scale(
    name="quick",
    rate=2e-2,
    fast=3,
    seeds=2,
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, steps=300),
)
FULL = Scale(
    name="full",
    rate=1e-2,
    fast=10,
    seeds=5,
    config=Config(layers=4, heads=4, width=128, context=128, batch=16, warmup=100, steps=1000),
)


def conditions(scale: Scale) -> Iterator[Condition]:
    """Yield every run's condition."""
    for arithmetic in ARITHMETICS:
        for case, rows in ROWS.items():
            for row in rows:
                for seed in range(scale.fast if case == FAST else scale.seeds):
                    yield Condition(arithmetic=arithmetic, case=case, row=row, seed=seed)
    for row in SINGLES:
        for seed in range(scale.fast):
            yield Condition(arithmetic=COMPILED, case=FAST, row=row, seed=seed)


def config_of(scale: Scale, arithmetic: str) -> Config:
    """Return the model with this plan in its attention, one tile, and the device's own sums."""
    return replace(scale.config, plan=arithmetic, block=scale.config.context)


def arm(scale: Scale, c: Condition) -> Arm:
    """Return the arm that a condition trains: what its case changes, then what its row does."""
    changes = list(CHANGES[OTHER]) if c.case == PDP else []
    if c.case == ZERO:  # the paper's mechanism alone: scores and statistics exact
        exact = [site for site in low(c.arithmetic) if site in OF_SCORES]
        changes = [f"site={','.join(exact)} -> fp32", "site=PV,AO,O,OUT -> e8m5:toward-zero"]
    if c.case == FEWER:
        changes = [f"site={','.join(low(c.arithmetic))} -> e8m5"]
    if c.row in SINGLES:
        changes.append(f"site={SINGLES[c.row]} -> fp32")
    else:
        changes += SWAPS[c.arithmetic] if c.row == SWAPPED else CHANGES[c.row]
    return Arm(
        name=f"{c.case}, {c.row}, {c.seed}",
        changes=tuple(changes),
        lr=scale.rate * (3 if c.case == FAST else 1),
        seed=c.seed,
    )


def low(arithmetic: str) -> list[Site]:
    """Return the events that a plan has in BF16."""
    plan = Plan.preset(arithmetic)
    return [site for site in Site if plan[site] == BF16]


QUESTION = "Which rows of arXiv 2510.04212 stand on the arithmetic that its training runs?"
Runs = list[Run[Condition]]
Results = dict[tuple[str, str, str], Runs]  # (arithmetic, case, row) -> runs in the order of seeds
CAPTION = (
    "How many runs diverged, of how many, and the median step. qiu-yao: the preset, whose backward"
    " is FP32 and does not round its scores as the forward did. qiu-yao-compiled: what the released"
    " code computes as its training runs it, compiled and under autocast; on one tile it has every"
    " bit of that code's output (docs/findings/kernels.md). Scores of the backward swapped: in the"
    " preset they are rounded as the forward did, in the compiled code they are not."
)
RULES = (
    "Fails: a one-sided sign test over seeds against FP32 at the same rate, which diverges"
    " earlier. Cured: the same test of the case itself against the repaired one. Repairs of"
    " cases that do not fail are not testable. Intervals of shares are Clopper-Pearson's, 95 %."
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    scale = QUICK if quick else FULL
    c = scale.config
    return Study(
        name="released",
        question=QUESTION,
        paper="arXiv 2510.04212, on the arithmetic of its released code",
        launches=lambda store: launches(scale, store),
        results=lambda store: results(scale, store),
        answer=answer,
        claims=lambda r: [*fails(r), *repairs(r), *route(r)],
        figures=[Figure(title="What diverges, on which arithmetic?", draw=draw, caption=CAPTION)],
        tables=[TABLE],
        rules=(RULES,),
        caveats="Small models on Python's sources; the paper's own has 12 layers and trains for"
        " thousands of steps. Sums are native.",
        about={
            "model": in_words(c),
            "training": (
                f"rate {scale.rate:g} after {c.warmup} steps of warm-up, {c.steps} steps; seeds"
                f" {scale.fast} at three times the rate, else {scale.seeds}"
            ),
        },
        config=unnamed(c),
        scale=scale.name,
    )


def _arms(scale: Scale, arithmetic: str) -> dict[Condition, Arm]:
    return {c: arm(scale, c) for c in conditions(scale) if c.arithmetic == arithmetic}


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return the launches of both arithmetics."""
    return [
        x
        for name in ARITHMETICS
        for x in training.launches(store, config_of(scale, name), _arms(scale, name))
    ]


def results(scale: Scale, store: Store) -> Results | None:
    """Return the rows that are complete; None if there are none."""
    by_row = grouped(
        ((name, c.case, c.row), replace(run, condition=c))
        for name in ARITHMETICS
        for c, run in training.read(store, config_of(scale, name), _arms(scale, name)).items()
    )
    wanted = {case: scale.fast if case == FAST else scale.seeds for case in ROWS}
    return {at: runs for at, runs in by_row.items() if len(runs) == wanted[at[1]]} or None


def _exact(r: Results, arithmetic: str, case: str) -> Runs:
    """Return the runs in FP32 at the case's rate."""
    return r.get((arithmetic, FAST if case == FAST else SLOW, EXACT), [])


def _earlier(first: Runs, second: Runs) -> Word:
    """Return whether the first runs diverge earlier; not testable where either was not run."""
    if not first or not second:
        return Word.NOT_TESTABLE
    return signs(zip(first, second, strict=True)).word


def _is_killed(r: Results, arithmetic: str, case: str) -> bool:
    own = r.get((arithmetic, case, ITSELF), [])
    return _earlier(own, _exact(r, arithmetic, case)) is Word.AGREES


def fails(r: Results) -> Iterator[Verdict]:
    """Yield a verdict for every case: whether it diverges earlier than FP32."""
    for case in ROWS:
        for name in ARITHMETICS:
            own, exact = r.get((name, case, ITSELF), []), _exact(r, name, case)
            measured = f"{counted(own)}; FP32 {times(exact)}"
            yield verdict_on("0", f"diverges: {case}", name, _earlier(own, exact), measured)


def repairs(r: Results) -> Iterator[Verdict]:
    """Yield a verdict for every repair in every case that fails."""
    for (name, case, row), runs in r.items():
        if row in (ITSELF, EXACT) or case == SLOW:
            continue
        own = r.get((name, case, ITSELF), [])
        word = _earlier(own, runs) if _is_killed(r, name, case) else Word.NOT_TESTABLE
        measured = f"{counted(runs)}; the case itself {times(own)}"
        yield verdict_on("5 to 9", f"{row} cures: {case}", name, word, measured)


def route(r: Results) -> Iterator[Verdict]:
    """Yield the verdict on swapped scores where delta is rowsum(P dP): the second route."""
    apart, alike = r.get((COMPILED, PDP, SWAPPED), []), r.get((COMPILED, PDP, ITSELF), [])
    claim = (
        "with delta = rowsum(P dP) the released arithmetic diverges once its backward no longer"
        " repeats the scores"
    )
    measured = f"not repeated {times(apart)}; as released {times(alike)}"
    yield verdict_on("5", claim, COMPILED, _earlier(apart, alike), measured)


def answer(r: Results) -> str:
    """Return a sentence that says what fails on each arithmetic."""
    parts = []
    for name in ARITHMETICS:
        failed = [
            f"{case} ({times(r[name, case, ITSELF])})"
            for case in ROWS
            if (name, case, ITSELF) in r and _is_killed(r, name, case)
        ]
        which = f". They are: {'; '.join(failed)}" if failed else ""
        parts.append(f"{name} fails in {len(failed)} of {len(ROWS)} cases{which}")
    for name in ARITHMETICS:  # which change averts most divergences at three times the rate?
        tried = {
            row: runs
            for (own, case, row), runs in r.items()
            if own == name and case == FAST and row not in (ITSELF, EXACT)
        }
        if tried and _is_killed(r, name, FAST):
            lost = {row: diverged(runs) for row, runs in tried.items()}
            best = min(lost, key=lost.__getitem__)
            rest = [n for row, n in lost.items() if row != best]
            parts.append(
                f"At {FAST} {best} helps {name} most: {counted(tried[best])}; with every other"
                f" change {min(rest, default=0)} or more diverged"
            )
    return ". ".join(parts) + "."


def _lines() -> list[tuple[str, str]]:
    return [
        (case, row)
        for case, own in ROWS.items()
        for row in (*own, *(SINGLES if case == FAST else ()))
    ]


def draw(r: Results) -> Picture | None:
    """Draw rows x arithmetics: the share of runs that diverged."""
    lines = [at for at in _lines() if any((name, *at) in r for name in ARITHMETICS)]
    if not lines:
        return None
    figure, ((ax,),) = canvas(1.2 + 0.27 * len(lines), 1, 1)
    look: dict[str, Any] = {"va": "center", "fontsize": 8.5}
    for y, at in enumerate(lines):
        for x, name in enumerate(ARITHMETICS):
            runs = r.get((name, *at), [])
            colour = SHARE(diverged(runs) / len(runs)) if runs else "white"
            ax.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, color=colour, lw=0))
            words = times(runs).replace(", step ", "  step ").partition(" [")[0]
            ax.text(x, y, words if runs else "not run", ha="center", color=INK, **look)
    for y, (case, _) in enumerate(lines):
        if y == 0 or case != lines[y - 1][0]:
            ax.axhline(y - 0.5, color=INK, lw=0.8)
            ax.text(-0.62, y, case, ha="right", weight="bold", transform=ax.transData, **look)
    ax.set(xlim=(-0.5, len(ARITHMETICS) - 0.5), ylim=(len(lines) - 0.5, -0.5))
    ax.set_xticks(range(len(ARITHMETICS)), ARITHMETICS, fontsize=9)
    ax.set_yticks(range(len(lines)), [row for _, row in lines], fontsize=8.5)
    ax.yaxis.tick_right()
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    return figure


def rows(r: Results) -> list[list[str]]:
    """Return a line for each case and row."""
    return [[*at, *(counted(r.get((name, *at), [])) for name in ARITHMETICS)] for at in _lines()]


def records(r: Results) -> list[dict[str, object]]:
    """Return a record for each arithmetic, case and row."""
    return [
        {
            "arithmetic": name,
            "case": case,
            "row": row,
            "runs": len(runs),
            "diverged": diverged(runs),
            "steps": [run.diverged for run in runs],
            "losses": [run.loss for run in runs],
            "seeds": [run.condition.seed for run in runs],
        }
        for (name, case, row), runs in r.items()
    ]


TABLE = Table(
    name="rows",
    title="Every row",
    heads=("case", "what is different", *(f"diverged:\n{name}" for name in ARITHMETICS)),
    rows=rows,
    records=records,
    shown=(0, 1, 2, 3),
    grouped=True,
)
