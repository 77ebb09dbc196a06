"""A launch, arms of one executable from the first step to the last, and its results, `Run[Arm]`.

Arms that share a beginning share its computation: it runs once, its state is kept in a file, and
every arm continues from the same bits.

curve              (steps done, largest loss since the last entry, gradient norm), every 25 steps
extra["spikes"]    how many spikes began
extra["measures"]  (steps done, name -> number) of `measure`, as often as the config asks
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.experiments.train import spikes
from roundscope.experiments.train.groups import EVERY, blocks
from roundscope.experiments.train.spikes import Rule, followed
from roundscope.experiments.train.step import pick
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.arms import EXACT, Arm, Config, how_of, key, plan_of
from roundscope.experiments.train.student.measure import measure
from roundscope.tools.results.run import Run

Result = Run[Arm]  # what came of one arm
Runs = Sequence[Result]
Measures = Sequence[tuple[int, Mapping[str, float]]]
RULE = (
    "A run has diverged at the first step where its loss is not finite, where the median of its"
    " last 100 losses that are no spikes is more than twice the lowest such median so far, or where"
    " a spike begins that lasts 100 steps, or 20 and to the run's end. A spike: three losses in a"
    " row whose logarithm is above the median by 8 times the spread."
)
# the loss is a mean square, so what counts is the factor by which it grows
DOUBLING = Rule(rise=math.log(2.0), logarithm=True, lasting=20)
Follow = partial(spikes.Follow, rule=DOUBLING)


def measures(run: Result) -> Measures:
    """Return what was measured during the run; empty where nothing was."""
    found: Measures = run.extra.get("measures", ())
    return found


def before(run: Result, name: str) -> float:
    """Return the median of a measure before the run diverged, NaN without any."""
    looks = [each[name] for step, each in measures(run) if step <= run.time and name in each]
    finite = [x for x in looks if math.isfinite(x)]
    return float(np.median(finite)) if finite else math.nan


def measured(runs: Iterable[Result]) -> list[str]:
    """Return the names of what was measured, in their order."""
    return list(dict.fromkeys(name for r in runs for _, each in measures(r) for name in each))


def of_arms(runs: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the runs by the arm's name, in their order."""
    found: dict[str, list[Result]] = {}
    for r in runs:
        found.setdefault(r.condition.name, []).append(r)
    return found


def paired(first: Iterable[Result], second: Iterable[Result]) -> list[tuple[Result, Result]]:
    """Return the runs of two arms with the same seed and rate, so on the same rows and weights."""
    other = {(r.seed, r.condition.lr): r for r in second}
    return [(r, other[at]) for r in first if (at := (r.seed, r.condition.lr)) in other]


def lone(runs: Sequence[Result]) -> list[str]:
    """Return the arms that diverged with a seed with which FP32 at the same rate did not."""
    arms = of_arms(runs)
    exact = arms.pop(EXACT, [])

    def fails(r: Result, e: Result) -> bool:
        return r.diverged is not None and e.diverged is None

    return [name for name, own in arms.items() if any(fails(r, e) for r, e in paired(own, exact))]


def over(own: Sequence[Result], runs: Iterable[Result]) -> float:
    """Return the geometric mean of losses over FP32's in `runs`; inf where one is missing."""
    exact = [r for r in runs if r.condition.name == EXACT]
    ratios = [r.loss / e.loss for r, e in paired(own, exact)]
    if len(ratios) < len(own) or not all(map(math.isfinite, ratios)):
        return math.inf
    return float(np.exp(np.mean(np.log(ratios))))


Progress = Callable[[int], None]  # steps done
Look = tuple[int, dict[str, np.ndarray]]  # step, name of a measure -> (arms,)


class Begin(NamedTuple):
    """Where arms begin.

    step, state     steps done, and states with an axis of arms
    losses, norms   the losses and gradient norms (steps, arms) so far
    """

    step: int
    state: model.State
    losses: np.ndarray
    norms: np.ndarray

    def take(self, arms: Sequence[int]) -> "Begin":
        """Return the beginning of some arms, which may repeat."""
        losses, norms = (x[:, list(arms)] for x in (self.losses, self.norms))
        return Begin(self.step, pick(self.state, arms), losses, norms)


def data_of(config: Config, arms: Sequence[Arm], number: int) -> model.Arms:
    """Return what differs between arms at a step, as data."""
    plans = [plan_of(config, arm.texts(number)) for arm in arms]
    tables = [p.table((config.seed + a.seed) % 2**32) for p, a in zip(plans, arms, strict=True)]
    return model.Arms(
        table=jnp.asarray(np.stack(tables)),
        lr=jnp.asarray([a.lr for a in arms], jnp.float32),
        beta=jnp.asarray([p.beta for p in plans], jnp.float32),
    )


