"""`ErrorBudget`: what was measured, and its text."""

from dataclasses import dataclass

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
        is_change: Whether the part has sums on tensor cores. These read narrow operands only, so
            they cannot run alone.
    """

    part: Part
    alone: dict[str, float]
    gain: dict[str, float]
    without: dict[str, float] | None
    is_change: bool

    def share(self, result: str, total: dict[str, float]) -> float:
        """Return the squared error that the part makes alone, over the squared error of the plan.

        It is 0 where the plan makes no error.
        """
        return (self.alone[result] / total[result]) ** 2 if total[result] else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """Which rounding event makes how much of the error of each result, against binary64.

    Attributes:
        plan: The name of the plan.
        total: The relative rms error of each result ("out", "dq", "dk", "dv") under the plan.
        gain: By how much each result is too long (above 0) or too short, as a part of its length.
        lines: A `Line` for each part, the largest first.
        functions: The relative rms error that is left where nothing rounds, as that of exp by an
            instruction of a GPU.
        heads: The query heads that were measured.
        notes: What is to be said of the call, as in `Examined.notes`.

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

    def share(self, line: Line, result: str) -> float:
        """Return the share of a result's squared error that a line makes alone."""
        return line.share(result, self.total)

    def largest(self, result: str) -> Line:
        """Return the line with the largest share of a result's squared error.

        Raises:
            ValueError: The plan makes no error in that result.
        """
        if not self.lines or not self.total[result]:
            raise ValueError(f"{result}: the plan {self.plan} makes no error in it")
        return max(self.lines, key=lambda line: line.share(result, self.total))

    def interaction(self, result: str) -> float:
        """Return the share of the squared error that the lines do not add up to.

        Errors that do not depend on each other leave about 0. Above 0, errors of several events
        point the same way; below 0, they cancel, or an event does not round what another one has
        rounded already.
        """
        return 1.0 - sum(line.share(result, self.total) for line in self.lines)

    def __str__(self) -> str:
        """Return a table: shares of the squared error alone, and errors without each part."""
        names = list(self.total)
        first = max([11, *(len(line.part.name) for line in self.lines)])
        second = max([9, *(len(line.part.how) for line in self.lines)])
        rows = [("event", "rounds to", names, names)]
        for line in self.lines:
            left = line.without
            shares = [f"{100 * line.share(n, self.total):.1f}" for n in names]
            errors = [f"{left[n]:.1e}" if left else "-" for n in names]
            rows.append((line.part.name, line.part.how, shares, errors))
        rest = [f"{100 * self.interaction(n):+.1f}" for n in names]
        rows.append(("interaction", "", rest, []))
        rows.append(("all", "", ["100.0"] * len(names), [f"{x:.1e}" for x in self.total.values()]))
        over = f"{'squared error, %':>{6 * len(names)}} {'error without it':>{8 * len(names) + 1}}"
        text = [f"{'':{first}} {'':{second}}{over}"]
        for name, how, shares, errors in rows:
            cells = [f"{x:>6}" for x in shares] + [" "] + [f"{x:>8}" for x in errors]
            text.append(f"{name:{first}} {how:{second}}{''.join(cells)}".rstrip())
        of = f"relative rms errors, of heads {' '.join(map(str, self.heads))}"
        return "\n".join([*text, of, *(f"note: {note}" for note in self.notes)])
