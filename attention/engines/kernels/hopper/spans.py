"""Which tiles the programs walk over: key tiles for queries, and queries for keys."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.hopper.walk import Span, Walk
from roundscope.attention.engines.kernels.tiles import (
    query_tiles_that_see,
    seen_tiles,
    whole_tiles,
)
from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.warpgroups import ROWS


def over_keys(call: Call, ahead: int, *, descends: bool) -> Walk:
    """Return how programs that own queries walk over the key tiles that some query sees."""
    setup = call.setup

    def span(row: Array) -> Span:
        i = jnp.asarray(row, jnp.int32) // np.int32(setup.block_q)
        last, whole = seen_tiles(setup, i), whole_tiles(setup, i)
        return Span(first=0, last=last, whole_first=0, whole_last=whole)

    return Walk(
        heads=setup.heads,
        group=call.group,
        size=setup.block_k,
        step=1,
        descends=descends,
        is_cut=is_cut(setup),
        span=span,
        ahead=ahead,
    )


def over_queries(call: Call, ahead: int) -> Walk:
    """Return how programs that own keys walk: over 64 queries at a time, in the plan's order."""
    setup = call.setup
    step = setup.block_q // ROWS

    def span(row: Array) -> Span:
        j = jnp.asarray(row, jnp.int32) // np.int32(setup.block_k)
        tiles = *query_tiles_that_see(setup, j), setup.query_tiles
        first, whole, end, last = (jnp.asarray(x * step, jnp.int32) for x in tiles)
        if setup.is_causal and setup.keys > setup.queries:
            first = jnp.minimum(first, last)  # keys that no query sees
        return Span(first=first, last=last, whole_first=whole, whole_last=end)

    return Walk(
        heads=setup.heads,
        group=call.group,
        size=ROWS,
        step=step,
        descends=setup.plan.query_order is QueryOrder.DESCENDING,
        is_cut=is_cut(setup),
        span=span,
        ahead=ahead,
    )


def is_cut(setup: Setup) -> bool:
    """Return whether some tile has scores that do not exist."""
    return bool(setup.is_causal or setup.keys % setup.block_k or setup.queries % setup.block_q)
