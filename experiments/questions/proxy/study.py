"""`roundscope proxy`: does training in block-scaled formats diverge, and what averts it?

Studies with the student and the teacher of arXiv 2506.20752 (`experiments.train.student`), whose
arms are formats from the first step on, changes from some step on, or the user's own.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.errors import unknown
from roundscope.experiments.framework import command, student
from roundscope.experiments.framework.counts import times
from roundscope.experiments.framework.figures.series import GRID, legend
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Progress, Study, Table
from roundscope.experiments.framework.words import pairs, seeds_of
from roundscope.experiments.options import ProxyOptions
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student import run as runner
from roundscope.experiments.train.student.arms import (
    EXACT,
    UNCHANGED,
    Arm,
    Changes,
    Config,
    arm_of,
    formats,
    groups,
    interventions,
    plans_of,
)
from roundscope.experiments.train.student.run import (
    RULE,
    Result,
    Runs,
    before,
    lone,
    measured,
    measures,
    of_arms,
    over,
)
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.pictures import COLOURS, MARKERS, QUIET, canvas

COLUMNS = 3  # of the picture of losses


def outcomes(runs: Runs) -> Picture:
    """Draw steps to divergence (open triangle: none) and final loss, a row per arm."""
    arms = of_arms(runs)
    figure, axes = canvas(0.9 + 0.27 * len(arms), 1, 2, sharey=True)
    left, right = axes[0]
    for row, (name, own) in enumerate(arms.items()):
        for i, r in enumerate(own):
            y, x = row + 0.3 * ((i + 0.5) / len(own) - 0.5), min(r.time, r.steps)
            colour = COLOURS[1]
            if r.diverged is None:
                colour = QUIET if name == EXACT else COLOURS[0]
                left.plot(x, y, ">", color=colour, mfc="none", ms=5)
            else:
                left.plot(x, y, "o", color=colour, ms=5)
            if math.isfinite(r.loss):
                right.plot(r.loss, y, "o", color=colour, ms=4.5, alpha=0.8, mew=0)
            else:
                right.plot(0.98, y, "x", color=colour, ms=5, transform=right.get_yaxis_transform())
    left.set_yticks(range(len(arms)), list(arms), fontsize=9)
    left.set_ylim(len(arms) - 0.5, -0.5)
    left.set_xlim(0, 1.04 * max(r.steps for r in runs))
    left.set_xlabel("steps to divergence (triangle: none)")
    if any(math.isfinite(r.loss) for r in runs):
        right.set_xscale("log")
    right.set_xlabel("final loss (cross: not finite)")
    for ax in axes.flat:
        ax.grid(axis="y", color=GRID, lw=0.6)
        ax.set_axisbelow(True)
    return figure


def losses(runs: Runs) -> Picture:
    """Draw the loss along the run: a panel per arm, a line per seed; FP32 is grey."""
    others = of_arms(runs)
    exact = others.pop(EXACT, [])
    columns = max(1, min(COLUMNS, len(others)))
    deep = max(1, math.ceil(len(others) / columns))
    figure, axes = canvas(0.3 + 1.75 * deep, deep, columns, sharex=True, sharey=True)
    for ax, (name, own) in zip(axes.flat, others.items(), strict=False):
        ax.set_title(name, fontsize=9, loc="left")
        for r in [*exact, *own]:
            curve = np.array([(step, loss) for step, loss, _ in r.curve if math.isfinite(loss)])
            colour = QUIET if r.condition.name == EXACT else COLOURS[0]
            if curve.size:
                ax.plot(curve[:, 0], curve[:, 1], color=colour, lw=0.9, alpha=0.8)
            if r.condition.name != EXACT and r.diverged is not None:
                ax.axvline(r.diverged, color=COLOURS[1], lw=0.8, ls=":")
        ax.set_yscale("log")
    for ax in list(axes.flat)[len(others) :]:
        ax.axis("off")
    for ax in axes[-1]:
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("loss")
    return figure


def _with_measures(runs: Runs) -> dict[str, list[Result]]:
    """Return the runs of every arm but FP32 of which something was measured."""
    arms = {name: own for name, own in of_arms(runs).items() if name != EXACT}
    return {name: own for name, own in arms.items() if any(map(measures, own))}


def errors(runs: Runs) -> Picture | None:
    """Draw zeta and 1 - cosine along the run, medians over seeds; None if nothing was measured."""
    arms = _with_measures(runs)
    if not arms:
        return None
    read: dict[str, Callable[[Mapping[str, float]], float]] = {
        "zeta = |epsilon| / |g|": lambda numbers: numbers["zeta"],
        "1 - cosine": lambda numbers: 1.0 - numbers["cosine"],
    }
    figure, axes = canvas(3.4, 1, 2)
    for ax, (title, number) in zip(axes.flat, read.items(), strict=True):
        for i, (name, own) in enumerate(arms.items()):
            steps = [step for step, _ in measures(own[0])]
            values = np.array([[number(numbers) for _, numbers in measures(r)] for r in own])
            middle = values[0]
            if (values > 0).any(axis=0).all():
                middle = np.nanmedian(np.where(values > 0, values, np.nan), axis=0)
            colour, style = COLOURS[i % len(COLOURS)], ("-", "--", ":")[i // len(COLOURS) % 3]
            ax.plot(steps, middle, color=colour, ls=style, lw=1.3, label=name)
        ax.set_yscale("log")
        ax.set_xlabel("steps")
        ax.set_ylabel(title)
    legend(figure, axes[0, 0], 5)
    return figure


def sites(runs: Runs) -> Picture | None:
    """Draw zeta of every event alone: a dot per arm; None if nothing was measured."""
    arms = _with_measures(runs)
    names = {n for own in arms.values() for n in measured(own)}
    there = [site for site in Site if f"zeta_{site}" in names]
    if not there:
        return None
    figure, axes = canvas(0.9 + 0.26 * len(there))
    ax = axes[0, 0]
    for i, (name, own) in enumerate(arms.items()):
        x = [float(np.median([before(r, f"zeta_{site}") for r in own])) for site in there]
        kept = [(v, row) for row, v in enumerate(x) if v > 0]
        if kept:
            style = {"marker": MARKERS[i % 8], "color": COLOURS[i % len(COLOURS)], "ls": "none"}
            ax.plot(*zip(*kept, strict=True), ms=5, alpha=0.85, label=name, **style)
    ax.set_xscale("log")
    ax.set_yticks(range(len(there)), [f"{site}: {site.formula}" for site in there], fontsize=8.5)
    ax.set_ylim(len(there) - 0.5, -0.5)
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_xlabel("zeta with this event alone rounded, median over the run")
    legend(figure, ax, 5)
    return figure


MX = "mxfp8_e4m3"
STUDIES = ("formats", "interventions")
BOOLEANS = {"true": True, "false": False}
READERS: dict[type, tuple[Callable[[str], Any], str]] = {  # how a field is read, and what it takes
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a word"),
    bool: (lambda text: BOOLEANS[text.lower()], "true or false"),
}
# at these settings FP4 diverges, and FP32 does not
QUICK = Config(
    width=64, batch=64, steps=700, lr=0.1, min_lr=0.1, warmup=100, phi="swiglu", measure_every=100
)
SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0, 1)
NOTES = (
    "Weights and Adam's moments are FP32 in every arm; arms of one seed have the same first "
    "weights, teacher and rows. zeta and cosine compare two gradients at the same weights and "
    "rows, so that the distance of two trainings is not in them. gamma last and distinct: in the "
    "format of the activations, how many of LayerNorm's scales become the largest element, and how "
    "many different numbers a block of 32 keeps. Medians over the run before it diverged, then "
    "over seeds."
)
MEASURES = {"zeta": ".3g", "cosine": ".4f", "gamma_last": ".1%", "gamma_distinct": ".1f"}
FIGURES = (
    Figure(
        title="When does each run diverge?",
        draw=outcomes,
        caption=f"A dot for each seed. {RULE}",
    ),
    Figure(
        title="How does the loss run?",
        draw=losses,
        caption="The largest loss of every 25 steps, a line a seed; grey: FP32. Dotted:"
        " divergence.",
    ),
    Figure(
        title="How wrong is the gradient?",
        draw=errors,
        caption="Against FP32's at the same weights and rows; median of the seeds.",
    ),
    Figure(
        title="Which event makes the error?",
        draw=sites,
        caption="One event rounded as in the arm, all others FP32.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arms of one config, and the step from which interventions differ, if they do."""

    name: str
    config: Config
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    first: int | None = None


