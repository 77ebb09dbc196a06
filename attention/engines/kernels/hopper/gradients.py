"""The gradients by warp groups: dK and dV, whose programs own keys, and dQ, whose own queries.

Where that is faster, each kernel computes P and dS again from S and dP, so that no array has an
entry for every score. Elsewhere the kernel of the keys writes dS, and dQ is a product of dS and K.
A program that owns keys computes its tiles transposed, as `untransposed` makes them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.hopper.fit import ahead_of_scores
from roundscope.attention.engines.kernels.hopper.tile import (
    Given,
    events,
    exists_by_key,
    exists_by_query,
    factor,
    held,
    rows_by_query,
)
from roundscope.attention.engines.kernels.hopper.walk import (
    Tile,
    hidden_zero,
    is_cut,
    over_keys,
    over_queries,
    run,
)
from roundscope.attention.engines.kernels.tiles import Exists
from roundscope.attention.engines.layout import from_heads, to_heads
from roundscope.attention.sites import Site
from roundscope.attention.tiles.backward import (
    round_head_gradients,
    round_query_gradients,
    rounded_key_gradients,
)
from roundscope.attention.tiles.records import Operands
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import TYPES
from roundscope.emu.backends.kernels.transposing import untransposed
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.machine import Later, warpgroup_machine
from roundscope.emu.backends.kernels.warpgroups.registers import COLUMNWISE, ROWWISE, Placement

ROW_SITES = (Site.Q, Site.DO, Site.LSE, Site.DELTA)
KEY_SITES = (Site.K, Site.V)
AHEAD = 2  # tiles in shared memory
EXPS_AT_ONCE = 8  # of a thread, since two sums need registers too


def gradients(
    call: Call, rows: Sequence[Array], keys: Sequence[Array], *, is_final: bool, by_scores: bool
) -> tuple[Array, Array, Array]:
    """Return dQ (heads, T, H), dK (heads, S, H) and dV (heads, S, Hv) of query heads.

    rows       q (heads, T, H), dO (heads, T, Hv), L and delta (heads, T)
    keys       k (key heads, S, H) and v (key heads, S, Hv)
    is_final   whether they are rounded as results; if not, they are the sums
    by_scores  whether dQ reads dS from memory
    """
    batch = rows[0].shape[0] // call.setup.heads
    mine = [Given(array=_by_batch(x, batch)) for x in rows]
    theirs = [Given(array=_by_batch(x, batch), of_keys=True) for x in keys]
    queries, count = rows[0].shape[1], keys[0].shape[1]

    def made(site: Site, length: int, columns: int) -> jax.ShapeDtypeStruct:
        shape = batch, length, call.setup.heads, columns
        return jax.ShapeDtypeStruct(shape, TYPES[call.format(site)])

    dk, dv, *scores = run(
        over_queries(call, AHEAD),
        partial(_own_keys, call, is_final, by_scores),
        theirs,
        mine,
        [
            made(site, count, like.shape[2])
            for site, like in zip(_sites_of_keys(is_final), keys, strict=True)
        ],
        [made(Site.DS, count, queries)] if by_scores else [],
    )
    features = keys[0].shape[2]
    if by_scores:
        read, walked = [], [Given(array=scores[0], of_scores=True), theirs[0]]
        ahead, addition = ahead_of_scores(call, features), _from_memory
    else:
        read, walked, ahead, addition = mine, theirs, AHEAD, _computed
    (dq,) = run(
        over_keys(call, ahead, descends=False),
        partial(_own_queries, call, is_final, features, addition),
        read,
        walked,
        [made(Site.DQ_OUT if is_final else Site.DQ, queries, features)],
    )
    dq, dk, dv = (to_heads(jnp, x, 1) for x in (dq, dk, dv))
    return dq, dk, dv


def _by_batch(x: Array, batch: int) -> Array:
    """Return (heads, rows, features) as (B, rows, N, features); (heads, rows) as (B, N, rows)."""
    return from_heads(x, batch, x.shape[1]) if x.ndim == 3 else x.reshape(batch, -1, x.shape[1])


def _read(call: Call, sites: Sequence[Site], memory: Sequence[Any], place: Placement) -> list[Held]:
    """Return what shared memory has of some sites: matrices as factors, and vectors.

    Where tiles are masked, no register is left to keep a vector: it is read wherever it is needed.
    """
    found = []
    for site, x in zip(sites, memory, strict=True):
        name = call.format(site)
        if len(x.shape) == 2:
            found.append(factor(x, name))
        else:
            later = Later(made=partial(place.loaded, x), shape=x.shape, dtype=x.dtype)
            vector = later if is_cut(call.setup) else place.loaded(x)
            found.append(Held(array=vector, format=name))
    return found


def _zeros(call: Call, site: Site, features: int) -> Array:
    return ROWWISE.placed(jnp.zeros((ROWS, features), TYPES[call.format(site)]))


def _each(f: Callable[[int], None], count: int) -> None:
    for n in range(count):
        f(n)


def _sites_of_keys(is_final: bool) -> tuple[Site, Site]:
    return (Site.DK_OUT, Site.DV_OUT) if is_final else (Site.DK, Site.DV)


class Addition(NamedTuple):
    """How a tile is added to dQ.

    f      (dQ so far, `mine`, the arrays of the tile, what exists of it) -> dQ after the tile
    mine   the arrays of the queries
    sites  the arrays that are walked over
    cut    first key of a tile that is cut -> what exists of it
    """

    f: Callable[..., Any]
    mine: Sequence[Held]
    sites: Sequence[Site]
    cut: Callable[[Array], Any]


def _computed(call: Call, own: list[Any], row: Array) -> Addition:
    """Return how dS of a tile, computed from S and dP, is added to dQ."""
    setup = call.setup

    def added(total: Array, *arrays: Any) -> Any:
        x, do, lse, delta, y, z, exists = arrays
        at = events(setup, ROWS, setup.block_k, exists)
        _, ds = algorithm.score_gradients(at, setup.scale, Operands(x, y, z, do, lse, delta))
        return (algorithm.query_gradients(at, ds, y, total),), ()

    mine = _read(call, ROW_SITES, own, ROWWISE)
    return Addition(added, mine, KEY_SITES, partial(exists_by_query, setup, row))


def _from_memory(call: Call, own: list[Any], row: Array) -> Addition:
    """Return how dS of a tile, read as dS^T from memory, is added to dQ."""
    setup = call.setup

    def added(total: Array, ds: Array, y: Array, seeing: Array | None) -> Any:
        exists = None if seeing is None else Exists(jnp.ones(ds.T.shape, bool), seeing, None)
        at = events(setup, ROWS, setup.block_k, exists)
        return (algorithm.query_gradients(at, at.ops.transposed(ds), y, total),), ()

    sites, cut = (Site.DS, Site.K), partial(rows_by_query, setup, row)
    return Addition(untransposed(added), [], sites, cut)


def _own_queries(
    call: Call,
    is_final: bool,
    features: int,
    addition: Callable[[Call, list[Any], Array], Addition],
    own: list[Any],
    row: Array,
    walk: Callable[..., Any],
) -> tuple[Array, ...]:
    """Return dQ of the queries of a warp group, from `row` on, a result or a sum."""
    setup, machine = call.setup, warpgroup_machine(ROWWISE, hidden_zero(), EXPS_AT_ONCE)
    f, mine, sites, cut = addition(call, own, row)
    formats = [call.format(Site.DQ)]

    def key_tile(tile: Tile, total: tuple[Array, ...]) -> tuple[Array, ...]:
        _each(tile.wait, len(sites))
        walked = _read(call, sites, tile.memory, ROWWISE)
        exists = None if tile.is_whole else cut(tile.number * np.int32(setup.block_k))
        so_far = held(total, formats, [total[0].shape])
        found = narrowed(machine, f, formats)(*so_far, *mine, *walked, exists)[0]
        _each(tile.free, len(sites))
        return found

    sums: tuple[Array, ...] = walk(key_tile, (_zeros(call, Site.DQ, features),))
    if not is_final:
        return sums

    def rounded(dq: Array) -> Any:
        at = events(setup, ROWS, setup.block_k)
        return (round_query_gradients(at, setup, dq),), ()

    names = [call.format(Site.DQ_OUT)]
    return narrowed(machine, rounded, names)(*held(sums, formats, [sums[0].shape]))[0]


def _own_keys(
    call: Call,
    is_final: bool,
    by_scores: bool,
    own: list[Any],
    row: Array,
    walk: Callable[..., Any],
) -> tuple[Array, ...]:
    """Return dK and dV of the keys of a warp group, from `row` on, and write dS^T `by_scores`."""
    setup, machine = call.setup, warpgroup_machine(COLUMNWISE, hidden_zero(), EXPS_AT_ONCE)
    mine = _read(call, KEY_SITES, own, COLUMNWISE)
    formats = [call.format(site) for site in (Site.DK, Site.DV, Site.DS)][: 2 + by_scores]

    def query_tile(tile: Tile, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        _each(tile.wait, len(ROW_SITES))
        rows = _read(call, ROW_SITES, tile.memory, COLUMNWISE)
        first = tile.number * np.int32(ROWS)
        exists = None if tile.is_whole else exists_by_key(setup, first, row)

        def computed(dk: Array, dv: Array, *arrays: Any) -> Any:
            y, z, x, do, lse, delta, exists = arrays
            at = events(setup, ROWS, ROWS, exists, by_key=True)
            p, ds = algorithm.score_gradients(at, setup.scale, Operands(x, y, z, do, lse, delta))
            totals = algorithm.key_gradients(at, p, ds, x, do, dk, dv)
            return (*totals, at.ops.transposed(ds))[: len(formats)], ()

        own = held(totals, formats[:2], [x.shape for x in totals])
        f = narrowed(machine, untransposed(computed), formats)
        (dk, dv, *scores), _ = f(*own, *mine, *rows, exists)
        _each(tile.free, len(ROW_SITES))
        for n, x in enumerate(scores):
            tile.write(n, x)
        return dk, dv

    sites = zip((Site.DK, Site.DV), own, strict=True)
    sums: tuple[Array, ...] = walk(
        query_tile, tuple(_zeros(call, site, x.shape[1]) for site, x in sites)
    )
    if not is_final:
        return sums

    def rounded(dk: Array, dv: Array) -> Any:
        at = events(setup, ROWS, ROWS)
        return rounded_key_gradients(at, setup, *round_head_gradients(at, setup, dk, dv)), ()

    names = [call.format(site) for site in _sites_of_keys(is_final)]
    return narrowed(machine, rounded, names)(*held(sums, formats[:2], [x.shape for x in sums]))[0]
