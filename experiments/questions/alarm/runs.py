"""What is trained: arithmetics that leak and that do not, in models of several sizes; and a look.

The runs of `CHOOSE` choose the threshold of the alarm. The runs of `TEST` say how often it is
right: they have other events, other rates, other sizes, other algorithms and other seeds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.models.alarm import KEPT
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.linear import FULL as FULL_PRECISION
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.gpt.step import numbers_only
from roundscope.experiments.train.groups import Batches, Group
from roundscope.experiments.train.settings import Arm

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
MODEL: dict[str, Any] = {"layers": 4, "heads": 4, "width": 128, "context": 128, "batch": 16}
FULL = Scale(
    name="full",
    rate=1e-2,
    seeds=4,
    config=Config(**MODEL, warmup=100, steps=1000, monitor_every=25),
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
    sums of dS times the scale, PK = P K, and y what the gradient is a gradient by:

        R = sum_t r[t] y[t]^T PK[t],  G = sum_t y[t]^T dQ[t]

    y is X, what W_Q reads, or V, the values of all heads, which are a linear image of X: the second
    is what `roundscope.torch.watch` has in a model that it does not know. The columns are, summed
    over layers and heads, |R|, |G| and |S| with y = V, then the same with y = X. S is the sum of R
    over looks, in which a look counts 0.9 times the next one: where R has no direction, it stays
    small.
    """
    summed: Any = None

    def look(group: Group, done: int, batches: Batches) -> Array:
        nonlocal summed
        tokens = group.own(batches)[..., :1, :]
        seen = _all_arms(numbers_only(group.settings.config))(
            group.state.params, tokens, group.plans(done)[0], np.int32(done)
        )
        rest, columns = seen
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
