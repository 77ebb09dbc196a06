"""Heads in fused kernels: a program owns a tile of queries (or of keys) and walks over the others, with the equations of every engine.

Nothing of the size T x S is ever stored. Plans, tiles and equations are `attention.head`'s and `attention.algorithm`'s; numbers are
held as narrow as their events allow (`emu.narrowing`). Tiles that exist as a whole, nearly all, are walked over without a mask.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from attention import algorithm
from attention.events import Events, Tile
from attention.head import Setup, events_at, tile_at
from attention.plan import DeltaFrom, KeyOrder
from attention.sites import Site
from emu.accumulate import Order
from emu.narrowing import FP32, FP64, Held, Machine, format_of, narrowed
from emu.pallas_ops import kernel_machine, kernel_ops, types

SUMS = {"forward": (Site.S, Site.ROWSUM, Site.PV), "query": (Site.S_B, Site.DP, Site.DQ), "key": (Site.S_B, Site.DP, Site.DV, Site.DK)}
ROWS_OF_A_WARP = 16  # a matrix unit gives four warps 64 rows: then no row of scores is shared by two units


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a kernel is made for. on_gpu: compiled for one, else interpreted; group: query heads of a key head."""

    setup: Setup
    on_gpu: bool
    group: int

    def format(self, site: Site) -> str:
        """The name under which the results of an event are held. An injection may have moved them anywhere, the scale of a block too."""
        if self.setup.plan.block(site) is not None or any(injection.site is site for injection in self.setup.inject):
            return FP64
        return format_of(self.setup.plan[site].format)

    def stored(self, site: Site, x: Array) -> Array:
        """The results of an event as the narrowest array that holds them: memory is what a kernel waits for."""
        return x.astype(types(self.on_gpu)[self.format(site)])

    def own(self, x: Array) -> pl.BlockSpec:
        """What a program (head, tile) sees of an array (heads, rows, ...): its tile of query rows."""
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


