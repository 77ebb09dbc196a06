"""`ModelBudget`: which operation, and which rounding event in it, makes how much of the error of a
step of a model, against binary64: what was measured, and its text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roundscope.emu.stats.comparison import Lost, deviations, gain, lost, relative_rms

NOTHING = 1e-13  # a relative error that is binary64's own
WORTH = 0.9  # the part of an error that may be left by a change that is worth telling
FEW = 12  # lines of a text, of operations and of events
TOO_MUCH = 0.5  # the interaction from which on shares are no parts of a whole
OTHER = 0.1  # the difference from the model's own gradients, over their error, that comes first


class Results(NamedTuple):
    """What a step ended with, in binary64.

    loss       the loss; None if the step has none
    end        log-probabilities by token (N,), or the numbers of the output
    table      log-probabilities (N, V) of all tokens of the vocabulary; None for an output
    gradients  those of the parameters by name
    """

    loss: float | None
    end: np.ndarray
    table: np.ndarray | None
    gradients: Mapping[str, np.ndarray]


class Gradient(NamedTuple):
    """The error of a gradient.

    error  the norm of the error over that of the exact gradient
    gain   by which part of its length it is too long (above 0) or too short along the exact one
    """

    error: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far a step is from the exact one. Where a number is lost to infinity or NaN, infinite.

    Attributes:
        loss: The loss minus the exact one; None without a loss.
        end: The relative rms error of the log-probabilities, or of the output.
        mean: The mean absolute error of a log-probability, or of a number of the output.
        largest: The largest.
        kl: The mean over tokens of KL(exact || own), in nats; None without log-probabilities.
        gradients: The error of all gradients as one vector; None without gradients.
        weights: That of each parameter's gradient by its name.
    """

    loss: float | None
    end: float
    mean: float
    largest: float
    kl: float | None
    gradients: Gradient | None
    weights: Mapping[str, Gradient]

    def of(self, result: str) -> float:
        """Return the relative error of "end", of "gradients", or of the gradient of a parameter."""
        if result == "end":
            return self.end
        own = self.gradients if result == "gradients" else self.weights[result]
        return math.nan if own is None else own.error


def errors_of(own: Results, exact: Results) -> Errors:
    """Return how far a step is from the exact one."""
    off = np.abs(deviations(own.end, exact.end))
    kl = None
    if own.table is not None and exact.table is not None:
        apart = deviations(exact.table, own.table)
        is_lost = not np.isfinite(apart).all()
        kl = math.inf if is_lost else float((np.exp(exact.table) * apart).sum(-1).mean())
    weights = {
        name: Gradient(relative_rms(own.gradients[name], x), gain(own.gradients[name], x))
        for name, x in exact.gradients.items()
    }
    together = None
    if exact.gradients:
        each = [_flat(x.gradients) for x in (own, exact)]
        together = Gradient(relative_rms(*each), gain(*each))
    return Errors(
        loss=None if own.loss is None or exact.loss is None else own.loss - exact.loss,
        end=relative_rms(own.end, exact.end),
        mean=float(off.mean()) if off.size else 0.0,
        largest=float(off.max(initial=0.0)),
        kl=kl,
        gradients=together,
        weights=weights,
    )


