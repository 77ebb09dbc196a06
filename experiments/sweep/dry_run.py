"""What a sweep would do, before it does: how many cells, which, how many the file holds, and about how long."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.output import console
from experiments.sweep.cell import DEFAULTS, Cell, Result, Value

Measure = Callable[[Sequence[Cell]], list[Result]]
SHOWN = 8
BACKWARD = 3.5  # forward and backward over the forward alone, in products
PATIENCE = 30.0  # seconds that the dearest cell may take; if it looks dearer, the cheapest is scaled instead
TOGETHER = 8  # cells that are timed in one call, at most
SHARED = ("inputs", "golden")  # parts of the time that cells with equal inputs spend once
INPUTS = ("input", "seed", "T", "S", "N", "H", "causal", "backward", "engine")  # what these depend on


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """points: of the axes;  cells: different ones;  ok, failed: held by the file;  todo: cells that would run;
    seconds: about how long they take, None if the cells that were tried failed, for the reason `error`.
    """

    points: int
    cells: int
    ok: int
    failed: int
    todo: int
    first: list[dict[str, Value]]
    seconds: float | None
    error: str | None = None


def preview(points: int, cells: Sequence[Cell], held: Mapping[str, str], *, retry_failed: bool, workers: int, measure: Measure) -> Preview:
    """The preview of cells; held: key -> status of what the file has."""
    status = [held.get(cell.key) for cell in cells]
    todo = [c for c, s in zip(cells, status, strict=True) if s is None or (s == "failed" and retry_failed)]
    seconds, error = _seconds(todo, workers, measure)
    names = varying(cells)
    first = [{name: cell[name] for name in names} for cell in cells[:SHOWN]]
    ok, failed = status.count("ok"), status.count("failed")
    return Preview(points=points, cells=len(cells), ok=ok, failed=failed, todo=len(todo), first=first, seconds=seconds, error=error)


def varying(cells: Sequence[Cell]) -> list[str]:
    """Parameters that differ between cells, S where it does not follow T; where nothing does, what is no default."""
    values: dict[str, set[Any]] = {}
    for cell in cells:
        for name, value in cell.parameters:
            values.setdefault(name, set()).add(value)
    follows = all(cell["S"] == cell["T"] for cell in cells)
    names = [name for name, found in values.items() if len(found) > 1 and not (name == "S" and follows)]
    return names or [name for name, value in cells[0].parameters if DEFAULTS.get(name) != value] or ["preset"]


def work(cell: Cell) -> float:
    """Operations of a cell, in units that are the same for all: N T S H, and more with a backward."""
    n, t, s, h = (int(cell[name]) for name in ("N", "T", "S", "H"))
    return n * t * s * h * (BACKWARD if cell["backward"] else 1.0)


def _seconds(cells: Sequence[Cell], workers: int, measure: Measure) -> tuple[float | None, str | None]:
    """(about how long the workers take, None), or (None, why nobody knows). xla has one worker, as in `run`."""
    total = 0.0
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        own = [cell for cell in cells if cell["engine"] == engine]
        try:
            total += _scaled(own, _Timer(own, measure)) / (1 if engine == "xla" else min(workers, len(own)))
        except ArithmeticError as error:
            return None, str(error)
    return total, None


def _scaled(cells: Sequence[Cell], timed: Callable[[Cell], float]) -> float:
    """Seconds of all cells: a line in `work` through the cheapest and the dearest, both warm."""
    cheap, dear = min(cells, key=work), max(cells, key=work)
    low, ratio = timed(cheap), work(dear) / work(cheap)
    if ratio == 1.0:
        return low * len(cells)
    high = timed(dear) if low * ratio < PATIENCE else low * ratio
    slope = max(0.0, high - low) / (ratio - 1.0)
    return sum(low + slope * (work(cell) / work(cheap) - 1.0) for cell in cells)


class _Timer:
    """Times cells like some of `cells`: with seeds that no sweep uses, for inputs and golden results are kept between cells."""

    def __init__(self, cells: Sequence[Cell], measure: Measure) -> None:
        self.measure, self.seeds, self.many = measure, itertools.count(2**32 - 1, -1), len(cells)
        self.alone = len({tuple(c[name] for name in INPUTS) for c in cells}) / len(cells)  # cells with inputs of their own

    def __call__(self, cell: Cell) -> float:
        """Seconds per cell: the second run of as many as would run together, for the first one loads and compiles."""
        results = self._run(cell)
        if cell["engine"] == "xla" or sum(r.seconds for r in results) < PATIENCE / 3:  # xla may compile longer than that
            results = self._run(cell)
        shared = sum(r.parts.get(name, 0.0) for r in results for name in SHARED)
        return (sum(r.seconds for r in results) - shared * (1.0 - self.alone)) / len(results)

    def _run(self, cell: Cell) -> list[Result]:
        count = 1
        if cell["engine"] == "xla":
            from experiments.sweep.measure import batch_size

            count = min(self.many, TOGETHER, batch_size(cell))
        seeded = [dict(cell.parameters) | {"seed": next(self.seeds)} for _ in range(count)]
        results = self.measure([replace(cell, parameters=tuple(p.items())) for p in seeded])
        if (error := next((r.error for r in results if r.error is not None), None)) is not None:
            raise ArithmeticError(error)
        return results


def show(p: Preview, out: Path, *, workers: int, executor: str | None, fresh: bool) -> None:
    """The preview on the terminal."""
    screen = console()
    equal = f" ({p.points} points; equal ones are one cell)" if p.points != p.cells else ""
    screen.print(f"{p.cells} cells{equal}, {p.todo} to compute", markup=False, soft_wrap=True)
    if fresh and out.exists():
        screen.print(f"{out} exists; --fresh starts it anew", markup=False, soft_wrap=True)
    elif p.ok or p.failed:
        again = " (--retry-failed runs these again)" if p.failed else ""
        screen.print(f"{out} holds {p.ok + p.failed} of them: {p.ok} ok, {p.failed} failed{again}", markup=False, soft_wrap=True)
    screen.print(_table(p))
    screen.print(_cost(p, workers, executor), markup=False, soft_wrap=True)


def _table(p: Preview) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in p.first[0]:
        table.add_column(name, overflow="fold")
    for row in p.first:
        table.add_row(*(Text(words(value)) for value in row.values()))
    if p.cells > len(p.first):
        table.caption = f"and {p.cells - len(p.first)} more"
    return table


def words(value: Value | None) -> str:
    """A value as on the command line."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _cost(p: Preview, workers: int, executor: str | None) -> str:
    if not p.todo:
        return "nothing to compute"
    if p.seconds is None:
        return f"no estimate, the cell that was tried fails: {p.error}"
    crew = f"{workers} worker{'s' * (workers > 1)}" + (" as fast as this machine" if executor is not None else "")
    return f"about {duration(p.seconds)} with {crew}, beside starting and compiling"


def duration(seconds: float) -> str:
    """Seconds in words, two digits or so."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h" if seconds < 2e5 else f"{seconds / 86400:.1f} days"
