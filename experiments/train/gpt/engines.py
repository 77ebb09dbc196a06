"""The engines of a training's attention, what each of them refuses, and whose plan is no data.

Beside XLA's there are fused kernels, whose plan is part of the executable, and cuDNN. XLA's plans
are data, so that many share an executable; one plan alone may be part of it, which is faster.
"""

from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.attention import Plan
from roundscope.attention.plans.traced import is_stochastic
from roundscope.experiments.train.config import CUDNN, PALLAS, XLA, Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.offset import Wrongs
from roundscope.experiments.train.gpt.plans import Fixed, Plans
from roundscope.tools.errors import UsageError, bad

TILES = (16, 32, 64, 128)  # larger ones have more threads, or shared memory, than a GPU


def has_device(config: Config) -> bool:
    """Return whether this machine has the device that the engine runs on."""
    return config.engine == XLA or jax.default_backend() == "gpu"


def check_engine(config: Config) -> None:
    """Raise UsageError for an engine that this machine lacks, or that does not take the model."""
    if not has_device(config):
        raise bad("engine", config.engine, "needs a GPU, and JAX sees none; give engine=xla")
    if config.engine == CUDNN:
        _try(config, None)


@lru_cache(64)
def fused_plan(config: Config, plans: Plans, wrongs: Wrongs | None) -> Fixed:
    """Return the plan of all, or of each layer; UsageError for what kernels do not do."""
    own = tuple(layer[0] for layer in plans)
    differ = any(other != layer[0] for layer in plans for other in layer)
    heads = "a fused kernel has one plan, but heads of a layer differ; change all of them, or"
    bits = "random bits of a fused kernel would be the same at every step;"
    offset = "an offset of what delta reads is data, which fused kernels do not take;"
    refused = {offset: wrongs is not None, heads: differ, bits: any(map(is_stochastic, own))}
    for why, is_so in refused.items():
        if is_so:
            raise bad("engine", PALLAS, f"{why} give engine=xla")
    if config.tile not in TILES:
        sizes = f"{', '.join(map(str, TILES[:-1]))} or {TILES[-1]}"
        told = f"tiles of fused kernels have {sizes} rows, not {config.tile}"
        raise bad("block", config.block, f"{told}; give block=64, and no shorter context")
    for plan in dict.fromkeys(own):
        _try(config, plan)
    return own if len(set(own)) > 1 else own[0]


def only_plan(config: Config, arms: Sequence[Plans | None], wrongs: Wrongs | None) -> Plan | None:
    """Return the plan of all arms, layers and heads that the XLA engine may compile into a step.

    The step has the same bits as with the plan as data. None where there is no such plan: where
    some differ; where a step needs its plan as data, since random bits are drawn from the step's
    number, or since delta reads an error; and on a GPU, whose own order of native sums may depend
    on the program around them.
    """
    plans = {plan for arm in arms for layer in arm or () for plan in layer}
    is_possible = config.engine == XLA and jax.default_backend() == "cpu"
    if not is_possible or len(plans) != 1 or wrongs is not None:
        return None
    (plan,) = plans
    return None if is_stochastic(plan) else plan


def _try(config: Config, plan: Plan | None) -> None:
    """Trace attention and its derivative without numbers: what they refuse, they refuse here."""
    rows = config.batch // (config.parts or 1)
    shape = rows, config.context, config.heads, config.head_width
    x = jax.ShapeDtypeStruct(shape, jnp.float32)

    def total(q: Array, k: Array, v: Array) -> Array:
        return model.attended(q, k, v, plan, config).sum()

    try:
        jax.eval_shape(jax.grad(total, (0, 1, 2)), x, x, x)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"engine {config.engine}: {error}") from None
