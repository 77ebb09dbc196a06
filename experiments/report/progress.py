"""How far a launch or a measurement is: a bar on stderr where that is a terminal, gone when done, and nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from roundscope.experiments.report.terminal import console


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the number of steps done."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as shown:
        task = shown.add_task(text, total=total)
        yield lambda done: shown.update(task, completed=done)
