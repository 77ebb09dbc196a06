"""The passes of the backward over its tiles, which make gradients add up in a plan's order.

A pass is an outer loop over the key tiles and an inner loop over the query tiles. It computes some
of these tiles; those are the tiles that it takes. dQ of a query tile therefore adds up key tiles in
the order of the outer loop, and dK and dV of a key tile add up query tiles in the order of the
inner loop. A later pass continues with the sums of the earlier ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.plans.plan import Plan
from roundscope.emu.backends.ops import Array, mapped
from roundscope.events.place import Index

Bounds: TypeAlias = tuple[Index, Index]  # of a tile: its first row and the row after its last
Flag: TypeAlias = bool | Array
Cells: TypeAlias = Callable[
    [Bounds, Bounds], Flag
]  # (bounds of query tile, of key tile) -> is it taken?


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the tiles of the backward.

    takes         which tiles the pass takes; None for all
    keys_down     whether the loop over key tiles goes from the last to the first
    queries_down  whether the loop over query tiles goes from the last to the first
    """

    takes: Cells | None = None
    keys_down: bool = False
    queries_down: bool = False


def is_cut(rows: Bounds, keys: Bounds) -> Flag:
    """Return whether the diagonal crosses a tile with these bounds.

    It does if a causal call masks some scores of the tile but not all, or if the tile ends on the
    diagonal.
    """
    return (keys[1] - 1 > rows[0]) & (keys[0] < rows[1])


def cut_by(is_causal: bool, window: int) -> Cells | None:
    """Return the test whether the diagonal of a causal call, or an edge of a window, cuts a tile.

    The result is None for a call that is not causal and has no window.

    window: the plan's window, 0 for none.
    """
    if not window:
        return is_cut if is_causal else None

    def behind(rows: Bounds, keys: Bounds) -> Flag:
        return (rows[1] - 1 - keys[0] >= window) & (rows[0] - keys[1] + 1 < window)

    ahead = is_cut if is_causal else lambda rows, keys: behind(keys, rows)
    return lambda rows, keys: behind(rows, keys) | ahead(rows, keys)


def passes(plan: Plan, is_causal: bool) -> tuple[Pass, ...]:
    """Return the passes of a plan's backward in their order."""
    cut = cut_by(is_causal, plan.window)
    match plan.query_order:
        case QueryOrder.MASKED_FIRST if cut is not None:
            return Pass(cut), Pass(lambda rows, keys: cut(rows, keys) == False)  # noqa: E712
        case QueryOrder.FROM_DIAGONAL:
            return (Pass(keys_down=cut is not None),)
        case QueryOrder.WRAPPED:
            up_to_the_diagonal = Pass(lambda rows, keys: keys[0] < rows[1], keys_down=True)
            beyond = Pass(lambda rows, keys: keys[0] >= rows[1], keys_down=True)
            return (up_to_the_diagonal,) if is_causal else (up_to_the_diagonal, beyond)
    return (Pass(queries_down=plan.query_order is QueryOrder.DESCENDING),)


def merged(xp: ModuleType, taken: Array, new: Any, old: Any) -> Any:
    """Return what was recorded of all tiles: `new` for those that the last pass took, else `old`.

    taken     (key tiles, query tiles) of bool
    new, old  what was recorded in the last pass and before it: structures of arrays whose first
              axes are those of `taken`; None stands for zeros
    """

    def one(new: Array | None, old: Array | None) -> Array | None:
        if old is None or new is None:
            return new if old is None else old
        return xp.where(taken.reshape(*taken.shape, *(1,) * (new.ndim - taken.ndim)), new, old)

    return mapped(one, new, old)
