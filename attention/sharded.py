"""Attention over several devices: batch entries and heads know nothing of each other, so each
device takes its own, and no bit changes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from roundscope.attention.api import Engine, attend
from roundscope.attention.arguments import check_shapes, plan_given
from roundscope.attention.plans.plan import Plan
from roundscope.emu.rounding.modes import RoundingMode

BATCH, HEADS = "batch", "heads"


def attend_sharded(
    q: Array,
    k: Array,
    v: Array,
    *,
    mesh: Mesh,
    plan: Plan | str,
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    engine: Engine = "xla",
) -> Array:
    """`attend`, batch entries along the mesh's axis "batch" and heads along its axis "heads": the
    bits of one device.

    mesh  of these two axes: jax.make_mesh((2, 2), ("batch", "heads")). The other arguments as
          `attend`; under pallas on GPUs

    Returns (B, T, N, H), sharded like q. Differentiable; may be inside jit. Raises ValueError for a
    mesh with other axes, sizes that it does not divide, and a plan that draws random bits: a device
    numbers its own heads from 0, and would draw those of another.
    """
    check_shapes(q, k, v)
    plan = plan_given(plan)
    _check(mesh, plan, q, k)
    own: Callable[..., Any] = partial(
        attend,
        plan=plan,
        block_q=block_q,
        block_k=block_k,
        scale=scale,
        is_causal=is_causal,
        engine=engine,
    )
    spec = PartitionSpec(BATCH, None, HEADS, None)
    if (
        AxisType.Explicit in mesh.axis_types
    ):  # as jax.make_mesh makes it: then nothing moves unasked
        q, k, v = (jax.reshard(x, NamedSharding(mesh, spec)) for x in (q, k, v))
    found: Array = jax.shard_map(
        own, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )(q, k, v)
    return found


def _check(mesh: Mesh, plan: Plan, q: Array, k: Array) -> None:
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f'mesh={mesh!r}: give a mesh of devices, such as jax.make_mesh((2, 2), ("{BATCH}",'
            f' "{HEADS}"))'
        )
    if set(mesh.axis_names) != {BATCH, HEADS}:
        raise ValueError(
            f'mesh: axes {mesh.axis_names}, must be named "{BATCH}" and "{HEADS}":'
            f' jax.make_mesh((2, 2), ("{BATCH}", "{HEADS}"))'
        )
    for what, size, axis in (("q: batch", q.shape[0], BATCH), ("k: heads", k.shape[2], HEADS)):
        if size % mesh.shape[axis]:
            raise ValueError(
                f"{what} {size}, must be a multiple of the {mesh.shape[axis]} devices along"
                f" '{axis}'"
            )
    steps = [a.step for a in plan.accumulators]
    if any(r.mode is RoundingMode.STOCHASTIC for r in (*plan.roundings, *steps)):
        raise ValueError(
            f"plan={plan.name}: random bits depend on a head's number, which each device counts for"
            " itself; use attend"
        )
