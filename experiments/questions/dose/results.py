"""The results of doses: by point or by case; their tables and pictures.

A run's curve has (steps done, mean loss since the last entry, largest ||W_Q,h||_2), every 25 steps
from 0. extra["shares"] has (steps done, mean over heads, largest of a head) of the share of rows
with several P = 1 (`doses.shares`); it is empty if they were not counted.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.counts import Time, time_of
from roundscope.experiments.framework.estimates import Estimate, grouped, mean, positive
from roundscope.experiments.framework.figures.series import CALM, GRID, LETHAL, decades
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.framework.words import pairs
from roundscope.experiments.questions.dose.doses import (
    MODEL,
    MOST_BITS,
    Dose,
    steps_of,
    with_exact,
    with_words,
)
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.offset import BIAS, FIXED, NOISE
from roundscope.experiments.train.spikes import RULE
from roundscope.tools.errors import UsageError
from roundscope.tools.report.pictures import BAND, INK, QUIET, canvas
from roundscope.tools.results.run import Run

Runs = list[Run[Dose]]
Point = tuple[Site | None, RoundingMode, int, float]  # event, mode, bits, rate
MODES = {
    RoundingMode.TIES_TO_EVEN: "nearest, ties to even",
    RoundingMode.TIES_TO_AWAY: "nearest, ties away",
    RoundingMode.STOCHASTIC: "stochastic",
    RoundingMode.TOWARD_ZERO: "toward zero",
    RoundingMode.AWAY_FROM_ZERO: "away from zero",
}
GROWTH = "log2 growth of\n||W_Q|| over exact"
POINT_HEADS = ("event", "mode", "p", "lr", "diverged", "final loss, nats", "above exact", GROWTH)
CASE_HEADS = (
    *("group", "case", "diverged", "final loss, nats", "above exact"),
    *(GROWTH, "rows with\nseveral P = 1"),
)


def growth(run: Run[Dose]) -> float:
    """Return the largest finite ||W_Q,h||_2 of the run over that of its first weights."""
    norms = [norm for _, _, norm in run.curve if math.isfinite(norm)]
    return max(norms) / norms[0]


def ties(run: Run[Dose]) -> float:
    """Return the mean share of rows with several P = 1 before divergence; NaN if not counted."""
    found = [mean for step, mean, _ in run.extra["shares"] if step <= run.time]
    return float(np.mean(found)) if found else math.nan


def mode_words(mode: RoundingMode) -> str:
    """Return a mode in words."""
    return MODES.get(mode, str(mode))


class Results:
    """All results of a scale, by point."""

    def __init__(self, results: Iterable[Run[Dose]]) -> None:
        self.all = list(results)
        conditions = [(r.condition, r) for r in self.all]
        self.points = grouped(((c.site, c.mode, c.bits, c.rate), r) for c, r in conditions)
        self._exact = {r.condition: r for r in self.all if r.condition == r.condition.exact}

    def series(self, site: Site, mode: RoundingMode, rate: float) -> dict[int, Runs]:
        """Return bits -> results, in the order of bits."""
        found = {
            p: own for (s, m, p, lr), own in self.points.items() if (s, m, lr) == (site, mode, rate)
        }
        return dict(sorted(found.items()))

    def panels(self) -> list[tuple[Site, float]]:
        """Return the pairs of event and rate that were measured, in their order."""
        return list(
            dict.fromkeys((site, rate) for site, _, _, rate in self.points if site is not None)
        )

    def modes(self) -> list[RoundingMode]:
        """Return the modes that were measured, in the order of RoundingMode."""
        found = {mode for site, mode, _, _ in self.points if site is not None}
        return [mode for mode in RoundingMode if mode in found]

    def exact(self, result: Run[Dose]) -> Run[Dose]:
        """Return the exact arm of the same rate, steps and seed."""
        return self._exact[result.condition.exact]

    def excess(self, results: Runs) -> Estimate:
        """Return the final loss above the exact arm's in nats, over pairs of finite losses."""
        return mean({r.seed: r.loss - self.exact(r).loss for r in results})

    def growth(self, results: Runs) -> Estimate:
        """Return log2 of the growth of ||W_Q|| over the exact arm's, a mean over seeds."""
        return mean({r.seed: math.log2(growth(r) / growth(self.exact(r))) for r in results})


