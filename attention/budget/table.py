"""`ErrorBudget`: what was measured, and its text."""

import math
from dataclasses import dataclass

from roundscope.attention.budget.not_finite import NotFinite
from roundscope.attention.budget.parts import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one part of a plan contributes to each result ("out", "dq", "dk", "dv").

    Attributes:
        part: The event, sum or group.
        alone: The relative rms error of each result where only this part rounds; if `is_change`,
            the relative rms of what the result changes by when the part is taken away.
        gain: By how much the part alone makes each result too long (above 0) or too short.
        without: The relative rms error of each result with this part in binary64; None where the
            part is too small for that to be measured.
        is_change: Whether the part is measured by its absence alone: sums on tensor cores, which
            read narrow operands only and cannot run alone, and injected errors, whose ulps are
            those of the plan's formats.
    """

    part: Part
    alone: dict[str, float]
    gain: dict[str, float]
    without: dict[str, float] | None
    is_change: bool

    def share(self, result: str, total: dict[str, float]) -> float:
        """Return the squared error that the part makes alone, over the squared error of the plan.

        It is 0 where the plan makes no error. Of a result that is not finite it is infinite if the
        part alone makes such a result, and else 0.
        """
        if math.isinf(self.alone[result]):
            return math.inf
        return (self.alone[result] / total[result]) ** 2 if total[result] > 0.0 else 0.0

    def rescues(self, result: str, total: dict[str, float]) -> bool:
        """Return whether a result with an infinite error has a finite one without the part."""
        left = None if self.without is None else self.without[result]
        return math.isinf(total[result]) and left is not None and math.isfinite(left)

    def weight(self, total: dict[str, float]) -> float:
        """Return the largest share of the part, infinite if a result becomes finite without it."""
        return max(
            (math.inf if self.rescues(n, total) else self.share(n, total) for n in total),
            default=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """Which rounding event makes how much of the error of each result, against binary64.

    Attributes:
        plan: The name of the plan.
        total: The relative rms error of each result ("out", "dq", "dk", "dv") under the plan,
            infinite if a number of it is infinite or NaN where exact attention has another one.
        gain: By how much each result is too long (above 0) or too short, as a part of its length;
            NaN where the error is infinite.
        lines: A `Line` for each part, the largest first.
        functions: The relative rms error that is left where nothing rounds, as that of exp by an
            instruction of a GPU.
        heads: The query heads that were measured.
        notes: What is to be said of the call, as in `Examined.notes`.
        not_finite: The numbers of the results that are infinite or NaN, where they begin and what
            avoids them; None if all are finite.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu, error_budget
        >>> x = np.random.default_rng(0).standard_normal((3, 1, 64, 2, 16))
        >>> q, k, v = emu.round_to(x, "bf16")
        >>> budget = error_budget(q, k, v, plan="fa2-bf16")
        >>> line = budget.largest("out")
        >>> line.part.formula, round(line.share("out", budget.total), 1)
        ('O INV', 0.6)
    """

    plan: str
    total: dict[str, float]
    gain: dict[str, float]
    lines: tuple[Line, ...]
    functions: dict[str, float]
    heads: tuple[int, ...]
    notes: tuple[str, ...] = ()
    not_finite: NotFinite | None = None

    def share(self, line: Line, result: str) -> float:
        """Return the share of a result's squared error that a line makes alone."""
        return line.share(result, self.total)

    def largest(self, result: str) -> Line:
        """Return the line with the largest share of a result's squared error.

        Of a result with an infinite error it is the first line without which the error is finite,
        or else the first one that alone makes it infinite.

        Raises:
            ValueError: The plan makes no error in that result, or an infinite one that no line
                makes by itself.
        """
        total = self.total[result]
        if not self.lines or not total:
            raise ValueError(f"{result}: the plan {self.plan} makes no error in it")

        def order(line: Line) -> tuple[bool, float]:
            return line.rescues(result, self.total), line.share(result, self.total)

        most = max(self.lines, key=order)
        if math.isinf(total) and order(most) < (False, math.inf):
            raise ValueError(
                f"{result}: its error is infinite, and no event makes it so by itself;"
                " `not_finite` says where it begins"
            )
        return most

    def interaction(self, result: str) -> float:
        """Return the share of the squared error that the lines do not add up to.

        Errors that do not depend on each other leave about 0. Above 0, errors of several events
        point the same way; below 0, they cancel, or an event does not round what another one has
        rounded already. It is NaN for a result with an infinite error, which has no shares.
        """
        if not math.isfinite(self.total[result]):
            return math.nan
        return 1.0 - sum(line.share(result, self.total) for line in self.lines)

    def share_words(self, line: Line, result: str) -> str:
        """Return a share in percent; of an infinite error, "inf" if the line alone makes one."""
        share = self.share(line, result)
        if math.isinf(share):
            return "inf"
        return "-" if not math.isfinite(self.total[result]) else f"{100 * share:.1f}"

    def interaction_words(self, result: str) -> str:
        """Return the interaction in percent, or "-" for a result with an infinite error."""
        left = self.interaction(result)
        return f"{100 * left:+.1f}" if math.isfinite(left) else "-"

    def __str__(self) -> str:
        """Return a table: shares of the squared error alone, and errors without each part.

        Numbers that are not finite come before it.
        """
        names = list(self.total)
        first = max([11, *(len(line.part.name) for line in self.lines)])
        second = max([9, *(len(line.part.how) for line in self.lines)])
        rows = [("event", "rounds to", names, names)]
        for line in self.lines:
            left = line.without
            shares = [self.share_words(line, n) for n in names]
            errors = [f"{left[n]:.1e}" if left else "-" for n in names]
            rows.append((line.part.name, line.part.how, shares, errors))
        rest = [self.interaction_words(n) for n in names]
        rows.append(("interaction", "", rest, []))
        whole = ["100.0" if math.isfinite(x) else str(x) for x in self.total.values()]
        rows.append(("all", "", whole, [f"{x:.1e}" for x in self.total.values()]))
        over = f"{'squared error, %':>{6 * len(names)}} {'error without it':>{8 * len(names) + 1}}"
        text = [] if self.not_finite is None else [str(self.not_finite)]
        text.append(f"{'':{first}} {'':{second}}{over}")
        for name, how, shares, errors in rows:
            cells = [f"{x:>6}" for x in shares] + [" "] + [f"{x:>8}" for x in errors]
            text.append(f"{name:{first}} {how:{second}}{''.join(cells)}".rstrip())
        of = f"relative rms errors, of heads {' '.join(map(str, self.heads))}"
        if self.not_finite is not None and self.not_finite.lost:
            of += "; inf: the part alone makes the result infinite or NaN"
        return "\n".join([*text, of, *(f"note: {note}" for note in self.notes)])
