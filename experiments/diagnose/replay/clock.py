"""How far the replays are: how many are done, how many are still to come at least and at most, and
how long these take.
"""

from collections.abc import Callable

Report = Callable[[int, str], None]  # (number of the step, what runs)


class Clock:
    """Replays done and to come.

    The time left is that of the replays to come at the rate measured so far, compilations apart.
    """

    def __init__(self, report: Report) -> None:
        self.report, self.step, self.what = report, 1, ""
        self.arm_steps = self.replays = self.since = 0
        self.fewest = self.most = 0
        self.seconds, self.timed = 0.0, 0

    def says(self, step: int, what: str) -> None:
        """What runs now; nothing is known of what is to come."""
        self.step, self.what, self.fewest, self.most, self.since = step, what, 0, 0, 0
        self.advance(0)

    def expects(self, fewest: int, most: int) -> None:
        """How many replays are to come from here on, at least and at most."""
        self.fewest, self.most, self.since = fewest, max(fewest, most), 0
        self.advance(0)

    def advance(self, arm_steps: int) -> None:
        """Steps of arms that were done."""
        self.arm_steps += arm_steps
        self.report(self.step, self.text)

    def done(self, replays: int, seconds: float) -> None:
        """Replays that were run in so many seconds; 0 seconds: they were there."""
        self.replays, self.since = self.replays + replays, self.since + replays
        if seconds:
            self.seconds, self.timed = self.seconds + seconds, self.timed + replays
        self.advance(0)

    @property
    def left(self) -> tuple[float, float] | None:
        """Seconds that the replays to come take, at least and at most; None while that is not
        known.
        """
        if not (self.timed and self.most):
            return None
        each = self.seconds / self.timed
        return max(self.fewest - self.since, 0) * each, max(self.most - self.since, 0) * each

    @property
    def text(self) -> str:
        """For a progress bar."""
        found = f"{self.what}; {self.replays:,} replays, {self.arm_steps:,} steps done"
        if self.most:
            low, high = (max(n - self.since, 0) for n in (self.fewest, self.most))
            found += f"; {low} to {high} replays to come"
        if self.left is not None:
            found += f", {spell(self.left[0])} to {spell(self.left[1])}"
        return found


def spell(seconds: float) -> str:
    """40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