def numbers_of(runs: Runs) -> dict[str, Any]:
    """Return the numbers of a point's or a case's seeds, as data."""
    time = time_of(runs)
    return {
        "steps": time.steps,
        "runs": time.runs,
        "diverged": time.diverged,
        "times": [run.diverged for run in runs],
        "seeds": [run.seed for run in runs],
        "losses": [run.loss for run in runs],
        "growth": [growth(run) for run in runs],
    }


def words_of(r: Results, runs: Runs, *, has_exact: bool) -> list[str]:
    """Return when runs diverged, their loss, and loss and growth over the exact arms', in words."""
    lost = sum(not math.isfinite(run.loss) for run in runs)
    loss = interval(positive({run.seed: run.loss for run in runs}))
    against = [interval(r.excess(runs)), interval(r.growth(runs))] if has_exact else ["", ""]
    return [time_of(runs).words, loss + (f", {lost} not finite" if lost else ""), *against]


def _ordered(r: Results) -> list[tuple[Point, Runs]]:
    """Return the points by rate, the exact ones first, and their runs."""

    def place(item: tuple[Point, Runs]) -> tuple[Any, ...]:
        site, mode, bits, rate = item[0]
        return (rate, site is not None, str(site), str(mode), bits)

    return sorted(r.points.items(), key=place)


def point_records(r: Results) -> list[dict[str, Any]]:
    """Return a row per point, as data."""
    return [
        {
            "site": None if site is None else str(site),
            "mode": str(mode),
            "p": bits,
            "lr": rate,
            **numbers_of(own),
            "words": time_of(own).words,
        }
        for (site, mode, bits, rate), own in _ordered(r)
    ]