def seeds_of(config: Config, arms: Sequence[Arm]) -> tuple[Array, Array]:
    """Return the seeds (S,) of the rows of arms, and which of them is an arm's, (A,)."""
    seeds = sorted({a.seed for a in arms})
    words = jnp.asarray([(config.seed + s) % 2**32 for s in seeds], jnp.uint32)
    return words, jnp.asarray([seeds.index(a.seed) for a in arms])


def fresh(config: Config, arms: Sequence[Arm]) -> Begin:
    """Return the beginning of a run."""
    none = np.zeros((0, len(arms)))
    return Begin(0, model.start(config, [a.seed for a in arms]), none, none)


def advance(
    config: Config, arms: Sequence[Arm], begin: Begin, until: int, progress: Progress
) -> tuple[Begin, list[Look]]:
    """Return the arms at step `until`, and what was measured before.

    The same arms on the same device have the same bits. An arm whose weights are no longer finite
    goes on, since no branch depends on values.
    """
    how, (words, of) = how_of(config, arms), seeds_of(config, arms)
    one, rows = model.advance(config, how), model.batches(config)
    changing = {begin.step, *(first for a in arms for first in a.firsts)}
    state, data, measured, losses, norms = begin.state, None, [], [begin.losses], [begin.norms]

    def step(number: int) -> tuple[Any, Any]:
        nonlocal state, data
        data = data_of(config, arms, number) if number in changing else data
        x, y = rows(words, np.int32(number))
        if config.measure_every and number % config.measure_every == 0:
            measured.append((number, jax.device_get(measure(config, how)(state, data, x, y, of))))
        state, loss, norm = one(state, data, x, y, of)
        return loss, norm

    for block in blocks(step, begin.step, until):
        losses.append(block.losses.astype(float))
        norms.append(block.norms.astype(float))
        progress(block.done)
    return Begin(until, state, np.concatenate(losses), np.concatenate(norms)), measured


def launch(
    config: Config, arms: Sequence[Arm], progress: Progress, begin: Begin | None = None
) -> list[Result]:
    """Return the results of arms of one group, from `begin` or the first step."""
    end, measured = advance(config, arms, begin or fresh(config, arms), config.steps, progress)
    follow, looks = followed(end.losses, DOUBLING), range(0, config.steps, EVERY)
    diverged, final = follow.diverged(), follow.final()
    ends = [min(n + EVERY, config.steps) for n in looks]
    worst = [end.losses[n : n + EVERY].max(axis=0) for n in looks]
    points = list(zip(looks, ends, worst, strict=True))
    return [
        Run(
            condition=arm,
            steps=config.steps,
            diverged=diverged[i],
            loss=float(final[i]),
            curve=tuple((at, float(x[i]), float(end.norms[n, i])) for n, at, x in points),
            extra={"spikes": int(follow.spikes[i]), "measures": of_arm(measured, i)},
        )
        for i, arm in enumerate(arms)
    ]


def of_arm(looks: Sequence[Look], i: int) -> tuple[tuple[int, dict[str, float]], ...]:
    """Return what was measured of the arm with number `i`."""
    return tuple((step, {name: float(v[i]) for name, v in found.items()}) for step, found in looks)


def prefix(arm: Arm, first: int) -> Arm:
    """Return the arm as it is before step `first`."""
    earlier = tuple((step, text) for step, text in arm.changes if step < first)
    return replace(arm, name="beginning", changes=earlier)


def begin(
    config: Config, arms: Sequence[Arm], first: int, folder: Path, progress: Progress
) -> Begin:
    """Return the states of one group's arms at `first`, kept in the folder or computed now."""
    wanted = list(dict.fromkeys(prefix(arm, first) for arm in arms))
    seeds = "-".join(str(a.seed) for a in wanted)
    path = folder / f"begin-{first}-{key(config, wanted[0])[:12]}-{seeds}.safetensors"
    blank = fresh(config, wanted)
    if path.exists():
        found = _read(path, blank, first)
    else:
        bare = replace(config, measure_every=0)
        found = advance(bare, wanted, blank, first, progress)[0]
        _write(path, found)
    return found.take([wanted.index(prefix(arm, first)) for arm in arms])


def _write(path: Path, b: Begin) -> None:
    from safetensors.numpy import save

    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(b.state))}
    write_whole(path, save(leaves | {"losses": b.losses, "norms": b.norms}))


def _read(path: Path, blank: Begin, first: int) -> Begin:
    from safetensors.numpy import load

    found = load(read_whole(path))
    leaves, tree = jax.tree.flatten(blank.state)
    state = jax.tree.unflatten(tree, [found[str(i)] for i in range(len(leaves))])
    return Begin(first, state, found["losses"], found["norms"])
