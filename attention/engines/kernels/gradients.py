"""The programs of the backward's fused kernels, with the equations of every engine.

A program that owns a tile of keys computes its tiles transposed (`transposing`). P and dS can then
be factors of products without moving in registers. The rows of a tile may be added to a sum in
slices of DEPTH rows (`Call.sums_in_slices`). The arguments of each program are the call, its
arithmetic (`Work`), and the parts of the inputs and results in memory that it sees.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call, Refs, Work, held
from roundscope.attention.engines.kernels.tiles import (
    Exists,
    events_of_tile,
    if_any,
    seen_tiles,
    walk_queries,
    whole_tiles,
)
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Operands
from roundscope.attention.trace.parts import site_of
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.ops import DEPTH
from roundscope.emu.backends.kernels.transposing import untransposed
from roundscope.events.recorder import Seen

ROWS = (Site.Q, Site.DO, Site.LSE, Site.DELTA)


def own_query_gradients(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write dQ of a tile of queries, from P and dS that this program computes."""
    setup, h, i, (*rows, k, v), (dq,) = call.setup, work.head, work.own, inputs, results
    name = call.format(Site.DQ)
    own = [call.read(site, x) for site, x in zip(ROWS, rows, strict=True)]

    def key_tile(is_whole: bool, work: Work, j: Array, total: Array) -> Array:
        def tile(setup: Setup, total: Array, given: Operands) -> tuple[tuple[Array], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole)
            _, ds = algorithm.score_gradients(at, setup.scale, given)
            return (algorithm.query_gradients(at, ds, given.k, total),), at.seen()

        keys = pl.ds(j * setup.block_k, setup.block_k)
        given = _operands(own, (call.read(Site.K, k, keys), call.read(Site.V, v, keys)))
        return work.tile(tile, [name], j, *held((total,), [name]), given)[0]

    whole = whole_tiles(setup, i, work.summarizes)
    total = work.walk(partial(key_tile, True), 0, whole, jnp.zeros(dq.shape, dq.dtype))
    dq[...] = work.walk(partial(key_tile, False), whole, seen_tiles(setup, i), total)


