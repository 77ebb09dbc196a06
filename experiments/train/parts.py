"""A step whose batch is in parts: gradients of each, added in an order that no device changes.

Each device runs the programs of one device, on its own arrays: those of gradients, at the shapes of
one part, and that of the optimizer. A program that spans devices is another one to XLA, which fuses
otherwise even where no number crosses devices. Only sums go over devices: of neighbors, then of
neighboring sums, for four parts (g0 + g1) + (g2 + g3). As the numbers of parts and devices are
powers of two, and a device has consecutive parts, its own sum is one of these. So any number of
devices has the bits of one.

In a sum over devices each adds a stretch of all numbers: it gets the stretch from every device and
returns the total to all. As for any such sum, every device sends about twice its gradients.
"""

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roundscope.experiments.train import step
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.devices import AXIS, by_device
from roundscope.experiments.train.state import State

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
        """Return run(device) of all devices.

        A thread for each launches its programs; what is compiled first is compiled in turn.
        """
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
    """Return the sum of a power of two of parts: of neighbors, then of neighboring sums.

    Each sum is made once its parts are there, so that few are kept.
    """
    kept: list[T] = []
    for number, x in enumerate(parts, 1):
        while number % 2 == 0:
            x, number = add(kept.pop(), x), number // 2
        kept.append(x)
    return kept.pop()


def _mean(count: int, parts: int, sums: Any) -> Any:
    """Return the mean over parts on each device, from the sum of each device's own."""

    def mean(x: Array) -> Array:
        # exact, as parts is a power of two
        return jnp.asarray(_over(count, x) * jnp.float32(1 / parts))

    return jax.tree.map(mean, sums)


def _over(count: int, x: Array) -> Array:
    """Return the sum of x over devices, on each of them."""
    if count == 1:
        return x
    stretches = jnp.pad(x.reshape(-1), (0, -x.size % count)).reshape(count, -1)
    mine: Array = total(lax.all_to_all(stretches, AXIS, 0, 0), operator.add)
    whole: Array = lax.all_gather(mine, AXIS, tiled=True)
    return whole[: x.size].reshape(x.shape)


def _split(tokens: Any, parts: int) -> np.ndarray:
    """Return the parts of a batch along a first axis; each has consecutive sequences."""
    tokens = np.asarray(tokens)
    shape = (*tokens.shape[:-2], parts, -1, tokens.shape[-1])
    return np.moveaxis(tokens.reshape(shape), -3, 0)
