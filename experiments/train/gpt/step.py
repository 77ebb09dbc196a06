"""One step of training for all arms of a GPT at once; `advance(config)` is one executable."""

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roundscope.attention.plans.traced import HeadPlans, is_stochastic, reseeded
from roundscope.experiments.train import step
from roundscope.experiments.train.config import JAX, XLA, Config
from roundscope.experiments.train.devices import AXIS, by_device
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear import LinearPlans, linear_at
from roundscope.experiments.train.gpt.offset import Offset
from roundscope.experiments.train.gpt.plans import Fixed, Tables
from roundscope.experiments.train.step import State, arm

__all__ = ["State", "Step", "advance", "arm", "numbers_only", "plans_at", "shape_of", "start"]

Step = Callable[..., step.Seen]
Data = tuple[Tables | None, Offset | None, LinearPlans | None]  # of an arm


def start(config: Config, arms: int, seeds: Sequence[int] | None = None) -> State:
    """Return arms at step 0, with the config's init_seed, or a seed of weights for each."""
    if seeds is not None and len(seeds) != arms:
        raise ValueError(f"seeds: {len(seeds)} given, must be one for each of the {arms} arms")
    # nothing of attention is in a state
    own = replace(numbers_only(config), plan=JAX, sums="native", engine=XLA, block=None)
    return step.start(_fresh(own), [config.init_seed] * arms if seeds is None else seeds)


@lru_cache(64)
def _fresh(config: Config) -> Callable[[Any], State]:
    return jax.jit(lambda seed: step.fresh(config, model.init(config, jax.random.key(seed))))


def shape_of(config: Config) -> Any:
    """Return the sizes of an arm's state; nothing is computed."""
    return jax.eval_shape(lambda: step.fresh(config, model.init(config, jax.random.key(0))))


def advance(config: Config, sole: Fixed | None = None, mesh: Mesh | None = None) -> Step:
    """Return the jitted step of all arms.

    It maps (state, tokens, plans, lr, offset, linears) to (state, losses (A,), norms (A,)).

    tokens  (B, T + 1) for all arms, or (A, B, T + 1); integers
    plans   tables with a leading axis of arms (`plans.by_arm`), or None for plan = "jax".
            Stochastic roundings get fresh seeds from the step and the layer (`plans_at`)
    sole    the plan of all arms, layers and heads, or one for each layer, where it is part of the
            step, which then has None for plans: always in fused kernels, where `engines.only_plan`
            finds one on XLA's engine
    lr      (A,) float32: the peak of each arm, from which `train.step.rate` computes the step's
    offset, linears   of arms, the error of delta's operand (`gpt.offset`), and what the linear
            layers round (`gpt.linear`); None: another executable, without it
    mesh    the devices of a batch in parts (`InParts`), by default the default one

    Losses and norms (before clipping) are those at the weights before the step. The same state,
    tokens, plans and lr on the same device give the same bits.
    """
    if config.parts is None or config.parts == 1:
        return _advance(numbers_only(config), sole)
    return _in_parts(numbers_only(config), sole, mesh)


def numbers_only(config: Config) -> Config:
    """Return the config without what enters no step, so that runs share executables."""
    own = replace(config, changes=(), data="", data_seed=0, init_seed=0, drift_alarm=None)
    return replace(own, checkpoint_every=1, keep=1, monitor_every=1)


def _loss(config: Config, sole: Fixed | None) -> Callable[..., Array]:
    """Return the loss of an arm; its number is that from which random bits are drawn."""

    def loss(params: Any, tokens: Array, number: Any, *data: Any) -> Array:
        plans, offset, linears = data
        own, events = sole or plans_at(plans, number), linear_at(linears, number)
        offset = offset and offset._replace(step=number)
        return model.loss(params, tokens, own, config, offset, events)

    return loss


@lru_cache(64)
def _in_parts(config: Config, sole: Fixed | None, mesh: Mesh | None) -> Step:
    run = InParts(config, mesh, _loss(config, sole))
    return lambda state, tokens, plans, lr, offset=None, linears=None: run(
        state, tokens, lr, (plans, offset, linears)
    )


@lru_cache(64)
def _advance(config: Config, sole: Fixed | None) -> Step:
    loss = _loss(config, sole)

    def one(state: State, tokens: Array, lr: Array, data: Data) -> step.Seen:
        return step.one(config, state, lr, lambda params: loss(params, tokens, state.step, *data))

    def all_arms(
        state: State, tokens: Array, plans: Any, lr: Array, offset: Any = None, linears: Any = None
    ) -> step.Seen:
        axes = 0, 0 if tokens.ndim == 3 else None, 0, 0
        return jax.vmap(one, in_axes=axes)(state, tokens, lr, (plans, offset, linears))

    return step.compiled(all_arms)


def plans_at(plans: Tables | None, step: Any) -> Tables | None:
    """Return the plans (layers, heads, ...) of one step, with seeds for stochastic roundings.

    These are of (their own seed, step, layer). Heads and batch entries have random streams of their
    own already, and arms differ by the seeds of their plans, never by their place: an arm alone and
    among others draws the same bits. Plans that draw none are returned as they are.
    """
    if plans is None:
        return None
    layers = plans.table.shape[0] if isinstance(plans, HeadPlans) else len(plans)
    first = jnp.asarray(step).astype(jnp.uint32) * np.uint32(layers)
    if isinstance(plans, HeadPlans):
        return _drawn(plans, (first + jnp.arange(layers, dtype=jnp.uint32))[:, None])
    return tuple(_drawn(own, (first + np.uint32(n))[None]) for n, own in enumerate(plans))


