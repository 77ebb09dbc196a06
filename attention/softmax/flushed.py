"""An O that is flushed every n tiles into a second sum, as in FlashAttention-3 in FP8 in vLLM.

FP8 tensor cores of Hopper keep fewer bits than FP32, so a long sum loses what it adds. With two
levels A <- beta A + O every n tiles, beta the product of the alphas since the last time, and O
begins at 0 again (vllm-project/flash-attention, pull requests 104 and 122; read at d8d2839,
hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp). The compiler is taken to fuse the multiply-add.
"""

from types import ModuleType

from roundscope.attention.events.hook import Events
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array

Kept = tuple[Array, Array, Array]  # A (rows, H), beta (rows,), tiles so far


def empty(xp: ModuleType, rows: int, features: int) -> Kept:
    """Return what is kept before the first tile: A = 0, beta = 1, no tiles."""
    return xp.zeros((rows, features)), xp.ones((rows,)), xp.zeros((), dtype=xp.int32)


def is_due(plan: Plan, kept: Kept) -> Array:
    """Return whether the accumulator of O is flushed before the next tile, a scalar of bool.

    It is after every n tiles, n being the plan's `flushed_tiles`.
    """
    tiles = kept[2]
    return (tiles > 0) & (tiles % plan.flushed_tiles == 0)


def flushed(at: Events, alpha: Array, ao: Array, kept: Kept) -> tuple[Array, Kept]:
    """Return alpha O, or 0 where it was flushed, and what is kept, before a tile's P V is added.

    alpha, ao: the factor of this tile, (rows,), and alpha O, (rows, Hv).
    """
    xp, (a, beta, tiles), due = at.ops.xp, kept, at.tile.is_flushed
    beta = at(Site.BETA, at.ops.multiply(alpha, beta))
    a = at(Site.OA, _together(at, a, beta, ao), kept=a)
    return xp.where(due, 0.0, ao), (a, xp.where(due, 1.0, beta), tiles + 1)


def all_of(at: Events, o: Array, kept: Kept) -> Array:
    """Return all of O after the last tile: beta A and what was not flushed."""
    a, beta, _ = kept
    return at(Site.OT, _together(at, a, beta, o))


def _together(at: Events, a: Array, beta: Array, o: Array) -> Array:
    """Return beta A + O, rounded to odd, so that the event that follows is its only rounding."""
    return at.ops.odd_sum(at.ops.multiply(beta[:, None], a), o)
