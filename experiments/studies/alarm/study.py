"""The study: does the drift of a few heads, seen every 25 steps, warn of a divergence?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from matplotlib.figure import Figure as Picture

from roundscope.attention.models.alarm import THRESHOLD
from roundscope.experiments.results.run import Run
from roundscope.experiments.studies.alarm.alarms import (
    LEAD,
    Runs,
    alarm,
    highest,
    is_warned,
    separating,
)
from roundscope.experiments.studies.alarm.conditions import (
    CHOOSE,
    FULL,
    QUICK,
    SIZES,
    TEST,
    Case,
    Condition,
    Scale,
    arm,
    conditions,
    config_of,
)
from roundscope.experiments.studies.alarm.look import ABOUT, looking
from roundscope.experiments.studies.framework import training
from roundscope.experiments.studies.framework.counts import share, times
from roundscope.experiments.studies.framework.figures.series import COLOURS, INK, canvas
from roundscope.experiments.studies.framework.store import Store
from roundscope.experiments.studies.framework.study import Figure, Launch, Study, Table
from roundscope.experiments.studies.framework.verdicts import Verdict, Word
from roundscope.experiments.studies.framework.words import NAMED
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import Arm

Results = dict[Case, list[Run[Condition]]]  # in the order of seeds
QUESTION = "Does the drift of attention's row sums warn of a divergence before the loss shows it?"
CAPTION = (
    "Each dot is a training: the largest share of the queries' gradient that comes from rows of dS"
    f" that do not sum to zero, up to {LEAD} steps before its divergence, or in the whole of a run"
    f" that did not diverge. The line is the alarm, {THRESHOLD:g}, which the runs on the left chose."
    " Shares below 1e-4 are drawn at 1e-4."
)
RULES = (
    f"A run is warned if its alarm came {LEAD} steps before it diverged, or earlier. The alarm is"
    " that of roundscope.torch.watch: sums over all heads of one sequence, every 25 steps, a look"
    " counting 0.9 times the next one, from the third look on. Intervals are Clopper-Pearson's,"
    " 95 %. Agrees and contradicts: the whole interval lies on one side of the claimed share.",
)
PRACTICE = ("as it is", "FP32")  # arithmetics that people train in
HEADS = ("part", "arithmetic", "diverged", f"warned {LEAD} steps before", "alarms", "highest share")
NAMES = {CHOOSE: "chose the threshold", TEST: "tested it"}


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale) -> Study[Results]:
    """Return the study at a scale."""
    c = scale.config
    return Study(
        name="alarm",
        question=QUESTION,
        launches=lambda store: launches(scale, store),
        results=lambda store: results(scale, store),
        answer=answer,
        claims=lambda r: list(claims(r)),
        source="of",
        figures=[Figure(title="Which runs does the alarm tell apart?", draw=draw, caption=CAPTION)],
        tables=[
            Table(
                name="cases",
                title="Every arithmetic",
                heads=HEADS,
                rows=rows,
                records=records,
                shown=(0, 1, 2, 3, 4, 5),
                grouped=True,
            )
        ],
        rules=RULES,
        caveats=(
            "Small models on Python's sources, watched every 25 steps of 1,000. The alarm tells that"
            " an arithmetic leaks: a coarse one may leak and not diverge in so many steps. It does"
            " not tell which seed of an arithmetic diverges. Sums are native."
        ),
        about={
            "model": (
                f"{c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch"
                f" {c.batch}, byte-level, {c.data}; sizes {', '.join(SIZES)}"
            ),
            "training": (
                f"rate {scale.rate:g} after {c.warmup} steps of warm-up, {c.steps} steps;"
                f" {scale.seeds} seeds"
            ),
        },
        config={k: v for k, v in asdict(c).items() if k not in NAMED},
        scale=scale.name,
    )


def _arms(scale: Scale) -> dict[Config, dict[Condition, Arm]]:
    """Return the arms of every model."""
    found: dict[Config, dict[Condition, Arm]] = {}
    for c in conditions(scale):
        found.setdefault(config_of(scale, c.case), {})[c] = arm(scale, c)
    return found


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return the launches of all models; each has a look of its own, which adds up over time."""
    return [
        launch
        for config, arms in _arms(scale).items()
        for launch in training.launches(store, config, arms, look=looking(), about=ABOUT)
    ]


