"""The forward by warp groups that take turns, in a kernel that Mosaic GPU compiles for Hopper.

A program owns 128 queries of a head. Two warp groups have 64 of them each: while one computes
exponentials, the tensor core multiplies for the other. A third one copies the key tiles to shared
memory, some tiles ahead. The equations are those of `attention.algorithm`, and every bit is that of
the kernel in `forward`, which Triton compiles. `fits` says which calls have this kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.tiles import seen_tiles, whole_tiles
from roundscope.attention.engines.layout import from_heads, to_heads
from roundscope.attention.events.hook import Events
from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup, events_at, tile_at
from roundscope.emu.backends.kernels.held import FP32, Held
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import TYPES, kernel_ops
from roundscope.emu.backends.kernels.warpgroups.machine import ROWS, Factor, warpgroup_machine
from roundscope.emu.backends.kernels.warpgroups.registers import MATRIX, placed

GROUPS = 2  # warp groups that compute
REGISTERS, FEW = 232, 40  # of a thread that computes, and of one that copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The shared memory of a program, and its barriers.

    q         (GROUPS, 64, H): the queries of each warp group, and (GROUPS, 64, Hv) the output
    k, v      (ahead, block_k, H): key tiles
    lse       (GROUPS, 64)
    q_ready   a barrier for each warp group
    k_ready   for each key tile in memory: its copy has arrived; v_ready: that of V
    k_free    for each key tile in memory: no warp group needs it any longer; v_free: that of V
    turn      both warp groups have reached it
    """

    q: Any
    out: Any
    k: Any
    v: Any
    lse: Any
    q_ready: Any
    k_ready: Any
    v_ready: Any
    k_free: Any
    v_free: Any
    turn: Any


