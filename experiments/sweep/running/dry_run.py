"""What a sweep would do, before it does: how many cells, which, how many the file holds, and about
how long.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundscope.experiments.report.terminal import console
from roundscope.experiments.sweep.conditions import repeats
from roundscope.experiments.sweep.conditions.cell import DEFAULTS, Cell, Result, Value
from roundscope.experiments.sweep.report.words import many

Measure = Callable[[Sequence[Cell]], list[Result]]
SHOWN = 8
BACKWARD = 3.5  # forward and backward over the forward alone, in products
TOKENS, HEADS = 256, 4  # of a cell that is timed, at most
PATIENCE = 3.0  # seconds of a first run after which there is no second
# seconds until the workers are there, and of compiling a group of cells for xla
START = 2.0
COMPILING = 15.0
GPU = 1.9e10  # operations that a GPU does in a second, once compiled (docs/measurements.md)
LARGE = 1e9  # bytes of a cell that are worth a word
SHARED = ("inputs", "golden")  # parts of the time that cells with equal inputs spend once
# what these depend on
INPUTS = ("input", "seed", "T", "S", "N", "H", "causal", "backward", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """points: of the axes;  cells: different ones;  same: left out, for a seed changes nothing
    there;

    ok, failed: held by the file;  todo: cells that would run;
    seconds: about how long they take, None if the cell that was tried failed, for the reason
    `error`;
    memory: bytes that the largest takes while it is measured, about.
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


def preview(
    points: int,
    cells: Sequence[Cell],
    held: Mapping[str, str],
    *,
    retry_failed: bool,
    workers: int,
    measure: Measure,
    same: int = 0,
) -> Preview:
    """The preview of cells; held: key -> status of what the file has."""
    from roundscope.experiments.sweep.measuring.measure import memory

    status = [held.get(cell.key) for cell in cells]
    todo = [
        c
        for c, s in zip(cells, status, strict=True)
        if s is None or (s == "failed" and retry_failed)
    ]
    seconds, error = _seconds(todo, workers, measure)
    names = varying(cells)
    first = [{name: cell[name] for name in names} for cell in cells[:SHOWN]]
    ok, failed = status.count("ok"), status.count("failed")
    return Preview(
        points=points,
        cells=len(cells),
        same=same,
        ok=ok,
        failed=failed,
        todo=len(todo),
        first=first,
        seconds=seconds,
        error=error,
        memory=max(map(memory, todo), default=0),
    )


def varying(cells: Sequence[Cell]) -> list[str]:
    """Parameters that differ between cells, S where it does not follow T; where nothing does, what
    is no default.
    """
    values: dict[str, set[Any]] = {}
    for cell in cells:
        for name, value in cell.parameters:
            values.setdefault(name, set()).add(value)
    follows = all(cell["S"] == cell["T"] for cell in cells)
    names = [
        name for name, found in values.items() if len(found) > 1 and not (name == "S" and follows)
    ]
    return (
        names
        or [name for name, value in cells[0].parameters if DEFAULTS.get(name) != value]
        or ["preset"]
    )


def work(cell: Cell) -> float:
    """Operations of a cell, in units that are the same for all: N T S H, and more with a
    backward.
    """
    n, t, s, h = (int(cell[name]) for name in ("N", "T", "S", "H"))
    return n * t * s * h * (BACKWARD if cell["backward"] else 1.0)


def _seconds(
    cells: Sequence[Cell], workers: int, measure: Measure
) -> tuple[float | None, str | None]:
    """(about how long the workers take, their start included, None), or (None, why nobody knows).
    xla has one worker, as in `run`.
    """
    total = 0.0
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        own = [cell for cell in cells if cell["engine"] == engine]
        try:
            spent = _scaled(own, _Timer(own, measure))
        except ArithmeticError as error:
            return None, str(error)
        total += START + (
            _under_xla(own, spent) if engine == "xla" else spent / min(workers, len(own))
        )
    return total, None


