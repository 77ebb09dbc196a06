"""`roundscope reproduce alarm`: does the drift of a few heads, seen every 25 steps, warn in time?

The runs of `CHOOSE` choose the threshold of the alarm. The runs of `TEST` say how often it is
right: they have other events, rates, sizes, algorithms and seeds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure as Picture

from roundscope.attention.models.alarm import KEPT, LOOKS, THRESHOLD, Shares
from roundscope.attention.models.selection import Layer
from roundscope.experiments.catalogue import ALARM
from roundscope.experiments.framework import training, warning
from roundscope.experiments.framework.counts import share, times
from roundscope.experiments.framework.estimates import Estimate, grouped
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Study, Table
from roundscope.experiments.framework.verdicts import Range, Verdict, Word, judge, verdict_on
from roundscope.experiments.framework.warning import LEAD, RISE, moves
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.linear import FULL as FULL_PRECISION
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.gpt.step import numbers_only
from roundscope.experiments.train.groups import Batches, Group
from roundscope.experiments.train.settings import Arm
from roundscope.tools.report.pictures import COLOURS, INK, canvas
from roundscope.tools.results.run import Run

CHOOSE, TEST = "choose", "test"
EXACT, AS_IT_IS = "FP32", "as it is"
FLASH, PAPER, COMPILED = "fa2-bf16", "qiu-yao", "qiu-yao-compiled"
USUAL = "width 128"
SIZES: dict[str, dict[str, Any]] = {
    USUAL: {},
    "width 64": {"width": 64, "heads": 2},
    "width 256": {"width": 256, "heads": 8},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An arithmetic: a preset and changes, in a model, at a rate.

    part     CHOOSE or TEST
    preset   the plan that is changed
    name     the changes in words
    changes  as in `roundscope train --arm`
    rate     times the scale's
    size     a key of `SIZES`
    """

    part: str
    preset: str = FLASH
    name: str
    changes: tuple[str, ...] = ()
    rate: float = 1.0
    size: str = USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The settings of a run: its case and its seed."""

    case: Case
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its rate after the warm-up, the number of seeds of each case, and the cases."""

    name: str
    config: Config
    rate: float
    seeds: int
    cases: tuple[Case, ...]


def rounded(site: str, bits: int, mode: str = "toward-zero") -> tuple[str, ...]:
    """Return the change that rounds an event to so many significant bits."""
    return (f"site={site} -> e8m{bits - 1}:{mode}",)


def _cases(part: str, changes: Mapping[str, tuple[str, ...]], **more: Any) -> tuple[Case, ...]:
    return tuple(Case(part=part, name=name, changes=c, **more) for name, c in changes.items())


EVEN = "ties-to-even"
PLAIN: dict[str, tuple[str, ...]] = {EXACT: ("-> fp32",), AS_IT_IS: ()}
LEAKS = {p: {f"delta's O toward zero, {p} bits": rounded("OD", p)} for p in (2, 4, 5, 6, 8)}
CHOOSING = {
    **PLAIN,
    **{name: change for leak in LEAKS.values() for name, change in leak.items()},
    "delta's O to nearest, 4 bits": rounded("OD", 4, EVEN),
    "P toward zero, 4 bits": rounded("P", 4),
    "dS toward zero, 4 bits": rounded("DS", 4),
}
EVENTS = {
    "O toward zero, 4 bits": rounded("O", 4),
    "dP toward zero, 4 bits": rounded("DP", 4),
    "dP to nearest, 3 bits": rounded("DP", 3, EVEN),
    "O to nearest, 3 bits": rounded("O", 3, EVEN),
    "P to nearest, 3 bits": rounded("P", 3, EVEN),
    "delta's O away from zero, 7 bits": rounded("OD", 7, "away-from-zero"),
}
CENTERED = "delta's O toward zero, 4 bits; delta centered"
USUAL_MODEL: dict[str, Any] = {"layers": 4, "heads": 4, "width": 128, "context": 128, "batch": 16}
FULL = Scale(
    name="full",
    rate=1e-2,
    seeds=4,
    config=Config(**USUAL_MODEL, warmup=100, steps=1000, monitor_every=25),
    cases=(
        *_cases(CHOOSE, CHOOSING),
        *_cases(TEST, EVENTS),
        *_cases(TEST, {**PLAIN, **LEAKS[6]}, rate=3.0),
        *(
            case
            for preset in (PAPER, COMPILED)
            for case in (
                *_cases(TEST, {AS_IT_IS: ()}, preset=preset),
                *_cases(TEST, {"delta = rowsum(P dP)": ("-> delta_from=P_DP",)}, preset=preset),
                *_cases(TEST, {AS_IT_IS: ()}, preset=preset, rate=3.0),
            )
        ),
        *_cases(TEST, {CENTERED: (*rounded("OD", 4), "-> delta_from=CENTERED")}),
        *(
            case
            for size in SIZES
            if size != USUAL
            for case in _cases(TEST, {AS_IT_IS: (), **LEAKS[4], **LEAKS[6]}, size=size)
        ),
    ),
)
QUICK = Scale(
    name="quick",
    rate=2e-2,
    seeds=2,
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, steps=300),
    cases=(
        *_cases(CHOOSE, {**PLAIN, **LEAKS[2]}),
        *_cases(TEST, {name: change for name, change in EVENTS.items() if "toward zero" in name}),
        *_cases(TEST, PLAIN),
    ),
)


