"""A run on the terminal: steps, time left, and per arm loss, learning rate and alarms; nothing where stderr is no terminal."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from roundscope.experiments.report.terminal import console
from roundscope.experiments.train.run.training import View

MOST = 20  # arms that are shown


@contextmanager
def screen() -> Iterator[Callable[[View], None]]:
    """A function that shows where the run is; what it drew is gone at the end."""
    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda view: None
        return
    from rich.live import Live

    with Live(console=where, transient=True, auto_refresh=False) as live:
        yield lambda view: live.update(table(view), refresh=True)


def table(view: View) -> Any:
    """The view as rich's table: arms with an alarm first."""
    from rich.table import Table

    found = Table(title=headline(view), title_justify="left", box=None)
    for name in ("arm", "loss", "lr", ""):
        found.add_column(name, justify="left" if name in ("arm", "") else "right")
    arms = sorted(view.arms, key=lambda arm: not arm[3])
    for name, loss, lr, alarm in arms[:MOST]:
        found.add_row(name, f"{loss:.4f}", f"{lr:.2e}", "alarm" if alarm else "")
    if len(arms) > MOST:
        found.add_row(f"and {len(arms) - MOST} more", "", "", "")
    return found


def headline(view: View) -> str:
    """Steps done, steps per second and time left at that rate."""
    if not view.rate > 0.0:
        return f"step {view.step} of {view.steps}, compiling"
    left = math.ceil((view.steps - view.step) / view.rate)
    return f"step {view.step} of {view.steps}, {view.rate:.3g} steps/s, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
