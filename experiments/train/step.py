"""One step of one arm, whatever the model: gradients, clipping, AdamW.

`compiled` makes an executable of many.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import Array

from roundscope.experiments.train import optimiser
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.state import State
from roundscope.tools.compile_cache import deterministic

Seen = tuple[State, Array, Array]


def one(
    config: Config,
    state: State,
    lr: Array,
    loss: Callable[[Any], Array],
    trained: Callable[[Any], Any] = lambda updates: updates,
) -> Seen:
    """Return an arm after a step, its loss, and the norm of its gradients before clipping.

    Loss and norm are those at the weights before the step.

    config   the optimizer's numbers
    lr       the peak, from which `optimiser.rate` computes the step's rate
    loss     a function of the parameters
    trained  returns gradients, and what is added to the weights, as used: 0 where a parameter is
             fixed
    """
    return updated(config, state, lr, *jax.value_and_grad(loss)(state.params), trained)


def updated(
    config: Config,
    state: State,
    lr: Array,
    value: Array,
    gradients: Any,
    trained: Callable[[Any], Any] = lambda updates: updates,
) -> Seen:
    """Return an arm after a step whose loss and gradients are known; arguments as for `one`."""
    gradients = trained(gradients)
    norm = optax.tree.norm(gradients)
    now = optimiser.rate(config, state.step, lr)
    with jax.numpy_dtype_promotion("standard"):  # optax is written for it
        updates, opt_state = optimiser.make(config).update(
            gradients, state.opt_state, state.params, lr=now
        )
    params = optax.apply_updates(state.params, trained(updates))
    return State(params=params, opt_state=opt_state, step=state.step + 1), value, norm


def compiled(all_arms: Callable[..., Seen]) -> Callable[..., Seen]:
    """Return the step of all arms as one executable: same inputs and device give the same bits."""
    return jax.jit(all_arms, compiler_options=deterministic())