def results(scale: Scale, store: Store) -> Results | None:
    """Return the cases that are complete; None if there are none."""
    by_case: Results = {}
    for config, arms in _arms(scale).items():
        for c, run in training.read(store, config, arms, about=ABOUT).items():
            by_case.setdefault(c.case, []).append(run)
    return {case: runs for case, runs in by_case.items() if len(runs) == scale.seeds} or None


def _runs(r: Results, part: str) -> Runs:
    return [run for case, runs in r.items() if case.part == part for run in runs]


def _counts(runs: Runs) -> tuple[int, int, int, int]:
    """Return how many runs diverged, were warned, did not diverge, had a false alarm."""
    lost = [run for run in runs if run.diverged is not None]
    quiet = [run for run in runs if run.diverged is None]
    false = sum(alarm(run, THRESHOLD) is not None for run in quiet)
    return len(lost), sum(is_warned(run, THRESHOLD) for run in lost), len(quiet), false


def claims(r: Results) -> Iterator[Verdict]:
    """Yield a verdict on warnings, on false alarms, and on false alarms of common arithmetics."""
    common = [
        run
        for case, runs in r.items()
        if case.part == TEST and case.name in PRACTICE
        for run in runs
    ]
    for part, runs in ((CHOOSE, _runs(r, CHOOSE)), (TEST, _runs(r, TEST)), ("common", common)):
        lost, warned, quiet, false = _counts(runs)
        case = NAMES.get(part, "tested it, in FP32 and in presets as they are")
        yield _verdict(f"at least 80 % of runs that diverge are warned {LEAD} steps before", case,
                       warned, lost, 0.8, above=True)  # fmt: skip
        yield _verdict("at most 10 % of runs that do not diverge have an alarm", case,
                       false, quiet, 0.1, above=False)  # fmt: skip


def _verdict(claim: str, case: str, k: int, n: int, border: float, *, above: bool) -> Verdict:
    low, high = share(k, n) if n else (0.0, 1.0)
    holds, fails = (low >= border, high < border) if above else (high <= border, low > border)
    word = Word.AGREES if holds else Word.CONTRADICTS if fails else Word.UNDECIDED
    return Verdict(
        figure="the alarm",
        claim=claim,
        case=case,
        sizes="",
        word=word if n else Word.NOT_TESTABLE,
        measured=f"{k} of {n} [{low:.0%}, {high:.0%}]",
    )


def answer(r: Results) -> str:
    """Return a sentence with the counts of the runs that test the threshold."""
    lost, warned, quiet, false = _counts(_runs(r, TEST))
    below, over = separating(_runs(r, CHOOSE))
    return (
        f"Of {lost} runs that diverged {warned} {_interval(warned, lost)} were warned {LEAD} steps"
        f" before or earlier, and {false} of {quiet} {_interval(false, quiet)} that did not diverge"
        f" had an alarm, at a share of {THRESHOLD:g}. The runs that chose it lie at {below:.2g} and"
        f" below without divergence, at {over:.2g} and above with it."
    )


def _interval(k: int, n: int) -> str:
    low, high = share(k, n) if n else (0.0, 1.0)
    return f"[{low:.0%}, {high:.0%}]"


def draw(r: Results) -> Picture | None:
    """Draw the largest share of every run, those that chose beside those that test."""
    figure, ((left, right),) = canvas(3.2, 1, 2)
    for ax, part in ((left, CHOOSE), (right, TEST)):
        runs = _runs(r, part)
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
            _of(sum(is_warned(run, THRESHOLD) for run in runs), runs),
            _of(sum(alarm(run, THRESHOLD) is not None for run in runs), runs),
            f"{max(map(highest, runs)):.2g}",
        ]
        for case, runs in r.items()
    ]


def _of(k: int, runs: Runs) -> str:
    return f"{k} of {len(runs)}"


def _name(case: Case) -> str:
    size = "" if case.size == "width 128" else f", {case.size}"
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
            "alarm": alarm(run, THRESHOLD),
            "highest_share": highest(run),
        }
        for case, runs in r.items()
        for run in runs
    ]