def forward(setup: Setup, q: Array, k: Array, v: Array, on_gpu: bool) -> tuple[Array, Array, Array]:
    """(output, output before its last rounding, L) of heads; q (heads, T, H), k, v (key heads, S, H), in whole tiles.

    Where delta does not read it, the second is the first.
    """
    call = Call(setup=setup, on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    q, k, v = (call.stored(site, x) for site, x in ((Site.Q, q), (Site.K, k), (Site.V, v)))
    rows, is_read = q.shape[:2], setup.plan.delta_from is DeltaFrom.WIDE_O
    results = [((*rows, v.shape[2]), Site.OUT), (rows, Site.LSE), *([((*rows, v.shape[2]), None)] if is_read else [])]
    out, lse, *wide = _run(
        _forward, call, "forward", (q.shape[0], setup.query_tiles), (q, call.own(q)), (k, call.whole(k)), (v, call.whole(v)),
        results=results,
    )  # fmt: skip
    return out, wide[0] if is_read else out, lse


def backward(setup: Setup, q: Array, k: Array, v: Array, do: Array, lse: Array, delta: Array, on_gpu: bool) -> tuple[Array, Array, Array]:
    """(dQ, dK and dV of query heads) before their last roundings: two kernels, each with its own P and dS."""
    call = Call(setup=setup, on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    inputs = ((Site.Q, q), (Site.K, k), (Site.V, v), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))
    q, k, v, do, lse, delta = (call.stored(site, x) for site, x in inputs)
    rows, keys, heads = ((q, do, lse, delta), (k, v), q.shape[0])
    (dq,) = _run(
        _query_gradients, call, "query", (heads, setup.query_tiles),
        *((x, call.own(x)) for x in rows), *((x, call.whole(x)) for x in keys), results=[(q.shape, Site.DQ)],
    )  # fmt: skip
    dk, dv = _run(
        _key_gradients, call, "key", (heads, setup.key_tiles),
        *((x, call.whole_of_query_head(x)) for x in rows), *((x, call.own_keys(x)) for x in keys),
        results=[((heads, *k.shape[1:]), Site.DK), ((heads, *v.shape[1:]), Site.DV)],
    )  # fmt: skip
    return dq, dk, dv


def _run(
    kernel: Any, call: Call, what: str, grid: tuple[int, int], *inputs: tuple[Array, pl.BlockSpec],
    results: Sequence[tuple[tuple[int, ...], Site | None]],
) -> list[Array]:  # fmt: skip
    """The kernel over a grid of (heads, tiles): its results in binary64, of which each tile writes its rows."""
    setup, own = call.setup, types(call.on_gpu)
    features = max(x.shape[2] for x, _ in inputs if x.ndim == 3)
    passed, side = _passed(call, what), max(setup.block_q, setup.block_k, features)
    scratch = pl.BlockSpec((None, None, side, side), lambda h, i: (h, i, 0, 0))
    shapes = [jax.ShapeDtypeStruct(shape, own[FP64 if site is None else call.format(site)]) for shape, site in results]
    buffers = [jax.ShapeDtypeStruct((*grid, side, side), own[name]) for name in passed for _ in range(2)]
    found = pl.pallas_call(
        partial(kernel, call, passed),
        grid=grid,
        in_specs=[*(spec for _, spec in inputs), pl.BlockSpec((1,), lambda h, i: (0,))],
        out_specs=[*(_block(x, x.shape[1] // grid[1], lambda h, i: (h, i)) for x in shapes), *(scratch for _ in buffers)],
        out_shape=[*shapes, *buffers],
        # loads of two stages run ahead of stores, those of the buffers too
        compiler_params=triton.CompilerParams(num_warps=max(4, setup.block_q // ROWS_OF_A_WARP), num_stages=1 if passed else 2),
        interpret=not call.on_gpu,
        name=kernel.__name__.strip("_"),
    )(*(x for x, _ in inputs), jnp.zeros(1, jnp.int64))
    return [x.astype(jnp.float64) for x in found[: len(shapes)]]


def _passed(call: Call, what: str) -> list[str]:
    """The formats of what a kernel passes through memory: factors of ascending sums, and what it transposes."""
    plan = call.setup.plan
    is_ascending = any(plan.accumulator(site).order is Order.ASCENDING for site in SUMS[what])
    turned = (Site.P_B, Site.DS) if what == "key" else ()
    # where an event does not happen, what it would change stays in binary64; an Exact() injection adds up in it
    is_plain = all(plan[site].keeps_specials for site in turned) and not call.setup.inject
    return sorted({*([FP32, FP64] if is_ascending else []), *map(call.format, turned), *([] if is_plain else [FP64])})


def _machine(call: Call, passed: list[str], zero: Any, buffers: Sequence[Any]) -> Machine:
    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    return kernel_machine(zero[0], dict(zip(passed, pairs, strict=True)), call.on_gpu)


def _forward(call: Call, passed: list[str], q: Any, k: Any, v: Any, zero: Any, out: Any, lse: Any, *rest: Any) -> None:
    setup, h, i = call.setup, pl.program_id(0), pl.program_id(1)
    wide, buffers = rest[: len(rest) % 2], rest[len(rest) % 2 :]
    machine, formats = _machine(call, passed, zero, buffers), [call.format(site) for site in (Site.M, Site.L, Site.O)]
    rows = _read(call, ((Site.Q, q),), slice(None))

    def key_tile(is_whole: bool, n: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        j = last - 1 - n if setup.plan.key_order is KeyOrder.DESCENDING else n
        keys = pl.ds(j * setup.block_k, setup.block_k)

        def tile(m: Array, l: Array, o: Array, x: Array, y: Array, z: Array) -> algorithm.State:
            at = _tile(call, h, i, j, is_whole, m > -jnp.inf)
            return algorithm.forward_tile(at, setup.scale, (m, l, o), x, y, z)

        held = [Held(array=s, format=name) for s, name in zip(state, formats, strict=True)]
        return narrowed(machine, tile, formats)(*held, *rows, *_read(call, ((Site.K, k), (Site.V, v)), keys))

    last, whole = _seen_tiles(setup, i), _whole_tiles(setup, i)
    start = algorithm.start(np, setup.block_q, v.shape[1])
    state = tuple(jnp.full(x.shape, x.flat[0], machine.types[name]) for x, name in zip(start, formats, strict=True))
    if setup.plan.key_order is KeyOrder.DESCENDING:
        state = _walk(partial(key_tile, False), 0, last - whole, state)
        state = _walk(partial(key_tile, True), last - whole, last, state)
    else:
        state = _walk(partial(key_tile, True), 0, whole, state)
        state = _walk(partial(key_tile, False), whole, last, state)

    def finish(m: Array, l: Array, o: Array) -> tuple[Array, ...]:
        out, wide, lse = algorithm.finish(events_at(kernel_ops(), setup, _rows(setup, h, i)), (m, l, o))
        return out, lse, wide

    held = [Held(array=s, format=name) for s, name in zip(state, formats, strict=True)]
    found = narrowed(machine, finish, [call.format(Site.OUT), call.format(Site.LSE), FP64])(*held)
    for ref, result in zip((out, lse, *wide), found, strict=False):
        ref[...] = result


def _query_gradients(
    call: Call, passed: list[str], q: Any, do: Any, lse: Any, delta: Any, k: Any, v: Any, zero: Any, dq: Any, *buffers: Any
) -> None:
    setup, h, i = call.setup, pl.program_id(0), pl.program_id(1)
    machine, name = _machine(call, passed, zero, buffers), call.format(Site.DQ)
    rows = _read(call, ((Site.Q, q), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta)), slice(None))

    def key_tile(is_whole: bool, j: Array, total: Array) -> Array:
        def tile(total: Array, x: Array, do: Array, lse: Array, delta: Array, y: Array, z: Array) -> Array:
            at = _tile(call, h, i, j, is_whole)
            _, ds = algorithm.score_gradients(at, setup.scale, x, y, z, do, lse, delta)
            return algorithm.query_gradients(at, ds, y, total)

        keys = _read(call, ((Site.K, k), (Site.V, v)), pl.ds(j * setup.block_k, setup.block_k))
        return narrowed(machine, tile, [name])(Held(array=total, format=name), *rows, *keys)[0]

    whole = _whole_tiles(setup, i)
    total = _walk(partial(key_tile, True), 0, whole, jnp.zeros(dq.shape, dq.dtype))
    dq[...] = _walk(partial(key_tile, False), whole, _seen_tiles(setup, i), total)


def _key_gradients(
    call: Call, passed: list[str], q: Any, do: Any, lse: Any, delta: Any, k: Any, v: Any, zero: Any, dk: Any, dv: Any, *buffers: Any
) -> None:
    setup, h, j = call.setup, pl.program_id(0), pl.program_id(1)
    machine, formats = _machine(call, passed, zero, buffers), [call.format(Site.DK), call.format(Site.DV)]
    keys = _read(call, ((Site.K, k), (Site.V, v)), slice(None))

    def query_tile(is_whole: bool, i: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        def tile(dk: Array, dv: Array, y: Array, z: Array, x: Array, do: Array, lse: Array, delta: Array) -> tuple[Array, Array]:
            at = _tile(call, h, i, j, is_whole)
            p, ds = algorithm.score_gradients(at, setup.scale, x, y, z, do, lse, delta)
            return algorithm.key_gradients(at, p, ds, x, do, dk, dv)

        held = [Held(array=total, format=name) for total, name in zip(totals, formats, strict=True)]
        named = ((Site.Q, q), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))
        rows = _read(call, named, pl.ds(i * setup.block_q, setup.block_q))
        return narrowed(machine, tile, formats)(*held, *keys, *rows)

    first, whole, end = _whole_queries(setup, j)
    totals: Any = jnp.zeros(dk.shape, dk.dtype), jnp.zeros(dv.shape, dv.dtype)
    totals = _walk(partial(query_tile, False), first, whole, totals)
    totals = _walk(partial(query_tile, True), whole, end, totals)
    dk[...], dv[...] = _walk(partial(query_tile, False), end, setup.query_tiles, totals)


def _read(call: Call, named: Sequence[tuple[Site, Any]], rows: Any) -> list[Held]:
    return [Held(array=ref[(rows, slice(None))[: len(ref.shape)]], format=call.format(site)) for site, ref in named]


def _walk(tile: Callable[[Array, Any], Any], first: Any, last: Any, state: Any) -> Any:
    """The tiles from first to before last; no loop in the program where there never is one."""
    if isinstance(first, int) and isinstance(last, int) and first >= last:
        return state
    return lax.fori_loop(jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32), tile, state)


def _tile(call: Call, h: Array, i: Array, j: Array, is_whole: bool, before: Array | None = None) -> Events:
    """The hook of tile (i, j) of a head; a program counts in 32 bits."""
    h, i, j = (jnp.asarray(n, jnp.int64) for n in (h, i, j))
    tile = tile_at(kernel_ops(), call.setup, h, i, j, None, before)
    return events_at(kernel_ops(), call.setup, replace(tile, is_whole=is_whole, is_unrecorded=True))


def _seen_tiles(setup: Setup, i: Array) -> Any:
    """How many key tiles some query of tile i sees: the others leave the state as it is."""
    if not setup.is_causal:
        return setup.key_tiles
    last = jnp.minimum((i + 1) * setup.block_q, setup.queries) - 1
    return jnp.minimum(lax.div(last, np.int32(setup.block_k)) + 1, np.int32(setup.key_tiles))


def _whole_tiles(setup: Setup, i: Array) -> Any:
    """How many key tiles, the first ones, all queries of tile i see whole."""
    whole: Any = setup.keys // setup.block_k
    if setup.is_causal:
        whole = jnp.minimum(lax.div(i * setup.block_q + 1, np.int32(setup.block_k)), np.int32(whole))
    ends_within = setup.queries % setup.block_q == 0
    return whole if ends_within else jnp.where((i + 1) * setup.block_q <= setup.queries, jnp.asarray(whole, jnp.int32), np.int32(0))


def _whole_queries(setup: Setup, j: Array) -> tuple[Any, Any, Any]:
    """Of the query tiles that see key tile j: the first, the first that sees all of it, and the end of those."""
    first: Any = lax.div(j * setup.block_k, np.int32(setup.block_q)) if setup.is_causal else 0
    end: Any = setup.queries // setup.block_q
    whole: Any = 0
    if setup.is_causal:
        whole = lax.div((j + 1) * setup.block_k + setup.block_q - 2, np.int32(setup.block_q))
    if setup.keys % setup.block_k:
        whole = jnp.where((j + 1) * setup.block_k <= setup.keys, jnp.asarray(whole, jnp.int32), np.int32(setup.query_tiles))
    if isinstance(whole, int):
        return first, whole, end
    whole = jnp.minimum(whole, np.int32(setup.query_tiles))
    return first, whole, jnp.maximum(whole, np.int32(end))


def _rows(setup: Setup, h: Array, i: Array) -> Tile:
    """The rows of query tile i, as part of the whole head."""
    h, row0 = (jnp.asarray(n, jnp.int64) for n in (h, i * setup.block_q))
    rows = row0 + jnp.arange(setup.block_q) < setup.queries
    nothing = jnp.zeros((1, 1), bool)
    return Tile(
        head=h, heads=setup.heads, i=0, j=0, row0=row0, key0=0, mask=nothing, rows=rows, rescaled=rows, keys=rows, is_unrecorded=True
    )