def point_rows(r: Results) -> Iterator[list[str]]:
    """Yield a row per point, in words; the columns are those of POINT_HEADS."""
    for (site, mode, bits, rate), own in _ordered(r):
        name = ["exact", "", ""] if site is None else [str(site), mode_words(mode), str(bits)]
        yield [*name, f"{rate:g}", *words_of(r, own, has_exact=site is not None)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row: its group, its name, and its dose with seed 0."""

    group: str
    name: str
    dose: Dose


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A question with cases, each with every seed, and with its exact arm unless `alone`."""

    question: str
    config: Config
    cases: tuple[Case, ...]
    seeds: tuple[int, ...]
    answer: Callable[["Found"], str]
    draw: Callable[["Found"], Figure]
    caption: str
    notes: str
    about: str
    alone: bool = False
    ties: bool = False

    @property
    def doses(self) -> list[Dose]:
        """Every run, each once."""
        found = [replace(case.dose, seed=seed) for case in self.cases for seed in self.seeds]
        return list(dict.fromkeys(found)) if self.alone else with_exact(found)

    def given(self, words: Sequence[str], seeds: tuple[int, ...] | None) -> "Topic":
        """Return the topic with KEY=VALUE words over it: steps=, the model's. Raises UsageError."""
        asked = pairs(words, ("steps", *MODEL))
        steps = steps_of("steps", asked.pop("steps")) if "steps" in asked else None
        for case in self.cases:
            if fixed := [w for w in case.dose.words if w.partition("=")[0] in asked]:
                raise UsageError(
                    f"{fixed[0].partition('=')[0]}: the case '{case.name}' has {fixed[0]} of its"
                    " own; leave it out"
                )
        cases = self.cases
        if steps is not None:
            cases = tuple(replace(c, dose=replace(c.dose, steps=steps)) for c in cases)
        config = with_words(self.config, asked)
        return replace(self, config=config, cases=cases, seeds=seeds or self.seeds)


class Found:
    """The results of a topic, by case in its order."""

    def __init__(self, topic: Topic, results: Iterable[Run[Dose]]) -> None:
        self.topic, self.results = topic, Results(results)
        by_dose = {r.condition: r for r in self.results.all}
        self.cases: dict[Case, Runs] = {
            c: [by_dose[replace(c.dose, seed=s)] for s in topic.seeds] for c in topic.cases
        }

    def groups(self) -> dict[str, dict[Case, Runs]]:
        """Return the cases by group, in their order."""
        groups: dict[str, dict[Case, Runs]] = {}
        for case, runs in self.cases.items():
            groups.setdefault(case.group, {})[case] = runs
        return groups

    def time(self, case: Case) -> Time:
        """Return the steps to divergence of a case."""
        return time_of(self.cases[case])

    def killed(self, case: Case) -> bool:
        """Return whether more than half of the seeds diverged."""
        t = self.time(case)
        return 2 * t.diverged > t.runs

    def threshold(self, group: str) -> int | None:
        """Return p*, the most bits at which most seeds of a group diverged, or None."""
        lethal = (c.dose.bits for c in self.cases if c.group == group and self.killed(c))
        return max(lethal, default=None)


def case_rows(found: Found) -> Iterator[list[str]]:
    """Yield a row per case, in words; the columns are those of CASE_HEADS."""
    for case, runs in found.cases.items():
        has_exact = not found.topic.alone and case.dose != case.dose.exact
        words = words_of(found.results, runs, has_exact=has_exact)
        tied = mean({run.seed: ties(run) for run in runs}).mean
        share = "" if math.isnan(tied) else f"{100 * tied:.3g} %"
        yield [case.group, case.name, *words, share]


def case_records(found: Found) -> list[dict[str, Any]]:
    """Return a row per case, as data."""
    return [
        {
            "group": case.group,
            "case": case.name,
            "change": list(case.dose.change),
            "words": list(case.dose.words),
            "offset": case.dose.offset,
            "lr": case.dose.rate,
            **numbers_of(runs),
            "several_ones": [ties(run) for run in runs],
        }
        for case, runs in found.cases.items()
    ]


def survival(ax: Axes, style: tuple[str, str], series: Mapping[float, Sequence[Run[Any]]]) -> None:
    """Draw steps to divergence at some places of the horizontal axis, in one color and marker."""
    colour, marker = style
    times = {x: time_of(runs) for x, runs in series.items()}
    for (x, time), runs in zip(times.items(), series.values(), strict=True):
        died = [run.diverged for run in runs if run.diverged is not None]
        ax.plot([x] * len(died), died, ".", color=colour, ms=7, alpha=0.55, mew=0)
        ends = [min(time.low, time.steps), min(time.high, time.steps)]
        ax.plot([x, x], ends, "-", color=colour, lw=1.0)
        if time.diverged < time.runs:
            arrow = {"arrowstyle": "->", "color": colour, "lw": 1.3}
            ax.annotate("", (x, time.steps * 1.22), (x, time.steps), arrowprops=arrow)
        if 0 < time.diverged < time.runs:
            place, left = (x, time.steps * 1.26), str(time.runs - time.diverged)
            ax.annotate(left, place, ha="center", va="bottom", fontsize=7, color=colour)
    ax.plot(list(times), [_middle(t) for t in times.values()], color=colour, lw=1.3, alpha=0.8)
    for x, time in times.items():
        face = colour if math.isfinite(time.middle) else "white"
        ax.plot(x, _middle(time), marker, color=colour, ms=5, mfc=face)


def _middle(time: Time) -> float:
    return min(time.middle, float(time.steps))


STYLE = {  # colors that color-blind readers can tell apart
    RoundingMode.TIES_TO_EVEN: ("#0072b2", "o"),
    RoundingMode.TIES_TO_AWAY: ("#56b4e9", "s"),
    RoundingMode.STOCHASTIC: ("#009e73", "D"),
    RoundingMode.TOWARD_ZERO: ("#d55e00", "v"),
    RoundingMode.AWAY_FROM_ZERO: ("#cc79a7", "^"),
}
SITES = {
    Site.OD: "O as delta reads it (OD)",
    Site.O: "O before normalization (O)",
    Site.OUT: "output (OUT)",
    Site.P: "P",
    Site.PV: "P V",
    Site.DP: "dP",
    Site.DS: "dS",
}
COLUMNS, ASIDE = 2, 0.17


def times(r: Results) -> Figure:
    """Draw steps to divergence: dots are seeds, an arrow marks runs without divergence."""
    figure, axes = _panels(r, 3.0)
    for (site, rate), ax in zip(r.panels(), axes, strict=False):
        for mode, aside, series in _series(r, site, rate):
            survival(ax, _style(mode), {p + aside: own for p, own in series.items()})
        found = [time_of(own) for _, _, series in _series(r, site, rate) for own in series.values()]
        first, steps = min(min(t.low, t.steps) for t in found), max(t.steps for t in found)
        decades(ax)
        ax.set_ylim(max(1.0, 0.7 * min(first, 0.5 * steps)), 1.7 * steps)
    axes[0].set_ylabel("steps to divergence")
    return _legend(figure, r, exact=False)


def losses(r: Results) -> Figure:
    """Draw final losses and medians; grey: the exact arms'; a cross at the top: not finite."""
    figure, axes = _panels(r, 2.8)
    for (site, rate), ax in zip(r.panels(), axes, strict=False):
        series = _series(r, site, rate)
        exact = [r.exact(run).loss for _, _, own in series for runs in own.values() for run in runs]
        ax.axhspan(np.nanmin(exact), np.nanmax(exact), color=BAND, lw=0, zorder=0)
        for mode, aside, own in series:
            colour, marker = _style(mode)
            top: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False}
            middle = []
            for p, those in own.items():
                seen = [run.loss for run in those if math.isfinite(run.loss)]
                ax.plot([p + aside] * len(seen), seen, ".", color=colour, ms=5, alpha=0.45, mew=0)
                if len(seen) < len(those):
                    ax.plot(p + aside, 0.98, "x", color=colour, **top)
                median = float(np.median([*seen, *[math.inf] * (len(those) - len(seen))]))
                middle.append(median if math.isfinite(median) else math.nan)
            ax.plot([p + aside for p in own], middle, color=colour, marker=marker, ms=5, lw=1.3)
        decades(ax)
    axes[0].set_ylabel("final loss, nats (mean of 50 steps)")
    return _legend(figure, r)