def conditions(scale: Scale) -> Iterator[Condition]:
    """Yield every run's condition; runs that choose and runs that test share no seed."""
    for case in scale.cases:
        first = 0 if case.part == CHOOSE else scale.seeds
        for seed in range(first, first + scale.seeds):
            yield Condition(case=case, seed=seed)


def arms_of(scale: Scale) -> dict[Config, dict[Condition, Arm]]:
    """Return the arms of every model, which has a case's preset in its attention."""
    found: dict[Config, dict[Condition, Arm]] = {}
    for c in conditions(scale):
        case = c.case
        block = scale.config.context if case.preset != FLASH else None
        config = replace(scale.config, plan=case.preset, block=block, **SIZES[case.size])
        name = f"{case.preset}, {case.name}, {case.size}, {case.rate:g}, {c.seed}"
        own = Arm(name=name, changes=case.changes, lr=scale.rate * case.rate, seed=c.seed)
        found.setdefault(config, {})[c] = own
    return found


ABOUT = "drift of values and of inputs, decay 0.9, one sequence"  # what a look measures
COLUMNS = ("made", "whole", "summed", "made_x", "whole_x", "summed_x")


def looking() -> Callable[[Group, int, Batches], Array]:
    """Return a function of a launch that returns the columns of all arms, (arms, 6).

    It measures the drift that the alarm watches, on one sequence. For every head, with r the row
    sums of dS times the scale and PK = P K, R = sum_t r[t] y[t]^T PK[t], G = sum_t y[t]^T dQ[t].
    y is X, what W_Q reads, or V, the values of all heads, a linear image of X, which is what
    `roundscope.torch.watch` has. The columns are, summed over layers and heads, |R|, |G| and |S|
    with y = V, then with y = X; S is the sum of R over looks, a look counting 0.9 times the next.
    """
    summed: Any = None

    def look(group: Group, done: int, batches: Batches) -> Array:
        nonlocal summed
        rest, columns = _all_arms(numbers_only(group.settings.config))(
            group.state.params, group.own(batches)[..., :1, :], group.plans(done)[0], np.int32(done)
        )
        kept = jax.tree.map(jnp.zeros_like, rest) if summed is None or done == 0 else summed
        summed, sizes = _added(kept, rest)
        found: Array = _columns(columns, sizes)
        return found

    return look


