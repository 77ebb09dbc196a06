"""The passes in which the backward meets its tiles, so that every gradient adds up in the order of
a plan.

A pass walks over the key tiles, and for each over the query tiles, and takes some of them: dQ of a
query tile adds up key tiles in the order of the outer walk, dK and dV of a key tile query tiles in
that of the inner one, and later passes go on from what earlier ones left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.plans.plan import Plan
from roundscope.emu.backends.ops import Array

Cells = Callable[
    [Any, Any], Any
]  # the bounds of a query tile and of a key tile, first and behind the last -> is the tile taken


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the tiles of the backward. takes: which, None for all; keys_down, queries_down:
    from the last to the first.
    """

    takes: Cells | None = None
    keys_down: bool = False
    queries_down: bool = False


def is_cut(rows: tuple[Any, Any], keys: tuple[Any, Any]) -> Any:
    """Whether the diagonal crosses a tile of these bounds: some of its scores are causal and some
    are not, or it ends on the diagonal.
    """
    return (keys[1] - 1 > rows[0]) & (keys[0] < rows[1])


def cut_by(is_causal: bool, window: int) -> Cells | None:
    """Whether the diagonal of a causal call, or an edge of a window, crosses a tile; None where
    neither is.
    """
    if not window:
        return is_cut if is_causal else None

    def behind(rows: tuple[Any, Any], keys: tuple[Any, Any]) -> Any:
        return (rows[1] - 1 - keys[0] >= window) & (rows[0] - keys[1] + 1 < window)

    ahead = is_cut if is_causal else lambda rows, keys: behind(keys, rows)
    return lambda rows, keys: behind(rows, keys) | ahead(rows, keys)


def _others(cells: Cells) -> Cells:
    return lambda rows, keys: cells(rows, keys) == False  # noqa: E712


def _is_reached(rows: tuple[Any, Any], keys: tuple[Any, Any]) -> Any:
    """Whether some score of the tile is on the diagonal or below it."""
    return keys[0] < rows[1]


def _is_beyond(rows: tuple[Any, Any], keys: tuple[Any, Any]) -> Any:
    return keys[0] >= rows[1]


def passes(plan: Plan, is_causal: bool) -> tuple[Pass, ...]:
    """The passes of a plan's backward, in turn."""
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


def merged(xp: Any, taken: Array, new: Any, old: Any) -> Any:
    """`new` where a pass took a tile, else `old`: dicts, tuples of arrays whose first axes are
    those of `taken`; None stands for zeros.
    """
    if old is None or new is None:
        return new if old is None else old
    if isinstance(new, dict):
        return {name: merged(xp, taken, part, old[name]) for name, part in new.items()}
    if isinstance(new, tuple):
        return tuple(merged(xp, taken, *pair) for pair in zip(new, old, strict=True))
    return xp.where(taken.reshape(*taken.shape, *(1,) * (new.ndim - taken.ndim)), new, old)