def _drawn(plans: HeadPlans, number: Array) -> HeadPlans:
    return reseeded(plans, number) if is_stochastic(plans.like) else plans


T = TypeVar("T")
ALL, OWN = PartitionSpec(), PartitionSpec(AXIS)


class InParts:
    """The step of all arms for a batch of config.parts parts.

    Args:
        config: Of the run.
        mesh: A power of two of devices, at most as many as parts; None for the default device.
        loss: Of one arm and part: (parameters, tokens, number, *data). The number is step x parts +
            part, so that no two parts of a run have the same random bits.
    """

    def __init__(self, config: Config, mesh: Mesh | None, loss: Callable[..., Array]) -> None:
        self.mesh, self.parts = mesh, config.parts or 1
        self.count = 1 if mesh is None else mesh.size
        self._known: set[Hashable] = set()
        self._threads = ThreadPoolExecutor(self.count)

        def gradients(state: State, tokens: Array, part: Any, data: Any) -> Any:
            def one(state: State, tokens: Array, data: Any) -> Any:
                number = state.step * self.parts + part
                return jax.value_and_grad(loss)(state.params, tokens, number, *data)

            own_batch = 0 if tokens.ndim == 3 else None
            return jax.vmap(one, in_axes=(0, own_batch, 0))(state, tokens, data)

        def update(state: State, lr: Array, found: Any) -> step.Seen:
            return jax.vmap(partial(step.updated, config))(state, lr, *found)

        self._gradients, self._update = step.compiled(gradients), step.compiled(update)
        self._add = step.compiled(partial(jax.tree.map, jnp.add))
        over = partial(_mean, self.count, self.parts)
        self._mean = step.compiled(
            over
            if mesh is None
            else jax.shard_map(over, mesh=mesh, in_specs=OWN, out_specs=ALL, check_vma=False)
        )

    def __call__(self, state: State, tokens: Any, lr: Array, data: tuple[Any, ...]) -> step.Seen:
        """Return the state after a step, losses (A,) and gradient norms (A,).

        State, lr and data are of arms and on every device; tokens (B, T + 1) or (A, B, T + 1) are
        on the host.
        """
        split, turns, mesh = _split(tokens, self.parts), self.parts // self.count, self.mesh
        each = by_device((state, lr, data), mesh)
        leaves, form = jax.tree.flatten((state, data))
        key = form, tuple(np.shape(x) for x in leaves)

        def first(device: int) -> Any:
            state, _, data = each[device]
            own = range(device * turns, (device + 1) * turns)
            found = (self._gradients(state, split[n], np.int32(n), data) for n in own)
            return total(found, self._add)

        def last(device: int) -> step.Seen:
            state, lr, _ = each[device]
            seen: step.Seen = self._update(state, lr, means[device])
            return seen

        sums = self._on_each(("gradients", key), first)
        means = by_device(self._mean(self._joined(sums, OWN)), mesh)
        done: step.Seen = self._joined(self._on_each(("update", key), last), ALL)
        return done

    def _on_each(self, key: Hashable, run: Callable[[int], Any]) -> list[Any]:
        """Return run(device) of all, in threads once each program has been compiled."""
        at = self._threads.map if self.count > 1 and key in self._known else map
        found = list(at(run, range(self.count)))
        self._known.add(key)
        return found

    def _joined(self, each: Sequence[Any], spec: PartitionSpec) -> Any:
        """Return arrays of devices as one over the mesh: each is all of it, or its own stretch."""
        if self.mesh is None:
            return each[0]
        sharding, longer = NamedSharding(self.mesh, spec), self.count if spec == OWN else 1

        def join(*own: Array) -> Array:
            shape = (own[0].shape[0] * longer, *own[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, sharding, list(own))

        return jax.tree.map(join, *each)


def total(parts: Iterable[T], add: Callable[[T, T], T]) -> T:
    """Return the sum of a power of two of parts: of neighbors, then of neighboring sums."""
    kept: list[T] = []
    for number, x in enumerate(parts, 1):
        while number % 2 == 0:
            x, number = add(kept.pop(), x), number // 2
        kept.append(x)
    return kept.pop()


def _mean(count: int, parts: int, sums: Any) -> Any:
    """Return the mean over parts on each device, from the sum of each device's own."""

    def over(x: Array) -> Array:
        stretches = jnp.pad(x.reshape(-1), (0, -x.size % count)).reshape(count, -1)
        mine: Array = total(lax.all_to_all(stretches, AXIS, 0, 0), operator.add)
        whole: Array = lax.all_gather(mine, AXIS, tiled=True)
        return whole[: x.size].reshape(x.shape)

    def mean(x: Array) -> Array:
        # exact, as parts is a power of two
        return jnp.asarray((x if count == 1 else over(x)) * jnp.float32(1 / parts))

    return jax.tree.map(mean, sums)


def _split(tokens: Any, parts: int) -> np.ndarray:
    """Return the parts of a batch along a first axis; each has consecutive sequences."""
    tokens = np.asarray(tokens)
    shape = (*tokens.shape[:-2], parts, -1, tokens.shape[-1])
    return np.moveaxis(tokens.reshape(shape), -3, 0)