def asked(
    words: Sequence[str],
    *,
    name: str,
    own: Sequence[str] = (),
    first: int | None = None,
    at: Sequence[str] = (),
    seeds: str | None = None,
    quick: bool = False,
) -> Asked:
    """Return the arms that words and options ask for. Raises UsageError.

    words  KEY=VALUE of the config, and mx=FORMAT, the format of the interventions' base
    own    NAME=CHANGE[;CHANGE] in place of a study's arms; FP32 is always beside them
    at     STEP:CHANGE, for all arms but FP32
    """
    if name not in STUDIES:
        raise UsageError(unknown("study", name, STUDIES))
    given = pairs(words, ("mx", *(f.name for f in fields(Config))))
    mx = given.pop("mx", MX)
    config = _configured(given, QUICK if quick else Config())
    if (name == "interventions") != (first is not None):
        repair = (
            "a step from which the interventions differ; it belongs to --study interventions, and"
            " that to it"
        )
        raise bad("--from", first, repair)
    if first is not None and not 0 < first < config.steps:
        raise bad("--from", first, f"a step after the first and before the last, {config.steps}")
    if mx not in BLOCK_NAMED:
        raise UsageError(unknown("block format", mx, BLOCK_NAMED))
    base: Changes = () if first is None else ((0, f"-> mx={mx}"),)
    presets = formats() if first is None else interventions(mx)
    texts = list(own) or [f"{n}={text}" for n, text in presets.items()]
    rounding = [text for text in texts if text.partition("=")[0].strip() != EXACT]
    arms = [_later(config, arm_of(config, text, first or 0, base), at) for text in rounding]
    if not arms:
        raise bad("--arm", EXACT, "is beside every study; give an arm that rounds, too")
    exact = [Arm(name=EXACT, lr=lr) for lr in dict.fromkeys(arm.lr for arm in arms)]
    chosen = seeds_of(seeds) or (QUICK_SEEDS if quick else SEEDS)
    every = tuple(replace(arm, seed=seed) for arm in (*exact, *arms) for seed in chosen)
    if len(set(every)) != len(every) or len({(a.name, a.lr) for a in arms}) != len(arms):
        raise UsageError("--arm: two arms have one name; give each its own")
    return Asked(name="arms" if own else name, config=config, arms=every, seeds=chosen, first=first)