@lru_cache(64)
def _all_arms(config: Config) -> Any:
    def one(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        own = row_sums(config, params, tokens, plans, step)
        layers, batch, t = own.v.shape[:3]
        values = own.v.reshape(layers, batch, t, -1)
        rest, columns = [], []
        for y in (values, own.x):
            r = jnp.einsum("lbtn,lbtd,lbtnh->lndh", own.r, y, own.pk, precision=FULL_PRECISION)
            g = jnp.einsum("lbtd,lbtnh->lndh", y, own.dq, precision=FULL_PRECISION)
            rest.append(r)
            columns.append((_norms(r), _norms(g)))
        return tuple(rest), columns

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        own_batch = 0 if tokens.ndim == 3 else None
        return jax.vmap(one, in_axes=(0, own_batch, 0, None))(params, tokens, plans, step)

    return jax.jit(all_arms)


@jax.jit
def _added(kept: Any, rest: Any) -> Any:
    """Return the sums over looks, and their sizes; a look that is not finite is left out."""
    total = jax.tree.map(lambda s, r: KEPT * s + jnp.where(jnp.isfinite(r), r, 0.0), kept, rest)
    return total, [jax.vmap(_norms)(x) for x in total]


@jax.jit
def _columns(columns: Any, sizes: Any) -> Array:
    (made, whole), (made_x, whole_x) = columns
    return jnp.stack([made, whole, sizes[0], made_x, whole_x, sizes[1]], axis=-1)


def _norms(x: Array) -> Array:
    """Return the sum over layers and heads of the Frobenius norms of (L, N, D, H)."""
    return jnp.sqrt((x * x).sum((-2, -1))).sum()


NAMES = {CHOOSE: "chose the threshold", TEST: "tested it"}
PRACTICE = (AS_IT_IS, EXACT)  # arithmetics that people train in
GRID = (0.02, 0.05, 0.1, 0.2, 0.5)  # the thresholds from which one is chosen
MODEL = Layer(name="model", number=0)  # sums over layers and heads are kept as one
Runs = Sequence[Run[Condition]]


def shares(run: Run[Condition]) -> list[tuple[int, float]]:
    """Return (step, share of the drift over looks so far), from the first look that may alarm."""
    watch, found = Shares(threshold=None), []
    made, whole = (2 + COLUMNS.index(name) for name in ("made", "whole"))
    for point in run.curve:
        watch.update(int(point[0]), {MODEL: [point[made]]}, {MODEL: [point[whole]]})
        found.append((int(point[0]), watch.share()))
    return found[LOOKS - 1 :]


def alarm(run: Run[Condition], threshold: float) -> int | None:
    """Return the step of a run's alarm, None without."""
    return next((step for step, share in shares(run) if share > threshold), None)


def is_early(run: Run[Condition], threshold: float) -> bool:
    """Return whether a run that diverged had its alarm before its loss moved."""
    return warning.is_early(run, alarm(run, threshold))


def is_warned(run: Run[Condition], threshold: float) -> bool:
    """Return whether a run that diverged had its alarm `LEAD` steps before, or earlier."""
    return warning.is_warned(run, alarm(run, threshold))


def highest(run: Run[Condition]) -> float:
    """Return the largest share before a run's loss moved, or of all; NaN where there is none."""
    moved = moves(run) if run.diverged is not None else None
    last = math.inf if moved is None else moved - 1
    own = [share for step, share in shares(run) if step <= last and math.isfinite(share)]
    return max(own, default=math.nan)


def right(runs: Runs) -> float | None:
    """Return the largest threshold of GRID that warns every diverged run early, or None."""
    lost = [run for run in runs if run.diverged is not None]
    return max([x for x in GRID if lost and all(is_early(run, x) for run in lost)], default=None)


Results = dict[Case, list[Run[Condition]]]  # in the order of seeds
CAPTION = (
    "Each dot is a training: the largest share of the queries' gradient that comes from rows of dS"
    f" that do not sum to zero, before the loss moved ({RISE:g} nats above its own lowest mean of"
    " 25 steps), or in the whole of a run that did not diverge. The line is the alarm,"
    f" {THRESHOLD:g}, which the runs on the left chose. Shares below 1e-4 are drawn at 1e-4."
)
RULES = (
    "The alarm is that of roundscope.torch.watch: sums over all heads of one sequence, every 25"
    " steps, a look counting 0.9 times the next one, from the third look on. Its threshold is the"
    f" largest of {', '.join(f'{x:g}' for x in GRID)} that warned every run on the left before its"
    " loss moved. Intervals are Clopper-Pearson's, 95 %. Agrees and contradicts: the whole interval"
    " lies on one side of the claimed share.",
)
CAVEATS = (
    "Small models on Python's sources, watched every 25 steps of 1,000. The alarm tells"
    " that an arithmetic leaks: a coarse one may leak and not diverge in so many steps. It"
    " does not tell which seed of an arithmetic diverges. Sums are native."
)
HEADS = (
    "part",
    "arithmetic",
    "diverged",
    "warned before\nthe loss moved",
    f"... {LEAD} steps before\nthe divergence",
    "alarms",
    "highest share",
)
BY_THRESHOLD = (
    "runs that ...",
    "threshold",
    "diverged and warned\nbefore the loss moved",
    f"... {LEAD} steps before\nthe divergence",
    "alarms of runs\nthat did not diverge",
    "... in FP32 and in\npresets as they are",
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    scale = QUICK if quick else FULL
    c = scale.config
    return Study(
        name=ALARM.name,
        question=ALARM.question,
        launches=lambda store: launches(scale, store),
        results=lambda store: results(scale, store),
        answer=answer,
        claims=claims,
        source="of",
        figures=[Figure(title="Which runs does the alarm tell apart?", draw=draw, caption=CAPTION)],
        tables=[
            Table(name="cases", title="Every arithmetic", heads=HEADS, rows=rows, records=records),
            Table(
                name="thresholds",
                title="Other thresholds",
                heads=BY_THRESHOLD,
                rows=thresholds,
                records=lambda r: [dict(zip(BY_THRESHOLD, x, strict=True)) for x in thresholds(r)],
                shown=(0, 1, 2, 3, 4, 5),
                grouped=True,
            ),
        ],
        rules=RULES,
        caveats=CAVEATS,
        about={
            "model": f"{in_words(c)}; sizes {', '.join(SIZES)}",
            "training": (
                f"rate {scale.rate:g} after {c.warmup} steps of warm-up, {c.steps} steps;"
                f" {scale.seeds} seeds"
            ),
        },
        config=unnamed(c),
        scale=scale.name,
    )


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return the launches of all models; each has a look of its own, which adds up over time."""
    return [
        launch
        for config, arms in arms_of(scale).items()
        for launch in training.launches(store, config, arms, look=looking(), about=ABOUT)
    ]


def results(scale: Scale, store: Store) -> Results | None:
    """Return the cases that are complete; None if there are none."""
    by_case = grouped(
        (c.case, run)
        for config, arms in arms_of(scale).items()
        for c, run in training.read(store, config, arms, about=ABOUT).items()
    )
    return {case: runs for case, runs in by_case.items() if len(runs) == scale.seeds} or None


class Counts(NamedTuple):
    """How many runs diverged, were warned early, were warned, did not diverge, had an alarm."""

    lost: int
    early: int
    warned: int
    quiet: int
    false: int


def counts(runs: Runs, threshold: float = THRESHOLD) -> Counts:
    """Return what an alarm of this threshold says of runs."""
    lost = [run for run in runs if run.diverged is not None]
    quiet = [run for run in runs if run.diverged is None]
    return Counts(
        len(lost),
        sum(is_early(run, threshold) for run in lost),
        sum(is_warned(run, threshold) for run in lost),
        len(quiet),
        sum(alarm(run, threshold) is not None for run in quiet),
    )


def runs_of(r: Results, part: str) -> Runs:
    """Return the runs of a part."""
    return [run for case, runs in r.items() if case.part == part for run in runs]


def _counts(r: Results, part: str, threshold: float = THRESHOLD) -> tuple[Counts, Counts]:
    """Return the counts of a part, and of its runs in arithmetics that people train in."""
    common = {case: runs for case, runs in r.items() if case.name in PRACTICE}
    return counts(runs_of(r, part), threshold), counts(runs_of(common, part), threshold)


def claims(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the runs that test the threshold: warnings, and false alarms."""
    own, common = _counts(r, TEST)
    early = "more than half of the runs that diverge are warned before their loss moves"
    warned = f"at least 80 % are warned {LEAD} steps before they diverge"
    false = "at most a quarter of the runs that do not diverge have an alarm"
    yield _verdict(early, "all", own.early, own.lost, (0.5, 1.0))
    yield _verdict(warned, "all", own.warned, own.lost, (0.8, 1.0))
    yield _verdict(false, "all", own.false, own.quiet, (0.0, 0.25))
    yield _verdict(false, "FP32, and presets as they are", common.false, common.quiet, (0.0, 0.25))


def _verdict(claim: str, case: str, k: int, n: int, holds: Range) -> Verdict:
    word, measured = Word.NOT_TESTABLE, f"{k} of {n} {_interval(k, n)}"
    if n:
        low, high = share(k, n)
        word = judge(Estimate(mean=k / n, low=low, high=high, seeds=n), holds)
    return verdict_on("the alarm", claim, case, word, measured)


def answer(r: Results) -> str:
    """Return a sentence with the counts of the runs that test the threshold."""
    own, common = _counts(r, TEST)
    return (
        f"At a share of {THRESHOLD:g}, {own.early} of {own.lost} {_interval(own.early, own.lost)}"
        " runs that diverged were warned before their loss moved, and"
        f" {own.warned} {_interval(own.warned, own.lost)} {LEAD} steps before they diverged."
        f" {own.false} of {own.quiet} {_interval(own.false, own.quiet)} that did not diverge had an"
        f" alarm; in FP32 and in presets as they are {common.false} of {common.quiet}"
        f" {_interval(common.false, common.quiet)}."
    )


def _interval(k: int, n: int) -> str:
    low, high = share(k, n) if n else (0.0, 1.0)
    return f"[{low:.0%}, {high:.0%}]"


def draw(r: Results) -> Picture | None:
    """Draw the largest share of every run, those that chose beside those that test."""
    figure, ((left, right),) = canvas(3.2, 1, 2)
    for ax, part in ((left, CHOOSE), (right, TEST)):
        runs = runs_of(r, part)
        for x, is_lost in enumerate((False, True)):
            own = [highest(run) for run in runs if (run.diverged is not None) == is_lost]
            y = [max(share, 1e-4) for share in own if share == share]
            spread = [x + 0.5 * ((i * 0.618) % 1.0 - 0.5) for i in range(len(y))]
            ax.plot(spread, y, ".", color=COLOURS[x], ms=7, alpha=0.75)
        ax.axhline(THRESHOLD, color=INK, lw=1)
        ax.set(yscale="log", xlim=(-0.5, 1.5), ylim=(7e-5, 1.5))
        ax.set_xticks((0, 1), ("did not diverge", "diverged"), fontsize=9)
        ax.set_title(f"runs that {NAMES[part]}", fontsize=9.5)
    left.set_ylabel("largest share of the drift", fontsize=9)
    left.text(-0.46, THRESHOLD * 1.12, "alarm", fontsize=8.5, color=INK)
    return figure


def rows(r: Results) -> Sequence[Sequence[str]]:
    """Return a line for each arithmetic."""
    return [
        [
            NAMES[case.part],
            _name(case),
            times(runs),
            _of(own.early, own.lost),
            _of(own.warned, own.lost),
            _of(sum(alarm(run, THRESHOLD) is not None for run in runs), len(runs)),
            f"{max(map(highest, runs)):.2g}",
        ]
        for case, runs in r.items()
        for own in [counts(runs)]
    ]


def thresholds(r: Results) -> Sequence[Sequence[str]]:
    """Return a line for each part and threshold."""
    return [
        [
            NAMES[part],
            f"{x:g}",
            _of(own.early, own.lost),
            _of(own.warned, own.lost),
            _of(own.false, own.quiet),
            _of(common.false, common.quiet),
        ]
        for part in NAMES
        for x in GRID
        for own, common in [_counts(r, part, x)]
    ]


def _of(k: int, n: int) -> str:
    return f"{k} of {n}" if n else "-"


def _name(case: Case) -> str:
    size = "" if case.size == USUAL else f", {case.size}"
    rate = "" if case.rate == 1.0 else f", {case.rate:g} times the rate"
    return f"{case.preset}, {case.name}{size}{rate}"


def records(r: Results) -> Sequence[Mapping[str, object]]:
    """Return a record for each run."""
    return [
        {
            "part": case.part,
            "arithmetic": _name(case),
            "seed": run.seed,
            "diverged": run.diverged,
            "loss_moved": moves(run),
            "alarm": alarm(run, THRESHOLD),
            "highest_share": highest(run),
        }
        for case, runs in r.items()
        for run in runs
    ]
