"""Arms in training (`State`), their optimizer, and one step of one arm, whatever the model.

A model is defined by its `init` and its `loss`. The optimizer is AdamW with warm-up, cosine and
clipping as in nanoGPT, by optax; its learning rate is data, so that arms may differ in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from roundscope.experiments.train.config import MUON, Config
from roundscope.tools.compile_cache import deterministic


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
    opt_state = optimiser(config).init(params)
    return State(params=params, opt_state=opt_state, step=jnp.zeros((), jnp.int32))


def start(one: Callable[[Any], State], seeds: Sequence[int]) -> State:
    """Return arms at step 0, each by `one(seed)` alone, whatever arms are beside it."""
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


def optimiser(config: Config) -> optax.GradientTransformationExtraArgs:
    """Return clip by global norm -> Adam (epsilon 1e-8) -> decay of matrices -> times -lr.

    With Muon, that takes the place of Adam for the matrices of a GPT's layers.

    Its update(grads, opt_state, params, lr=lr) returns (updates, opt_state); lr is a float32
    scalar, that of `rate` for the step.
    """
    clip = [] if config.clip is None else [optax.clip_by_global_norm(config.clip)]
    decay = []
    if config.weight_decay != 0.0:
        decay = [optax.add_decayed_weights(config.weight_decay, mask=is_matrix)]
    steps = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=1e-8)
    if (
        getattr(config, "optimizer", "") == MUON
    ):  # its own rate is -1, so that it adds what Adam does
        steps = optax.contrib.muon(
            -1.0,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            muon_weight_dimension_numbers=matrices,
            consistent_rms=0.2,
        )
    return optax.with_extra_args_support(
        optax.chain(
            *clip,
            steps,
            *decay,
            _times_minus_lr(),
        )
    )


def rate(config: Config, step: Array, peak: Array) -> Array:
    """Return the learning rate of a step (int32, the first is 0) for an arm whose peak is `peak`.

    It is (step + 1) / (warmup + 1) of the peak, then a cosine that ends at decay_steps at min_lr /
    lr of the peak, and stays there.
    """
    end = jnp.float32(config.min_lr / config.lr)
    t = step.astype(jnp.float32)
    span = jnp.float32(max(1, config.cosine_end - config.warmup))
    through = jnp.clip((t - jnp.float32(config.warmup)) / span, jnp.float32(0.0), jnp.float32(1.0))
    cosine = end + jnp.float32(0.5) * (
        jnp.float32(1.0) + jnp.cos(jnp.float32(jnp.pi) * through)
    ) * (jnp.float32(1.0) - end)
    warm = (t + jnp.float32(1.0)) / jnp.float32(config.warmup + 1)
    return peak * jnp.where(step < config.warmup, warm, cosine)


# axes of the matrices of a GPT's layers: what goes in, what comes out; the others are of matrices
MATRICES = {
    "qkv": ((1,), (3, 4)),
    "proj": ((1, 2), (3,)),
    "up": ((1,), (2,)),
    "down": ((1,), (2,)),
    "gate": ((1,), (2, 3)),
    "inner": ((1,), (2,)),
}


def matrices(params: Any) -> Any:
    """Return the axes of the parameters that Muon trains, None for the others."""

    def of(path: Any, _: Any) -> optax.contrib.MuonDimensionNumbers | None:
        axes = MATRICES.get(path[-1].key)
        return None if axes is None else optax.contrib.MuonDimensionNumbers(*axes)

    return jax.tree_util.tree_map_with_path(of, params)


def is_matrix(params: Any) -> Any:
    """Return which parameters decay: all but the scales of norms."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "norm" not in path[-1].key, params)


def _times_minus_lr() -> optax.GradientTransformationExtraArgs:
    def update(
        updates: Any, state: Any, params: Any = None, *, lr: Array, **_: Any
    ) -> tuple[Any, Any]:
        return jax.tree.map(lambda u: -lr * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


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
    lr       the peak, from which `rate` computes the step's rate
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
    now = rate(config, state.step, lr)
    with jax.numpy_dtype_promotion("standard"):  # optax is written for it
        updates, opt_state = optimiser(config).update(
            gradients, state.opt_state, state.params, lr=now
        )
    params = optax.apply_updates(state.params, trained(updates))
    return State(params=params, opt_state=opt_state, step=state.step + 1), value, norm


def compiled(all_arms: Callable[..., Seen]) -> Callable[..., Seen]:
    """Return the step of all arms as one executable: same inputs and device give the same bits."""
    return jax.jit(all_arms, compiler_options=deterministic())
