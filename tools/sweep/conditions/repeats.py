"""Removes cells that differ only in a seed without effect.

A file's tensors are the same for every seed, and so are results that no random number enters.
"""

from collections.abc import Hashable, Iterable

from roundscope.tools.sweep.conditions.cell import Cell


def without_repeats(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells in their order, without those that repeat one but for a seed without effect.

    Of such cells the first stays. A plan with a stochastic rounding and an injection of noise
    contain the seed, so they stay apart.
    """
    first: dict[Hashable, Cell] = {}
    for cell in cells:
        first.setdefault(_same(cell), cell)
    return list(first.values())


def _same(cell: Cell) -> Hashable:
    if not cell.content:
        return cell.key
    return tuple(p for p in cell.parameters if p[0] != "seed"), cell.plan, cell.inject, cell.content


def said(count: int) -> str:
    """Return how many cells were left out, and why, in words."""
    cells = "1 cell is" if count == 1 else f"{count} cells are"
    return (
        f"{cells} left out: a file's tensors are the same for every seed, and nothing random enters"
        " there"
    )
