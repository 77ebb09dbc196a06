"""The error epsilon of a gradient while a run goes to its divergence.

It is measured at the same state, and as the released code takes it:

same state   g_mx(theta) - g_32(theta): the formats' error, whole, with RCEIL in place of the
             arm's scales, and event by event (`measure`)
apart        g_mx(theta_mx) - g_32(theta_32), of two trainings on the same rows, which is what
             the paper's code calls epsilon: the distance of the trainings is in it
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from roundscope.experiments.train.mx import How
from roundscope.experiments.train.student import model, run
from roundscope.experiments.train.student import step as steps
from roundscope.experiments.train.student.arms import Arm, Changes, how_of
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.measure import measure
from roundscope.tools.results.run import Run

Look = tuple[int, dict[str, np.ndarray]]  # step, name -> (arms,)


def pair_up(
    config: Config,
    arms: Sequence[Arm],
    exact: Sequence[Arm],
    other: Changes,
    progress: run.Progress,
) -> list[Run[Arm]]:
    """Return the results of arms and of their FP32 partners (same seeds, in the same order).

    Those of the arms have what was measured every `config.measure_every` steps: the names of
    `measure`, "zeta_apart" and "cosine_apart", and "zeta_rceil", the zeta of the changes `other` at
    the arms' states.
    """
    bare, both, looks = replace(config, measure_every=0), [*arms, *exact], []
    begin = run.fresh(bare, both)
    for until in [*range(0, config.steps, config.measure_every), config.steps]:
        begin = run.advance(bare, both, begin, until, progress)[0]
        if until < config.steps:
            looks.append((until, _look(bare, arms, both, other, begin)))
    found = run.launch(bare, both, progress, begin)
    return [
        replace(r, extra={**r.extra, "measures": _own(looks, i)}) if i < len(arms) else r
        for i, r in enumerate(found)
    ]


def _own(looks: Sequence[Look], i: int) -> tuple[tuple[int, Mapping[str, float]], ...]:
    return tuple((step, {name: float(v[i]) for name, v in found.items()}) for step, found in looks)


def _look(
    config: Config, arms: Sequence[Arm], both: Sequence[Arm], other: Changes, begin: run.Begin
) -> dict[str, np.ndarray]:
    how, seeds, n = how_of(config, both), sorted({a.seed for a in arms}), len(arms)
    words = jnp.asarray([(config.seed + s) % 2**32 for s in seeds], jnp.uint32)
    x, y = steps.batches(config)(words, np.int32(begin.step))
    of = jnp.asarray([seeds.index(a.seed) for a in both])

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[:n], tree)

    own, data = first(begin.state), run.data_of(config, both, begin.step)
    same = measure(config, how)(own, first(data), x, y, of[:n])
    rceil = run.data_of(config, [replace(a, changes=other) for a in arms], begin.step)
    zeta = measure(config, how)(own, rceil, x, y, of[:n])["zeta"]
    g = _gradients(config, how)(begin.state, data, x, y, of)
    apart = jax.vmap(_apart)(g[:n], g[n:])
    return jax.device_get(same | {"zeta_rceil": zeta} | apart)  # type: ignore[no-any-return]


@lru_cache(16)
def _gradients(config: Config, how: How) -> Callable[..., Array]:
    """Return the jitted function (state, arms, x, y, of) -> gradients (A, weights).

    Each arm's gradient is at its own state and in its own arithmetic.
    """
    config = steps.numbers_only(config)

    def one(state: steps.State, arm: steps.Arms, x: Array, y: Array) -> Array:
        return ravel_pytree(jax.grad(model.loss)(state.params, config, how, x, y, arm.table))[0]

    return jax.jit(lambda state, arms, x, y, of: jax.vmap(one)(state, arms, x[of], y[of]))


def _apart(g: Array, exact: Array) -> dict[str, Any]:
    size = jnp.linalg.norm(exact)
    return {
        "zeta_apart": jnp.linalg.norm(g - exact) / size,
        "cosine_apart": jnp.vdot(g, exact) / (size * jnp.linalg.norm(g)),
    }
