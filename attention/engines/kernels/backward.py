"""The backward in fused kernels: the kernels, and the arrays that one passes to the next in memory.

Their programs are in `gradients`, but for that of delta = rowsum(dO O), which comes first: under
XLA its products would be written to memory in binary64 and read again. `delta_fits` says which
calls have that kernel; others have `attention.tiles.backward.deltas`, which gives the same bits.
"""

from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call, Input, Refs, Work, wide
from roundscope.attention.engines.kernels.fit import is_power_of_two
from roundscope.attention.engines.kernels.gradients import (
    add_keys,
    add_queries,
    own_key_gradients,
    own_query_gradients,
    write_scores,
)
from roundscope.attention.engines.kernels.hopper.fit import gradients_fit, wants_scores
from roundscope.attention.engines.kernels.record import Kept, recorder, silent
from roundscope.attention.engines.kernels.running import Kernel, run
from roundscope.attention.engines.kernels.summary import summarized, tiles_of
from roundscope.attention.engines.kernels.tiles import (
    Masks,
    by_key,
    by_query,
    events_of_rows,
    masks,
)
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import FP64, NoSuchArithmetic
from roundscope.emu.backends.kernels.ops import DEPTH
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import Order
from roundscope.events.recorder import Seen

SCORE_GRADIENTS = (
    Site.S_B,
    Site.SCALED_B,
    Site.X_B,
    Site.EXP_B,
    Site.P_B,
    Site.DP,
    Site.DPD,
    Site.DS,
)
SCORE_BYTES = 2**31  # of dS, and of P where it is written too, in memory at once
EXPS_AT_ONCE = 8  # of a thread, since two sums need registers too
ASCENDING_COLUMNS = 64  # of a row; registers do not hold more
OF_DELTA = (Site.DO, Site.OUT)  # operands
Rows: TypeAlias = tuple[Array, Array, Array, Array]  # Q, dO, L, delta
Gradients: TypeAlias = tuple[Array, Array, Array]  # dQ, dK, dV, or dK, dV, dS


