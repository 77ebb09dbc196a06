"""A launch: arms of one executable from the first step to the last.

Arms that share a beginning share its computation: it runs once, its state is kept in a file, and
every arm continues from the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.experiments.train.divergence import followed
from roundscope.experiments.train.loop import EVERY, blocks
from roundscope.experiments.train.state import pick
from roundscope.experiments.train.student import step as steps
from roundscope.experiments.train.student.arms import Arm, how_of, key, plan_of
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.measure import measure
from roundscope.experiments.train.student.results import DOUBLING, Result
from roundscope.tools.results.run import Run

Progress = Callable[[int], None]  # steps done
Look = tuple[int, dict[str, np.ndarray]]  # step, name of a measure -> (arms,)


class Begin(NamedTuple):
    """Where arms begin.

    step, state     steps done, and states with an axis of arms
    losses, norms   the losses and gradient norms (steps, arms) so far
    """

    step: int
    state: steps.State
    losses: np.ndarray
    norms: np.ndarray

    def take(self, arms: Sequence[int]) -> "Begin":
        """Return the beginning of some arms, which may repeat."""
        return Begin(
            self.step, pick(self.state, arms), self.losses[:, list(arms)], self.norms[:, list(arms)]
        )


def data_of(config: Config, arms: Sequence[Arm], number: int) -> steps.Arms:
    """Return what differs between arms at a step, as data."""
    plans = [plan_of(config, arm.texts(number)) for arm in arms]
    tables = [p.table((config.seed + a.seed) % 2**32) for p, a in zip(plans, arms, strict=True)]
    return steps.Arms(
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
    return Begin(0, steps.start(config, [a.seed for a in arms]), none, none)


def advance(
    config: Config, arms: Sequence[Arm], begin: Begin, until: int, progress: Progress
) -> tuple[Begin, list[Look]]:
    """Return the arms at step `until`, and what was measured before.

    The same arms on the same device have the same bits. An arm whose weights are no longer finite
    goes on, since no branch depends on values.
    """
    how, (words, of) = how_of(config, arms), seeds_of(config, arms)
    one, rows = steps.advance(config, how), steps.batches(config)
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
    """Return the results of arms of one group, in their order.

    They run from `begin` (with an axis of arms) or from the first step.
    """
    end, measured = advance(config, arms, begin or fresh(config, arms), config.steps, progress)
    follow, looks = followed(end.losses, DOUBLING), range(0, config.steps, EVERY)
    diverged, final = follow.diverged(), follow.final()
    ends = [min(n + EVERY, config.steps) for n in looks]
    worst = [end.losses[n : n + EVERY].max(axis=0) for n in looks]
    return [
        Run(
            condition=arm,
            steps=config.steps,
            diverged=diverged[i],
            loss=float(final[i]),
            curve=tuple(
                (done, float(largest[i]), float(end.norms[n, i]))
                for n, done, largest in zip(looks, ends, worst, strict=True)
            ),
            extra={"spikes": int(follow.spikes[i]), "measures": of_arm(measured, i)},
        )
        for i, arm in enumerate(arms)
    ]


def of_arm(looks: Sequence[Look], i: int) -> tuple[tuple[int, dict[str, float]], ...]:
    """Return what was measured of the arm with number `i`."""
    return tuple((step, {name: float(v[i]) for name, v in found.items()}) for step, found in looks)


def prefix(arm: Arm, first: int) -> Arm:
    """Return the arm as it is before step `first`."""
    return replace(
        arm,
        name="beginning",
        changes=tuple((step, text) for step, text in arm.changes if step < first),
    )


def begin(
    config: Config, arms: Sequence[Arm], first: int, folder: Path, progress: Progress
) -> Begin:
    """Return the states of arms at step `first`, from the folder or computed and kept there.

    The arms are of one group, with one executable.
    """
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
