"""The forward, and the gradients, by two warp groups.

In the forward, while one computes exponentials, the tensor core multiplies for the other. They take
turns where both last as long; correctly rounded exps last longer, so both groups may compute them
at once. Only L comes later, by XLA, from the maximum and the row sum that the kernel leaves.

Programs that own keys give dK and dV, those that own queries dQ. Where that is faster, each kernel
computes P and dS again from S and dP, so that no array has an entry for every score. Elsewhere the
kernel of the keys writes dS, and dQ is a product of dS and K. A program that owns keys computes its
tiles transposed, as `untransposed` makes them.
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
from roundscope.attention.engines.kernels.hopper.fit import APPROXIMATE, ahead_of_scores
from roundscope.attention.engines.kernels.hopper.tile import (
    Given,
    events,
    exists_by_key,
    exists_by_query,
    factor,
    held,
    numbered,
    rows_by_query,
    scores_by_query,
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
from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.sites import Site
from roundscope.attention.tiles.backward import (
    round_head_gradients,
    round_query_gradients,
    rounded_key_gradients,
)
from roundscope.attention.tiles.forward import has_first_tile_apart
from roundscope.attention.tiles.loops import Setup, whole_events
from roundscope.attention.tiles.records import Operands, State
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import TYPES
from roundscope.emu.backends.kernels.transposing import untransposed
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.machine import Later, warpgroup_machine
from roundscope.emu.backends.kernels.warpgroups.registers import COLUMNWISE, ROWWISE, Placement
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

ROW_SITES = (Site.Q, Site.DO, Site.LSE, Site.DELTA)
KEY_SITES = (Site.K, Site.V)
AHEAD = 2  # tiles in shared memory
EXPS_AT_ONCE = 8  # of a thread, since two sums need registers too


def gradients(
    call: Call, rows: Sequence[Array], keys: Sequence[Array], *, is_final: bool, by_scores: bool
) -> tuple[Array, Array, Array]:
    """Return dQ (heads, T, H), dK (heads, S, H) and dV (heads, S, Hv) of query heads, or their
    sums.

    rows are q (heads, T, H), dO (heads, T, Hv), L and delta (heads, T); keys are k (key heads, S,
    H) and v (key heads, S, Hv). They are results if `is_final`; by_scores: whether dQ reads dS.
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
    """How a tile is added to dQ, from `mine`, arrays of the queries, and the sites walked over.

    f gives, of dQ so far, `mine`, the tile's arrays and what exists of it, dQ after the tile; cut
    gives, of the first key of a tile that is cut, what exists of it.
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
        out, _, lse, _ = algorithm.without_rows_of_no_key(at, out, out, lse)
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

        def computed(m: Array, l: Array, o: Array, *arrays: Any) -> Any:
            *factors, exists = arrays
            at = events(setup, ROWS, setup.block_k, exists)
            return algorithm.forward_tile(at, setup.scale, State(m, l, o), *factors), ()

        own = held(state, formats, seen)
        return narrowed(machine, computed, formats)(*own, queries, k, v, exists)[0]

    # they take turns where the products of one group last as long as the exps of the other
    state = walk(key_tile, _started(start, formats), setup.plan.exp in APPROXIMATE)

    def finished(m: Array, l: Array, o: Array, apart: Any) -> Any:
        at = events(setup, ROWS, setup.block_k)
        out, *_ = algorithm.finish(at, setup.scale, State(m, l, o), apart)
        return (out, m, algorithm.kept_row_sum(at, l)), ()

    names = [call.format(site) for site in (Site.OUT, Site.M, Site.L)]
    is_rounded = setup.plan[Site.LANES] != setup.plan[Site.L]
    has_apart = is_rounded and has_first_tile_apart(setup)  # what is not read has no registers
    apart = numbered(row) < setup.block_q if has_apart else None
    return narrowed(machine, finished, names)(*held(state, formats, seen), apart)[0]


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
