"""Attention of a run in fused kernels (`engine=pallas`): its plan is part of the executable, one for all layers and heads of an arm."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp

from attention import Plan
from attention.traced_plan import is_stochastic
from experiments.errors import UsageError, bad
from experiments.train import model
from experiments.train.config import PALLAS, Config
from experiments.train.interventions import Plans
from experiments.train.offset import Wrongs


def check_device(config: Config) -> None:
    """Raises UsageError for an engine that this machine has not."""
    if config.engine != "xla" and jax.default_backend() != "gpu":
        raise bad("engine", config.engine, "needs a GPU, and JAX sees none; give engine=xla")


@lru_cache(64)
def fused_plan(config: Config, plans: Plans, wrongs: Wrongs | None) -> Plan:
    """The plan of all layers and heads. Raises UsageError for what fused kernels do not do, before anything is compiled."""
    if wrongs is not None:
        raise bad("engine", PALLAS, "an offset of what delta reads is data, which fused kernels do not take; give engine=xla")
    plan = plans[0][0]
    if any(other != plan for layer in plans for other in layer):
        raise bad("engine", PALLAS, "a fused kernel has one plan, but layers or heads differ; change all of them, or give engine=xla")
    if is_stochastic(plan):
        raise bad("engine", PALLAS, "random bits of a fused kernel would be the same at every step; give engine=xla")
    x = jax.ShapeDtypeStruct((1, config.context, config.heads, config.head_width), jnp.float32)
    try:
        jax.eval_shape(partial(model.attended, plans=plan, config=config), x, x, x)
    except ValueError as error:
        raise UsageError(f"engine {PALLAS}: {error}") from None
    return plan
