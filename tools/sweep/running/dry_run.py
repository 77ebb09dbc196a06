"""The preview of a sweep: how many cells, which, how many the file holds, and about how long."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundscope.tools.report import terminal
from roundscope.tools.report.model import Table, Text
from roundscope.tools.report.wording import many
from roundscope.tools.sweep.conditions.cell import (
    DEFAULTS,
    Cell,
    Result,
    Value,
    entries,
    left_out,
)
from roundscope.tools.sweep.report.words import say

Measure = Callable[[Sequence[Cell]], list[Result]]
SHOWN = 8  # cells that the preview lists
BACKWARD = 3.5  # products of forward and backward, relative to those of the forward alone
TOKENS, HEADS = 256, 4  # the most that a cell has that is timed
PATIENCE = 3.0  # seconds of a first run after which there is no second
START = 2.0  # seconds until the workers are there
COMPILING = 15.0  # seconds of compiling a group of cells for xla
GPU = 1.9e10  # operations that a GPU does in a second, once compiled (docs/notes/measurements.md)
LARGE = 1e9  # bytes of a cell from which the preview mentions memory
SHARED = ("inputs", "golden")  # parts of the time that cells with equal inputs spend once


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a sweep would do.

    points  the number of points of the axes;  cells: that of different cells
    same    the number of cells left out since a seed changes nothing there
    ok, failed   the numbers of cells that the file holds;  todo: that of cells that would run
    first   the varying parameters of the first cells
    seconds about how long they take; None if the cell that was tried failed, for the reason `error`
    memory  about how many bytes the largest cell takes while it is measured
    notes   what files say of their calls, and what was asked otherwise
    """

    points: int
    cells: int
    same: int
    ok: int
    failed: int
    todo: int
    first: list[dict[str, Value]]
    seconds: float | None
    error: str | None = None
    memory: int = 0
    notes: tuple[str, ...] = ()


def preview(
    points: int,
    cells: Sequence[Cell],
    held: Mapping[str, str],
    *,
    retry_failed: bool,
    workers: int,
    same: int = 0,
) -> Preview:
    """Return the preview of cells; held: key -> status of what the file has."""
    from roundscope.tools.sweep.measuring.measure import measure, memory

    status = [held.get(cell.key) for cell in cells]
    todo = [
        c
        for c, s in zip(cells, status, strict=True)
        if s is None or (s == "failed" and retry_failed)
    ]
    seconds, error = _seconds(todo, workers, measure)
    names = varying(cells)
    return Preview(
        points=points,
        cells=len(cells),
        same=same,
        ok=status.count("ok"),
        failed=status.count("failed"),
        todo=len(todo),
        first=[{name: cell[name] for name in names} for cell in cells[:SHOWN]],
        seconds=seconds,
        error=error,
        memory=max(map(memory, todo), default=0),
        notes=notes(cells),
    )


def notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the notes of cells, each once."""
    return tuple(dict.fromkeys(cell.note for cell in cells if cell.note))


def said(notes: Sequence[str]) -> list[str]:
    """Return notes as lines, of which there are not too many."""
    more = len(notes) - SHOWN
    return [*notes[:SHOWN], *([f"and {more} more inputs and sizes"] if more > 0 else [])]


def varying(cells: Sequence[Cell]) -> list[str]:
    """Return the parameters that differ between cells, or else those not at their default."""
    values: dict[str, set[Any]] = {}
    for cell in cells:
        for name, value in cell.parameters:
            values.setdefault(name, set()).add(value)
    follows = all(cell["S"] == cell["T"] for cell in cells)
    several = [name for name, different in values.items() if len(different) > 1]
    names = [name for name in several if not (name == "S" and follows)]
    unusual = [name for name, value in cells[0].parameters if DEFAULTS.get(name) != value]
    return names or unusual or ["preset"]


def work(cell: Cell) -> float:
    """Return the operations of a cell in arbitrary units: B N T S H, and more with a backward."""
    n, t, s, h = (int(cell[name]) for name in ("N", "T", "S", "H"))
    return n * t * s * h * entries(cell) * (BACKWARD if cell["backward"] else 1.0)


def _seconds(
    cells: Sequence[Cell], workers: int, measure: Measure
) -> tuple[float | None, str | None]:
    """Return (about how long the workers take, start included, None), or (None, why not known)."""
    total = 0.0
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        own = [cell for cell in cells if cell["engine"] == engine]
        try:
            spent = _scaled(own, _Timer(own, measure))
        except ArithmeticError as error:
            return None, str(error)
        if engine == "xla":
            total += START + _under_xla(own, spent)
        else:
            total += START + spent / min(workers, len(own))
    return total, None


def _under_xla(cells: Sequence[Cell], seconds: float) -> float:
    """Return the seconds of cells under xla from those of numpy on one core; none is compiled."""
    from roundscope.tools.results.machine import has_gpu
    from roundscope.tools.sweep.measuring.measure import group
    from roundscope.tools.sweep.running.executors import cores

    running = sum(map(work, cells)) / GPU if has_gpu() else seconds / cores()
    return COMPILING * len({group(cell) for cell in cells}) + running


def small(cell: Cell) -> Cell:
    """Return a cell like this one that takes no time: few tokens and heads, no injection."""
    sizes = dict(cell.parameters)
    heads = 1 if cell.content else min(int(sizes["N"]), HEADS)  # a file's heads come in groups
    fewer: dict[str, Value] = {
        "T": min(int(sizes["T"]), TOKENS),
        "S": min(int(sizes["S"]), TOKENS),
        "N": heads,
        "engine": "numpy",
        "injection": "none",
    }
    sizes.pop("batch", None)  # one entry of it
    return replace(cell, parameters=tuple((sizes | fewer).items()), inject=())


def _scaled(cells: Sequence[Cell], timed: Callable[[Cell], float]) -> float:
    """Return the seconds of all cells, on a line in `work` through two small ones, timed warm."""
    cheap, dear = small(min(cells, key=work)), small(max(cells, key=work))
    high = timed(dear)
    ratio = work(dear) / work(cheap)
    low = high if ratio == 1.0 else timed(cheap)
    if ratio == 1.0 or high <= low:  # no line: in proportion, and what is smaller takes as long
        return sum(high * max(1.0, work(cell) / work(dear)) for cell in cells)
    slope = (high - low) / (work(dear) - work(cheap))
    return sum(max(low, low + slope * (work(cell) - work(cheap))) for cell in cells)


class _Timer:
    """Times cells like some of `cells`.

    It gives them seeds that no sweep uses, since inputs and golden results are kept between cells.
    """

    def __init__(self, cells: Sequence[Cell], measure: Measure) -> None:
        from roundscope.tools.sweep.measuring.calls import golden_key

        self.measure, self.seeds = measure, itertools.count(2**32 - 1, -1)
        # the share of cells with inputs of their own
        self.alone = len(set(map(golden_key, cells))) / len(cells)

    def __call__(self, cell: Cell) -> float:
        """Return the seconds of a cell, from its second run: the first one loads and compiles."""
        result = self._run(cell)
        if result.seconds < PATIENCE:
            result = self._run(cell)
        shared = sum(result.parts.get(name, 0.0) for name in SHARED)
        return result.seconds - shared * (1.0 - self.alone)

    def _run(self, cell: Cell) -> Result:
        seeded = dict(cell.parameters) | {"seed": next(self.seeds)}
        [result] = self.measure([replace(cell, parameters=tuple(seeded.items()))])
        if result.error is not None:
            raise ArithmeticError(result.error)
        return result


def show(p: Preview, out: Path, *, workers: int, executor: str | None, thrown_away: int) -> None:
    """Print the preview on the terminal."""
    equal = f" ({p.points} points; equal ones are one cell)" if p.points != p.cells + p.same else ""
    say(f"{many(p.cells, 'cell')}{equal}, {p.todo} to compute")
    if p.same:
        say(left_out(p.same))
    for line in said(p.notes):
        say(line)
    if thrown_away:
        say(f"{out} holds {many(thrown_away, 'cell')}; --fresh starts it anew and throws them away")
    elif p.ok or p.failed:
        again = " (--retry-failed runs these again)" if p.failed else ""
        say(f"{out} holds {p.ok + p.failed} of them: {p.ok} ok, {p.failed} failed{again}")
    more = p.cells - len(p.first)
    rows = [
        [
            "" if v is None else str(v).lower() if isinstance(v, bool) else str(v)
            for v in row.values()
        ]
        for row in p.first
    ]
    terminal.show([Table([*p.first[0]], rows), *([Text(f"and {more} more")] if more > 0 else [])])
    say(_cost(p, workers, executor))


def _cost(p: Preview, workers: int, executor: str | None) -> str:
    if not p.todo:
        return "nothing to compute"
    if p.seconds is None:
        return f"no estimate, the cell that was tried fails: {p.error}"
    crew = many(workers, "worker")
    if executor is not None:
        crew += " as fast as this machine"
    memory = ""
    if p.memory > LARGE:
        memory = f"; about {p.memory / 1e9:.0f} GB per cell, each worker has one at a time"
    return (
        f"about {duration(p.seconds)} with {crew}, their start included (estimated from one small"
        f" cell){memory}"
    )


def duration(seconds: float) -> str:
    """Return seconds in words, with about two digits."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2e5 else f"{seconds / 86400:.1f} days"
