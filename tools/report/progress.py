"""Progress of a launch or a measurement, and the time that is left.

On a terminal this is a bar on stderr that disappears when done; elsewhere it is a line a minute.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from roundscope.tools.report.terminal import console

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS = 60.0  # between two lines where stderr is no terminal
WHAT = "{task.description}"  # a column of rich
SELDOM = 15.0  # seconds between two lines of `telling` there


class Pace:
    """The recent number of steps per second.

    It is measured since the first mark, which is made when what compiles has run, or over the last
    ten marks.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.marks = clock, deque[tuple[float, int]](maxlen=10)

    @property
    def last(self) -> float:
        """The step of the last mark; before the first, infinity."""
        return self.marks[-1][1] if self.marks else math.inf

    def mark(self, step: int) -> None:
        """Note that `step` steps are done now."""
        self.marks.append((self.clock(), step))

    @property
    def rate(self) -> float:
        """Steps per second; 0 as long as it is not known."""
        if len(self.marks) < 2:
            return 0.0
        (began, first), (now, last) = self.marks[0], self.marks[-1]
        return (last - first) / (now - began) if now > began else 0.0


def left(steps: int, rate: float) -> str:
    """Return the time that `steps` take, as "1:02:03 left"; an empty text without a rate."""
    if not rate > 0.0:
        return ""
    seconds = math.ceil(steps / rate)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"


def every(
    seconds: float, say: Callable[[str], None], clock: Callable[[], float]
) -> Callable[[Callable[[], str]], None]:
    """Return a function that passes a text on to `say`, at most once every `seconds`.

    It takes a function that makes the text, which is called only if the text is wanted. The first
    interval starts now.
    """
    last = clock()

    def tell(text: Callable[[], str]) -> None:
        nonlocal last
        if clock() - last >= seconds:
            last = clock()
            say(text())

    return tell


@contextmanager
def drawn(*columns: str, width: int = 20) -> Iterator["Progress"]:
    """Yield rich's progress on stderr, gone at the end; columns: names below, or texts."""
    from rich import progress

    named = {
        "bar": progress.BarColumn(width),
        "count": progress.MofNCompleteColumn(),
        "elapsed": progress.TimeElapsedColumn(),
        "remaining": progress.TimeRemainingColumn(),
        "spinner": progress.SpinnerColumn(),
    }
    made = [named.get(name) or progress.TextColumn(name) for name in columns]
    with progress.Progress(*made, console=console(stderr=True), transient=True) as own:
        yield own


def every_line(
    command: str, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Callable[[str], None]:
    """Return a function that prints what runs, a line every so many seconds at most."""
    tell = every(seconds, lambda line: print(line, file=sys.stderr, flush=True), clock)
    return lambda text: tell(lambda: f"{command}: {text}")


@contextmanager
def bar(
    text: str,
    total: int,
    rest: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    seconds: float = SECONDS,
) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr; yields the function to call with the number of steps done.

    text: what runs; total: the number of its steps; rest: the number of steps that the command does
    after these, which count for the time left; seconds: between two lines where stderr is no
    terminal.
    """
    screen, pace = console(stderr=True), Pace(clock)

    def remaining(done: int) -> str:
        return left(total - done + rest, pace.rate)

    if not screen.is_terminal:
        tell = every(seconds, lambda line: screen.print(line, markup=False, soft_wrap=True), clock)

        def step(done: int) -> None:
            pace.mark(done)
            tell(lambda: ", ".join(filter(None, (f"{text}: {done} of {total}", remaining(done)))))

        yield step
        return
    with drawn(WHAT, "bar", "count", "{task.fields[left]}") as shown:
        task = shown.add_task(text, total=total, left="")

        def draw(done: int) -> None:
            pace.mark(done)
            shown.update(task, completed=done, left=remaining(done))

        yield draw


@contextmanager
def telling(command: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows in words what runs: a line on the terminal, gone at the end.

    Where stderr is no terminal, a line is printed every `SELDOM` seconds at most.

    command: the name of the command, with which such a line begins.
    """
    if not console(stderr=True).is_terminal:
        yield every_line(command, SELDOM)
        return
    with drawn("spinner", WHAT, "elapsed") as shown:
        task = shown.add_task("begins")
        yield lambda text: shown.update(task, description=text)


@contextmanager
def steps(
    command: str, first: int, last: int, seconds: float | None
) -> Iterator[Callable[[int, str], None]]:
    """Show steps by number, and what runs; yields the function to call with both.

    last: what comes after the steps, and has no number;  seconds: between two lines where stderr is
    no terminal, which begin with the command; None: no lines there.
    """
    if not console(stderr=True).is_terminal:
        tell = (lambda text: None) if seconds is None else every_line(command, seconds)
        yield lambda step, text: tell(f"step {step}: {text}")
        return
    with drawn("bar", WHAT, "elapsed") as shown:
        task = shown.add_task("reading", total=last - first + 1)
        yield lambda step, text: shown.update(
            task,
            completed=step - first,
            description=f"step {step}: {text}" if step < last else text,
        )


@contextmanager
def shares(
    command: str, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Show parts of a work, a bar each with the time left.

    Yields a function of a part's words, which begins its bar and returns the function to call with
    the share of the part that was just done. Where stderr is no terminal, a line is printed every
    `SELDOM` seconds at most, which begins with the command.
    """
    if not console(stderr=True).is_terminal:
        tell = every_line(command, SELDOM, clock)

        def printing(text: str) -> Callable[[float], None]:
            pace, done = Pace(clock), [0.0]

            def step(share: float) -> None:
                done[0] += share
                percent = round(100 * done[0])
                pace.mark(percent)
                words = f"{text}, {percent} %", left(100 - percent, pace.rate)
                tell(", ".join(filter(None, words)))

            return step

        yield printing
        return
    with drawn(WHAT, "bar", "remaining", width=40) as shown:

        def part(text: str) -> Callable[[float], None]:
            task = shown.add_task(text, total=1.0)
            return lambda share: shown.advance(task, share)

        yield part


class Counted:
    """What runs, as "2 of 12, LAYER, 0:01:20 left": parts that take about as long as each other.

    Until the first part is done nothing is said of the time left.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.total, self.done, self.clock, self.began = total, 0, clock, clock()

    def next(self) -> None:
        """Note that one part more is done."""
        self.done += 1

    def __call__(self, text: str) -> str:
        """Return what runs in the part at work; of a single part, the text alone."""
        if self.total < 2:
            return text
        number, rest = min(self.done + 1, self.total), self.total - self.done
        rate = self.done / max(self.clock() - self.began, 1e-9) if rest else 0.0
        words = f"{number} of {self.total}, {text}", left(rest, rate)
        return ", ".join(filter(None, words))
