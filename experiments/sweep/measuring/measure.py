"""`measure`: cells -> results. The one function that executors call; what it needs is in the
cells.
"""

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from roundscope.attention import Site
from roundscope.experiments.errors import one_line
from roundscope.experiments.results.machine import device, has_gpu, versions
from roundscope.experiments.sweep.conditions.cell import Cell, Result
from roundscope.experiments.sweep.conditions.inputs import FAMILIES
from roundscope.experiments.sweep.measuring import calls, metrics
from roundscope.experiments.sweep.measuring.sums import Arrays
from roundscope.experiments.sweep.measuring.tensors import Tensors

SECOND = 3e8  # scores x features that the numpy engine does in a second on one core, roughly
COPIES = 16  # of a batch's tensors alive at once under xla (measured)
TRACED = 40  # sums of rows by key tile in a trace: of 20 events, twice
LARGEST = 64  # cells of a batch
GPU = 8  # times as much of a batch on a GPU, which is short of parallel work
MEMORY = 1 << 32  # bytes of a batch
# xla calls of different groups at once: compiling takes 10 s of one core each
ABREAST = 4 if has_gpu() else 1


def measure(cells: Sequence[Cell]) -> list[Result]:
    """The results of cells, in their order: numpy takes one at a time, xla a whole `batch_size` of
    one `group`.

    A cell that fails gives a Result with `error`, and no other cell is touched by it.
    """
    made = list(_batches(cells))
    with ThreadPoolExecutor(ABREAST if cells[0]["engine"] == "xla" else 1) as pool:
        found = pool.map(lambda batch: _guarded([cells[i] for i in batch[0]], batch[1]), made)
        results = {
            i: result
            for (batch, _), part in zip(made, found, strict=True)
            for i, result in zip(batch, part, strict=True)
        }
    return [results[i] for i in range(len(cells))]


def group(cell: Cell) -> Hashable:
    """Cells of one group may share a call. numpy: all; xla: those that share an executable."""
    if cell["engine"] == "numpy":
        return ("numpy",)
    from roundscope.attention.plans.traced import structure

    names = ("engine", "T", "S", "N", "H", "block_q", "block_k", "causal", "backward")
    # which may bring a scale and key heads of its own
    file = "" if cell["input"] in FAMILIES else cell["input"]
    return (*(cell[name] for name in names), structure(cell.plan), cell.inject, file, cell.content)


def batch_size(cell: Cell) -> int:
    """How many cells of a group are worth sending at once: a third of a second of work under numpy,
    what fits under xla.
    """
    t, s, n, h = (int(cell[name]) for name in ("T", "S", "N", "H"))
    if cell["engine"] == "numpy":
        return max(1, min(LARGEST, int(SECOND / 3 / (n * t * s * h))))
    more = GPU if has_gpu() else 1
    return 1 << max(0, min(more * MEMORY // memory(cell), more * LARGEST).bit_length() - 1)


def memory(cell: Cell) -> int:
    """About how many bytes a cell takes while it is measured: copies of its tensors, a tile, and
    the trace's sums of rows.
    """
    t, s, n, h = (int(cell[name]) for name in ("T", "S", "N", "H"))
    tile = max(
        int(cell["block_q"]) * min(int(cell["block_k"]), s),
        calls.REFERENCE_ROWS[str(cell["engine"])] * s,
    )
    traced = TRACED * t * -(-s // int(cell["block_k"]))
    return 8 * n * (COPIES * (max(t, s) * h + tile) + traced)


def _batches(cells: Sequence[Cell]) -> Iterator[tuple[list[int], int]]:
    """Indices of the cells of one call each, and its entries: under xla always `batch_size`, so
    that one executable serves the sweep, or 1 for a cell that is alone in its group.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, cell in enumerate(cells):
        groups[group(cell)].append(i)
    for members in groups.values():
        first = cells[members[0]]
        size = 1 if first["engine"] == "numpy" or len(members) == 1 else batch_size(first)
        yield from ((members[lo : lo + size], size) for lo in range(0, len(members), size))


def _guarded(cells: list[Cell], size: int) -> list[Result]:
    """Results of one call; where it fails, of each cell alone, so that only a guilty one fails."""
    began = time.perf_counter()
    try:
        return _measured(cells, size)
    # whatever it was: a sweep of thousands does not stop for one condition
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
    """Results of cells of one call of `size` entries; each has an equal share of the time."""
    parts: dict[str, float] = {}
    with _timed(parts, "inputs"):
        tensors = Tensors(calls.inputs_of(cells))
    with _timed(parts, "golden"):
        golden = calls.golden_of(cells, tensors, size)
    with _timed(parts, "attention"):
        examined = calls.attention_of(cells, tensors, size)
        mine = calls.results_of(examined)
    with _timed(parts, "unfused"):
        own = all(cell.plan.normalise_first and not cell.inject for cell in cells)
        unfused = {"out": mine["out"]} if own else calls.unfused_of(cells, tensors, size)
    with _timed(parts, "metrics"):
        found = _metrics(cells, mine, golden, unfused) | metrics.softmax_events(examined.trace)
        sites = metrics.sites(examined.trace)
    share = {name: seconds / len(cells) for name, seconds in parts.items()}
    engine = str(cells[0]["engine"])
    more: dict[str, Any] = {
        "seconds": sum(share.values()),
        "parts": share,
        "device": device(engine),
        "versions": versions(engine),
    }
    return [
        Result(key=cell.key, metrics=_row(found, i), sites=sites[i], **more)
        for i, cell in enumerate(cells)
    ]


def _metrics(
    cells: list[Cell], mine: Arrays, golden: Arrays, unfused: Arrays
) -> dict[str, np.ndarray]:
    """METRICS of results, by name: added where the results are, finished here."""
    if cells[0]["engine"] == "numpy":
        from roundscope.experiments.sweep.measuring.on_host import sums
    else:
        from roundscope.experiments.sweep.measuring.on_device import sums
    formats = [cell.plan[Site.OUT].format for cell in cells]
    padded = [*formats, *formats[-1:] * (len(mine["out"]) - len(formats))]
    found = sums(mine, golden, unfused, np.array([f.emin for f in padded]))
    return metrics.of_sums(
        {name: {part: x[: len(cells)] for part, x in s.items()} for name, s in found.items()},
        formats,
    )


def _row(found: dict[str, np.ndarray], i: int) -> dict[str, float]:
    """One cell's METRICS, NaN where there is none."""
    return {name: float(found[name][i]) if name in found else np.nan for name in metrics.METRICS}


@contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    """The seconds of a block, under its name."""
    began = time.perf_counter()
    yield
    parts[name] = time.perf_counter() - began
