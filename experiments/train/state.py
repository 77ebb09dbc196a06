"""`State`: arms in training, how they begin, and how some of them are selected.

A model is defined by its `init` and its `loss`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.experiments.train import optimiser
from roundscope.experiments.train.config import Config


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Arms in training, a pytree whose leaves have a leading axis of arms.

    step (A,) int32: the number of steps done.
    """

    params: Any
    opt_state: Any
    step: Any


def fresh(config: Config, params: Any) -> State:
    """Return one arm at step 0, without an axis of arms; config: the optimizer's numbers."""
    opt_state = optimiser.make(config).init(params)
    return State(params=params, opt_state=opt_state, step=jnp.zeros((), jnp.int32))


def start(one: Callable[[Any], State], seeds: Sequence[int]) -> State:
    """Return arms at step 0, each made by `one(seed)`.

    The weights of an arm do not depend on the arms beside it.
    """
    return stacked([one(np.uint32(seed)) for seed in seeds])


def stacked(arms: Sequence[State]) -> State:
    """Return states without an axis of arms as one state with it."""
    state: State = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *arms)
    return state


def arm(state: Any, number: int) -> Any:
    """Return one arm, without the axis."""
    return jax.tree.map(lambda leaf: leaf[number], state)


def pick(state: Any, arms: Sequence[int]) -> Any:
    """Return the states of some arms, which may repeat."""
    return jax.tree.map(lambda leaf: leaf[np.asarray(arms)], state)
