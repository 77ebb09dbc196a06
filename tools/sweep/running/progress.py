"""The progress of a sweep: a bar on stderr where that is a terminal, nothing otherwise."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from roundscope.tools.report.terminal import console

# called with the number of cells measured, of failed ones among them, and of cells to measure
Progress = Callable[[int, int, int], None]


def silent(done: int, failed: int, total: int) -> None:
    """Show no progress."""


@contextmanager
def bar() -> Iterator[Progress]:
    """Show a bar with cells per second, time left and failures; it disappears when done."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("sweep"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=screen, transient=True) as shown:
        task, start = shown.add_task("", total=None), time.perf_counter()

        def progress(done: int, failed: int, total: int) -> None:
            shown.update(
                task,
                completed=done,
                total=total,
                description=_words(done, failed, total, time.perf_counter() - start),
            )

        yield progress


def _words(done: int, failed: int, total: int, seconds: float) -> str:
    """Return the mean rate since the start, the time left at that rate, and any failures.

    The start of the workers counts as time.
    """
    if not done:
        return "starting"
    left = round((total - done) * seconds / done)
    clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
    return f"{done / seconds:.3g} cells/s, {clock} left" + (f", {failed} failed" if failed else "")
