"""The forward in a fused kernel: a program owns a tile of queries and walks over the keys, with the equations of every engine.

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
from attention.pallas_call import Call, Kernel, Work, held, run, wide
from attention.pallas_record import recorder
from attention.pallas_tiles import events_of_rows, events_of_tile, seen_tiles, walk, whole_tiles
from attention.plan import DeltaFrom, KeyOrder
from attention.sites import Site

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
        body=_forward, sums=(Site.S, Site.ROWSUM, Site.PV), turn=setup.block_k, exponent=Site.X, in_batches=True,
        recorder=recorder(setup, sites, (q.shape[2], v.shape[2]), setup.key_tiles),
    )  # fmt: skip
    found, seen = run(kernel, call, (q.shape[0], setup.query_tiles), [call.own(q), call.whole(k), call.whole(v)], results)
    out, lse, *unrounded = map(wide, found)
    return (out, unrounded[0] if is_read else out, lse), seen


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

        return work.tile(tile, formats, j, *held(state, formats), rows, call.read(Site.K, k, keys), call.read(Site.V, v, keys))

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

    names = [call.left(site) for site in (Site.OUT, Site.LSE, None)][: len(results)]
    for ref, result in zip(results, work.tile(finish, names, 0, *held(state, formats)), strict=True):
        ref[...] = result
