"""The records of a judgment: a row for each question, and the report that holds the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding

Function = Callable[[np.ndarray], Any]  # a user's cast: float32 in, whatever it returns out
Numbers = np.ndarray  # float64 numbers
NARROW = "elements divided in float32"  # a known behavior of blocks, which can be asked for
EXAMPLES = 3  # how many examples a row keeps


class Status(StrEnum):
    """What a row says about the function.

    Attributes:
        PASS: the function does what was asked.
        FAIL: it does something else.
        SKIPPED: the question does not arise, or the function cannot be asked.
    """

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One number, or one scale, that the function got wrong.

    Attributes:
        given: the input; of a scale, the largest magnitude of its block.
        got: what the function returned for it.
        expected: what the asked rounding returns for it.
        scale: the scale of the number's block, by which `given` is divided before it is rounded; 1
            for a cast without scales.
        where: the place of the number in words, such as "row 3, column 17".
    """

    given: float
    got: float
    expected: float
    scale: float = 1.0
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The answer to one question about the function.

    Attributes:
        name: the short name of the question, such as "ties".
        question: the question in one sentence.
        status: whether the function passes.
        agree: how many of the inputs of this question the function treats as asked.
        of: how many inputs there are.
        examples: the worst few disagreements, the worst first.
        note: more about the answer in words, or the reason why the row was skipped.
    """

    name: str
    question: str
    status: Status
    agree: int
    of: int
    examples: tuple[Example, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many blocks, or numbers, a known behavior explains.

    Attributes:
        name: the behavior in words, such as "rule floor" or "toward-zero".
        agree: how many of the blocks or numbers it explains.
        of: how many there are.
    """

    name: str
    agree: int
    of: int


