"""The passes in which the backward meets its tiles, so that gradients add up in a plan's order.

A pass walks over the key tiles, and for each of them over the query tiles, and takes some of these
tiles. dQ of a query tile therefore adds up key tiles in the order of the outer walk, and dK and dV
of a key tile add up query tiles in the order of the inner walk. A later pass goes on from the sums
that the earlier ones left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.tiles.index import Index
from roundscope.emu.backends.ops import Array

Bounds: TypeAlias = tuple[Index, Index]  # of a tile: its first row, and the one after its last
Flag: TypeAlias = bool | Array
Cells: TypeAlias = Callable[[Bounds, Bounds], Flag]  # of a query tile, a key tile: is it taken?


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the tiles of the backward.

    takes         which tiles it takes; None for all
    keys_down     whether it meets the key tiles from the last to the first
    queries_down  whether it meets the query tiles from the last to the first
    """

    takes: Cells | None = None
    keys_down: bool = False
    queries_down: bool = False


def is_cut(rows: Bounds, keys: Bounds) -> Flag:
    """Return whether the diagonal crosses a tile of these bounds.

    It does where some scores of the tile are causal and some are not, or where the tile ends on the
    diagonal.
    """
    return (keys[1] - 1 > rows[0]) & (keys[0] < rows[1])


def cut_by(is_causal: bool, window: int) -> Cells | None:
    """Return the test whether the diagonal of a causal call, or an edge of a window, cuts a tile.

    window: of the plan, 0 for none. None where a call has neither.
    """
    if not window:
        return is_cut if is_causal else None

    def behind(rows: Bounds, keys: Bounds) -> Flag:
        return (rows[1] - 1 - keys[0] >= window) & (rows[0] - keys[1] + 1 < window)

    ahead = is_cut if is_causal else lambda rows, keys: behind(keys, rows)
    return lambda rows, keys: behind(rows, keys) | ahead(rows, keys)


def _others(cells: Cells) -> Cells:
    """Return the test that takes the tiles that `cells` does not take."""
    return lambda rows, keys: cells(rows, keys) == False  # noqa: E712


def _is_reached(rows: Bounds, keys: Bounds) -> Flag:
    """Return whether some score of the tile is on the diagonal or below it."""
    return keys[0] < rows[1]


def _is_beyond(rows: Bounds, keys: Bounds) -> Flag:
    """Return whether all scores of the tile are above the diagonal."""
    return keys[0] >= rows[1]


def passes(plan: Plan, is_causal: bool) -> tuple[Pass, ...]:
    """Return the passes of a plan's backward, the first one first."""
    cut = cut_by(is_causal, plan.window)
    match plan.query_order:
        case QueryOrder.MASKED_FIRST if cut is not None:
            return Pass(cut), Pass(_others(cut))
        case QueryOrder.WRAPPED:
            up_to_the_diagonal = Pass(_is_reached, keys_down=True)
            return (
                (up_to_the_diagonal,)
                if is_causal
                else (up_to_the_diagonal, Pass(_is_beyond, keys_down=True))
            )
    return (Pass(queries_down=plan.query_order is QueryOrder.DESCENDING),)


def merged(xp: ModuleType, taken: Array, new: Any, old: Any) -> Any:
    """Return what was recorded of all tiles: `new` where the last pass took a tile, else `old`.

    taken     (key tiles, query tiles) of bool
    new, old  what was recorded in the last pass and before it: dicts or tuples of arrays whose
              first axes are those of `taken`; None stands for zeros
    """
    if old is None or new is None:
        return new if old is None else old
    if isinstance(new, dict):
        return {name: merged(xp, taken, part, old[name]) for name, part in new.items()}
    if isinstance(new, tuple):
        return tuple(merged(xp, taken, *pair) for pair in zip(new, old, strict=True))
    return xp.where(taken.reshape(*taken.shape, *(1,) * (new.ndim - taken.ndim)), new, old)
