"""`batches` of cells, and `measure`, which returns their results: what executors call.

All that it needs is in the cells.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from roundscope.attention import Site
from roundscope.attention.testing.families import FAMILIES
from roundscope.tools.errors import one_line
from roundscope.tools.results.machine import device, has_gpu, versions
from roundscope.tools.sweep.conditions.cell import OF_CALL, Cell, Result, entries
from roundscope.tools.sweep.measuring import calls, metrics

Batch = list[Cell]

SECOND = 3e8  # scores x features that the numpy engine does in a second on one core, roughly
COPIES = 16  # copies of a batch's tensors that are alive at once under xla (measured)
TRACED = 40  # sums of rows by key tile in a trace: of 20 events, twice
LARGEST = 64  # the most cells of a batch
GPU = 8  # factor of a batch's size on a GPU, which needs more parallel work
MEMORY = 1 << 32  # the most bytes of a batch
# the number of xla calls of different groups at once: each compiles for 10 s on one core
ABREAST = 4 if has_gpu() else 1


def measure(cells: Sequence[Cell]) -> list[Result]:
    """Return the results of cells, in their order.

    numpy takes one cell at a time, xla a whole `batch_size` of one `group`. A cell that fails gives
    a Result with `error`, and affects no other cell.
    """
    batches = list(_batches(cells))
    results: dict[int, Result] = {}
    with ThreadPoolExecutor(ABREAST if cells[0]["engine"] == "xla" else 1) as pool:
        parts = pool.map(lambda batch: _guarded([cells[i] for i in batch[0]], batch[1]), batches)
        for (members, _), part in zip(batches, parts, strict=True):
            results |= zip(members, part, strict=True)
    return [results[i] for i in range(len(cells))]


def group(cell: Cell) -> Hashable:
    """Return a key that is equal for cells that may share a call, of xla an executable."""
    if cell["engine"] == "numpy":
        return ("numpy",)
    from roundscope.attention.plans.traced import structure

    names = ("engine", "T", "S", "N", "H", "block_q", "block_k", "causal", "backward")
    # a file may have its own scale and key heads
    file = "" if cell["input"] in FAMILIES else cell["input"]
    own = (cell[name] for name in (*names, *OF_CALL))
    return (*own, structure(cell.plan), cell.inject, file, cell.content)


def batch_size(cell: Cell) -> int:
    """Return how many cells to send at once: 1/3 s of numpy's work, what fits memory of xla."""
    t, s, n, h = (int(cell[name]) for name in ("T", "S", "N", "H"))
    if cell["engine"] == "numpy":
        return max(1, min(LARGEST, int(SECOND / 3 / (n * t * s * h * entries(cell)))))
    if entries(cell) > 1:
        return 1
    more = GPU if has_gpu() else 1
    return 1 << max(0, min(more * MEMORY // memory(cell), more * LARGEST).bit_length() - 1)


def memory(cell: Cell) -> int:
    """Return about how many bytes a cell takes: copies of its tensors, a tile, sums of a trace."""
    t, s, n, h = (int(cell[name]) for name in ("T", "S", "N", "H"))
    tile = max(
        int(cell["block_q"]) * min(int(cell["block_k"]), s),
        calls.REFERENCE_ROWS[str(cell["engine"])] * s,
    )
    traced = TRACED * t * -(-s // int(cell["block_k"]))
    return 8 * n * entries(cell) * (COPIES * (max(t, s) * h + tile) + traced)


def _batches(cells: Sequence[Cell]) -> Iterator[tuple[list[int], int]]:
    """Yield the indices of the cells of each call, and its number of entries.

    Under xla that is always `batch_size`, so that one executable serves the sweep, or 1 for a cell
    that is alone in its group.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, cell in enumerate(cells):
        groups[group(cell)].append(i)
    for members in groups.values():
        first = cells[members[0]]
        size = 1 if first["engine"] == "numpy" or len(members) == 1 else batch_size(first)
        yield from ((members[lo : lo + size], size) for lo in range(0, len(members), size))


def _guarded(cells: list[Cell], size: int) -> list[Result]:
    """Return the results of one call; if it fails, of each cell alone: only a guilty one fails."""
    began = time.perf_counter()
    try:
        return _measured(cells, size)
    # whatever the error is, a sweep of thousands does not stop for one condition
    except Exception as error:
        if len(cells) > 1:
            return [result for cell in cells for result in _guarded([cell], 1)]
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        seconds, engine = time.perf_counter() - began, str(cells[0]["engine"])
        return [
            Result(
                key=cells[0].key,
                error=kind + one_line(error),
                seconds=seconds,
                versions=versions(engine),
            )
        ]


def _measured(cells: list[Cell], size: int) -> list[Result]:
    """Return the results of cells of one call of `size` entries, which share its time equally."""
    parts: dict[str, float] = {}
    with _timed(parts, "inputs"):
        shared = calls.Group(cells, size)
    with _timed(parts, "golden"):
        golden = shared.golden()
    with _timed(parts, "attention"):
        examined = shared.attention()
        mine = calls.results_of(examined)
    with _timed(parts, "unfused"):
        own = all(cell.plan.normalise_first and not cell.inject for cell in cells)
        unfused = {"out": mine["out"]} if own else shared.unfused()
    with _timed(parts, "metrics"):
        if cells[0]["engine"] == "numpy":
            from roundscope.tools.sweep.measuring.sums import sums
        else:
            from roundscope.tools.sweep.measuring.on_device import sums
        formats = [cell.plan[Site.OUT].format for cell in cells]
        padded = [*formats, *formats[-1:] * (len(mine["out"]) - len(formats))]
        added = sums(mine, golden, unfused, np.array([f.emin for f in padded]))
        own_sums = {
            name: {part: x[: len(cells)] for part, x in s.items()} for name, s in added.items()
        }
        found = metrics.of_sums(own_sums, formats) | metrics.softmax_events(examined.trace)
        sites = metrics.sites(examined.trace)
    share = {name: seconds / len(cells) for name, seconds in parts.items()}
    engine = str(cells[0]["engine"])
    more: dict[str, Any] = {
        "seconds": sum(share.values()),
        "parts": share,
        "device": device(engine),
        "versions": versions(engine),
    }
    none = np.full(len(cells), np.nan)
    columns = (found.get(name, none).tolist() for name in metrics.METRICS)
    rows = zip(*columns, strict=True)
    return [
        Result(key=cell.key, metrics=dict(zip(metrics.METRICS, row, strict=True)), sites=of, **more)
        for cell, row, of in zip(cells, rows, sites, strict=False)
    ]


@contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    """Note the seconds of a block under its name."""
    began = time.perf_counter()
    yield
    parts[name] = time.perf_counter() - began


def batches(cells: Sequence[Cell], workers: int) -> list[Batch]:
    """Return batches of one group each, in order of first appearance, equal inputs together.

    They hold up to `batch_size` cells. Under xla a full batch is one call, and groups of a single
    call go a few at a time (`ABREAST`), so that they compile side by side. numpy measures cell by
    cell: there, since a worker draws an input and computes its golden values once, a batch breaks
    no run of equal input that fits into it, and batches are small enough that no worker waits long
    for the last one.
    """
    fair = -(-len(cells) // (4 * workers))
    every: list[Batch] = []
    singles: list[Batch] = []
    for members in _gathered(cells, group):
        parts: list[Batch] = []
        batch: Batch = []
        for run in _gathered(members, calls.golden_key):
            by_cell = run[0]["engine"] == "numpy"
            size = min(batch_size(run[0]), fair) if by_cell else batch_size(run[0])
            if by_cell and batch and len(batch) + len(run) > size:
                parts.append(batch)
                batch = []
            batch += run
            *full, batch = [batch[i : i + size] for i in range(0, len(batch), size)]
            parts += full
        parts.append(batch)
        (singles if len(parts) == 1 and members[0]["engine"] == "xla" else every).extend(parts)
    return every + [list(chain(*singles[i : i + ABREAST])) for i in range(0, len(singles), ABREAST)]


def _gathered(cells: Iterable[Cell], by: Callable[[Cell], Hashable]) -> Iterator[list[Cell]]:
    """Yield the cells of equal by(cell) together, in the order of each group's first cell."""
    groups: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(by(cell), []).append(cell)
    yield from groups.values()