def norms(r: Results) -> Figure:
    """Draw ||W_Q|| along the run at the fewest bits; grey: exact arms; a cross: diverged."""
    figure, axes = _panels(r, 2.8)
    for (site, rate), ax in zip(r.panels(), axes, strict=False):
        series = _series(r, site, rate)
        all_runs = (run for _, _, own in series for runs in own.values() for run in runs)
        exact = {r.exact(run).condition: r.exact(run) for run in all_runs}
        for run in exact.values():
            _line(ax, run, QUIET)
        for mode, _, own in series:
            for run in own[min(own)]:
                _line(ax, run, _style(mode)[0])
        least = min(min(own) for _, _, own in series)
        steps = max(run.condition.steps for run in exact.values())
        ax.set_title(f"{ax.get_title(loc='left')}, p = {least}", fontsize=9, loc="left")
        ax.set_xlabel("steps")
        ax.set_xticks(np.linspace(0, steps, 3))
        ax.set_xlim(left=0, right=steps)
        decades(ax)
    axes[0].set_ylabel("largest ||W_Q|| of a head")
    return _legend(figure, r)


def _line(ax: Axes, run: Run[Dose], colour: str) -> None:
    curve = np.array([(step, norm) for step, _, norm in run.curve if math.isfinite(norm)])
    ax.plot(curve[:, 0], curve[:, 1], color=colour, lw=0.8, alpha=0.75)
    if run.diverged is not None:
        norm = np.interp(run.diverged, curve[:, 0], curve[:, 1])
        ax.plot(run.diverged, norm, "x", color=colour, ms=5)


