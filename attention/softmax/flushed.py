"""The output O in two sums: every n key tiles it is added to a second sum, that is, flushed.

FP8 tensor cores of Hopper keep fewer bits than FP32, so a long sum loses small terms. After every n
key tiles the second sum A therefore becomes beta A + O, and O starts again at 0. beta is the
product of the rescaling factors alpha since the last flush. FlashAttention-3 in FP8 does so in vLLM
(vllm-project/flash-attention, pull requests 104 and 122; read at d8d2839,
hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp). This module assumes that the compiler makes one
multiply-add of beta A + O.
"""

from types import ModuleType

from roundscope.attention.hook import Events
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.tiles.records import Kept
from roundscope.emu.backends.ops import Array


def empty(xp: ModuleType, rows: int, features: int) -> Kept:
    """Return the second sum and its state before the first tile: A = 0, beta = 1, no tiles."""
    return Kept(xp.zeros((rows, features)), xp.ones((rows,)), xp.zeros((), dtype=xp.int32))


def is_due(plan: Plan, kept: Kept) -> Array:
    """Return whether O is flushed before the next tile, a scalar of bool.

    This happens after every n tiles, where n is the plan's `flushed_tiles`.
    """
    return (kept.tiles > 0) & (kept.tiles % plan.flushed_tiles == 0)


def flushed(at: Events, alpha: Array, ao: Array, kept: Kept) -> tuple[Array, Kept]:
    """Return what a tile adds its P V to, and the second sum with its state.

    The first result is alpha O, or 0 if O was flushed before this tile.

    alpha, ao: the rescaling factor of this tile, (rows,), and alpha O, (rows, Hv).
    """
    xp, (a, beta, tiles), due = at.ops.xp, kept, at.tile.is_flushed
    beta = at(Site.BETA, at.ops.multiply(alpha, beta))
    a = at(Site.OA, _together(at, a, beta, ao), kept=a)
    return xp.where(due, 0.0, ao), Kept(a, xp.where(due, 1.0, beta), tiles + 1)


def all_of(at: Events, o: Array, kept: Kept) -> Array:
    """Return the sum of both parts of O after the last tile: beta A + O."""
    return at(Site.OT, _together(at, kept.a, kept.beta, o))


def _together(at: Events, a: Array, beta: Array, o: Array) -> Array:
    """Return beta A + O, rounded to odd; with the event that follows it is rounded only once."""
    return at.ops.odd_sum(at.ops.multiply(beta[:, None], a), o)