def _flat(gradients: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([gradients[name].reshape(-1) for name in sorted(gradients)])


class Flipped(NamedTuple):
    """A decision that differs from that of binary64, as the experts to which tokens go.

    title   the operation that decides
    differ  how many rows, or numbers, of its result are others
    total   of how many
    """

    title: str
    differ: int
    total: int

    def __str__(self) -> str:
        return f"{self.differ:,} of {self.total:,} in {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """What some operations of a step, or one rounding event in them, contribute to its error.

    Attributes:
        group: The operations, such as "rms_norm".
        event: The rounding event of their plan, such as "OUT"; "" for all of their arithmetic.
        how: What computes them, or to what the event rounds.
        count: How many operations of the step these are.
        alone: The errors where only they have their own arithmetic, and all else is in binary64.
        without: The errors where they alone are in binary64; None where the error that they make
            alone is too small for that to be measured.
        backward: The errors where only their backward has its own arithmetic; None without
            gradients, for an event, and where `without` is.
        flips: Decisions that differ from those of binary64 where only they have their own
            arithmetic.
    """

    group: str
    event: str
    how: str
    count: int
    alone: Errors
    without: Errors | None
    backward: Errors | None = None
    flips: tuple[Flipped, ...] = ()

    @property
    def name(self) -> str:
        """The group, and the event if it is one."""
        return f"{self.group} {self.event}".strip()

    def share(self, result: str, total: Errors) -> float:
        """Return the squared error of a result that it makes alone over that of the step.

        result: "end", "gradients", or the name of a parameter. The share is NaN where the step's
        error is infinite, and 0 where there is none.
        """
        return _share(self.alone.of(result), total.of(result))

    def rescues(self, result: str, total: Errors) -> bool:
        """Return whether a result with an infinite error has a finite one without it."""
        left = math.inf if self.without is None else self.without.of(result)
        return math.isinf(total.of(result)) and math.isfinite(left)

    def weight(self, total: Errors, results: Iterable[str]) -> float:
        """Return the largest of its shares, infinite if a result becomes finite without it."""
        shares = [math.inf if self.rescues(r, total) else self.share(r, total) for r in results]
        return max((x for x in shares if not math.isnan(x)), default=0.0)


def _share(own: float, total: float) -> float:
    if not math.isfinite(total):
        return math.nan
    return (own / total) ** 2 if total > NOTHING else 0.0


class Tried(NamedTuple):
    """A change of the arithmetic, and the errors with it.

    words   the change, such as "rms_norm: OUT=fp32"
    errors  the errors of the step with it
    """

    words: str
    errors: Errors


class Broken(NamedTuple):
    """Where numbers stop being finite that are finite in binary64.

    title  the first operation whose result, or whose gradient, is not
    lost   how many of its numbers
    what   "results" or "gradients"
    """

    title: str
    lost: Lost
    what: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelBudget:
    """Which operation makes how much of the error of a step of a model, against binary64.

    Attributes:
        total: The errors of the step.
        lines: A line for each group of operations that makes an error, the largest first.
        events: A line for each rounding event of groups whose plan is known, the largest first.
        tried: The changes that were tried: the largest groups and events in binary32, and that of
            the caller.
        operations: How many operations the step has.
        is_logprobs: Whether the step ends with log-probabilities of tokens; else with an output.
        unequal: The part of the numbers of the gradients in which the step, replayed, differs from
            the model's own; 0 if the replay is the model to the bit.
        apart: By how much, over the length of the model's own gradients.
        flips: Decisions that differ from those of binary64: an error that jumps, and is no sum.
        broken: Where numbers stop being finite; None if they do not.
        notes: What else a reader must know.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from roundscope.torch import error_budget
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).double()
        >>> x = {"input": torch.randn(4, 64).double()}
        >>> error_budget(model, x, loss=lambda out, inputs: out.square().mean()).sentence
        "The step of 4 operations makes no error beyond binary64's."
    """

    total: Errors
    lines: tuple[ModelLine, ...]
    events: tuple[ModelLine, ...]
    tried: tuple[Tried, ...]
    operations: int
    is_logprobs: bool
    unequal: float
    broken: Broken | None
    notes: tuple[str, ...]
    apart: float = 0.0
    flips: tuple[Flipped, ...] = ()

    @property
    def results(self) -> tuple[str, ...]:
        """The results of which there are shares: "gradients", if they were measured, and "end"."""
        return ("end",) if self.total.gradients is None else ("gradients", "end")

    @property
    def first(self) -> str:
        """The result by which lines are sorted."""
        return self.results[0]

    @property
    def is_exact(self) -> bool:
        """Whether no result has an error beyond that of binary64."""
        return all(self.total.of(result) <= NOTHING for result in self.results)

    def called(self, result: str) -> str:
        """Return what a result is called."""
        if result != "end":
            return result
        return "log-probabilities" if self.is_logprobs else "output"

    def adds_up(self, result: str) -> bool:
        """Return whether the shares of the groups are parts of a whole; if not, none is told."""
        return not abs(self.interaction(result)) > TOO_MUCH

    def told_share(self, line: ModelLine, result: str) -> float:
        """Return the share of a line; NaN where no share is told."""
        return line.share(result, self.total) if self.adds_up(result) else math.nan

    def interaction(self, result: str) -> float:
        """Return the part of the squared error to which the shares of the groups do not add up."""
        if not math.isfinite(self.total.of(result)) or self.total.of(result) <= NOTHING:
            return math.nan
        return 1.0 - sum(line.share(result, self.total) for line in self.lines)

    @property
    def sentence(self) -> str:
        """The answer, and the repair with what it was measured to change."""
        if self.broken is not None:
            return self._broken_words()
        if self.is_exact or not self.lines:
            return f"The step of {self.operations:,} operations makes no error beyond binary64's."
        parts: list[str] = []
        for result in self.results:
            if not self.adds_up(result):
                continue
            each = [(x.share(result, self.total), x.name) for x in self.lines]
            most = [x for x in sorted(each, reverse=True)[:2] if x[0] > 0.05]
            what = "that" if parts else "the squared error"
            for i, (share, name) in enumerate(most):
                whole = f" of {what} of the {self.called(result)}"
                parts.append(f"and {name} {share:.0%}" if i else f"{name} makes {share:.0%}{whole}")
        text = f"{'; '.join(parts)}.".replace("; and", " and") if parts else ""
        apart = [r for r in self.results if not self.adds_up(r)]
        whole = self._whole_words(apart) if apart else ""
        repairs = [self._repair_words(result) for result in self.results]
        return " ".join(filter(None, [self._other_words(), whole, text, *repairs]))

    def _other_words(self) -> str:
        """Return what is to be known first of gradients that are not the model's own."""
        if not self.apart > OTHER * self.total.of("gradients"):
            return ""
        return (
            "The gradients measured here are not the model's own: they differ in"
            f" {self.unequal:.1%} of their numbers, by {self.apart:.1e} of their length, and their"
            f" error is {self.total.of('gradients'):.1e}; the notes say why."
        )

    def _whole_words(self, results: Sequence[str]) -> str:
        """Return what is told of results to whose error the shares do not add up."""
        what = " and ".join(f"{self.interaction(r):+.0%} of the {self.called(r)}" for r in results)
        text = f"The errors of the groups do not add up (interaction {what}), so no share is told"
        if self.flips:
            text += f": decisions differ from those in binary64 ({self.flips[0]})"
        elif alone := next((x for x in self.lines if x.flips), None):
            text += f": {alone.name} alone makes other decisions than binary64 ({alone.flips[0]})"
        for result in results:
            least = min(
                ((x.without.of(result), x.name) for x in self.lines if x.without is not None),
                default=None,
            )
            before = self.total.of(result)
            if least is None or not least[0] < WORTH * before:
                what = f"the error of the {self.called(result)}"
                text += f". No group's absence takes away a tenth of {what}"
            else:
                text += (
                    f". Without {least[1]} the error of the {self.called(result)} is"
                    f" {least[0]:.1e} in place of {before:.1e}"
                )
        return text + "."

    def repair(self, result: str) -> Tried | None:
        """Return what was tried that leaves the least error of a result."""
        return min(self.tried, key=lambda x: x.errors.of(result), default=None)

    def _repair_words(self, result: str) -> str:
        best, what = self.repair(result), f"the error of the {self.called(result)}"
        before = self.total.of(result)
        if before <= NOTHING:
            return ""
        if best is None or not best.errors.of(result) < WORTH * before:
            return f"No change that was tried takes away a tenth of {what}."
        name, _, change = best.words.partition(": ")
        how = {"fp32": f"{name} in FP32", "exact": f"{name} in binary64"}.get(change, best.words)
        return f"With {how}, {what} falls from {before:.1e} to {best.errors.of(result):.1e}."

    def _broken_words(self) -> str:
        assert self.broken is not None
        text = f"{self.broken.lost.words(self.broken.what)}, first in {self.broken.title}"
        text += ", and finite in binary64."
        rescues = [x for x in self.lines if any(x.rescues(r, self.total) for r in self.results)]
        if rescues:
            text += f" With {rescues[0].name} in binary64 alone, all are finite."
        return text

    def __str__(self) -> str:
        """Return the sentence and tables: shares alone, and errors without each part."""
        text = [self.sentence]
        for name, lines in (("operation", self.lines), ("event", self.events)):
            if lines:
                text += ["", *self._table(name, lines)]
        if self.tried:
            text += ["", *(f"with {x.words}: {self.words(x.errors)}" for x in self.tried)]
        return "\n".join([*text, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return self.sentence

    def words(self, errors: Errors) -> str:
        """Return errors in words."""
        parts = [] if errors.loss is None else [f"loss {errors.loss:+.1e}"]
        parts.append(f"{self.called('end')} mean {errors.mean:.1e}, largest {errors.largest:.1e}")
        if errors.kl is not None:
            parts.append(f"KL {errors.kl:.1e}")
        if errors.gradients is not None:
            parts.append(
                f"gradients {errors.gradients.error:.1e}, gain {errors.gradients.gain:+.1e}"
            )
        return "; ".join(parts)

    def _table(self, head: str, lines: tuple[ModelLine, ...]) -> list[str]:
        names = [self.called(r) for r in self.results]
        width = max(len(head), 11, *(len(x.name) for x in lines[:FEW]))
        row = f"{{:{width}}} {{:>5}}" + " {:>17}" * (2 * len(names))
        text = [row.format("", "", *["error, %"] * len(names), *["without it"] * len(names))]
        text.append(row.format(head, "times", *names, *names))
        for line in lines[:FEW]:
            shares = [percent(self.told_share(line, r)) for r in self.results]
            left = line.without
            errors = ["-" if left is None else f"{left.of(r):.1e}" for r in self.results]
            text.append(row.format(line.name, line.count, *shares, *errors))
        if len(lines) > FEW:
            text.append(f"and {len(lines) - FEW} more")
        if head == "operation":
            blank = [""] * len(names)
            rest = [percent(self.interaction(r), "+") for r in self.results]
            text.append(row.format("interaction", "", *rest, *blank).rstrip())
            whole = [f"{self.total.of(r):.1e}" for r in self.results]
            text.append(row.format("all", self.operations, *["100.0"] * len(names), *whole))
        return text


def percent(share: float, sign: str = "") -> str:
    """Return a share in percent, "-" for one that is not known."""
    return f"{100 * share:{sign}.1f}" if math.isfinite(share) else "-"


def broken_in(title: str, own: np.ndarray, exact: np.ndarray, what: str) -> Broken | None:
    """Return what is to be said of an operation's numbers if some are lost."""
    found = lost(own, exact)
    return Broken(title, found, what) if found else None
