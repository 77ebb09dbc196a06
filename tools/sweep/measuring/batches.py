"""Which cells are sent to a worker together, and in which order."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain

from roundscope.tools.sweep.conditions.cell import OF_CALL, Cell

Batch = list[Cell]

# the parameters that inputs and their golden values depend on
_INPUT = ("input", "T", "S", "N", "H", "seed", "causal", "backward", *OF_CALL)


def batches(cells: Sequence[Cell], workers: int) -> list[Batch]:
    """Return batches of one group each, in order of first appearance, equal inputs together.

    They hold up to `measure.batch_size` cells. Under xla a full batch is one call, and groups of a
    single call go a few at a time (`measure.ABREAST`), so that they compile side by side. numpy
    measures cell by cell: there, since a worker draws an input and computes its golden values once,
    a batch breaks no run of equal input that fits into it, and batches are small enough that no
    worker waits long for the last one.
    """
    from roundscope.tools.sweep.measuring.measure import ABREAST, batch_size, group

    fair = -(-len(cells) // (4 * workers))
    every: list[Batch] = []
    singles: list[Batch] = []
    for members in _gathered(cells, group):
        parts: list[Batch] = []
        batch: Batch = []
        for run in _gathered(members, _input):
            by_cell = run[0]["engine"] == "numpy"
            size = min(batch_size(run[0]), fair) if by_cell else batch_size(run[0])
            if by_cell and batch and len(batch) + len(run) > size:
                parts.append(batch)
                batch = []
            *full, batch = _cut(batch + run, size)
            parts += full
        parts.append(batch)
        (singles if len(parts) == 1 and members[0]["engine"] == "xla" else every).extend(parts)
    return every + [list(chain(*singles[i : i + ABREAST])) for i in range(0, len(singles), ABREAST)]


def _input(cell: Cell) -> Hashable:
    return (*(cell[name] for name in _INPUT), cell.content)


def _gathered(cells: Iterable[Cell], by: Callable[[Cell], Hashable]) -> Iterator[list[Cell]]:
    """Yield the cells of equal by(cell) together, in the order of each group's first cell."""
    groups: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(by(cell), []).append(cell)
    yield from groups.values()


def _cut(cells: list[Cell], size: int) -> list[Batch]:
    return [cells[i : i + size] for i in range(0, len(cells), size)]