def backward(
    setup: Setup,
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    lse: Array,
    delta: Array,
    mask: Array | None = None,
    *,
    on_gpu: bool,
    may_be_final: bool,
) -> tuple[Gradients, Seen, bool]:
    """Return dQ, dK and dV of query heads, what was recorded, and whether they are final.

    If not, their last roundings are still to be done, and those of heads that share a key head to
    be added up. A kernel whose programs own tiles of keys computes P and dS, adds up dK and dV, and
    writes dS to memory. Another kernel computes dQ from dS. dS of all keys at once would need
    memory for every score, so the keys are split into parts. A trace counts the events of P and dS
    by query, so a separate kernel, whose programs own tiles of queries, records them.

    The arguments are as for `forward`, with dO (heads, T, Hv), and L and delta (heads, T). There is
    no trace with a mask.
    """
    call = Call(setup=silent(setup), on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    inputs = (
        (Site.Q, q),
        (Site.K, k),
        (Site.V, v),
        (Site.DO, do),
        (Site.LSE, lse),
        (Site.DELTA, delta),
    )
    q, k, v, do, lse, delta = (call.stored(site, x) for site, x in inputs)
    rows = q, do, lse, delta
    is_final = may_be_final and setup.record is None and call.group == 1
    exists = masks(setup, mask)
    made = _on_hopper(call, rows, k, v, is_final) if exists is None else None
    is_final = is_final and made is not None
    dq, dk, dv = made or _by_parts(call, rows, k, v, exists)
    seen = {} if setup.record is None else _looked_at(setup, call, rows, k, v)
    return (wide(dq), wide(dk), wide(dv)), seen, is_final


def _on_hopper(call: Call, rows: Rows, k: Array, v: Array, is_final: bool) -> Gradients | None:
    """Return the results of the kernels for Hopper, or None if they do not fit the call."""
    wanted = wants_scores(call.setup.plan, k.shape[2])
    size = _score_bytes(call, rows[0].shape[0], k.shape[1], (Site.DS,))
    by_scores = wanted and size <= SCORE_BYTES
    if not gradients_fit(call, rows[0], k, v, by_scores=by_scores):
        return None
    from roundscope.attention.engines.kernels.hopper.programs import gradients

    try:
        return gradients(call, rows, (k, v), is_final=is_final, by_scores=by_scores)
    except NoSuchArithmetic:
        return None


def _score_bytes(call: Call, heads: int, keys: int, sites: tuple[Site, ...]) -> int:
    """Return how many bytes arrays of these sites have, for all queries and so many keys."""
    queries = call.setup.query_tiles * call.setup.block_q
    return heads * queries * keys * sum(call.dtype(site).itemsize for site in sites)


def _by_parts(call: Call, rows: Rows, k: Array, v: Array, exists: Masks | None) -> Gradients:
    """Return dQ, dK and dV, computed for some key tiles at a time."""
    heads, size = rows[0].shape[0], call.setup.block_k
    parts, tiles = _parts(call, heads)

    def apart(x: Array, size: int = size) -> Array:
        whole = jnp.pad(x, ((0, 0), (0, parts * tiles * size - x.shape[1]), (0, 0)))
        return jnp.moveaxis(whole.reshape(x.shape[0], parts, tiles * size, x.shape[2]), 1, 0)

    def columns_apart(x: Array) -> Array:
        return apart(x.swapaxes(1, 2)).swapaxes(2, 3)

    def joined(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(heads, -1, x.shape[3])[:, : k.shape[1]]

    def part(dq: Array, x: tuple[Any, ...]) -> tuple[Array, tuple[Array, Array]]:
        first, k, v, exists = x
        dk, dv, ds = (_by_way_of_scores if call.sums_in_slices else _in_one_kernel)(
            call, rows, first, k, v, exists
        )
        return _query_sums(call, dq, first, ds, k, exists), (dk, dv)

    start, firsts = call.stored(Site.DQ, jnp.zeros(rows[0].shape)), jnp.arange(parts) * tiles
    of_parts = exists and Masks(
        columns_apart(exists.scores), apart(exists.rows, 1), columns_apart(exists.keys)
    )
    xs = firsts.astype(jnp.int32), apart(k), apart(v), of_parts
    dq, (dk, dv) = lax.scan(part, start, xs)
    return dq, joined(dk), joined(dv)


def _parts(call: Call, heads: int) -> tuple[int, int]:
    """Return the number of parts that the keys are split into, and of key tiles in each part.

    The arrays that are written to memory for a part stay within SCORE_BYTES.
    """
    setup, written = call.setup, (Site.DS, Site.P_B) if call.sums_in_slices else (Site.DS,)
    tile = _score_bytes(call, heads, setup.block_k, written)
    parts = -(-setup.key_tiles // max(1, SCORE_BYTES // tile))
    return parts, -(-setup.key_tiles // parts)


def _in_one_kernel(
    call: Call, rows: Rows, first: Array, k: Array, v: Array, exists: Masks | None
) -> Gradients:
    """Return dK, dV and dS^T for some key tiles, k and v, the first of which has number `first`."""
    dk, dv, ds = _of_keys(
        _own_keys(call),
        call,
        _rows_and_keys(call, rows, first, k, v),
        rows[0],
        k,
        v,
        (Site.DK, Site.DV, Site.DS),
        exists,
    )
    return dk, dv, ds


def _by_way_of_scores(
    call: Call, rows: Rows, first: Array, k: Array, v: Array, exists: Masks | None
) -> Gradients:
    """Return what `_in_one_kernel` returns, for sums of fused multiply-adds.

    These sums need the registers, so a separate kernel writes P^T and dS^T first.
    """
    q, do, *_ = rows
    kernel = Kernel(
        body=write_scores,
        sums=(Site.S_B, Site.DP),
        turn=call.setup.block_q,
        exps_at_once=EXPS_AT_ONCE,
    )
    inputs = _rows_and_keys(call, rows, first, k, v)
    p, ds = _of_keys(kernel, call, inputs, q, k, v, (Site.P_B, Site.DS), exists)
    own = [
        *map(call.whole_of_query_head, (q, do)),
        *map(call.own_keys_of_query_head, (p, ds)),
        call.scalar(first),
    ]
    sums = Kernel(body=add_queries, sums=(), turn=DEPTH)
    dk, dv = _of_keys(sums, call, own, q, k, v, (Site.DK, Site.DV), exists)
    return dk, dv, ds


def _query_sums(
    call: Call, dq: Array, first: Array, ds: Array, k: Array, exists: Masks | None
) -> Array:
    """Return dQ after some key tiles, k, the first of which has number `first`."""
    in_slices = call.sums_in_slices
    kernel = Kernel(
        body=add_keys,
        sums=() if in_slices else (Site.DQ,),
        turn=DEPTH if in_slices else call.setup.block_k,
    )
    own = [call.whole(k), call.own_queries_of_scores(ds), call.own(dq), call.scalar(first)]
    grid, results = (dq.shape[0], call.setup.query_tiles), [(dq.shape, Site.DQ)]
    (found,), _ = run(kernel, call, grid, own, results, mask=by_query(call.setup, exists))
    return found


def _own_keys(call: Call) -> Kernel:
    """Return the kernel whose programs own a tile of keys."""
    return Kernel(
        body=own_key_gradients,
        sums=(Site.S_B, Site.DP, Site.DV, Site.DK),
        turn=call.setup.block_q,
        exps_at_once=EXPS_AT_ONCE,
    )


def _rows_and_keys(call: Call, rows: Rows, first: Array, k: Array, v: Array) -> list[Input]:
    """Return the inputs of programs that own tiles of keys: all rows, their keys and `first`."""
    return [
        *map(call.whole_of_query_head, rows),
        call.own_keys(k),
        call.own_keys(v),
        call.scalar(first),
    ]


def _of_keys(
    kernel: Kernel,
    call: Call,
    inputs: list[Input],
    q: Array,
    k: Array,
    v: Array,
    sites: tuple[Site, ...],
    exists: Masks | None,
) -> list[Array]:
    """Return the results of these sites, which a kernel computes over (query heads, key tiles).

    Scores are transposed, (heads, S, T).
    """
    heads, keys = q.shape[0], k.shape[1]
    columns = {Site.DK: k.shape[2], Site.DV: v.shape[2]}
    results = [((heads, keys, columns.get(site, q.shape[1])), site) for site in sites]
    grid = heads, keys // call.setup.block_k
    return run(kernel, call, grid, inputs, results, mask=by_key(call.setup, exists))[0]


def _looked_at(setup: Setup, call: Call, rows: Rows, k: Array, v: Array) -> Seen:
    """Return what is recorded of the backward.

    The events of P, dS and dQ are recorded by query tile, and those of dK and dV by key tile.
    """
    heads, features = rows[0].shape[0], (k.shape[2], v.shape[2])
    by_query = recorder(setup, (*SCORE_GRADIENTS, Site.DQ), features)
    by_key = recorder(setup, (Site.DV, Site.DK), features, by_key=True)
    own_queries = Kernel(
        body=own_query_gradients,
        sums=(Site.S_B, Site.DP, Site.DQ),
        turn=setup.block_k,
        exps_at_once=EXPS_AT_ONCE,
    )

    def of_queries(own: Array) -> list[Kept]:
        inputs = [
            *(call.own(tiles_of(x, own, setup.block_q)) for x in rows),
            call.whole(k),
            call.whole(v),
        ]
        size = own.shape[1]
        results = [((heads, size * setup.block_q, features[0]), Site.DQ)]
        return run(own_queries, call, (heads, size), inputs, results, (by_query, own))[1]

    def of_keys(own: Array) -> list[Kept]:
        mine, size = [tiles_of(x, own, setup.block_k) for x in (k, v)], own.shape[1]
        inputs = [
            *map(call.whole_of_query_head, rows),
            *map(call.own_keys_of_query_head, mine),
            call.scalar(jnp.int32(0)),
        ]
        results = [
            ((heads, size * setup.block_k, n), site)
            for n, site in zip(features, (Site.DK, Site.DV), strict=True)
        ]
        return run(_own_keys(call), call, (heads, size), inputs, results, (by_key, own))[1]

    return summarized(by_query, heads, of_queries, call.on_gpu) | summarized(
        by_key, heads, of_keys, call.on_gpu
    )


def delta_fits(setup: Setup, features: int) -> bool:
    """Return whether a call without a mask has the kernel; features: of v."""
    plan = setup.plan
    acc, call = plan.accumulator(Site.DELTA), Call(setup=setup, on_gpu=True, group=1)
    lanes = acc.chunk if acc.order is Order.OCTETS else 1
    return (
        plan.delta_from is DeltaFrom.OUT
        and not plan.delta_products
        and acc.order in (Order.ASCENDING, Order.OCTETS)
        and acc.step == BINARY32
        and all(is_power_of_two(n) for n in (lanes, features, setup.block_q))
        and (features >= 8 if acc.order is Order.OCTETS else features <= ASCENDING_COLUMNS)
        and setup.record is None
        and all(call.format(site) != FP64 for site in (*OF_DELTA, Site.OD, Site.DELTA))
        and not any(plan[site].mode == "stochastic" for site in (*OF_DELTA, Site.OD, Site.DELTA))
    )


def deltas(setup: Setup, do: Array, out: Array, on_gpu: bool) -> Array:
    """Return delta of all heads, (heads, T); do, out: (heads, T, Hv), in whole tiles."""
    call = Call(setup=setup, on_gpu=on_gpu, group=1)
    given = [call.own(call.stored(*x)) for x in zip(OF_DELTA, (do, out), strict=True)]
    kernel = Kernel(body=delta, sums=(), turn=setup.block_q, in_batches=True)
    grid = do.shape[0], setup.query_tiles
    (found,), _ = run(kernel, call, grid, given, [(do.shape[:2], Site.DELTA)])
    return wide(found)


def delta(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write delta of a tile of queries."""
    given = [call.read(*x) for x in zip(OF_DELTA, inputs, strict=True)]

    def tile(setup: Setup, do: Array, out: Array) -> tuple[tuple[Array], Seen]:
        at = events_of_rows(setup, work.head, work.own)
        return (algorithm.delta(at, do, out),), at.seen()

    (results[0][...],) = work.tile(tile, [call.left(Site.DELTA)], None, *given)
