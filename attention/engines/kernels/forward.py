"""The forward in a fused kernel: a program owns a tile of queries and loops over the key tiles.

No array with an entry for every score is stored. As in every engine, the setup and tiles are those
of `attention.tiles.loops`, and the equations are those of `attention.algorithm`. Numbers are held
in types as narrow as their events allow (`emu.backends.kernels.narrowing`).
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call, Input, Refs, Work, held, wide
from roundscope.attention.engines.kernels.hopper.fit import ahead_in_forward
from roundscope.attention.engines.kernels.record import Kept, recorder, silent
from roundscope.attention.engines.kernels.running import Kernel, run
from roundscope.attention.engines.kernels.summary import summarized, tiles_of
from roundscope.attention.engines.kernels.tiles import (
    Masks,
    by_query,
    events_of_rows,
    events_of_tile,
    if_any,
    masks,
    seen_tiles,
    whole_tiles,
)
from roundscope.attention.plans.choices import DeltaFrom, KeyOrder
from roundscope.attention.sites import OF_KERNELS, Site
from roundscope.attention.tiles.forward import has_first_tile_apart
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import AnyState, State
from roundscope.emu.backends.kernels.held import NoSuchArithmetic
from roundscope.events.recorder import Seen


def forward(
    setup: Setup, q: Array, k: Array, v: Array, on_gpu: bool, mask: Array | None = None
) -> tuple[tuple[Array, Array, Array], Seen]:
    """Return output, output before its last rounding and L of all heads, and what was recorded.

    q       (heads, T, H), and k (key heads, S, H), v (key heads, S, Hv), in whole tiles
    on_gpu  whether the kernel is compiled, not interpreted
    mask    (heads, T, S) of bool; None if causality and the sizes alone say which scores exist

    If delta does not read the output before its last rounding, the second result is the output
    itself.
    """
    call = Call(setup=silent(setup), on_gpu=on_gpu, group=q.shape[0] // k.shape[0])
    q, k, v = (call.stored(site, x) for site, x in ((Site.Q, q), (Site.K, k), (Site.V, v)))
    is_read = setup.plan.delta_from is DeltaFrom.WIDE_O
    kernel = Kernel(
        body=_forward,
        sums=(Site.S, Site.ROWSUM, Site.PV),
        turn=setup.block_k,
        exponent=Site.X,
        in_batches=True,
    )

    def results(rows: int) -> list[tuple[tuple[int, ...], Site | None]]:
        out = q.shape[0], rows, v.shape[2]
        return [(out, Site.OUT), (out[:2], Site.LSE), *([(out, None)] if is_read else [])]

    exists = masks(setup, mask)
    made = _on_hopper(call, q, k, v) if exists is None else None
    if made is None:
        found, _ = run(
            kernel,
            call,
            (q.shape[0], setup.query_tiles),
            [call.own(q), call.whole(k), call.whole(v), *_of_rows(call, exists)],
            results(q.shape[1]),
            mask=by_query(setup, exists),
        )
        out, lse, *unrounded = map(wide, found)
        made = out, unrounded[0] if is_read else out, lse
    if setup.record is None:
        return made, {}
    absent = OF_KERNELS | ({Site.PV} if setup.plan.pv_into_o else set())  # see `fit.check`
    sites = [site for site in Site if site.stage == "forward" and site not in absent]
    who = recorder(setup, sites, (q.shape[2], v.shape[2]))

    def look(own: Array) -> list[Kept]:
        inputs = [call.own(tiles_of(q, own, setup.block_q)), call.whole(k), call.whole(v)]
        size = own.shape[1]
        return run(
            kernel, call, (q.shape[0], size), inputs, results(size * setup.block_q), (who, own)
        )[1]

    return made, summarized(who, q.shape[0], look, call.on_gpu)


def _of_rows(call: Call, exists: Masks | None) -> list[Input]:
    """Return which rows see a key, as an input of programs that own them, if there is a mask."""
    return [] if exists is None else [call.own(exists.seeing)]


def _on_hopper(call: Call, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array] | None:
    """Return the results of the kernel for Hopper, or None if it does not fit the call."""
    if not (ahead := ahead_in_forward(call, q, k, v)):
        return None
    from roundscope.attention.engines.kernels.hopper.programs import forward

    try:
        out, lse = forward(call, q, k, v, ahead)
    except NoSuchArithmetic:
        return None
    return out, out, lse


def _forward(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write output and L of a tile of queries, and the unrounded output if delta reads it."""
    setup, h, i, (q, k, v, *seeing) = call.setup, work.head, work.own, inputs
    formats = [call.format(site) for site in (Site.M, Site.L, Site.O)]
    rows = call.read(Site.Q, q)

    def key_tile(
        is_whole: bool, work: Work, j: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        keys, exists = pl.ds(j * setup.block_k, setup.block_k), work.exists(j)

        def tile(setup: Setup, *arrays: Any) -> tuple[AnyState, Seen]:
            m, l, o, *factors, exists = arrays
            at = events_of_tile(setup, h, i, j, is_whole, m > -jnp.inf, exists)
            return algorithm.forward_tile(at, setup.scale, State(m, l, o), *factors), at.seen()

        def computed() -> tuple[Array, ...]:
            factors = call.read(Site.K, k, keys), call.read(Site.V, v, keys)
            return work.tile(tile, formats, j, *held(state, formats), rows, *factors, exists)

        return if_any(exists, computed, state)

    last = seen_tiles(setup, i)
    whole = 0 if seeing else whole_tiles(setup, i, work.summarizes)
    start = algorithm.start(np, setup.plan, setup.block_q, v.shape[1])
    state = tuple(
        jnp.full(x.shape, x.flat[0], work.machine.types[name])
        for x, name in zip(start, formats, strict=True)
    )
    parts = [(True, 0, whole), (False, whole, last)]
    is_down = setup.plan.key_order is KeyOrder.DESCENDING
    for is_whole, lo, hi in reversed(parts) if is_down else parts:
        state = work.walk(partial(key_tile, is_whole), lo, hi, state, is_down)

    def finish(setup: Setup, m: Array, l: Array, o: Array) -> tuple[tuple[Array, ...], Seen]:
        at = events_of_rows(setup, h, i, seeing[0][...] != 0 if seeing else None)
        is_apart = jnp.full(setup.block_q, i == 0) if has_first_tile_apart(setup) else None
        out, wide, lse, _ = algorithm.finish(at, setup.scale, State(m, l, o), is_apart)
        if seeing or setup.queries % setup.block_q:
            out, wide, lse, _ = algorithm.without_rows_of_no_key(at, out, wide, lse)
        return (out, lse, wide)[: len(results)], at.seen()

    names = [call.left(site) for site in (Site.OUT, Site.LSE, None)][: len(results)]
    for ref, result in zip(
        results, work.tile(finish, names, None, *held(state, formats)), strict=True
    ):
        ref[...] = result
