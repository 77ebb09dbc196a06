"""Step 3 of a proxy's run: what rounding does to the gradient, and whether it adds up.

It is measured at the same weights and rows, event by event. epsilon_t is the gradient at step t
with some events rounded, less FP32's, at the run's own weights and rows of T steps in a row. Then

    A = |sum_t epsilon_t| / sqrt(sum_t |epsilon_t|^2)

is about 1 if errors of different steps meet in random directions, and sqrt(T) if they are all
alike. The null hypothesis: every step's error keeps its size and takes its sign from a fair coin; p
is the share of 4,096 draws whose A is as large. Sums are over a sample of at most 65,536 weights,
the same in every step; |epsilon| and its part along the gradient are over all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from roundscope.emu.roundings.modes import BINARY32
from roundscope.experiments.diagnose.student.case import Case
from roundscope.experiments.diagnose.student.replay import PAIR
from roundscope.experiments.diagnose.student.units import Units, place
from roundscope.experiments.train import mx
from roundscope.experiments.train.mx import How, reseeded
from roundscope.experiments.train.step import arm
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.arms import Config, Plan, plan_of
from roundscope.experiments.train.student.measure import compared
from roundscope.experiments.train.student.model import numbers_only
from roundscope.experiments.train.student.run import Begin, advance
from roundscope.tools.sweep.report.effects import mean_interval

STEPS, SAMPLE, DRAWS = 32, 1 << 16, 4096
GRADIENT = "the gradient itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """The error of the gradient for one choice of events.

    zeta, cosine, along   (T,), as `measure` defines them
    a                     A;  p, null: p under sign flips, and their 95 % quantile
    """

    zeta: np.ndarray
    cosine: np.ndarray
    along: np.ndarray
    a: float
    p: float
    null: float

    @property
    def bias(self) -> tuple[float, float]:
        """The mean of `along` over steps, negative for shorter ones, and half its 95 % interval."""
        return mean_interval(self.along)


def only(plan: Plan, units: Units) -> Plan:
    """Return the plan with all events but these in FP32."""
    places = {place(u) for u in units}

    formats = np.array(plan.formats, dtype=object)
    for at in set(np.ndindex(formats.shape)) - places:
        formats[at] = BINARY32
    return Plan(formats=mx.as_formats(formats), beta=plan.beta)


def looked(case: Case, begin: Begin) -> list[Begin]:
    """Return the states, each of one arm, of up to STEPS steps from `begin`, before divergence."""
    now, found = begin.take([0] * PAIR), [begin]
    while len(found) < STEPS and now.step + 1 < case.failed:
        now = advance(case.config, [case.own] * PAIR, now, now.step + 1, lambda n: None)[0]
        found.append(now.take([0]))
    return found


def errors(case: Case, states: list[Begin], plans: Mapping[str, Plan]) -> dict[str, Error]:
    """Return every plan's error at each state on its rows; GRADIENT has FP32's for epsilon."""
    config, seed = case.config, (case.config.seed + case.own.seed) % 2**32
    how = mx.how_of(config.block, list(plans.values()))
    exact = plan_of(config, ()).table(seed)
    tables = jnp.asarray(np.stack([exact, *(p.table(seed) for p in plans.values())]))
    rows, of = model.batches(config), _gradients(numbers_only(config), how)
    found = []
    for begin in states:
        x, y = rows(jnp.asarray([seed], jnp.uint32), np.int32(begin.step))
        found.append(jax.device_get(of(arm(begin.state, 0), tables, x[0], y[0])))
    compared, *each = zip(*found, strict=True)
    samples, gradients = map(np.stack, each)  # (T, plans, sample), (T, sample)
    names = ("zeta", "cosine", "along")
    measured = {name: np.array([seen[name] for seen in compared], float) for name in names}
    made = {
        n: _error({k: v[:, i] for k, v in measured.items()}, samples[:, i])
        for i, n in enumerate(plans)
    }
    return made | {GRADIENT: _error(dict.fromkeys(names, np.ones(len(states))), gradients)}


def _error(measured: dict[str, np.ndarray], sample: np.ndarray) -> Error:
    a, p, null = coherence(sample)
    return Error(**measured, a=a, p=p, null=null)


def coherence(sample: np.ndarray) -> tuple[float, float, float]:
    """Return A of vectors (T, n), p and the 95 % quantile under flips; (0, 1, 0) for zeros."""
    products = sample.astype(np.float64) @ sample.astype(np.float64).T
    total = np.trace(products)
    if not total > 0.0:
        return 0.0, 1.0, 0.0
    rng = np.random.Generator(np.random.Philox(key=5))
    signs = rng.integers(0, 2, (DRAWS, len(sample))) * 2.0 - 1.0

    def of(s: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(np.maximum(((s @ products) * s).sum(-1), 0.0) / total))

    a, flipped = float(of(np.ones(len(sample)))), of(signs)
    p = float((1.0 + (flipped >= a * (1.0 - 1e-9)).sum()) / (1.0 + DRAWS))
    return a, p, float(np.quantile(flipped, 0.95))


@lru_cache(8)
def _gradients(config: Config, how: How) -> Callable[..., tuple[dict[str, Array], Array, Array]]:
    """Return jitted (state, tables, x, y) -> `compared`, samples of epsilon, of the gradient."""

    def all_of(state: Any, tables: Array, x: Array, y: Array) -> Any:
        blank = jnp.zeros_like(ravel_pytree(state.params)[0])
        rng = np.random.Generator(np.random.Philox(key=4))
        taken = np.sort(rng.permutation(blank.size)[:SAMPLE])

        def one(g: Array, at: tuple[Array, Array]) -> Any:
            """Compare a gradient with g, that of the first turn; one program for all."""
            table = reseeded(at[1], state.step) if how.drawn else at[1]
            tree = jax.grad(model.loss)(state.params, config, how, x, y, table)
            own: Array = ravel_pytree(tree)[0]
            g = jnp.where(at[0] == 0, own, g)
            return g, (compared(own - g, g), (own - g)[taken])

        g, (found, samples) = lax.scan(one, blank, (jnp.arange(len(tables)), tables))
        return {name: values[1:] for name, values in found.items()}, samples[1:], g[taken]

    return jax.jit(all_of)