def _configured(given: dict[str, str], base: Config) -> Config:
    """Return the base with KEY=VALUE over it; lr alone is constant. Raises UsageError."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        read, kind = READERS[type(getattr(base, name))]
        try:
            values[name] = read(text)
        except (ValueError, KeyError):
            raise bad(name, text, f"give {kind}") from None
    if "lr" in values:
        values.setdefault("min_lr", values["lr"])
    return replace(base, **values)


def _later(config: Config, arm: Arm, at: Sequence[str]) -> Arm:
    changes = list(arm.changes)
    for text in at:
        step, given, change = text.partition(":")
        if not given or not step.strip().isdecimal():
            raise bad("--at", text, "write STEP CHANGE, such as  --at 300 'site=norm -> fp32'")
        changes.append((int(step), change.strip()))
    changed = replace(arm, changes=tuple(sorted(changes, key=lambda pair: pair[0])))
    plans_of(config, changed)  # raises UsageError for a change that is none
    return changed


def run(options: ProxyOptions) -> int:
    """Write proxy.sqlite, the page and the data; the exit code is that of `command.run`."""
    o = options
    wanted = asked(
        o.words, name=o.study, own=o.arms, first=o.first, at=o.at, seeds=o.seeds, quick=o.quick
    )
    said = ["--study", o.study, *(f"--{name}" for name in ("quick", "draw") if getattr(o, name))]
    said += ["--seeds", o.seeds] if o.seeds else []
    said += ["--from", str(o.first)] if o.first is not None else []
    said += [f"--arm {text!r}" for text in o.arms] + [f"--at {text!r}" for text in o.at]
    text = " ".join(["roundscope proxy", *said, *o.words])
    return command.run(study(wanted), out=o.out, command=text, as_json=o.json, draw=o.draw)


def study(wanted: Asked) -> Study[Runs]:
    """Return the study of these arms."""
    c, first = wanted.config, wanted.first
    question = "Does training in block-scaled formats diverge where FP32 on the same rows does not?"
    if first is not None:
        question = f"What, changed at step {first}, averts the divergence?"
    norm = "LayerNorm" if c.norm else "no LayerNorm"
    model = (
        f"A residual MLP of {c.depth} layers, width {c.width}, hidden {c.hidden}, {c.phi}, {norm}, "
        f"learns a teacher of the same shape without LayerNorm; {c.batch} fresh rows a step, "
        f"lr {c.lr:g}, noise {c.noise:g}; {len(wanted.seeds)} seeds of weights, teacher and rows"
    )
    return Study(
        name=wanted.name,
        file="proxy",
        page=wanted.name,
        question=question,
        launches=partial(launches, wanted),
        results=partial(results, wanted),
        answer=partial(answer, wanted),
        figures=FIGURES,
        tables=(TABLE,),
        about={"model": model},
        config=asdict(c) | ({} if first is None else {"from": first}),
    )


def launches(wanted: Asked, store: Store) -> list[Launch]:
    """Return the launches by executable, apart for what is stored, so that it never runs again."""
    there = student.stored(store, wanted.config, wanted.arms)
    missing = [arm for arm in wanted.arms if arm not in there]
    parts = [*groups(wanted.config, list(there)), *groups(wanted.config, missing)]
    return [_launch(wanted, arms, store.path.parent) for arms in parts]


def _launch(wanted: Asked, arms: Sequence[Arm], folder: Path) -> Launch:
    """Return the launch of some arms; interventions continue a run from a state in the folder."""
    config, first = wanted.config, wanted.first
    if first is None or not all(arm.changes for arm in arms):
        return student.launch("student", config, arms)

    def parted(progress: Progress) -> Runs:
        start = runner.begin(config, arms, first, folder, progress)
        return runner.launch(config, arms, progress, start)

    return student.launch("student", config, arms, parted)


def results(wanted: Asked, store: Store) -> Runs | None:
    """Return the runs of arms with all seeds; None if those they are compared with lack."""

    def place(arm: Arm) -> tuple[str, float]:
        return arm.name, arm.lr

    there = student.stored(store, wanted.config, wanted.arms)
    part = {place(arm) for arm in wanted.arms if arm not in there}
    runs = [r for arm, r in there.items() if place(arm) not in part]
    found = {place(r.condition) for r in runs}
    needed = {place(a) for a in wanted.arms if a.name in (EXACT, UNCHANGED)}
    return runs if needed <= found and found > needed else None


def answer(wanted: Asked, runs: Runs) -> str:
    """Return one sentence or two, from the counts alone."""
    if wanted.first is None:
        return _lone(runs)
    arms = of_arms(runs)
    base = {r.seed for r in arms.get(UNCHANGED, []) if wanted.first <= r.time < math.inf}
    if not base:
        return "Nothing to avert: without a change no run diverged after that step."
    others = {n: own for n, own in arms.items() if n not in (EXACT, UNCHANGED)}
    count = {n: sum(r.diverged is None for r in own if r.seed in base) for n, own in others.items()}
    all_of = ", ".join(n for n, k in count.items() if k == len(base))
    some = ", ".join(f"{n} ({k} of {len(base)})" for n, k in count.items() if 0 < k < len(base))
    none = ", ".join(n for n, k in count.items() if k == 0)
    parts = [f"averted by {all_of or 'none of the changes in every run'}"]
    parts += [f"in some runs by {some}"] if some else []
    parts += [f"in none by {none}"] if none else []
    return f"{len(base)} of {len(wanted.seeds)} runs diverge without a change: {'; '.join(parts)}."


def _lone(runs: Runs) -> str:
    arms, names = of_arms(runs), lone(runs)
    exact = f"FP32 diverged in {times(arms.get(EXACT, []))}"
    if names:
        return f"Yes: {'; '.join(f'{name} in {times(arms[name])}' for name in names)}. {exact}."
    ratios = {name: over(own, runs) for name, own in arms.items() if name != EXACT}
    highest = max(ratios, key=lambda name: ratios[name], default=None)
    no = "No: at these settings no arm diverged with a seed with which FP32 did not"
    if highest is None:
        return f"{no}; {exact}."
    worst = f"The largest final loss over FP32's: {highest}, {ratios[highest]:.2f} times."
    return f"{no}; {exact}. {worst}"


def records(runs: Runs) -> list[dict[str, Any]]:
    """Return a record for each arm."""
    return [
        {
            "name": name,
            "lr": own[0].condition.lr,
            "changes": own[0].condition.changes,
            "runs": len(own),
            "seeds": [r.seed for r in own],
            "diverged": [r.diverged for r in own],
            "spikes": [r.extra["spikes"] for r in own],
            "losses": [r.loss for r in own],
            "over_fp32": over(own, runs),
            "measures": {n: _middle(own, n) for n in measured(own)},
        }
        for name, own in of_arms(runs).items()
    ]


def rows(runs: Runs) -> Iterator[list[str]]:
    """Yield the same in words: the columns of TABLE."""

    def shown(x: float, how: str) -> str:
        return format(x, how) if math.isfinite(x) else ""

    for name, own in of_arms(runs).items():
        finite = [r.loss for r in own if math.isfinite(r.loss)]
        lost = len(own) - len(finite)
        changes = own[0].condition.changes
        yield [
            name,
            "; ".join(f"{step}: {text}" if step else text for step, text in changes),
            times(own),
            str(sum(r.extra["spikes"] for r in own)),
            f"{lost} not finite" if lost else f"{np.median(finite):.2e}",
            shown(over(own, runs), ".3g"),
            *(shown(_middle(own, n), how) for n, how in MEASURES.items()),
        ]


def _middle(own: Runs, name: str) -> float:
    numbers = [x for x in (before(r, name) for r in own) if math.isfinite(x)]
    return float(np.median(numbers)) if numbers else math.nan


TABLE = Table(
    name="arms",
    title="Every arm",
    heads=(
        *("arm", "changes", "diverged, step", "spikes", "final loss", "over FP32"),
        *("zeta", "cosine", "gamma\nlast", "gamma\ndistinct"),
    ),
    rows=rows,
    records=records,
    note=NOTES,
    shown=(0, 2, 3, 4, 5, 6, 7),
)
