"""delta = rowsum(dO O) in a fused kernel, before the gradients.

Under XLA the products would be written to memory in binary64 and read again. `fits` says which
calls have the kernel; others have `attention.tiles.backward.deltas`, which gives the same bits.
"""

from jax import Array

from roundscope.attention import algorithm
from roundscope.attention.engines.kernels.call import Call, Kernel, run, wide
from roundscope.attention.engines.kernels.fit import is_power_of_two
from roundscope.attention.engines.kernels.tiles import events_of_rows
from roundscope.attention.engines.kernels.work import Refs, Work
from roundscope.attention.events.recorder import Seen
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import FP64
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import Order

ASCENDING_COLUMNS = 64  # of a row; registers do not hold more
OPERANDS = (Site.DO, Site.OUT)
EVENTS = (*OPERANDS, Site.OD, Site.DELTA)


def fits(setup: Setup, features: int) -> bool:
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
        and all(call.format(site) != FP64 for site in EVENTS)
        and not any(plan[site].mode == "stochastic" for site in EVENTS)
    )


def deltas(setup: Setup, do: Array, out: Array, on_gpu: bool) -> Array:
    """Return delta of all heads, (heads, T); do, out: (heads, T, Hv), in whole tiles."""
    call = Call(setup=setup, on_gpu=on_gpu, group=1)
    given = [call.own(call.stored(*x)) for x in zip(OPERANDS, (do, out), strict=True)]
    kernel = Kernel(body=delta, sums=(), turn=setup.block_q, in_batches=True)
    grid = do.shape[0], setup.query_tiles
    (found,), _ = run(kernel, call, grid, given, [(do.shape[:2], Site.DELTA)])
    return wide(found)


def delta(call: Call, work: Work, inputs: Refs, results: Refs) -> None:
    """Write delta of a tile of queries."""
    given = [call.read(*x) for x in zip(OPERANDS, inputs, strict=True)]

    def tile(setup: Setup, do: Array, out: Array) -> tuple[tuple[Array], Seen]:
        at = events_of_rows(setup, work.head, work.own)
        return (algorithm.delta(at, do, out),), at.seen()

    (results[0][...],) = work.tile(tile, [call.left(Site.DELTA)], None, *given)
