"""Which calls the kernels for Hopper have; all others run in the kernels that Triton compiles.

Both give the same bits, so nobody has to choose. `only_triton` leaves these kernels out, to compare
the two.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.hopper import OWNED
from roundscope.attention.plans.choices import (
    DeltaFrom,
    Exponential,
    GradientsApart,
    RowSum,
    ScaleOfGradient,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import FACTORS, Site
from roundscope.attention.tiles.loops import ONLY_TRITON
from roundscope.emu.backends.kernels.held import FP32, FP64
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import Accumulator, Order

OLDEST = (0, 11)  # jax whose Mosaic GPU these kernels were run with
SHARED = 227 * 1024 - 2048  # bytes of a multiprocessor's shared memory, less barriers and vectors
NUMBERS = 176  # that a thread has registers for, beside addresses and what it computes with
SIXTEEN = ("bf16",)  # what was compared with Triton's kernels
NARROW_FEATURES, WIDE_FEATURES = 64, 128
COUNTED = 2**31  # elements of an array; Triton's kernels refuse more with a message
BLOCKS = 2**16  # the most heads of a batch entry that a grid has
STRIDES = (8, 16, 32, 64)  # of a row of four threads; with a stride of 8 each has two lanes
APPROXIMATE = (Exponential.EX2, Exponential.CUDA)
FORWARD = (Site.S, Site.PV)
BACKWARD = (Site.S_B, Site.DP, Site.DV, Site.DK, Site.DQ)


@contextmanager
def only_triton() -> Iterator[None]:
    """Leave the kernels for Hopper out of calls in this context."""
    token = ONLY_TRITON.set(True)
    try:
        yield
    finally:
        ONLY_TRITON.reset(token)


def ahead_in_forward(call: Call, q: Any, k: Any, v: Any) -> int:
    """Return how many key tiles the forward keeps in shared memory, or 0 if it does not fit."""
    setup, width, features = call.setup, q.shape[2], v.shape[2]
    plan = setup.plan
    sums = 1 if plan.pv_into_o else 2  # O, and the products of a tile
    fits = (
        _is_here(call, q, k)
        and _are_sixteen(call, FORWARD)
        and _row_sum_fits(call)
        and q.shape[1] % OWNED == 0
        and setup.block_k % ROWS == 0
        and width == features
        and width in (NARROW_FEATURES, WIDE_FEATURES)
        and not plan.unfused_if_cut
        and plan.stabiliser is None
        and not plan.normalise_first
        and plan.delta_from is not DeltaFrom.WIDE_O
        and setup.block_k * 3 // 4 + sums * features // 2 <= NUMBERS
    )
    own = OWNED * 2 * (width + features)
    tile = setup.block_k * 2 * (width + features)
    return min(3, (SHARED - own) // tile) if fits and (SHARED - own) // tile >= 2 else 0


def _is_here(call: Call, q: Any, k: Any) -> bool:
    """Return whether this GPU and this jax have the kernels, and nothing is injected or random."""
    if max(q.size, k.size) >= COUNTED or call.setup.heads >= BLOCKS:
        return False
    if not call.on_gpu or call.setup.only_triton or call.setup.inject:
        return False
    version = tuple(int(x) for x in jax.__version__.split(".")[:2])
    is_random = any(r.mode == "stochastic" for r in call.setup.plan.roundings)
    vectors, matrices = (Site.M, Site.L), (Site.O, Site.OUT)
    is_narrow = all(call.format(site) == FP32 for site in vectors) and all(
        call.format(site) != FP64 for site in matrices
    )
    return version >= OLDEST and is_narrow and not is_random and is_hopper()


def is_hopper() -> bool:
    """Return whether JAX's first device is a Hopper GPU."""
    return getattr(jax.devices()[0], "compute_capability", "") == "9.0"


def _are_sixteen(call: Call, sums: tuple[Site, ...]) -> bool:
    """Return whether tensor cores of 16-bit factors add up these sums."""
    return all(
        (alignment := call.setup.plan.accumulator(site).alignment) is not None
        and alignment.operand.name in SIXTEEN
        and all(call.format(x) in SIXTEEN for x in FACTORS[site])
        for site in sums
    )


def _row_sum_fits(call: Call) -> bool:
    plan = call.setup.plan
    acc = plan.accumulator(Site.ROWSUM)
    if plan.row_sum in (RowSum.LANES, RowSum.TILE_LANES):
        return acc == Accumulator() and plan[Site.LANES] == plan[Site.L] == BINARY32
    by_halves = acc.order is Order.HALVES or (acc.order is Order.STRIDED and acc.chunk in STRIDES)
    return plan.row_sum is RowSum.PLAIN and by_halves and acc.step == BINARY32


def gradients_fit(call: Call, q: Any, k: Any, v: Any, *, by_scores: bool) -> bool:
    """Return whether dQ, dK and dV have these kernels; by_scores: whether dQ reads dS from memory.

    dK and dV are then sums over all queries in their order, whatever the tiles are.
    """
    setup, width, features = call.setup, q.shape[2], v.shape[2]
    plan = setup.plan
    by_key = plan.gradients_apart is GradientsApart.ALL
    return (
        _is_here(call, q, k)
        and _are_sixteen(call, BACKWARD)
        # or the event of dK and dV rounds nothing that the tensor core has not rounded
        and (setup.block_q == ROWS or (plan[Site.DK] == plan[Site.DV] == BINARY32 and not by_key))
        and (plan.gradient_scale is not ScaleOfGradient.OPERAND or call.format(Site.SDS) in SIXTEEN)
        and q.shape[1] % OWNED == 0
        and k.shape[1] % OWNED == 0
        and setup.block_q % ROWS == 0
        and setup.block_k in (64, 128)
        and width == features
        and width in (NARROW_FEATURES, WIDE_FEATURES)
        and (by_scores or width == WIDE_FEATURES or plan.exp in APPROXIMATE)
        and all(call.format(site) != FP64 for site in (Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT))
    )


def ahead_of_scores(call: Call, features: int) -> int:
    """Return how many tiles of dS and K are in shared memory where dQ is their product."""
    result = OWNED * 2 * features
    tile = call.setup.block_k * 2 * (OWNED + features)
    return min(4, (SHARED - result) // tile)


def wants_scores(plan: Plan, features: int) -> bool:
    """Return whether dS is written to memory rather than computed twice, which takes longer.

    It does where exp is more than one instruction, or where the products S and dP are wide.
    """
    return features == WIDE_FEATURES or plan.exp is not Exponential.EX2
