"""Ctrl-C and SIGTERM, which a command that keeps its results obeys once it is safe.

The exit code of what a signal ended is 128 plus its number, in every command: 130 after Ctrl-C, 143
after SIGTERM.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALLED = 128
INTERRUPTED = SIGNALLED + signal.SIGINT  # the exit code after Ctrl-C


@contextmanager
def stopping(tell: Callable[[], object] = lambda: None) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the signal after which to stop, 0 for none.

    The second one acts as usual: it ends the work at once. Outside the main thread no signal comes.

    tell: called when the first one comes.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        restore()
        tell()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        restore()
