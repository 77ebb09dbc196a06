"""How much worse than its plan a kernel may be."""

import math
from dataclasses import dataclass

from roundscope.emu.numbers import check_real
from roundscope.emu.shown import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """How much worse than the plan a kernel may be.

    Attributes:
        rms: The largest accepted ratio of the relative rms errors of a result.
        row: The largest accepted ratio of the errors of the worst row.
        bias: The largest accepted difference of the gains, and of the mean errors, in units of the
            plan's relative rms error.
        gross_rms: A ratio of rms errors that is a failure in any single head.
        gross_row: A ratio of the error of the worst row to the plan's worst row in any head that is
            a failure.
    """

    rms: float = 1.05
    row: float = 1.5
    bias: float = 0.02
    gross_rms: float = 2.0
    gross_row: float = 8.0

    def __post_init__(self) -> None:
        for name in ("rms", "row", "bias", "gross_rms", "gross_row"):
            check_real(name, getattr(self, name), 0.0, math.inf, "it is finite and above 0")

    def of(self, statistic: str) -> float:
        """Return the margin of a difference."""
        if statistic in ("gain", "mean"):
            return self.bias
        return math.log(self.rms if statistic == "rms" else self.row)


def check_margins(margins: object) -> None:
    """Raise TypeError unless margins are such, or None."""
    if margins is not None and not isinstance(margins, Margins):
        raise TypeError(f"margins={shown(margins)}: give Margins(rms=1.05, ...), or None")