@dataclass(frozen=True, slots=True)
class Otherwise:
    """What to ask in place of what was asked, since it explains results that the asked does not.

    Attributes:
        option: the argument of `examine_cast` to change, or "format".
        value: its new value, in words.
        agree: how many of the results it explains.
        of: how many there are.
    """

    option: str
    value: str
    agree: int
    of: int

    def __str__(self) -> str:
        """Return it in words, such as "the scale 0.015625 explains all 498"."""
        name = {"tensor_scale": "the scale ", "hadamard": "Hadamard "}.get(self.option, "")
        of = f"all {self.of:,}" if self.agree == self.of else f"{self.agree:,} of {self.of:,}"
        return f"{name}{self.value} explains {of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CastReport:
    """Everything that was found about one function.

    Attributes:
        asked: the rounding or the block format that the function is meant to implement.
        title: that in words, as the sentence begins.
        name: that in the words of known behaviors.
        whole: on how many of all finite numbers, or blocks, the function does what was asked.
        noun: what these are, in words.
        done: what the function did to them if all is right, in words.
        known: what known behaviors are, in a word.
        prefix: what stands before the name of a known behavior.
        otherwise: what else to ask, where that explains more than what was asked.
        factor: by what all scales differ from the asked ones, in words, if by one factor.
        remaining: one of the results that the nearest known behavior does not explain, in words.
        is_random: whether the asked rounding is stochastic.
        behaves_as: the known behavior that explains all results, in words; None if none does.
        rows: the answers, in a fixed order.
        behaviors: known behaviors with the number of results that each explains, the best first.
        scales: of a block format, the scale rules with the number of scales that each explains.
        exceptions: the blocks whose scale the best rule does not explain; at most 20 of them.
        returned: what the function returns, in words.
    """

    asked: Rounding | BlockFormat
    title: str
    name: str
    whole: Agreement
    noun: str
    done: str = "are rounded so"
    known: str = "rounding"
    prefix: str = ""
    otherwise: Otherwise | None = None
    factor: str = ""
    remaining: str = ""
    is_random: bool = False
    behaves_as: str | None
    rows: tuple[Row, ...]
    behaviors: tuple[Agreement, ...]
    scales: tuple[Agreement, ...] = ()
    exceptions: tuple[Example, ...] = ()
    returned: str

    @property
    def instead(self) -> str | None:
        """The known behavior that explains all results, if it is another than what was asked."""
        return self.behaves_as if self.behaves_as != self.name else None

    @property
    def sentence(self) -> str:
        """What the function does, in one sentence: "as asked" if and only if no row fails."""
        rows = ", ".join(row.name for row in self.failed)
        numbers = f"all {self.whole.of:,} {self.noun}"
        if self.passed:
            law = ", and their errors have the mean of random rounding" if self.is_random else ""
            done = "lie beside the exact ones" if self.is_random else self.done
            return f"{self.title} as asked: {numbers} {done}{law}."
        if self.whole.agree == self.whole.of and not self.instead:
            done = "lie beside the exact ones" if self.is_random else f"{self.done} as asked"
            return f"Not {self.title} in every question: {numbers} {done}, but {_fails(rows)}."
        wrong = self.whole.of - self.whole.agree
        differ = f"{wrong:,} of {self.whole.of:,} {self.noun} differ from {self.name}"
        if self.instead and self.is_random and not wrong:
            return f"{self.instead}, not {self.name}: nothing is drawn."
        if self.instead:
            return f"{self._instead}{self._special}."
        if not self.behaviors:
            return f"{differ}; {_fails(rows)}."
        best, none = self.behaviors[0], f"No known {self.known} explains"
        if self.otherwise is not None:
            return f"{differ}, and {self.otherwise}{self._special}."
        if not self.has_nearest:
            return f"{none} even half of the {self.noun}: {differ}{self.factor}{self._special}."
        return (
            f"{none} all {self.noun}: {differ}; the nearest, {best.name},"
            f" explains {best.agree:,}, and {best.of - best.agree:,} remain{self.remaining}"
            f"{self._special}."
        )

    @property
    def has_nearest(self) -> bool:
        """Whether the best known behavior explains at least half of the results."""
        return bool(self.behaviors) and 2 * self.behaviors[0].agree >= self.behaviors[0].of

    @property
    def _instead(self) -> str:
        """Another known behavior that explains all results, in words."""
        other, own, of = self.instead or "", self.name, f"{self.whole.of:,}"
        wrong = f"{self.whole.of - self.whole.agree:,}"
        if not other.startswith(own):
            differ = f"{wrong} of {of} {self.noun} differ from {own}"
            return f"{self.prefix}{other}, not {own}: {differ}"
        but = other.removeprefix(own).lstrip(", ")
        differ = f"{wrong} of them differ from exact quotients" if but == NARROW else ""
        differ = differ or f"{wrong} of them differ from what was asked"
        all_of = f"all {of} {self.noun} are explained so"
        return f"{self.prefix}{own} as asked, but {but}: {all_of}, and {differ}"

    @property
    def _special(self) -> str:
        """The failed rows that no known behavior accounts for, in words."""
        told = {"NaN": "NaN fails: ", "NaN stays": "a NaN or infinity changes other blocks: "}
        is_same = self.instead and _policy(self.instead) == _policy(self.name)
        if self.noun == "blocks" or is_same:
            told["infinities"] = "infinities fail: "  # not where the policy of overflow says so
        rows = (row for row in self.failed if row.name in told)
        return "".join(f"; {told[row.name]}{_became(row)}" for row in rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows that the function fails."""
        return tuple(row for row in self.rows if row.status is Status.FAIL)

    @property
    def passed(self) -> bool:
        """Whether the function fails no row."""
        return not self.failed


def _policy(name: str) -> str:
    """Return what a cast does with overflow, the last word of its name without its faults."""
    return next(iter(name.split()), "").rpartition(":")[2]


def _became(row: Row) -> str:
    """Return what became of the inputs of a failed row, as in "128 of 128 became 0"."""
    got = dict.fromkeys(f"{example.got:g}" for example in row.examples)
    became = f" became {' or '.join(got)}" if got else ""
    return f"{row.of - row.agree:,} of {row.of:,}{became}"


def _fails(rows: str) -> str:
    return f"{rows} {'fail' if ', ' in rows else 'fails'}"


def counted(
    name: str,
    question: str,
    agree: int,
    of: int,
    *,
    examples: tuple[Example, ...] = (),
    note: str = "",
) -> Row:
    """Return the row of a question, which passes if all of its inputs agree."""
    status = Status.PASS if agree == of else Status.FAIL
    return Row(
        name=name,
        question=question,
        status=status,
        agree=agree,
        of=of,
        examples=examples,
        note=note,
    )


def with_whole(rows: Sequence[Row], noun: str, whole: Agreement) -> tuple[Row, ...]:
    """Return the rows, and one on all results if these differ and no other row fails."""
    if any(row.status is Status.FAIL for row in rows) or whole.agree == whole.of:
        return tuple(rows)
    return *rows, counted(f"all {noun}", f"Are all {noun} as asked?", whole.agree, whole.of)


def skipped(name: str, question: str, note: str) -> Row:
    """Return a row of a question that does not arise."""
    return Row(name=name, question=question, status=Status.SKIPPED, agree=0, of=0, note=note)


def row_of(
    name: str,
    question: str,
    good: np.ndarray,
    given: Numbers,
    got: Numbers,
    expected: Numbers,
    *,
    f: Format,
    scale: Numbers | float = 1.0,
    where: Callable[[int], str] = lambda i: "",
    note: str = "",
) -> Row:
    """Return the row of a question from the flat arrays of its inputs and results.

    Args:
        name: the short name of the question.
        question: the question in one sentence.
        good: where the function does what was asked, a boolean array.
        given: the inputs.
        got: what the function returned.
        expected: what was asked.
        f: the format in whose ulps an error is measured, to find the worst.
        scale: the scales by which the inputs are divided, or one number for all.
        where: returns the place of the number with an index in words.
        note: more in words.

    Returns:
        The row; it is skipped where there are no inputs.
    """
    if not good.size:
        return skipped(name, question, note or "no such input")
    scales = np.broadcast_to(np.asarray(scale, np.float64), good.shape)
    order = _worst(good, got, expected, scales, f)
    examples = tuple(
        Example(
            given=float(given[i]),
            got=float(got[i]),
            expected=float(expected[i]),
            scale=float(scales[i]),
            where=where(int(i)),
        )
        for i in order
    )
    agree = int(good.sum())
    return counted(name, question, agree, int(good.size), examples=examples, note=note)


def _worst(
    good: np.ndarray, got: Numbers, expected: Numbers, scales: Numbers, f: Format
) -> np.ndarray:
    """Return the indices of the worst disagreements, the worst first.

    A result that is not a number where one was asked, or the reverse, counts as the worst.
    """
    bad = np.flatnonzero(~good)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        top = np.maximum(np.abs(expected[bad] / scales[bad]), f.min_normal)
        error = np.abs(got[bad] - expected[bad]) / scales[bad] / top
    error = np.where(np.isnan(error), np.inf, error)
    return bad[np.argsort(-error, kind="stable")[:EXAMPLES]]
