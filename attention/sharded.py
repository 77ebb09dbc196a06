"""Attention over several devices, with the bits of one.

Batch entries and heads do not depend on each other, so each device computes some of them, and no
bit changes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from roundscope.attention.api import attend
from roundscope.attention.arguments import check_shapes, plan_given
from roundscope.attention.engines.protocol import Name as Engine
from roundscope.attention.inputs.alignment import Alignment
from roundscope.attention.plans.plan import Plan
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.emu.shown import shown

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
    alignment: Alignment | None = None,
    engine: Engine = "xla",
) -> Array:
    """Return `attend` computed over several devices, with the bits of one device.

    Batch entries are spread along the mesh's axis "batch", heads along its axis "heads". The result
    is differentiable with respect to q, k and v, and the call may be inside jit.

    Args:
        q: (B, T, N, H), JAX, as for `attend`.
        k: (B, S, G, H), with N a multiple of G.
        v: (B, S, G, Hv).
        mesh: The devices, with the two axes "batch" and "heads", in either order: for example
            jax.make_mesh((2, 2), ("batch", "heads")). Their sizes must divide B and G.
        plan: A `Plan` or the name of a preset, as for `attend`, without stochastic rounding. Each
            device numbers its heads from 0, so different devices would draw the same random bits.
        block_q: Rows of a query tile.
        block_k: Rows of a key tile.
        scale: The factor of the scores, 1 / sqrt(H) by default.
        is_causal: Whether query t sees only keys s <= t.
        alignment: As for `attend`.
        engine: "xla", or "pallas" for the fused kernels, with a mesh of GPUs.

    Returns:
        The output (B, T, N, Hv), whose axes B and N are sharded over the mesh. It is float64 for
        float64 inputs, else float32.

    Raises:
        TypeError: `mesh` is not a mesh, or an argument is of a type that `attend` refuses.
        ValueError: The mesh has other axes, its sizes do not divide B and G, the plan draws random
            bits, or an argument has a value that `attend` refuses.

    Example:
        >>> import jax
        >>> from roundscope.attention import attend
        >>> mesh = jax.make_mesh((1, 1), ("batch", "heads"))  # as many devices as there are
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 8, 4, 16))
        >>> tiles = {"block_q": 4, "block_k": 4}
        >>> out = attend_sharded(q, k, v, mesh=mesh, plan="fa2-bf16", **tiles)
        >>> out.shape, bool((out == attend(q, k, v, plan="fa2-bf16", **tiles)).all())
        ((2, 8, 4, 16), True)
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
        alignment=alignment,
        engine=engine,
    )
    spec = PartitionSpec(BATCH, None, HEADS, None)
    # on a mesh with explicit axes, which jax.make_mesh makes, JAX moves no array by itself
    if AxisType.Explicit in mesh.axis_types:
        q, k, v = (jax.reshard(x, NamedSharding(mesh, spec)) for x in (q, k, v))
    found: Array = jax.shard_map(
        own, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )(q, k, v)
    return found


def _check(mesh: Mesh, plan: Plan, q: Array, k: Array) -> None:
    """Raise TypeError or ValueError for a mesh or a plan with which bits would differ."""
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f'mesh={shown(mesh)}: give a mesh of devices, such as jax.make_mesh((2, 2), ("{BATCH}",'
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
