"""A run on the terminal: steps, time left, and per arm loss, learning rate and alarms.

Elsewhere it is a line every minute.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from roundscope.experiments.train.run.training import View
from roundscope.tools.report.progress import SECONDS, every, left
from roundscope.tools.report.terminal import console

MOST = 20  # arms that are shown


@contextmanager
def screen(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[View], None]]:
    """Yield a function that shows where the run is.

    What it drew on a terminal disappears at the end.
    """
    where = console(stderr=True)
    if not where.is_terminal:
        tell = every(SECONDS, lambda text: where.print(text, markup=False, soft_wrap=True), clock)
        yield lambda view: tell(lambda: line(view))
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=where, transient=True, auto_refresh=False) as live:
        yield lambda view: live.update(Group(headline(view), table(view)), refresh=True)


def line(view: View) -> str:
    """Return the headline, and how many arms have an alarm."""
    alarms = sum(alarm for *_, alarm in view.arms)
    return headline(view) + (f"; {alarms} of {len(view.arms)} arms with an alarm" if alarms else "")


def table(view: View) -> Any:
    """Return the arms as rich's table, those with an alarm first."""
    from rich.table import Table

    found = Table(box=None)
    for name in ("arm", "loss", "lr", ""):
        found.add_column(name, justify="left" if name in ("arm", "") else "right")
    arms = sorted(view.arms, key=lambda arm: not arm[3])
    for name, loss, lr, alarm in arms[:MOST]:
        found.add_row(
            name,
            "-" if math.isnan(loss) and not alarm else f"{loss:.4f}",
            f"{lr:.2e}",
            "alarm" if alarm else "",
        )
    if len(arms) > MOST:
        found.add_row(f"and {len(arms) - MOST} more", "", "", "")
    return found


def headline(view: View) -> str:
    """Return the steps done, the steps per second and the time left at that rate."""
    if not view.rate > 0.0:
        return f"step {view.step} of {view.steps}, compiling"
    return (
        f"step {view.step} of {view.steps}, {view.rate:.3g} steps/s,"
        f" {left(view.steps - view.step, view.rate)}"
    )