PICTURES = (  # question, picture, caption
    (
        "How many steps does training survive?",
        times,
        "Dots: seeds; marker: their median, hollow where it is not reached; bar: smallest to"
        " largest (holds the median with 94 % for 5 seeds). An arrow: runs that ended without"
        " divergence, all of them or as many as its number. " + RULE,
    ),
    (
        "What loss is left?",
        losses,
        "Mean of the last 50 losses; line: median of the seeds. Grey: the range of the exact arms,"
        " FP32 throughout, with the same weights and batches. A cross at the top edge: some loss is"
        " not finite.",
    ),
    (
        "What grows first?",
        norms,
        "The largest spectral norm of a head's query matrix at the fewest bits, a line for each"
        " seed; a cross marks divergence. Grey: exact arms.",
    ),
)


def _style(mode: RoundingMode) -> tuple[str, str]:
    return STYLE.get(mode, (QUIET, "x"))


def _panels(r: Results, height: float) -> tuple[Figure, Sequence[Any]]:
    panels = r.panels()
    columns = min(COLUMNS, len(panels))
    deep = math.ceil(len(panels) / columns)
    figure, axes = canvas(0.5 + height * deep, deep, columns)
    for (site, rate), ax in zip(panels, axes.flat, strict=False):
        ax.set_title(f"{SITES.get(site, str(site))}, lr {rate:g}", fontsize=9, loc="left")
        ax.set_xlabel("significand bits p (BF16 has 8)")
        bits = {p for s, _, p, lr in r.points if (s, lr) == (site, rate)}
        ax.set_xticks(range(min(bits), max(bits) + 1))
        ax.set_xlim(min(bits) - 0.5, max(bits) + 0.5)
    for ax in axes.flat[len(panels) :]:
        ax.axis("off")
    return figure, list(axes.flat)


def _series(
    r: Results, site: Site, rate: float
) -> list[tuple[RoundingMode, float, dict[int, Runs]]]:
    """Return (mode, its shift to the side, bits -> results) of a panel."""
    modes = r.modes()
    found = [
        (mode, ASIDE * (i - (len(modes) - 1) / 2), r.series(site, mode, rate))
        for i, mode in enumerate(modes)
    ]
    return [item for item in found if item[2]]


def _legend(figure: Figure, r: Results, exact: bool = True) -> Figure:
    lines = [_key(mode_words(mode), *_style(mode)) for mode in r.modes()]
    lines += [Line2D([], [], color=BAND, lw=5, label="exact (FP32)")] if exact else []
    return _above(figure, lines, labelcolor=INK)


def _key(label: str, colour: str, marker: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=label)


def _above(figure: Figure, lines: Sequence[Line2D], **more: Any) -> Figure:
    more |= {"ncols": len(lines), "fontsize": 8.5, "frameon": False}
    figure.legend(handles=lines, loc="outside upper center", **more)
    return figure


KINDS = {  # of the topic `bias`: kind -> name in cases, color and marker
    BIAS: ("leans with V", "#d55e00", "v"),
    NOISE: ("random sign", "#0072b2", "o"),
    FIXED: ("V's sign, turned at random features", "#009e73", "D"),
}


def offsets(found: Found) -> Figure:
    """Draw steps to divergence against c, a panel for each kind of data."""
    groups = found.groups()
    figure, axes = canvas(3.7, 1, len(groups), sharey=True)
    for ax, (group, own) in zip(axes.flat, groups.items(), strict=True):
        runs_of = {case.dose.offset: runs for case, runs in own.items() if case.dose.offset}
        sizes = sorted({c for _, c in runs_of})
        for i, (kind, (_, colour, marker)) in enumerate(KINDS.items()):
            mine = {
                sizes.index(c) + 0.16 * (i - 1): runs
                for (of, c), runs in runs_of.items()
                if of == kind
            }
            survival(ax, (colour, marker), dict(sorted(mine.items())))
        times = [time_of(runs) for runs in own.values()]
        ax.set_title(group, fontsize=9.5, loc="left")
        ax.set_xticks(range(len(sizes)), [f"{c:g}" for c in sizes])
        ax.set_xlabel("c, half ulps of V")
        decades(ax)
        least = min(min(t.low, 0.5 * t.steps) for t in times)
        ax.set_ylim(0.7 * least, 1.7 * max(t.steps for t in times))
    axes[0, 0].set_ylabel("steps to divergence")
    return _above(figure, [_key(*style) for style in KINDS.values()])


