"""Heads in fused kernels: a program owns a tile of queries (or of keys) and walks over the others, with the equations of every engine.

Nothing of the size T x S is ever stored. Plans, tiles and equations are `attention.head`'s and `attention.algorithm`'s; numbers are
held as narrow as their events allow (`emu.narrowing`).
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from attention import algorithm
from attention.head import Setup
from attention.pallas_call import Call, Kernel, Work, run
from attention.pallas_record import recorder
from attention.pallas_tiles import events_of_rows, events_of_tile, seen_tiles, walk, walk_queries, whole_tiles
from attention.plan import DeltaFrom, KeyOrder
from attention.sites import Site
from attention.trace import site_of
from emu.held import FP64, Held
from emu.pallas_ops import DEPTH
from emu.transposing import untransposed

SCORE_GRADIENTS = (Site.S_B, Site.SCALED_B, Site.X_B, Site.EXP_B, Site.P_B, Site.DP, Site.DPD, Site.DS)
SUMS = (Site.DQ, Site.DK, Site.DV)
SCORES = 2**31  # bytes of dS in memory at once
Seen = dict[str, Any]
Rows = tuple[Array, Array, Array, Array]  # Q, dO, L, delta
Gradients = tuple[Array, Array, Array]


def forward(setup: Setup, q: Array, k: Array, v: Array, on_gpu: bool) -> tuple[tuple[Array, Array, Array], Seen]:
    """(output, output before its last rounding, L) of heads; q (heads, T, H), k, v (key heads, S, H), in whole tiles. And what was seen.

    Where delta does not read it, the second is the first.
    """
    call = Call(setup=setup, on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    q, k, v = (call.stored(site, x) for site, x in ((Site.Q, q), (Site.K, k), (Site.V, v)))
    rows, is_read = q.shape[:2], setup.plan.delta_from is DeltaFrom.WIDE_O
    results = [((*rows, v.shape[2]), Site.OUT), (rows, Site.LSE), *([((*rows, v.shape[2]), None)] if is_read else [])]
    sites = [site for site in Site if site.stage == "forward" and not (site is Site.PV and setup.plan.pv_into_o)]
    kernel = Kernel(
        body=_forward, sums=(Site.S, Site.ROWSUM, Site.PV), walked=setup.key_tiles,
        recorder=recorder(setup, sites, (q.shape[2], v.shape[2])),
    )  # fmt: skip
    found, seen = run(kernel, call, (q.shape[0], setup.query_tiles), [call.own(q), call.whole(k), call.whole(v)], results)
    out, lse, *wide = map(_wide, found)
    return (out, wide[0] if is_read else out, lse), seen


def backward(
    setup: Setup, q: Array, k: Array, v: Array, do: Array, lse: Array, delta: Array, on_gpu: bool
) -> tuple[tuple[Array, Array, Array], Seen]:
    """(dQ, dK and dV of query heads) before their last roundings, and what was seen.

    A kernel that owns keys has P and dS, makes dK and dV, and writes dS; another makes dQ of it. dS of all keys at once would grow as
    T S, so keys come in parts. A trace counts P and dS by query: then dQ has a kernel with P and dS of its own instead.
    """
    call = Call(setup=setup, on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    inputs = ((Site.Q, q), (Site.K, k), (Site.V, v), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))
    q, k, v, do, lse, delta = (call.stored(site, x) for site, x in inputs)
    both = _by_parts if setup.record is None else _traced
    (dq, dk, dv), seen = both(call, (q, do, lse, delta), k, v)
    return (_wide(dq), _wide(dk), _wide(dv)), seen


def _by_parts(call: Call, rows: Rows, k: Array, v: Array) -> tuple[Gradients, Seen]:
    """dQ, dK, dV, some key tiles at a time: dS of those is in memory. Nothing is recorded."""
    heads, size = rows[0].shape[0], call.setup.block_k
    parts, tiles = _parts(call, heads)

    def apart(x: Array) -> Array:
        whole = jnp.pad(x, ((0, 0), (0, parts * tiles * size - x.shape[1]), (0, 0)))
        return jnp.moveaxis(whole.reshape(x.shape[0], parts, tiles * size, x.shape[2]), 1, 0)

    def joined(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(heads, -1, x.shape[3])[:, : k.shape[1]]

    def part(dq: Array, x: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        first, k, v = x
        dk, dv, ds = (_from_memory if call.sums_in_parts(*SUMS) else _at_once)(call, rows, first, k, v)
        return _query_sums(call, dq, first, ds, k), (dk, dv)

    start = call.stored(Site.DQ, jnp.zeros(rows[0].shape))
    dq, (dk, dv) = lax.scan(part, start, (jnp.arange(parts, dtype=jnp.int32) * tiles, apart(k), apart(v)))
    return (dq, joined(dk), joined(dv)), {}


def _parts(call: Call, heads: int) -> tuple[int, int]:
    """How many parts, and key tiles of each, so that dS of one is no larger than it may be."""
    setup = call.setup
    tile = heads * setup.query_tiles * setup.block_q * setup.block_k * call.type(Site.DS).itemsize
    parts = -(-setup.key_tiles // max(1, SCORES // tile))
    return parts, -(-setup.key_tiles // parts)


def _at_once(call: Call, rows: Rows, first: Array, k: Array, v: Array) -> Gradients:
    """dK, dV and dS^T of some key tiles, from the first on."""
    (dk, dv, ds), _ = _key_gradients(call, rows, first, k, v)
    return dk, dv, ds


def _from_memory(call: Call, rows: Rows, first: Array, k: Array, v: Array) -> Gradients:
    """The same, for sums of fused multiply-adds: they need the registers, so P^T and dS^T come first, by a kernel of their own."""
    q, do, *_ = rows
    setup, heads, scores = call.setup, q.shape[0], (q.shape[0], k.shape[1], q.shape[1])
    kernel = Kernel(
        body=_write_scores,
        sums=(Site.S_B, Site.DP),
        walked=setup.query_tiles,
        recorder=recorder(setup, (), _features(k, v)),
        exps_at_once=8,
    )
    own = [*map(call.whole_of_query_head, rows), call.own_keys(k), call.own_keys(v), call.scalar(first)]
    (p, ds), _ = run(kernel, call, (heads, k.shape[1] // setup.block_k), own, [(scores, Site.P_B), (scores, Site.DS)])
    kernel = Kernel(body=_add_queries, sums=(), walked=setup.query_tiles, recorder=recorder(setup, (), _features(k, v)))
    own = [call.whole_of_query_head(q), call.whole_of_query_head(do), call.own_rows(p), call.own_rows(ds), call.scalar(first)]
    results = [((heads, *k.shape[1:]), Site.DK), ((heads, *v.shape[1:]), Site.DV)]
    (dk, dv), _ = run(kernel, call, (heads, k.shape[1] // setup.block_k), own, results)
    return dk, dv, ds


def _query_sums(call: Call, dq: Array, first: Array, ds: Array, k: Array) -> Array:
    """dQ and what some keys add to it."""
    tiles, is_apart = k.shape[1] // call.setup.block_k, call.sums_in_parts(*SUMS)
    recorded = recorder(call.setup, (), (k.shape[2], k.shape[2]))
    kernel = Kernel(body=_add_keys, sums=() if is_apart else (Site.DQ,), walked=tiles, recorder=recorded)
    own = [call.whole(k), call.own_columns(ds), call.own(dq), call.scalar(first)]
    ((found,), _) = run(kernel, call, (dq.shape[0], call.setup.query_tiles), own, [(dq.shape, Site.DQ)])
    return found


def _key_gradients(call: Call, rows: Rows, first: Array, k: Array, v: Array) -> tuple[list[Array], Seen]:
    """dK, dV, and dS^T where nothing is recorded, of the key tiles from the first on; and what was seen."""
    setup, heads = call.setup, rows[0].shape[0]
    kernel = Kernel(
        body=_own_key_gradients, sums=(Site.S_B, Site.DP, Site.DV, Site.DK), walked=setup.query_tiles,
        recorder=recorder(setup, (Site.DV, Site.DK), _features(k, v)), exps_at_once=8,
    )  # fmt: skip
    own = [*map(call.whole_of_query_head, rows), call.own_keys(k), call.own_keys(v), call.scalar(first)]
    results = [((heads, *k.shape[1:]), Site.DK), ((heads, *v.shape[1:]), Site.DV), ((heads, k.shape[1], rows[0].shape[1]), Site.DS)]
    return run(kernel, call, (heads, k.shape[1] // setup.block_k), own, results[: 3 if setup.record is None else 2])


def _traced(call: Call, rows: Rows, k: Array, v: Array) -> tuple[Gradients, Seen]:
    """dQ, dK, dV, and what was seen: of P, dS and dQ by a kernel that owns queries."""
    setup = call.setup
    kernel = Kernel(
        body=_own_query_gradients, sums=(Site.S_B, Site.DP, Site.DQ), walked=setup.key_tiles,
        recorder=recorder(setup, (*SCORE_GRADIENTS, Site.DQ), _features(k, v)), exps_at_once=8,
    )  # fmt: skip
    own = [*map(call.own, rows), call.whole(k), call.whole(v)]
    (dq,), seen = run(kernel, call, (rows[0].shape[0], setup.query_tiles), own, [(rows[0].shape, Site.DQ)])
    (dk, dv), seen_keys = _key_gradients(call, rows, jnp.int32(0), k, v)
    return (dq, dk, dv), seen | seen_keys


def _features(k: Array, v: Array) -> tuple[int, int]:
    return k.shape[2], v.shape[2]


def _wide(x: Array) -> Array:
    return x.astype(jnp.float64)


def _forward(call: Call, work: Work, inputs: Any, results: Any) -> None:
    setup, h, i, (q, k, v) = call.setup, pl.program_id(0), pl.program_id(1), inputs
    formats = [call.format(site) for site in (Site.M, Site.L, Site.O)]
    rows = call.read(Site.Q, q)

    def key_tile(is_whole: bool, n: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        j = last - 1 - n if setup.plan.key_order is KeyOrder.DESCENDING else n
        keys = pl.ds(j * setup.block_k, setup.block_k)

        def tile(m: Array, l: Array, o: Array, x: Array, y: Array, z: Array) -> tuple[algorithm.State, Seen]:
            at = events_of_tile(setup, h, i, j, is_whole, m > -jnp.inf)
            return algorithm.forward_tile(at, setup.scale, (m, l, o), x, y, z), at.seen()

        return work.tile(tile, formats, j, *_held(state, formats), rows, call.read(Site.K, k, keys), call.read(Site.V, v, keys))

    last, whole = seen_tiles(setup, i), whole_tiles(setup, i)
    start = algorithm.start(np, setup.block_q, v.shape[1])
    state = tuple(jnp.full(x.shape, x.flat[0], work.machine.types[name]) for x, name in zip(start, formats, strict=True))
    if setup.plan.key_order is KeyOrder.DESCENDING:
        state = walk(partial(key_tile, False), 0, last - whole, state)
        state = walk(partial(key_tile, True), last - whole, last, state)
    else:
        state = walk(partial(key_tile, True), 0, whole, state)
        state = walk(partial(key_tile, False), whole, last, state)

    def finish(m: Array, l: Array, o: Array) -> tuple[tuple[Array, ...], Seen]:
        at = events_of_rows(setup, h, i)
        out, wide, lse = algorithm.finish(at, (m, l, o))
        return (out, lse, wide)[: len(results)], at.seen()

    names = [call.format(Site.OUT), call.format(Site.LSE), FP64][: len(results)]
    for ref, result in zip(results, work.tile(finish, names, 0, *_held(state, formats)), strict=True):
        ref[...] = result


def _own_query_gradients(call: Call, work: Work, inputs: Any, results: Any) -> None:
    setup, h, i, (q, do, lse, delta, k, v), (dq,) = call.setup, pl.program_id(0), pl.program_id(1), inputs, results
    name = call.format(Site.DQ)
    rows = [call.read(site, x) for site, x in ((Site.Q, q), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))]

    def key_tile(is_whole: bool, j: Array, total: Array) -> Array:
        def tile(total: Array, x: Array, do: Array, lse: Array, delta: Array, y: Array, z: Array) -> tuple[tuple[Array], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole)
            _, ds = algorithm.score_gradients(at, setup.scale, x, y, z, do, lse, delta)
            return (algorithm.query_gradients(at, ds, y, total),), at.seen()

        keys = pl.ds(j * setup.block_k, setup.block_k)
        y, z = call.read(Site.K, k, keys), call.read(Site.V, v, keys)
        return work.tile(tile, [name], j, *_held((total,), [name]), *rows, y, z)[0]

    whole = whole_tiles(setup, i)
    total = walk(partial(key_tile, True), 0, whole, jnp.zeros(dq.shape, dq.dtype))
    dq[...] = walk(partial(key_tile, False), whole, seen_tiles(setup, i), total)


def _write_scores(call: Call, work: Work, inputs: Any, results: Any) -> None:
    """P^T and dS^T."""
    setup, h, (q, do, lse, delta, k, v, first) = call.setup, pl.program_id(0), inputs
    j, sites = first[0] + pl.program_id(1), (Site.P_B, Site.DS)
    keys = call.read(Site.K, k), call.read(Site.V, v)

    def query_tile(is_whole: bool, i: Array, _: Any) -> None:
        def tile(y: Array, z: Array, x: Array, do: Array, lse: Array, delta: Array) -> tuple[tuple[Array, ...], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole)
            return tuple(map(at.ops.transposed, algorithm.score_gradients(at, setup.scale, x, y, z, do, lse, delta))), at.seen()

        own = pl.ds(i * setup.block_q, setup.block_q)
        rows = [call.read(site, x, own) for site, x in ((Site.Q, q), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))]
        for ref, x in zip(results, work.tile(untransposed(tile), [call.format(site) for site in sites], i, *keys, *rows), strict=True):
            ref[:, own] = x

    walk_queries(setup, j, query_tile, None)


def _add_queries(call: Call, work: Work, inputs: Any, results: Any) -> None:
    """dK and dV of P^T and dS^T, some queries at a time."""
    setup, h, (q, do, p, ds, first), (dk, dv) = call.setup, pl.program_id(0), inputs, results
    j, formats, parts = first[0] + pl.program_id(1), [call.format(Site.DK), call.format(Site.DV)], setup.block_q // DEPTH

    def queries(is_whole: bool, n: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        def tile(dk: Array, dv: Array, p: Array, ds: Array, x: Array, do: Array) -> tuple[tuple[Array, ...], Seen]:
            at = events_of_tile(setup, h, lax.div(n, np.int32(parts)), j, is_whole)
            p, ds = at.ops.transposed(p), at.ops.transposed(ds)
            return algorithm.key_gradients(at, p, ds, x, do, dk, dv), at.seen()

        own = pl.ds(n * DEPTH, DEPTH)
        scores = [Held(array=ref[:, own], format=call.format(site)) for site, ref in ((Site.P_B, p), (Site.DS, ds))]
        rows = call.read(Site.Q, q, own), call.read(Site.DO, do, own)
        return work.tile(untransposed(tile), formats, n, *_held(totals, formats), *scores, *rows)

    totals = jnp.zeros(dk.shape, dk.dtype), jnp.zeros(dv.shape, dv.dtype)
    dk[...], dv[...] = walk_queries(setup, j, queries, totals, parts)


def _add_keys(call: Call, work: Work, inputs: Any, results: Any) -> None:
    """dQ of dS^T, some keys at a time."""
    setup, h, i, (k, ds, so_far, first), (dq,) = call.setup, pl.program_id(0), pl.program_id(1), inputs, results
    name, depth = call.format(Site.DQ), DEPTH if call.sums_in_parts(*SUMS) else setup.block_k
    tiles, parts = k.shape[0] // setup.block_k, setup.block_k // depth

    def keys(is_whole: bool, n: Array, total: Array) -> Array:
        def tile(total: Array, ds: Array, y: Array) -> tuple[tuple[Array], Seen]:
            at = events_of_tile(setup, h, i, first[0] + lax.div(n, np.int32(parts)), is_whole)
            return (algorithm.query_gradients(at, at.ops.transposed(ds), y, total),), at.seen()

        own = pl.ds(n * depth, depth)
        factors = call.read(Site.DS, ds, own), call.read(Site.K, k, own)
        return work.tile(untransposed(tile), [name], n, *_held((total,), [name]), *factors)[0]

    ends = (jnp.clip(n - first[0], np.int32(0), np.int32(tiles)) for n in (whole_tiles(setup, i), seen_tiles(setup, i)))
    whole, end = (n * np.int32(parts) for n in ends)
    total = walk(partial(keys, True), 0, whole, so_far[...])
    dq[...] = walk(partial(keys, False), whole, end, total)


def _own_key_gradients(call: Call, work: Work, inputs: Any, results: Any) -> None:
    setup, h, (q, do, lse, delta, k, v, first), (dk, dv, *written) = call.setup, pl.program_id(0), inputs, results
    j, formats = first[0] + pl.program_id(1), [call.format(site) for site in (Site.DK, Site.DV, Site.DS)][: len(results)]
    keys = call.read(Site.K, k), call.read(Site.V, v)

    def query_tile(is_whole: bool, i: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        def tile(dk: Array, dv: Array, y: Array, z: Array, x: Array, do: Array, lse: Array, delta: Array) -> tuple[tuple[Array, ...], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole)
            p, ds = algorithm.score_gradients(at, setup.scale, x, y, z, do, lse, delta)
            totals, seen = algorithm.key_gradients(at, p, ds, x, do, dk, dv), at.seen()
            own = {name: found for name, found in seen.items() if site_of(name) in (Site.DK, Site.DV)}
            return (*totals, at.ops.transposed(ds))[: len(results)], own

        own = pl.ds(i * setup.block_q, setup.block_q)
        rows = [call.read(site, x, own) for site, x in ((Site.Q, q), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))]
        dk, dv, *ds = work.tile(untransposed(tile), formats, i, *_held(totals, formats[:2]), *keys, *rows)
        for ref, x in zip(written, ds, strict=True):
            ref[:, own] = x
        return dk, dv

    totals = jnp.zeros(dk.shape, dk.dtype), jnp.zeros(dv.shape, dv.dtype)
    dk[...], dv[...] = walk_queries(setup, j, query_tile, totals)


def _held(arrays: tuple[Array, ...], formats: list[str]) -> list[Held]:
    return [Held(array=x, format=name) for x, name in zip(arrays, formats, strict=True)]
