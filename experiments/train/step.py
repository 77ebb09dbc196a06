"""One step of training for all arms at once: gradients, clipping, AdamW; `advance(config)` is one executable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from roundscope.attention import Plan
from roundscope.attention.traced_plan import HeadPlans, is_stochastic, reseeded
from roundscope.experiments.compile_cache import deterministic
from roundscope.experiments.train import optimiser
from roundscope.experiments.train.config import JAX, XLA, Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear_plans import LinearPlans, linear_at
from roundscope.experiments.train.gpt.offset import Offset

Step = Callable[..., tuple["State", Array, Array]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Arms in training, a pytree; every leaf has a leading axis of arms. step (A,) int32: steps done."""

    params: Any
    opt_state: Any
    step: Any


def start(config: Config, arms: int, seeds: Sequence[int] | None = None) -> State:
    """Arms at step 0; with the config's init_seed, or a seed of weights for each."""
    if seeds is not None and len(seeds) != arms:
        raise ValueError(f"seeds: {len(seeds)} given, must be one for each of the {arms} arms")
    fresh = _fresh(replace(numbers_only(config), plan=JAX, sums="native", engine=XLA, block=None))  # nothing of attention is in a state
    return stacked([fresh(np.uint32(seed)) for seed in ([config.init_seed] * arms if seeds is None else seeds)])


def stacked(arms: Sequence[State]) -> State:
    """States without an axis of arms, as arms of one."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *arms)


def arm(state: State, number: int) -> State:
    """One arm, without the axis."""
    return jax.tree.map(lambda leaf: leaf[number], state)


@lru_cache(64)
def _fresh(config: Config) -> Callable[[Any], State]:
    """A state without an axis of arms from a seed: arm by arm, so that an arm's weights do not depend on how many there are."""

    def fresh(seed: Any) -> State:
        params = model.init(config, jax.random.key(seed))
        return State(params=params, opt_state=optimiser.make(config).init(params), step=jnp.zeros((), jnp.int32))

    return jax.jit(fresh)


def advance(config: Config, fused: Plan | None = None) -> Step:
    """The jitted step: (state, tokens, plans, lr, offset, linears) -> (state, losses (A,), gradient norms (A,)).

    tokens  (B, T + 1) for all arms, or (A, B, T + 1); integers
    plans   tables with a leading axis of arms (`plans.by_arm`), or None for plan = "jax". Stochastic roundings get fresh
            seeds from the step and the layer (`plans_at`)
    fused   the plan of all arms, layers and heads where fused kernels run it: part of the step, which then has None for plans
    lr      (A,) float32: the peak of each arm; `optimiser.rate` makes the step's own of it
    offset  of arms, what delta's operand is off by (`experiments.train.gpt.offset`), or None: another executable, without it
    linears of arms, what the linear layers round (`experiments.train.gpt.linear_plans`), or None: another executable, without it

    Losses and norms (before clipping) are those at the weights that came in. Same state, tokens, plans and lr, same device: same bits.
    """
    return _advance(numbers_only(config), fused)


def numbers_only(config: Config) -> Config:
    """The config without what does not enter a step, so that runs that differ in it share an executable."""
    return replace(config, changes=(), data="", data_seed=0, init_seed=0, checkpoint_every=1, keep=1, monitor_every=1)


@lru_cache(64)
def _advance(config: Config, fused: Plan | None) -> Step:
    def all_arms(
        state: State, tokens: Array, plans: HeadPlans | None, lr: Array, offset: Offset | None = None, linears: LinearPlans | None = None
    ) -> tuple[State, Array, Array]:
        own_batch = 0 if tokens.ndim == 3 else None
        one = lambda s, t, p, r, o, e: _one(config, s, t, fused or plans_at(p, s.step), r, o, e)  # noqa: E731
        return jax.vmap(one, in_axes=(0, own_batch, 0, 0, 0, 0))(state, tokens, plans, lr, offset, linears)

    return jax.jit(all_arms, compiler_options=deterministic())


def _one(
    config: Config, state: State, tokens: Array, plans: model.Planned, lr: Array, offset: Offset | None, linears: LinearPlans | None
) -> tuple[State, Array, Array]:
    offset = offset and offset._replace(step=state.step)
    loss, gradients = jax.value_and_grad(model.loss)(state.params, tokens, plans, config, offset, linear_at(linears, state.step))
    norm = optax.tree.norm(gradients)
    now = optimiser.rate(config, state.step, lr)
    with jax.numpy_dtype_promotion("standard"):  # optax is written for it
        updates, opt_state = optimiser.make(config).update(gradients, state.opt_state, state.params, lr=now)
    params = optax.apply_updates(state.params, updates)
    return State(params=params, opt_state=opt_state, step=state.step + 1), loss, norm


def plans_at(plans: HeadPlans | None, step: Any) -> HeadPlans | None:
    """The plans (layers, heads, ...) of one step: stochastic roundings get seeds of (their own seed, step, layer).

    Heads and batch entries have random streams of their own already, and arms are told apart by the seeds of their plans,
    never by their place: an arm alone and among others draws the same bits. Plans that draw none come back as they are.
    """
    if plans is None or not is_stochastic(plans.like):
        return plans
    layers = plans.table.shape[0]
    number = jnp.asarray(step).astype(jnp.uint32) * np.uint32(layers) + jnp.arange(layers, dtype=jnp.uint32)
    return reseeded(plans, number[:, None])
