"""Heads in fused kernels: a program owns a tile of queries (or of keys) and walks over the others, with the equations of every engine.

Nothing of the size T x S is ever stored. Plans, tiles and equations are `attention.head`'s and `attention.algorithm`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from attention import algorithm
from attention.events import Tile
from attention.head import Setup, events_at, tile_at
from attention.plan import KeyOrder
from attention.sites import Site
from emu.ops import Ops
from emu.pallas_ops import pallas_ops

STORED = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "fp32": jnp.float32}
F64 = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)


def forward(setup: Setup, q: Array, k: Array, v: Array, on_gpu: bool) -> tuple[Array, Array, Array]:
    """(output, output before its last rounding, L) of heads; q (heads, T, H), k, v (key heads, S, H), in whole tiles."""
    heads, rows, width = q.shape[0], q.shape[1], v.shape[2]
    q, k, v = (_stored(setup, site, x, on_gpu) for site, x in ((Site.Q, q), (Site.K, k), (Site.V, v)))
    spec = _Specs(setup, heads // k.shape[0])
    out, before, lse, *_ = _call(
        _forward, setup, on_gpu, (heads, setup.query_tiles), max(q.shape[2], width),
        (q, spec.own(q)), (k, spec.whole(k)), (v, spec.whole(v)),
        results=[F64((heads, rows, width)), F64((heads, rows, width)), F64((heads, rows))],
    )  # fmt: skip
    return out, before, lse


def backward(setup: Setup, q: Array, k: Array, v: Array, do: Array, lse: Array, delta: Array, on_gpu: bool) -> tuple[Array, Array, Array]:
    """(dQ, dK and dV of query heads) before their last roundings: two kernels, each with its own P and dS."""
    heads = q.shape[0]
    q, k, v, do = (_stored(setup, site, x, on_gpu) for site, x in ((Site.Q, q), (Site.K, k), (Site.V, v), (Site.DO, do)))
    spec, wide = _Specs(setup, heads // k.shape[0]), max(q.shape[2], v.shape[2])
    rows, keys = ((q, do, lse, delta), (k, v))
    dq, *_ = _call(
        _query_gradients, setup, on_gpu, (heads, setup.query_tiles), wide,
        *((x, spec.own(x)) for x in rows), *((x, spec.whole(x)) for x in keys), results=[F64(q.shape)],
    )  # fmt: skip
    dk, dv, *_ = _call(
        _key_gradients, setup, on_gpu, (heads, setup.key_tiles), wide,
        *((x, spec.whole_of_query_head(x)) for x in rows), *((x, spec.own_keys(x)) for x in keys),
        results=[F64((heads, *k.shape[1:])), F64((heads, *v.shape[1:]))],
    )  # fmt: skip
    return dq, dk, dv


def _stored(setup: Setup, site: Site, x: Array, on_gpu: bool) -> Array:
    """An input in the type of its format, where that loses nothing: memory is what a kernel waits for. A CPU may flush subnormals."""
    changed = any(injection.site is site for injection in setup.inject)
    name = setup.plan[site].format.name
    exact = on_gpu and not changed and setup.plan.block(site) is None and name in STORED
    return x.astype(STORED[name]) if exact else x


def _wide(x: Array) -> Array:
    return x.astype(jnp.float64)


@dataclass(frozen=True, slots=True)
class _Specs:
    """What a program (head, tile) sees of an array (heads, rows, ...); group: query heads of a key head."""

    setup: Setup
    group: int

    def own(self, x: Array) -> pl.BlockSpec:
        """Its tile of query rows."""
        return _block(x, self.setup.block_q, lambda h, i: (h, i))

    def own_keys(self, x: Array) -> pl.BlockSpec:
        """Its tile of keys."""
        return _block(x, self.setup.block_k, lambda h, j: (h // self.group, j))

    def whole(self, x: Array) -> pl.BlockSpec:
        """All keys of its key head."""
        return _block(x, x.shape[1], lambda h, i: (h // self.group, 0))

    def whole_of_query_head(self, x: Array) -> pl.BlockSpec:
        """All rows of its head."""
        return _block(x, x.shape[1], lambda h, j: (h, 0))


def _block(x: Any, rows: int, at: Callable[[Any, Any], tuple[Any, Any]]) -> pl.BlockSpec:
    return pl.BlockSpec((None, rows, *x.shape[2:]), lambda h, i: (*at(h, i), *(0 for _ in x.shape[2:])))


def _call(
    kernel: Any,
    setup: Setup,
    on_gpu: bool,
    grid: tuple[int, int],
    features: int,
    *inputs: tuple[Array, pl.BlockSpec],
    results: Sequence[Any],
) -> Sequence[Array]:
    """The kernel over a grid of (heads, tiles): its results, whose rows are cut into as many tiles, then scratch buffers."""
    side = max(setup.block_q, setup.block_k, features)
    scratch = pl.BlockSpec((None, None, side, side), lambda h, i: (h, i, 0, 0))
    found: Sequence[Array] = pl.pallas_call(
        partial(kernel, setup, on_gpu),
        grid=grid,
        in_specs=[*(spec for _, spec in inputs), pl.BlockSpec((1,), lambda h, i: (0,))],
        out_specs=[*(_block(x, x.shape[1] // grid[1], lambda h, i: (h, i)) for x in results), scratch, scratch],
        out_shape=[*results, *(F64((*grid, side, side)),) * 2],
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=not on_gpu,
        name=kernel.__name__.strip("_"),
    )(*(x for x, _ in inputs), jnp.zeros(1, jnp.int64))
    return found


def _forward(setup: Setup, on_gpu: bool, q: Any, k: Any, v: Any, zero: Any, out: Any, wide: Any, lse: Any, *scratch: Any) -> None:
    h, i = pl.program_id(0), pl.program_id(1)
    ops, x = pallas_ops(zero[0], scratch, on_gpu), _wide(q[...])

    def key_tile(n: Array, state: algorithm.State) -> algorithm.State:
        j = last - 1 - n if setup.plan.key_order is KeyOrder.DESCENDING else n
        keys = pl.ds(j * setup.block_k, setup.block_k)
        at = events_at(ops, setup, _tile(ops, setup, h, i, j, state[0] > -jnp.inf))
        return algorithm.forward_tile(at, setup.scale, state, x, _wide(k[keys, :]), _wide(v[keys, :]))

    last = _seen_tiles(setup, i)
    state = lax.fori_loop(0, last, key_tile, algorithm.start(jnp, setup.block_q, v.shape[1]))
    out[...], wide[...], lse[...] = algorithm.finish(events_at(ops, setup, _rows(setup, h, i)), state)


def _query_gradients(
    setup: Setup, on_gpu: bool, q: Any, do: Any, lse: Any, delta: Any, k: Any, v: Any, zero: Any, dq: Any, *scratch: Any
) -> None:
    h, i = pl.program_id(0), pl.program_id(1)
    ops, rows = pallas_ops(zero[0], scratch, on_gpu), (_wide(do[...]), lse[...], delta[...])
    x = _wide(q[...])

    def key_tile(j: Array, total: Array) -> Array:
        keys = pl.ds(j * setup.block_k, setup.block_k)
        at, y = events_at(ops, setup, _tile(ops, setup, h, i, j)), _wide(k[keys, :])
        _, ds = algorithm.score_gradients(at, setup.scale, x, y, _wide(v[keys, :]), *rows)
        return algorithm.query_gradients(at, ds, y, total)

    dq[...] = lax.fori_loop(0, _seen_tiles(setup, i), key_tile, jnp.zeros(dq.shape))


def _key_gradients(
    setup: Setup, on_gpu: bool, q: Any, do: Any, lse: Any, delta: Any, k: Any, v: Any, zero: Any, dk: Any, dv: Any, *scratch: Any
) -> None:
    h, j = pl.program_id(0), pl.program_id(1)
    ops, y, w = pallas_ops(zero[0], scratch, on_gpu), _wide(k[...]), _wide(v[...])

    def query_tile(i: Array, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = pl.ds(i * setup.block_q, setup.block_q)
        at = events_at(ops, setup, _tile(ops, setup, h, i, j))
        x, z = _wide(q[rows, :]), _wide(do[rows, :])
        p, ds = algorithm.score_gradients(at, setup.scale, x, y, w, z, lse[rows], delta[rows])
        return algorithm.key_gradients(at, p, ds, x, z, *totals)

    first = lax.div(j * setup.block_k, np.int32(setup.block_q)) if setup.is_causal else 0
    dk[...], dv[...] = lax.fori_loop(first, setup.query_tiles, query_tile, (jnp.zeros(dk.shape), jnp.zeros(dv.shape)))


def _tile(ops: Ops, setup: Setup, h: Array, i: Array, j: Array, before: Array | None = None) -> Tile:
    """Tile (i, j) of a head; a program counts in 32 bits."""
    h, i, j = (jnp.asarray(n, jnp.int64) for n in (h, i, j))
    return tile_at(ops, setup, h, i, j, None, before)


def _seen_tiles(setup: Setup, i: Array) -> Any:
    """How many key tiles some query of tile i sees: the others leave the state as it is."""
    if not setup.is_causal:
        return setup.key_tiles
    last = jnp.minimum((i + 1) * setup.block_q, setup.queries) - 1
    return jnp.minimum(lax.div(last, np.int32(setup.block_k)) + 1, setup.key_tiles)


def _rows(setup: Setup, h: Array, i: Array) -> Tile:
    """The rows of query tile i, as part of the whole head."""
    h, row0 = (jnp.asarray(n, jnp.int64) for n in (h, i * setup.block_q))
    rows = row0 + jnp.arange(setup.block_q) < setup.queries
    nothing = jnp.zeros((1, 1), bool)
    return Tile(head=h, heads=setup.heads, i=0, j=0, row0=row0, key0=0, mask=nothing, rows=rows, rescaled=rows, keys=rows)