def _under_xla(cells: Sequence[Cell], seconds: float) -> float:
    """Seconds of cells under xla, from those of numpy on one core: compiling one to time it would
    take longer than a user waits.
    """
    from roundscope.experiments.results.machine import has_gpu
    from roundscope.experiments.sweep.measuring.measure import group
    from roundscope.experiments.sweep.running.executors import cores

    return COMPILING * len({group(cell) for cell in cells}) + (
        sum(map(work, cells)) / GPU if has_gpu() else seconds / cores()
    )


def small(cell: Cell) -> Cell:
    """A cell as this one that takes no time: fewer tokens and heads, and no injection, whose place
    it may not have.
    """
    sizes = dict(cell.parameters)
    heads = 1 if cell.content else min(int(sizes["N"]), HEADS)  # a file's heads come in groups
    fewer: dict[str, Value] = {
        "T": min(int(sizes["T"]), TOKENS),
        "S": min(int(sizes["S"]), TOKENS),
        "N": heads,
        "engine": "numpy",
        "injection": "none",
    }
    return replace(cell, parameters=tuple((sizes | fewer).items()), inject=())


def _scaled(cells: Sequence[Cell], timed: Callable[[Cell], float]) -> float:
    """Seconds of all cells: a line in `work` through small ones like the cheapest and the dearest,
    both warm.
    """
    cheap, dear = small(min(cells, key=work)), small(max(cells, key=work))
    high = timed(dear)
    ratio = work(dear) / work(cheap)
    low = high if ratio == 1.0 else timed(cheap)
    if ratio == 1.0 or high <= low:  # no line: in proportion, and what is smaller takes as long
        return sum(high * max(1.0, work(cell) / work(dear)) for cell in cells)
    slope = (high - low) / (work(dear) - work(cheap))
    return sum(max(low, low + slope * (work(cell) - work(cheap))) for cell in cells)


class _Timer:
    """Times cells like some of `cells`: with seeds that no sweep uses, for inputs and golden
    results are kept between cells.
    """

    def __init__(self, cells: Sequence[Cell], measure: Measure) -> None:
        self.measure, self.seeds = measure, itertools.count(2**32 - 1, -1)
        # cells with inputs of their own
        self.alone = len({tuple(c[name] for name in INPUTS) for c in cells}) / len(cells)

    def __call__(self, cell: Cell) -> float:
        """Seconds of a cell: of the second run, for the first one loads and compiles."""
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
    """The preview on the terminal."""
    screen = console()

    def say(text):
        return screen.print(text, markup=False, soft_wrap=True)

    equal = f" ({p.points} points; equal ones are one cell)" if p.points != p.cells + p.same else ""
    say(f"{many(p.cells, 'cell')}{equal}, {p.todo} to compute")
    if p.same:
        say(repeats.said(p.same))
    if thrown_away:
        say(f"{out} holds {many(thrown_away, 'cell')}; --fresh starts it anew and throws them away")
    elif p.ok or p.failed:
        again = " (--retry-failed runs these again)" if p.failed else ""
        say(f"{out} holds {p.ok + p.failed} of them: {p.ok} ok, {p.failed} failed{again}")
    screen.print(_table(p))
    say(_cost(p, workers, executor))


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
    crew = f"{workers} worker{'s' * (workers > 1)}" + (
        " as fast as this machine" if executor is not None else ""
    )
    memory = (
        f"; about {p.memory / 1e9:.0f} GB per cell, each worker has one at a time"
        if p.memory > LARGE
        else ""
    )
    return (
        f"about {duration(p.seconds)} with {crew}, from one small cell, their start"
        f" included{memory}"
    )


def duration(seconds: float) -> str:
    """Seconds in words, two digits or so."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return (
        f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
        if seconds < 2e5
        else f"{seconds / 86400:.1f} days"
    )
