"""Heads in fused kernels: a program owns a tile of queries (or of keys) and walks over the others, with the equations of every engine.

Nothing of the size T x S is ever stored. Plans, tiles and equations are `attention.head`'s and `attention.algorithm`'s; numbers are
held as narrow as their events allow (`emu.narrowing`).
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from attention import algorithm
from attention.head import Setup
from attention.pallas_call import Call, Kernel, Work, run
from attention.pallas_record import recorder
from attention.pallas_tiles import events_of_rows, events_of_tile, seen_tiles, walk, whole_queries, whole_tiles
from attention.plan import DeltaFrom, KeyOrder
from attention.sites import Site
from attention.trace import site_of
from emu.held import FP64, Held

SCORE_GRADIENTS = (Site.S_B, Site.SCALED_B, Site.X_B, Site.EXP_B, Site.P_B, Site.DP, Site.DPD, Site.DS)
Seen = dict[str, Any]


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
        body=_forward, sums=(Site.S, Site.ROWSUM, Site.PV), turned=(), walked=setup.key_tiles,
        recorder=recorder(setup, sites, (q.shape[2], v.shape[2])),
    )  # fmt: skip
    (out, lse, *wide), seen = run(kernel, call, (q.shape[0], setup.query_tiles), [call.own(q), call.whole(k), call.whole(v)], results)
    return (out, wide[0] if is_read else out, lse), seen


def backward(
    setup: Setup, q: Array, k: Array, v: Array, do: Array, lse: Array, delta: Array, on_gpu: bool
) -> tuple[tuple[Array, Array, Array], Seen]:
    """(dQ, dK and dV of query heads) before their last roundings: two kernels, each with its own P and dS. And what was seen, of P and
    dS by the first.
    """
    call = Call(setup=setup, on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    inputs = ((Site.Q, q), (Site.K, k), (Site.V, v), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))
    q, k, v, do, lse, delta = (call.stored(site, x) for site, x in inputs)
    rows, keys, heads, features = (q, do, lse, delta), (k, v), q.shape[0], (q.shape[2], v.shape[2])
    kernel = Kernel(
        body=_query_gradients, sums=(Site.S_B, Site.DP, Site.DQ), turned=(), walked=setup.key_tiles,
        recorder=recorder(setup, (*SCORE_GRADIENTS, Site.DQ), features),
    )  # fmt: skip
    own = [*map(call.own, rows), *map(call.whole, keys)]
    (dq,), seen = run(kernel, call, (heads, setup.query_tiles), own, [(q.shape, Site.DQ)])
    kernel = Kernel(
        body=_key_gradients, sums=(Site.S_B, Site.DP, Site.DV, Site.DK), turned=(Site.P_B, Site.DS), walked=setup.query_tiles,
        recorder=recorder(setup, (Site.DV, Site.DK), features),
    )  # fmt: skip
    own = [*map(call.whole_of_query_head, rows), *map(call.own_keys, keys)]
    results = [((heads, *k.shape[1:]), Site.DK), ((heads, *v.shape[1:]), Site.DV)]
    (dk, dv), seen_keys = run(kernel, call, (heads, setup.key_tiles), own, results)
    return (dq, dk, dv), seen | seen_keys


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


def _query_gradients(call: Call, work: Work, inputs: Any, results: Any) -> None:
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


def _key_gradients(call: Call, work: Work, inputs: Any, results: Any) -> None:
    setup, h, j, (q, do, lse, delta, k, v), (dk, dv) = call.setup, pl.program_id(0), pl.program_id(1), inputs, results
    formats = [call.format(Site.DK), call.format(Site.DV)]
    keys = call.read(Site.K, k), call.read(Site.V, v)

    def query_tile(is_whole: bool, i: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        def tile(dk: Array, dv: Array, y: Array, z: Array, x: Array, do: Array, lse: Array, delta: Array) -> tuple[tuple[Array, ...], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole)
            p, ds = algorithm.score_gradients(at, setup.scale, x, y, z, do, lse, delta)
            totals, seen = algorithm.key_gradients(at, p, ds, x, do, dk, dv), at.seen()
            return totals, {name: found for name, found in seen.items() if site_of(name) in (Site.DK, Site.DV)}

        own = pl.ds(i * setup.block_q, setup.block_q)
        rows = [call.read(site, x, own) for site, x in ((Site.Q, q), (Site.DO, do), (Site.LSE, lse), (Site.DELTA, delta))]
        return work.tile(tile, formats, i, *_held(totals, formats), *keys, *rows)

    first, whole, end = whole_queries(setup, j)
    totals: Any = jnp.zeros(dk.shape, dk.dtype), jnp.zeros(dv.shape, dv.dtype)
    totals = walk(partial(query_tile, False), first, whole, totals)
    totals = walk(partial(query_tile, True), whole, end, totals)
    dk[...], dv[...] = walk(partial(query_tile, False), end, setup.query_tiles, totals)


def _held(arrays: tuple[Array, ...], formats: list[str]) -> list[Held]:
    return [Held(array=x, format=name) for x, name in zip(arrays, formats, strict=True)]