def write_scores(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write P^T and dS^T of a tile of keys and all queries."""
    setup, h, (*rows, k, v, first) = call.setup, work.head, inputs
    j, sites = first[0] + work.own, (Site.P_B, Site.DS)
    keys = call.read(Site.K, k), call.read(Site.V, v)

    def query_tile(is_whole: bool, work: Work, i: Array, _: Any) -> None:
        own, exists = pl.ds(i * setup.block_q, setup.block_q), work.exists(i)

        def tile(
            setup: Setup, given: Operands, exists: Exists | None
        ) -> tuple[tuple[Array, ...], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole, exists=exists)
            scores = algorithm.score_gradients(at, setup.scale, given)
            return tuple(map(at.ops.transposed, scores)), at.seen()

        def computed() -> None:
            queries = [call.read(site, x, own) for site, x in zip(ROWS, rows, strict=True)]
            names = [call.format(site) for site in sites]
            found = work.tile(_as_it_lies(tile), names, i, _operands(queries, keys), exists)
            for ref, x in zip(results, found, strict=True):
                ref[:, own] = x

        if_any(exists, computed, None)

    walk_queries(setup, j, query_tile, None, work.walk)


def add_queries(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write dK and dV of a tile of keys, from P^T and dS^T, some queries at a time."""
    setup, h, (q, do, p, ds, first), (dk, dv) = call.setup, work.head, inputs, results
    j = first[0] + work.own
    formats = [call.format(Site.DK), call.format(Site.DV)]
    slices = setup.block_q // DEPTH

    def queries(
        is_whole: bool, work: Work, n: Array, totals: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        i = lax.div(n, np.int32(slices))
        exists = work.exists(i)

        def tile(setup: Setup, *arrays: Any) -> tuple[tuple[Array, ...], Seen]:
            dk, dv, p, ds, x, do, exists = arrays
            at = events_of_tile(setup, h, i, j, is_whole, exists=exists)
            p, ds = at.ops.transposed(p), at.ops.transposed(ds)
            return algorithm.key_gradients(at, p, ds, x, do, dk, dv), at.seen()

        def computed() -> tuple[Array, ...]:
            own = pl.ds(n * DEPTH, DEPTH)
            scores = [
                Held(array=ref[:, own], format=call.format(site))
                for site, ref in ((Site.P_B, p), (Site.DS, ds))
            ]
            rows = call.read(Site.Q, q, own), call.read(Site.DO, do, own)
            given = *held(totals, formats), *scores, *rows, exists
            return work.tile(_as_it_lies(tile), formats, n, *given)

        return if_any(exists, computed, totals)

    zeros: tuple[Array, ...] = jnp.zeros(dk.shape, dk.dtype), jnp.zeros(dv.shape, dv.dtype)
    dk[...], dv[...] = walk_queries(setup, j, queries, zeros, work.walk, slices)


def add_keys(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write dQ of a tile of queries, from dS^T and the sum so far, some keys at a time."""
    setup, h, i, (k, ds, so_far, first), (dq,) = call.setup, work.head, work.own, inputs, results
    name, depth = call.format(Site.DQ), DEPTH if call.sums_in_slices else setup.block_k
    tiles, slices = k.shape[0] // setup.block_k, setup.block_k // depth

    def keys(is_whole: bool, work: Work, n: Array, total: Array) -> Array:
        j = lax.div(n, np.int32(slices))  # of the part
        exists = work.exists(j)

        def tile(
            setup: Setup, total: Array, ds: Array, y: Array, exists: Exists | None
        ) -> tuple[tuple[Array], Seen]:
            at = events_of_tile(setup, h, i, first[0] + j, is_whole, exists=exists)
            return (algorithm.query_gradients(at, at.ops.transposed(ds), y, total),), at.seen()

        def computed() -> Array:
            own = pl.ds(n * depth, depth)
            factors = call.read(Site.DS, ds, own), call.read(Site.K, k, own)
            given = *held((total,), [name]), *factors, exists
            return work.tile(_as_it_lies(tile), [name], n, *given)[0]

        return if_any(exists, computed, total)

    ends = (
        jnp.clip(n - first[0], np.int32(0), np.int32(tiles))
        for n in (whole_tiles(setup, i), seen_tiles(setup, i))
    )
    whole, end = (n * np.int32(slices) for n in ends)
    total = work.walk(partial(keys, True), 0, whole, so_far[...])
    dq[...] = work.walk(partial(keys, False), whole, end, total)


def own_key_gradients(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write dK and dV of a tile of keys, and dS^T if it is among the results."""
    setup, h, (*rows, k, v, first), (dk, dv, *written) = call.setup, work.head, inputs, results
    j = first[0] + work.own
    formats = [call.format(site) for site in (Site.DK, Site.DV, Site.DS)][: len(results)]
    keys = call.read(Site.K, k), call.read(Site.V, v)

    def query_tile(
        is_whole: bool, work: Work, i: Array, totals: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        def tile(
            setup: Setup, dk: Array, dv: Array, given: Operands, exists: Exists | None
        ) -> tuple[tuple[Array, ...], Seen]:
            at = events_of_tile(setup, h, i, j, is_whole, exists=exists)
            p, ds = algorithm.score_gradients(at, setup.scale, given)
            totals = algorithm.key_gradients(at, p, ds, given.q, given.do, dk, dv)
            own = {n: x for n, x in at.seen().items() if site_of(n) in (Site.DK, Site.DV)}
            return (*totals, at.ops.transposed(ds))[: len(results)], own

        own, exists = pl.ds(i * setup.block_q, setup.block_q), work.exists(i)

        def computed() -> tuple[Array, ...]:
            queries = [call.read(site, x, own) for site, x in zip(ROWS, rows, strict=True)]
            sums = held(totals, formats[:2])
            given = _operands(queries, keys)
            dk, dv, *ds = work.tile(_as_it_lies(tile), formats, i, *sums, given, exists)
            for ref, x in zip(written, ds, strict=True):
                ref[:, own] = x
            return dk, dv

        return if_any(exists, computed, totals)

    zeros: tuple[Array, ...] = jnp.zeros(dk.shape, dk.dtype), jnp.zeros(dv.shape, dv.dtype)
    dk[...], dv[...] = walk_queries(setup, j, query_tile, zeros, work.walk, at_once=work.summarizes)


def _operands(rows: Sequence[Any], keys: tuple[Any, Any]) -> Operands:
    """Return what a tile reads; rows: in the order of ROWS."""
    q, do, lse, delta = rows
    return Operands(q, *keys, do, lse, delta)


def _as_it_lies(tile: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of (setup, arrays) without its transpositions."""
    return lambda setup, *arrays: untransposed(partial(tile, setup))(*arrays)