EXACT = "FP32"
RED = LinearSegmentedColormap.from_list("red", ["#ffffff", "#d55e00"])


class Column(NamedTuple):
    """A column of the topic `scaling`: one value of one factor, and whether it is the usual one."""

    factor: str
    value: float
    usual: bool

    @property
    def group(self) -> str:
        """The name that its cases share."""
        return f"{self.factor} {self.value:g}"


def thresholds(found: Found, columns: Sequence[Column]) -> Figure:
    """Draw a panel per factor: how many runs diverged, by p and value."""
    factors = list(dict.fromkeys(c.factor for c in columns))
    bits = sorted({case.dose.bits for case in found.cases})
    figure, axes = canvas(1.5 + 0.33 * len(bits), 1, len(factors), sharey=True)
    for ax, factor in zip(axes.flat, factors, strict=True):
        own = [c for c in columns if c.factor == factor]
        for x, column in enumerate(own):
            group = column.group
            star = found.threshold(group)
            for own_case in found.cases:
                if own_case.group != group:
                    continue
                t, bit = found.time(own_case), own_case.dose.bits
                y, is_star = bits.index(bit), bit == star
                face, lw = RED(0.85 * t.diverged / t.runs), 2.2 if is_star else 0.5
                ax.bar(x, 0.94, 0.94, y - 0.47, color=face, ec="#cbd2d9", lw=lw, zorder=1)
                ax.text(x, y, t.count, ha="center", va="center", fontsize=8, color=INK, zorder=3)
                if is_star:
                    ax.bar(x, 0.94, 0.94, y - 0.47, fill=False, ec=INK, lw=1.6, zorder=2)
        ax.set_xticks(range(len(own)), [f"{c.value:g}" for c in own])
        for label, column in zip(ax.get_xticklabels(), own, strict=True):
            label.set_fontweight("bold" if column.usual else "normal")
        ax.set_xlabel({"lr": "peak learning rate", "depth": "layers"}.get(factor, factor))
        ax.set_xlim(-0.5, len(own) - 0.5)
        ax.set_ylim(-0.5, len(bits) - 0.5)
        ax.set_yticks(range(len(bits)), [EXACT if p == MOST_BITS else str(p) for p in bits])
    axes[0, 0].set_ylabel("significand bits p")
    return figure


ROW = 0.27  # inches


def strips(found: Found) -> Figure:
    """Draw a panel per group, a row a case: steps to divergence; a hollow dot at the end lived."""
    groups = found.groups()
    sizes = [len(own) for own in groups.values()]
    height, ratios = 0.6 + ROW * sum(sizes) + 0.42 * len(sizes), {"height_ratios": sizes}
    figure, axes = canvas(height, len(sizes), 1, sharex=True, gridspec_kw=ratios)
    steps = max(case.dose.steps for case in found.cases)
    for ax, (group, own) in zip(axes.flat, groups.items(), strict=True):
        ax.set_title(group, fontsize=9.5, loc="left", color=INK)
        for place, runs in enumerate(own.values()):
            ax.plot([0, steps], [place, place], color=GRID, lw=0.8, zorder=0)
            lived = [run for run in runs if run.diverged is None]
            died = [float(run.diverged) for run in runs if run.diverged is not None]
            ax.plot(died, [place] * len(died), "o", color=LETHAL, ms=6, alpha=0.75, mew=0)
            spread = [steps * (1 - 0.013 * i) for i in range(len(lived))]
            ax.plot(spread, [place] * len(lived), "o", color=CALM, ms=5, mfc="white")
            colour = LETHAL if len(died) > len(lived) else INK if died else QUIET
            text = f"{len(died)} of {len(runs)}"
            ax.text(1.03 * steps, place, text, va="center", fontsize=8.5, color=colour)
        ax.set_yticks(range(len(own)), [case.name for case in own])
        ax.set_ylim(len(own) - 0.45, -0.55)
        ax.set_xlim(0, 1.16 * steps)
        ax.set_xticks(np.linspace(0, steps, 6))
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    axes.flat[-1].set_xlabel("steps to divergence; hollow: none until the end")
    return figure
