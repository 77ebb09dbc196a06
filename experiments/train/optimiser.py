"""AdamW with warm-up, cosine and clipping as in nanoGPT, by optax.

The learning rate is data, so that arms may differ in it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from roundscope.experiments.train.config import Config


def make(config: Config) -> optax.GradientTransformationExtraArgs:
    """Return clip by global norm -> Adam (epsilon 1e-8) -> decay of matrices -> times -lr.

    Its update(grads, opt_state, params, lr=lr) returns (updates, opt_state); lr is a float32
    scalar, that of `rate` for the step.
    """
    clip = [] if config.clip is None else [optax.clip_by_global_norm(config.clip)]
    decay = []
    if config.weight_decay != 0.0:
        decay = [optax.add_decayed_weights(config.weight_decay, mask=is_matrix)]
    return optax.with_extra_args_support(
        optax.chain(
            *clip,
            optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=1e-8),
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


def is_matrix(params: Any) -> Any:
    """Return which parameters decay: all but the scales of norms.

    (In nanoGPT these are tensors of two axes or more; here layers are stacked.)
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: "norm" not in path[-1].key, params)


def _times_minus_lr() -> optax.GradientTransformationExtraArgs:
    def update(
        updates: Any, state: Any, params: Any = None, *, lr: Array, **_: Any
    ) -> tuple[Any, Any]:
        return jax.tree.map(lambda u: -lr * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
