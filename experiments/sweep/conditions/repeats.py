"""Cells that a seed does not change: a file's tensors are the same for every seed, and so is what
no random number enters.
"""

from collections.abc import Hashable, Iterable

from roundscope.experiments.sweep.conditions.cell import Cell


def without_repeats(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, of those that differ in a seed without effect only the first, in their order.

    A plan with a stochastic rounding and an injection of noise hold the seed themselves, so they
    stay apart.
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
    """How many were left out, and why, in words."""
    cells = "1 cell is" if count == 1 else f"{count} cells are"
    return (
        f"{cells} left out: a file's tensors are the same for every seed, and nothing random enters"
        " there"
    )
