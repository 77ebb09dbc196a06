"""Where a run's arrays lie: on one device, or spread over all of them.

Arms that the number of devices divides are spread: no sum crosses devices. Else the batch is, if it
can be: gradients are then sums over devices. A run has the same bits every time on as many devices
of one kind. It has not those of another number of devices, even with its arms spread: XLA compiles
another program, which adds up in another order (losses agree to 1e-4). XLA cannot take a fused
kernel apart: a run with engine=pallas has one device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roundscope.experiments.train.config import PALLAS, Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How states (leading axis: arms) and tokens are laid out; None: on the default device."""

    mesh: Mesh | None
    of_arms: bool = False

    @property
    def words(self) -> str:
        """For the record."""
        if self.mesh is None:
            return "one device"
        return f"{'arms' if self.of_arms else 'batch'} over {self.mesh.size} devices"

    def state(self, x: Any) -> Any:
        """Anything with a leading axis of arms."""
        if self.mesh is None:
            return jax.tree.map(jax.numpy.asarray, x)
        return jax.device_put(
            x, NamedSharding(self.mesh, PartitionSpec("d") if self.of_arms else PartitionSpec())
        )

    def tokens(self, x: Any) -> Any:
        """(B, T + 1), or (A, B, T + 1)."""
        if self.mesh is None:
            return x
        own = x.ndim == 3
        spec = (
            PartitionSpec("d")
            if self.of_arms and own
            else PartitionSpec()
            if self.of_arms
            else PartitionSpec(*([None] * own), "d")
        )
        return jax.device_put(x, NamedSharding(self.mesh, spec))


def place(config: Config, arms: Sequence[int]) -> Place:
    """The layout of a group of arms on the devices that are there."""
    found = jax.devices() if config.engine != PALLAS else jax.devices()[:1]
    if len(found) > 1 and len(arms) % len(found) == 0:
        return Place(mesh=Mesh(found, ("d",)), of_arms=True)
    most = max(n for n in range(1, len(found) + 1) if config.batch % n == 0)
    return Place(mesh=Mesh(found[:most], ("d",)) if most > 1 else None)
