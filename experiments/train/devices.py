"""Where a run's arrays are: on one device, or spread over all of them.

If the number of devices divides that of arms, arms are spread, and no sum crosses devices.
Otherwise the batch is spread if it can be, and gradients are sums over devices. A run has the same
bits every time on as many devices of one kind. With another number of devices it has other bits,
even with its arms spread: XLA compiles another program, which adds up in another order (losses
agree to 1e-4). XLA cannot take a fused kernel apart, so a run with engine=pallas has one device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roundscope.experiments.train.config import PALLAS, Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The layout of states (leading axis: arms) and tokens on devices.

    Mesh None: the default device.
    """

    mesh: Mesh | None
    of_arms: bool = False

    @property
    def words(self) -> str:
        """The layout in words, for the log."""
        if self.mesh is None:
            return "one device"
        return f"{'arms' if self.of_arms else 'batch'} over {self.mesh.size} devices"

    def state(self, x: Any) -> Any:
        """Return x, whose leading axis is that of arms, laid out on the devices."""
        if self.mesh is None:
            return jax.tree.map(jax.numpy.asarray, x)
        return jax.device_put(
            x, NamedSharding(self.mesh, PartitionSpec("d") if self.of_arms else PartitionSpec())
        )

    def tokens(self, x: Any) -> Any:
        """Return tokens (B, T + 1), or (A, B, T + 1), laid out on the devices."""
        if self.mesh is None:
            return x
        has_arms = x.ndim == 3
        if self.of_arms:
            spec = PartitionSpec("d") if has_arms else PartitionSpec()
        else:
            spec = PartitionSpec(None, "d") if has_arms else PartitionSpec("d")
        return jax.device_put(x, NamedSharding(self.mesh, spec))


def place(config: Config, arms: Sequence[int]) -> Place:
    """Return the layout of a group of arms on the devices that this machine has."""
    there = jax.devices() if config.engine != PALLAS else jax.devices()[:1]
    if len(there) > 1 and len(arms) % len(there) == 0:
        return Place(mesh=Mesh(there, ("d",)), of_arms=True)
    most = max(n for n in range(1, len(there) + 1) if config.batch % n == 0)
    return Place(mesh=Mesh(there[:most], ("d",)) if most > 1 else None)
