"""`roundscope proxy`: does training in block-scaled formats diverge, and what averts it?"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from roundscope.experiments.framework import command, student
from roundscope.experiments.framework.counts import times
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Progress, Study
from roundscope.experiments.options import ProxyOptions
from roundscope.experiments.questions.proxy import figures
from roundscope.experiments.questions.proxy.conditions import Asked, asked
from roundscope.experiments.questions.proxy.table import TABLE
from roundscope.experiments.train.student.arms import EXACT, Arm, groups
from roundscope.experiments.train.student.follow import RULE
from roundscope.experiments.train.student.presets import UNCHANGED
from roundscope.experiments.train.student.results import lone, of_arms, over
from roundscope.tools.results.run import Run

Runs = Sequence[Run[Arm]]
FIGURES = (
    Figure(
        title="When does each run diverge?",
        draw=figures.outcomes,
        caption=f"A dot for each seed. {RULE}",
    ),
    Figure(
        title="How does the loss run?",
        draw=figures.losses,
        caption=(
            "The largest loss of every 25 steps, a line a seed; grey: FP32. Dotted: divergence."
        ),
    ),
    Figure(
        title="How wrong is the gradient?",
        draw=figures.errors,
        caption="Against FP32's at the same weights and rows; median of the seeds.",
    ),
    Figure(
        title="Which event makes the error?",
        draw=figures.sites,
        caption="One event rounded as in the arm, all others FP32.",
    ),
)


def run(options: ProxyOptions) -> int:
    """Write proxy.sqlite, and the study's page and data.

    With `draw` nothing is trained. The exit code and the errors are those of `command.run`.
    """
    o = options
    wanted = asked(
        o.words, name=o.study, own=o.arms, first=o.first, at=o.at, seeds=o.seeds, quick=o.quick
    )
    said = ["--study", o.study, *(f"--{name}" for name in ("quick", "draw") if getattr(o, name))]
    said += ["--seeds", o.seeds] if o.seeds else []
    said += ["--from", str(o.first)] if o.first is not None else []
    said += [f"--arm {text!r}" for text in o.arms] + [f"--at {text!r}" for text in o.at]
    text = " ".join(["roundscope proxy", *said, *o.words])
    return command.run(of(wanted), out=o.out, command=text, as_json=o.json, draw=o.draw)


def of(wanted: Asked) -> Study[Runs]:
    """Return the study of these arms."""
    first = wanted.first
    start = {} if first is None else {"from": first}
    return Study(
        name=wanted.name,
        file="proxy",
        page=wanted.name,
        question=question(wanted),
        launches=partial(launches, wanted),
        results=partial(results, wanted),
        answer=partial(answer, wanted),
        figures=FIGURES,
        tables=(TABLE,),
        about={"model": model(wanted)},
        config=asdict(wanted.config) | start,
    )


def launches(wanted: Asked, store: Store) -> list[Launch]:
    """Return the launches by executable, apart for what is stored and for what is missing.

    So what is stored never runs again.
    """
    there = student.stored(store, wanted.config, wanted.arms)
    missing = [arm for arm in wanted.arms if arm not in there]
    parts = [*groups(wanted.config, list(there)), *groups(wanted.config, missing)]
    return [_launch(wanted, arms, store.path.parent) for arms in parts]


def _launch(wanted: Asked, arms: Sequence[Arm], folder: Path) -> Launch:
    """Return the launch of some arms.

    Interventions continue a run that they share, from a state that is kept in the folder.
    """
    config, first = wanted.config, wanted.first
    if first is None or not all(arm.changes for arm in arms):
        return student.launch("student", config, arms)

    def parted(progress: Progress) -> Runs:
        from roundscope.experiments.train.student.begins import begin
        from roundscope.experiments.train.student.run import launch

        return launch(config, arms, progress, begin(config, arms, first, folder, progress))

    return student.launch("student", config, arms, parted)


def results(wanted: Asked, store: Store) -> Runs | None:
    """Return the runs of every arm that has all of its seeds.

    None if there is no such arm, or if those that it is compared with are missing.
    """
    there = student.stored(store, wanted.config, wanted.arms)
    part = {_place(arm) for arm in wanted.arms if arm not in there}
    runs = [r for arm, r in there.items() if _place(arm) not in part]
    found = {_place(r.condition) for r in runs}
    needed = {_place(a) for a in wanted.arms if a.name in (EXACT, UNCHANGED)}
    return runs if needed <= found and found > needed else None


def _place(arm: Arm) -> tuple[str, float]:
    return arm.name, arm.lr


def model(wanted: Asked) -> str:
    """Return in words what is trained."""
    c = wanted.config
    norm = ", LayerNorm" if c.norm else ", no LayerNorm"
    return (
        f"A residual MLP of {c.depth} layers, width {c.width}, hidden {c.hidden}, {c.phi}{norm}, "
        f"learns a teacher of the same shape without LayerNorm; {c.batch} fresh rows a step, "
        f"lr {c.lr:g}, noise {c.noise:g}; {len(wanted.seeds)} seeds of weights, teacher and rows"
    )


def question(wanted: Asked) -> str:
    """Return the question of the study."""
    if wanted.first is None:
        return "Does training in block-scaled formats diverge where FP32 on the same rows does not?"
    return f"What, changed at step {wanted.first}, averts the divergence?"


def answer(wanted: Asked, runs: Runs) -> str:
    """Return one sentence or two, from the counts alone."""
    return _lone(runs) if wanted.first is None else _averted(wanted, runs)


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


def _averted(wanted: Asked, runs: Runs) -> str:
    arms = of_arms(runs)
    base = {r.seed for r in arms.get(UNCHANGED, []) if (wanted.first or 0) <= r.time < math.inf}
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
