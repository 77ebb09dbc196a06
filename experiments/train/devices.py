"""Where a run's arrays are: on one device, or spread over several.

Config.parts decides which bits a run has, and the number of devices does not: a batch of p parts is
on up to p devices, and each of them takes as many parts as any other, one after the other
(`gpt.step.InParts`). A run without parts has arms spread where the number of devices divides
that of arms. No sum crosses devices then, but bits are those of that many devices: XLA compiles
another program, which adds up in another order (losses agree to 1e-4). XLA cannot take a fused
kernel apart, so arms of a run with engine=pallas are not spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from roundscope.experiments.train.config import PALLAS, Config

AXIS = "d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The layout of states (leading axis: arms) and tokens on devices.

    mesh    None: the default device;  of_arms: whether arms are spread over it, or parts of a batch
    parts   of a batch
    """

    mesh: Mesh | None
    of_arms: bool = False
    parts: int = 1

    @property
    def words(self) -> str:
        """The layout in words, for the log."""
        count = 1 if self.mesh is None else self.mesh.size
        devices = "one device" if count == 1 else f"{count} devices"
        if self.of_arms:
            return f"arms over {devices}"
        return devices if self.parts == 1 else f"batch in {self.parts} parts over {devices}"

    def state(self, x: Any) -> Any:
        """Return x, whose leading axis is that of arms, laid out on the devices."""
        if self.mesh is None:
            return jax.tree.map(jax.numpy.asarray, x)
        return jax.device_put(
            x, NamedSharding(self.mesh, PartitionSpec(AXIS) if self.of_arms else PartitionSpec())
        )

    def alone(self, x: Any) -> Any:
        """Return what `state` returned as one device has it, where every device has all of it."""
        return x if self.of_arms else by_device(x, self.mesh)[0]

    def tokens(self, x: Any) -> Any:
        """Return tokens laid out on the devices; of a batch in parts they stay on the host."""
        if not self.of_arms or self.mesh is None:
            return x
        spec = PartitionSpec(AXIS) if x.ndim == 3 else PartitionSpec()
        return jax.device_put(x, NamedSharding(self.mesh, spec))


def place(config: Config, arms: Sequence[int], there: Sequence[Any] | None = None) -> Place:
    """Return the layout of a group of arms on devices, by default on all that this machine has."""
    there = jax.devices() if there is None else there
    if config.parts is not None and config.parts > 1:
        count = min(config.parts, _power(len(there)))
        return Place(mesh=mesh_of(there[:count]) if count > 1 else None, parts=config.parts)
    if _spreads(config, arms, len(there)):
        return Place(mesh=mesh_of(there), of_arms=True)
    return Place(mesh=None)


def parts_here(config: Config, groups: Sequence[Sequence[int]]) -> int:
    """Return a new run's parts: one for each device, or 1 where arms are spread over them."""
    count = len(jax.devices())
    if all(_spreads(config, arms, count) for arms in groups):
        return 1
    return min(_power(count), config.batch & -config.batch)


def by_device(x: Any, mesh: Mesh | None) -> list[Any]:
    """Return what each device has of arrays that are whole on every device of a mesh."""
    if mesh is None:
        return [x]

    def on(device: int) -> Any:
        return jax.tree.map(lambda leaf: leaf.addressable_shards[device].data, x)

    return [on(device) for device in range(mesh.size)]


def mesh_of(there: Sequence[Any]) -> Mesh:
    """Return devices as a mesh of one axis."""
    return jax.make_mesh((len(there),), (AXIS,), (AxisType.Auto,), devices=there)


def _spreads(config: Config, arms: Sequence[int], count: int) -> bool:
    return count > 1 and config.engine != PALLAS and len(arms) % count == 0


def _power(count: int) -> int:
    """Return the largest power of two that is at most a count."""
    return 1 << count.bit_length() - 1
