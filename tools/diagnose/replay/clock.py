"""The progress of replays: how many are done and to come, and how long these take.

The number to come is known as a lower and an upper bound.
"""

from collections.abc import Callable

Report = Callable[[int, str], None]  # (number of the step, what runs)


class Clock:
    """Counts replays done and to come.

    The time left is that of the replays to come at the rate measured so far, without compilations.
    """

    def __init__(self, report: Report) -> None:
        self.report, self.step, self.what = report, 1, ""
        self.arm_steps = self.replays = self.since = 0
        self.fewest = self.most = 0
        self.seconds, self.timed = 0.0, 0

    def says(self, step: int, what: str) -> None:
        """Report what runs now; the number of replays to come is not known."""
        self.step, self.what, self.fewest, self.most, self.since = step, what, 0, 0, 0
        self.advance(0)

    def expects(self, fewest: int, most: int) -> None:
        """Note how many replays are to come from here on, at least and at most."""
        self.fewest, self.most, self.since = fewest, max(fewest, most), 0
        self.advance(0)

    def advance(self, arm_steps: int) -> None:
        """Add steps of arms that were done, and report."""
        self.arm_steps += arm_steps
        self.report(self.step, self.text)

    def done(self, replays: int, seconds: float) -> None:
        """Add replays that were run in so many seconds; 0 seconds means that they were stored."""
        self.replays, self.since = self.replays + replays, self.since + replays
        if seconds:
            self.seconds, self.timed = self.seconds + seconds, self.timed + replays
        self.advance(0)

    @property
    def left(self) -> tuple[float, float] | None:
        """The seconds that the replays to come take, at least and at most; None while not known."""
        if not (self.timed and self.most):
            return None
        each = self.seconds / self.timed
        return max(self.fewest - self.since, 0) * each, max(self.most - self.since, 0) * each

    @property
    def text(self) -> str:
        """The text for a progress bar."""
        found = f"{self.what}; {self.replays:,} replays, {self.arm_steps:,} steps done"
        if self.most:
            low, high = (max(n - self.since, 0) for n in (self.fewest, self.most))
            found += f"; {low} to {high} replays to come"
        if self.left is not None:
            found += f", {spell(self.left[0])} to {spell(self.left[1])}"
        return found


def spell(seconds: float) -> str:
    """Return seconds in words: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