def forward(call: Call, q: Array, k: Array, v: Array, ahead: int = 2) -> tuple[Array, Array]:
    """Return the output (heads, T, Hv) and L (heads, T) of all heads.

    q, k, v  (heads, T, H), (key heads, S, H) and (key heads, S, Hv), in 16-bit types
    ahead    how many key tiles are in shared memory
    """
    setup = call.setup
    batch = q.shape[0] // setup.heads
    queries, keys, values = (from_heads(x, batch, x.shape[1]) for x in (q, k, v))
    rows = GROUPS * ROWS
    out_type = jnp.dtype(TYPES[call.format(Site.OUT)])
    with jax.enable_x64(False):
        out, lse = plgpu.kernel(
            partial(_program, call, ahead),
            out_type=(
                jax.ShapeDtypeStruct((*queries.shape[:3], v.shape[2]), out_type),
                jax.ShapeDtypeStruct((batch, setup.heads, q.shape[1]), jnp.float32),
            ),
            grid=(setup.heads, q.shape[1] // rows, batch),
            grid_names=("head", "rows", "entry"),
            num_threads=GROUPS + 1,
            thread_name="group",
        )(queries, keys, values)
    return to_heads(jnp, out, 1), lse.reshape(q.shape[:2])


def _program(call: Call, ahead: int, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """Run a program: allocate its memory, then copy and compute."""
    block_k = call.setup.block_k

    def matrix(tiles: int, rows: int, like: Any) -> Any:
        width = like.shape[-1]
        swizzle = plgpu.find_swizzle(width * like.dtype.itemsize * 8)
        tiling = plgpu.TilingTransform((8, swizzle // like.dtype.itemsize))
        return plgpu.SMEM(
            (tiles, rows, width),
            like.dtype,
            transforms=(tiling, plgpu.SwizzleTransform(swizzle)),
        )

    def run(*memory: Any) -> None:
        names = Shared.__slots__
        shared = Shared(**dict(zip(names, memory, strict=True)))
        group = lax.axis_index("group")

        @pl.when(group < GROUPS)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS, action="increase")
            _compute(call, shared, ahead, group, q, out, lse)

        @pl.when(group == GROUPS)
        def _() -> None:
            plgpu.set_max_registers(FEW, action="decrease")
            _copy(call, shared, ahead, k, v)

    pl.run_scoped(
        run,
        matrix(GROUPS, ROWS, q),
        matrix(GROUPS, ROWS, out),
        matrix(ahead, block_k, k),
        matrix(ahead, block_k, v),
        plgpu.SMEM((GROUPS, ROWS), jnp.float32),
        plgpu.Barrier(num_barriers=GROUPS),
        *[plgpu.Barrier(num_barriers=ahead)] * 2,
        *[plgpu.Barrier(num_arrivals=GROUPS, num_barriers=ahead)] * 2,
        plgpu.Barrier(num_arrivals=GROUPS),
        collective_axes="group",
    )


def _tiles(setup: Setup, group: Any) -> tuple[Any, Any]:
    """Return how many key tiles the queries of a warp group see, and how many are whole for it."""
    row = (lax.axis_index("rows") * GROUPS + group) * ROWS
    i = lax.div(row, np.int32(setup.block_q))
    return tuple(jnp.asarray(f(setup, i), jnp.int32) for f in (seen_tiles, whole_tiles))


def _key_tile(setup: Setup, n: Array, count: Array) -> Array:
    """Return the number of the key tile that comes n-th of `count`."""
    return count - 1 - n if setup.plan.key_order is KeyOrder.DESCENDING else n


def _copy(call: Call, shared: Shared, ahead: int, k: Any, v: Any) -> None:
    """Copy the key tiles that some query of the program sees to shared memory, one after another."""
    setup, entry = call.setup, lax.axis_index("entry")
    head = lax.div(lax.axis_index("head"), np.int32(call.group))
    count, _ = _tiles(setup, GROUPS - 1)

    def copied(n: Array, slot: Array) -> None:
        rows = pl.ds(_key_tile(setup, n, count) * setup.block_k, setup.block_k)
        for source, target, ready in (
            (k, shared.k, shared.k_ready),
            (v, shared.v, shared.v_ready),
        ):
            plgpu.copy_gmem_to_smem(source.at[entry, rows, head], target.at[slot], ready.at[slot])

    def turn(n: Array, _: None) -> None:
        slot = lax.rem(n, np.int32(ahead))

        @pl.when(n >= ahead)
        def _() -> None:
            plgpu.barrier_wait(shared.k_free.at[slot])
            plgpu.barrier_wait(shared.v_free.at[slot])

        copied(n, slot)

    lax.fori_loop(np.int32(0), count, turn, None)


def _compute(
    call: Call, shared: Shared, ahead: int, group: Array, q: Any, out: Any, lse: Any
) -> None:
    """Compute the output and L of the queries of a warp group."""
    setup, entry, head = call.setup, lax.axis_index("entry"), lax.axis_index("head")
    row = (lax.axis_index("rows") * GROUPS + group) * ROWS
    rows = pl.ds(row, ROWS)
    q_shared = shared.q.at[group]
    plgpu.copy_gmem_to_smem(q.at[entry, rows, head], q_shared, shared.q_ready.at[group])
    plgpu.barrier_wait(shared.q_ready.at[group])

    machine = warpgroup_machine(jnp.int32(0))
    formats = [call.format(site) for site in (Site.M, Site.L, Site.O)]
    queries = Held(array=Factor(ref=q_shared, shape=q_shared.shape), format=call.format(Site.Q))
    state = tuple(
        placed(jnp.full(_registers(x.shape), x.flat[0], TYPES[name]))
        for x, name in zip(
            algorithm.start(np, setup.plan, ROWS, v_width(out)), formats, strict=True
        )
    )
    count, _ = _tiles(setup, GROUPS - 1)
    own, whole = _tiles(setup, group)

    def taking_turns() -> None:
        plgpu.barrier_arrive(shared.turn)
        plgpu.barrier_wait(shared.turn)

    def key_tile(is_whole: bool, n: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        slot, j = lax.rem(n, np.int32(ahead)), _key_tile(setup, n, count)
        keys = Held(
            array=Factor(
                ref=shared.k.at[slot],
                shape=shared.k.shape[1:],
                before=lambda: plgpu.barrier_wait(shared.k_ready.at[slot]),
                issued=taking_turns,
                after=lambda: plgpu.barrier_arrive(shared.k_free.at[slot]),
            ),
            format=call.format(Site.K),
        )

        def softmax_done() -> None:
            plgpu.barrier_arrive(shared.turn)
            plgpu.barrier_wait(shared.v_ready.at[slot])
            plgpu.barrier_wait(shared.turn)

        values = Held(
            array=Factor(
                ref=shared.v.at[slot],
                shape=shared.v.shape[1:],
                before=softmax_done,
                after=lambda: plgpu.barrier_arrive(shared.v_free.at[slot]),
            ),
            format=call.format(Site.V),
        )
        mask = None if is_whole else _mask(setup, row, j)

        def tile(m: Array, l: Array, o: Array, x: Array, y: Array, z: Array, mask: Any) -> Any:
            at = _events(setup, mask)
            return algorithm.forward_tile(at, setup.scale, (m, l, o), x, y, z), ()

        held = _held(state, formats, setup)
        made: tuple[Array, ...] = narrowed(machine, tile, formats)(
            *held, queries, keys, values, mask
        )[0]
        return made

    def idle(n: Array, state: Any) -> Any:
        slot = lax.rem(n, np.int32(ahead))
        for ready, free in ((shared.k_ready, shared.k_free), (shared.v_ready, shared.v_free)):
            plgpu.barrier_wait(ready.at[slot])  # a barrier counts who has waited for it
            plgpu.barrier_arrive(free.at[slot])
            taking_turns()
        return state

    pl.when(group == GROUPS - 1)(taking_turns)  # it begins when the other has the tensor core
    state = _walked(setup, (count, own, whole), key_tile, idle, state)
    pl.when(group == 0)(taking_turns)

    def finish(m: Array, l: Array, o: Array) -> Any:
        at = _events(setup, None)
        made, _, lse = algorithm.finish(at, setup.scale, (m, l, o))
        return (made, lse), ()

    made = narrowed(machine, finish, [call.format(Site.OUT), FP32])(*_held(state, formats, setup))
    for value, memory, target in zip(
        made[0],
        (shared.out.at[group], shared.lse.at[group]),
        (out.at[entry, rows, head], lse.at[entry, head, rows]),
        strict=True,
    ):
        memory[...] = value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(memory, target)
    plgpu.wait_smem_to_gmem(0)


def v_width(out: Any) -> int:
    """Return how many features V has, which are those of the output."""
    width: int = out.shape[-1]
    return width


def _walked(
    setup: Setup,
    counts: tuple[Array, Array, Array],
    tile: Callable[..., Any],
    idle: Callable[..., Any],
    state: Any,
) -> Any:
    """Return the state after all key tiles of the program, in the plan's order.

    counts  how many key tiles there are, how many the warp group sees, and how many are whole
    idle    what a warp group does while the other one has a tile that it does not see
    """
    count, own, whole = counts
    zero = jnp.int32(0)
    if setup.plan.key_order is KeyOrder.DESCENDING:
        parts = [
            (idle, zero, count - own),
            (partial(tile, False), count - own, count - whole),
            (partial(tile, True), count - whole, count),
        ]
    else:
        parts = [
            (partial(tile, True), zero, whole),
            (partial(tile, False), whole, own),
            (idle, own, count),
        ]
    is_cut = setup.is_causal or setup.keys % setup.block_k or setup.queries % setup.block_q
    for f, first, last in parts:
        if is_cut or f not in (idle, parts[1][0]):
            state = lax.fori_loop(first, last, f, state)
    return state


def _registers(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in registers of a part of the state: lanes are no axis."""
    return shape if len(shape) == 2 and shape[1] > 4 else shape[:1]


def _held(state: tuple[Array, ...], formats: list[str], setup: Setup) -> list[Held]:
    """Return the state as the equations see it, in which lanes are an axis."""
    features = state[2].shape[1]
    seen = [x.shape for x in algorithm.start(np, setup.plan, ROWS, features)]
    return [
        Held(array=x, format=name, seen_as=shape)
        for x, name, shape in zip(state, formats, seen, strict=True)
    ]


def _events(setup: Setup, mask: Any) -> Events:
    """Return the hook of a tile, of which only the mask is known; None if all scores exist."""
    ops = kernel_ops(in_lanes=True)
    own = replace(setup, block_q=ROWS)
    tile = tile_at(ops, own, 0, 0, 0, None, None)
    rows = jnp.ones(ROWS, bool)
    return events_at(
        ops,
        own,
        replace(
            tile,
            mask=jnp.ones((ROWS, setup.block_k), bool) if mask is None else mask,
            rows=rows,
            rescaled=rows,
            is_whole=mask is None,
            is_unrecorded=True,
        ),
    )


def _mask(setup: Setup, row: Array, j: Array) -> Array:
    """Return which scores of a tile exist, (64, block_k), in registers."""
    t, s = (
        plgpu.broadcasted_iota(jnp.int32, (ROWS, setup.block_k), axis, layout=MATRIX)
        for axis in (0, 1)
    )
    t, s = t + row, s + j * np.int32(setup.block_k)
    exists = (t < setup.queries) & (s < setup.keys)
    return exists & (s <= t) if setup.is_causal else exists
