"""The forward by two warp groups.

While one computes exponentials, the tensor core multiplies for the other. They take turns where
both last as long; correctly rounded exps last longer, so both groups may compute them at once.
Only L comes later, by XLA, from the maximum and the row sum that the kernel leaves.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.hopper.fit import APPROXIMATE
from roundscope.attention.engines.kernels.hopper.tile import (
    Given,
    events,
    factor,
    held,
    numbered,
    scores_by_query,
)
from roundscope.attention.engines.kernels.hopper.walk import Tile, hidden_zero, over_keys, run
from roundscope.attention.engines.layout import from_heads, to_heads
from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.tiles.forward import has_first_tile_apart
from roundscope.attention.tiles.loops import Setup, whole_events
from roundscope.attention.tiles.records import State
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import TYPES
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.machine import warpgroup_machine
from roundscope.emu.backends.kernels.warpgroups.registers import ROWWISE
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

K, V = 0, 1  # the arrays that a program walks over


def forward(call: Call, q: Array, k: Array, v: Array, ahead: int) -> tuple[Array, Array]:
    """Return the output (heads, T, Hv) and L (heads, T), in binary64.

    q, k, v  (heads, T, H), (key heads, S, H) and (key heads, S, Hv), in 16-bit types
    ahead    how many key tiles are in shared memory
    """
    setup, (heads, rows, _), features = call.setup, q.shape, v.shape[2]
    batch = heads // setup.heads
    queries, keys, values = (from_heads(x, batch, x.shape[1]) for x in (q, k, v))
    vector = batch, setup.heads, rows
    formats = [call.format(site) for site in (Site.OUT, Site.M, Site.L)]
    shapes = (batch, rows, setup.heads, features), vector, vector
    out, m, l = run(
        over_keys(call, ahead, descends=setup.plan.key_order is KeyOrder.DESCENDING),
        lambda own, row, walk: _body(call, features, own[0], row, walk),
        [Given(array=queries)],
        [Given(array=keys, of_keys=True), Given(array=values, of_keys=True)],
        [
            jax.ShapeDtypeStruct(shape, TYPES[name])
            for shape, name in zip(shapes, formats, strict=True)
        ],
    )
    out, m, l = (x.astype(jnp.float64) for x in (to_heads(jnp, out, 1), m, l))
    return _of_rows(setup, out, m.reshape(heads, rows), l.reshape(heads, rows))


def _of_rows(setup: Setup, out: Array, m: Array, l: Array) -> tuple[Array, Array]:
    """Return the output and L of all heads, 0 and -inf in rows that do not exist."""
    ops = xla_ops(opaque_zero(l))

    def of_head(h: Array, out: Array, m: Array, l: Array) -> tuple[Array, Array]:
        at = whole_events(ops, setup, h, None)
        lse = algorithm.log_of_row_sum(at, setup.scale, m, l)
        if setup.queries == out.shape[0]:
            return out, lse
        out, _, lse = algorithm.without_rows_of_no_key(at, out, out, lse)
        return out, lse

    found: tuple[Array, Array] = jax.vmap(of_head)(jnp.arange(out.shape[0]), out, m, l)
    return found


def _body(call: Call, features: int, q: Any, row: Array, walk: Any) -> tuple[Array, ...]:
    """Return output, maximum and row sum of the queries of a warp group, from `row` on."""
    setup, machine = call.setup, warpgroup_machine(ROWWISE, hidden_zero())
    formats = [call.format(site) for site in (Site.M, Site.L, Site.O)]
    queries = factor(q, call.format(Site.Q))
    start = algorithm.start(np, setup.plan, ROWS, features)
    seen = [x.shape for x in start[:3]]

    def key_tile(tile: Tile, state: tuple[Array, ...]) -> tuple[Array, ...]:
        def softmax_done() -> None:
            tile.arrive()
            tile.wait(V)
            tile.pass_on()

        k = factor(
            tile.memory[K],
            call.format(Site.K),
            before=lambda: tile.wait(K),
            issued=tile.turn,
            after=lambda: tile.free(K),
        )
        v = factor(
            tile.memory[V],
            call.format(Site.V),
            before=softmax_done,
            after=lambda: tile.free(V),
        )
        first = tile.number * np.int32(setup.block_k)
        exists = None if tile.is_whole else scores_by_query(setup, row, first)

        def computed(
            m: Array, l: Array, o: Array, x: Array, y: Array, z: Array, exists: Any
        ) -> Any:
            at = events(setup, ROWS, setup.block_k, exists)
            return algorithm.forward_tile(at, setup.scale, State(m, l, o), x, y, z), ()

        own = held(state, formats, seen)
        return narrowed(machine, computed, formats)(*own, queries, k, v, exists)[0]

    state = walk(key_tile, _started(start, formats), _takes_turns(setup.plan))

    def finished(m: Array, l: Array, o: Array, apart: Any) -> Any:
        at = events(setup, ROWS, setup.block_k)
        out, *_ = algorithm.finish(at, setup.scale, State(m, l, o), apart)
        return (out, m, algorithm.kept_row_sum(at, l)), ()

    names = [call.format(site) for site in (Site.OUT, Site.M, Site.L)]
    is_rounded = setup.plan[Site.LANES] != setup.plan[Site.L]
    has_apart = is_rounded and has_first_tile_apart(setup)  # what is not read has no registers
    apart = numbered(row) < setup.block_q if has_apart else None
    return narrowed(machine, finished, names)(*held(state, formats, seen), apart)[0]


def _takes_turns(plan: Plan) -> bool:
    """Return whether the products of one warp group last as long as the exps of the other."""
    return plan.exp in APPROXIMATE


def _started(start: tuple[Any, ...], formats: list[str]) -> tuple[Array, ...]:
    """Return the state before the first key tile, in registers, where lanes are no axis."""
    return tuple(
        ROWWISE.placed(
            jnp.full(
                x.shape if x.shape[-1] > 4 and x.ndim == 2 else x.shape[:1], x.flat[0], TYPES[name]
            )
        )
        for x, name in zip(start, formats, strict=True)
    )
