"""The training of the study, and what of its log is kept: `roundscope train` in the folder `run`.

All arms do each step one after the other on one GPU, on the same bytes, attention in fused kernels.
The training writes checkpoints and goes on from the last one, with the bits of one that was not
stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.study import Outcome
from roundscope.experiments.options import TrainOptions
from roundscope.experiments.train import checkpoint, origins
from roundscope.experiments.train.config import AUTOCAST, LOG, PALLAS, Config, deciding, unusual
from roundscope.experiments.train.gpt.engines import has_device
from roundscope.experiments.train.record import last_start, rows, training
from roundscope.experiments.train.run.command import train
from roundscope.experiments.train.spikes import followed, growth
from roundscope.tools.errors import bad
from roundscope.tools.results.run import Run, key_of

NAME = "gpt2"
ITSELF, EXACT = "as released", "FP32"
ROWS = {  # what of the attention differs from the released code's arithmetic
    ITSELF: "",
    EXACT: "-> plan=fp32",
    "m and l kept in FP32": "site=MS,LANES -> fp32",
}
PAPER_RATE = 1e-3
ARMS = (  # row, rate: the paper's, three and ten times as much
    *((ITSELF, times * PAPER_RATE) for times in (1, 3, 10)),
    *((EXACT, times * PAPER_RATE) for times in (3, 10)),
    ("m and l kept in FP32", 10 * PAPER_RATE),
)
FAILED_AT, PAPER_BATCH = 7000, 524_288  # of the paper: about this step; tokens of a step
EVERY = 25  # steps of a point of a curve
QUICK = Config(
    layers=2,
    heads=2,
    width=32,
    context=32,
    batch=2,
    block=16,
    steps=60,
    warmup=10,
    lr=PAPER_RATE,
    min_lr=PAPER_RATE,  # constant after the warm-up, whatever the number of steps
    plan="qiu-yao-compiled",
    sums="preset",
    matmul=AUTOCAST,
    checkpoint_every=50,
    keep=1,
    monitor_every=20,
)
SIZE: dict[str, Any] = {"layers": 12, "heads": 12, "width": 768, "context": 1024, "batch": 8}
FULL = replace(
    QUICK,
    **SIZE,
    block=64,
    steps=FAILED_AT,
    warmup=100,
    engine=PALLAS,
    checkpoint_every=250,
    monitor_every=50,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What decides an arm: its row and its rate. It has one seed."""

    row: str
    rate: float
    seed: int = 0

    @property
    def name(self) -> str:
        """The arm's name in the log."""
        return f"{self.row}, {self.rate:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The runs by condition, as far as they got, and the tokens of a step.

    A point of a curve is (steps done, mean loss, mean norm of the gradient). A run's extra has the
    `spikes` of the loss, the step from which the norms have `grown` tenfold (`growth`) or NaN, and
    `looks`: (step, share of the gradient of W_Q that comes from rows of dS that do not sum to 0,
    NaN in FP32, largest norm of a head's W_Q).
    """

    runs: Mapping[Condition, Run[Condition]]
    tokens: int

    @property
    def steps(self) -> int:
        """The steps that every arm did."""
        return min(run.steps for run in self.runs.values())

    def at(self, row: str, rate: float) -> list[Run[Condition]]:
        """Return the runs of a row at a rate."""
        return [run for c, run in self.runs.items() if (c.row, c.rate) == (row, rate)]


CONDITIONS = tuple(Condition(row=row, rate=rate) for row, rate in ARMS)


def measured(config: Config, folder: Path, draw: bool) -> tuple[Outcome, Results | None]:
    """Train until the end or a signal, unless only to draw; return what there is by then."""
    run, stopped = folder / "run", False
    before = max(checkpoint.steps(run), default=0)
    if not draw:
        if not has_device(config):
            raise bad("PAPER", NAME, "needs a GPU; add --quick for a small model without one")
        stopped = _trained(config, run)
    keys = {c: key_of(deciding_of(config), ROWS[c.row], c.rate, c.seed) for c in CONDITIONS}
    with opened(folder, NAME) as store:
        kept = store.read(keys)
        if (run / LOG).is_file():  # a run that began anew replaces no longer one
            least = {c: x.steps for c, x in kept.items()}
            more = {keys[c]: x for c, x in runs_of(run).items() if x.steps >= least.get(c, 0)}
            store.add(more, asdict(config), str(last_start(run)["device"]))
            kept = store.read(keys)
        devices = store.devices(keys.values())
    results = Results(runs=kept, tokens=config.batch * config.context) if kept else None
    there = results.steps if results else 0
    outcome = Outcome(
        launches=config.steps,
        there=there,
        ran=0 if draw else there - before,
        interrupted=stopped,
        devices=devices,
    )
    return outcome, results


def deciding_of(config: Config) -> dict[str, object]:
    """Return what of a config decides a run, however many steps it does."""
    left_out = ("steps", "checkpoint_every", "keep", "monitor_every")
    return {name: value for name, value in deciding(config).items() if name not in left_out}


def _trained(config: Config, run: Path) -> bool:
    """Begin or continue the training; return whether a signal ended it early."""
    if checkpoint.steps(run):
        origin = origins.earlier(
            run, TrainOptions(words=[f"steps={config.steps}"], resume=run), is_branch=False
        )
    else:
        words = [f"{name}={value}" for name, value in unusual(config).items()]
        arms = [f"{c.name}={ROWS[c.row]};lr={c.rate}" for c in CONDITIONS]
        origin = origins.new(TrainOptions(words=words, arms=arms, out=run))
    summary, _ = train(origin, run)
    return bool(summary["interrupted"])


def runs_of(folder: Path) -> dict[Condition, Run[Condition]]:
    """Return what the log of a training says of every arm."""
    by_name = {c.name: c for c in CONDITIONS}
    looks = _looks(folder)
    return {
        by_name[arm.name]: _run(by_name[arm.name], arm.loss, arm.norm, looks.get(arm.name, ()))
        for arm in training(folder).arms
    }


def _run(
    c: Condition, loss: np.ndarray, norm: np.ndarray, looks: Sequence[tuple[float, ...]]
) -> Run[Condition]:
    follow, steps = followed(loss[:, None]), len(loss)
    curve = [
        (min(first + EVERY, steps), *(float(x[first : first + EVERY].mean()) for x in (loss, norm)))
        for first in range(0, steps, EVERY)
    ]
    return Run(
        condition=c,
        steps=steps,
        diverged=follow.diverged()[0],
        loss=float(follow.final()[0]),
        curve=tuple(curve),
        extra={
            "spikes": int(follow.spikes[0]),
            "grown": growth(norm[:, None])[0],
            "looks": tuple(looks),
        },
    )


def _looks(folder: Path) -> dict[str, list[tuple[float, ...]]]:
    """Return the looks of every arm, over all layers and heads."""
    by: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    names = ("drift", "w_q_gradient", "w_q_norm")
    for row in rows(folder, "heads"):
        heads = by.setdefault((row["arm"], row["step"]), [])
        heads.append(tuple(np.nan if row[name] is None else row[name] for name in names))
    found: dict[str, list[tuple[float, ...]]] = {}
    for (arm, step), heads in sorted(by.items()):
        drift, gradient, norms = np.array(heads, float).T
        whole = gradient.sum()
        share = (drift * gradient).sum() / whole if whole != 0 else np.nan
        found.setdefault(arm, []).append((step, *map(float, (share, norms.max()))))
    return found


def grown_step(run: Run[Condition]) -> int | None:
    """Return the step from which a run's gradients have grown tenfold, or None."""
    at = run.extra["grown"]
    return None if at is None or np.isnan(at) else int(at)
