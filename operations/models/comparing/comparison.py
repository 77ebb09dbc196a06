"""`Comparison`: what differs between two runs of a model, in fields and in a sentence."""

from dataclasses import dataclass
from math import inf, isnan
from typing import Literal, NamedTuple

import numpy as np

SEEN = 0.005  # the share from which on a group has a number in the sentence
Made = Literal["here", "inherited", "equal", "undecided"]


class Row(NamedTuple):
    """An operation of two runs.

    Attributes:
        number: Its number among the operations that were compared.
        title: Its name and module.
        operation: Its name.
        function: What computed it, in the first and in the second run.
        made: "equal" results; a difference made "here", where the first run's arithmetic gives
            other results on the second run's inputs; "inherited" from its inputs; or "undecided".
        differ: The share of its numbers that differ, on the same inputs if it is made here.
        ulps: The largest difference of these, in units of the last place of the coarser type; 0
            too where one side's log-probabilities are computed in binary64 and not rounded.
    """

    number: int
    title: str
    operation: str
    function: tuple[str, str]
    made: Made
    differ: float
    ulps: float


class Group(NamedTuple):
    """Operations whose arithmetic differs in the same way.

    Attributes:
        name: The operation.
        a: What computes it in the first run.
        b: What computes it in the second run.
        rows: The numbers of its rows.
        share: Its part of the gap; NaN, as the next two, if the gap is 0 or not finite.
        alone: The gap that it makes alone, as a part of the whole one.
        without: What is missing from the gap where all others are put in.
        noise: How far `alone` moves if last bits of its results are rolled again.
        is_most: Whether one of its rows is a stretch of most operations of the run.
    """

    name: str
    a: str
    b: str
    rows: tuple[int, ...]
    share: float
    alone: float
    without: float
    noise: float
    is_most: bool = False

    def __str__(self) -> str:
        name = "the end, behind the last operation" if self.name == "end" else self.name
        if self.a != self.b:
            return f"{name} (A: {self.a}; B: {self.b})"
        return f"{name} (of one name in both, with other code or a constant that is not recorded)"

    @property
    def is_told_apart(self) -> bool:
        """Whether its share is above its noise."""
        return abs(self.share) > self.noise


class Flip(NamedTuple):
    """A decision that differs: the most probable token or tokens, or the experts of a token.

    Attributes:
        position: The position of the token.
        what: "argmax" or "top-8" of the logits, or "experts" of a module that routes tokens.
        a: The tokens or experts of the first run that the second one does not have.
        b: Those of the second run that the first one does not have.
        margin: The margin in the first run's logits or scores by which it was decided.
    """

    position: int
    what: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What differs between two runs. Printed, it is its sentence.

    Attributes:
        equal: Whether every result of every operation is equal.
        rows: The operations in the order of the first run.
        first: The first whose result differs from equal inputs; None if there is none.
        groups: What makes the difference, the largest share first.
        left: The part of the gap that is not explained by the groups.
        interaction: What the gaps of each group alone miss of the whole one.
        unknown: How many operations are not known by a name in either run.
        gap: The difference of the log-probabilities by token, second minus first.
        kl: The mean over tokens of KL(first || second), in nats; None without logits.
        mean: The mean of |gap|.
        largest: The largest |gap|.
        is_logprobs: Whether the gap is one of log-probabilities; else of the outputs.
        flips: Decisions that differ.
        notes: What else a reader must know.
        is_partial: Whether the second run is known by some of its results alone, which are the
            rows then.
    """

    equal: bool
    rows: tuple[Row, ...]
    first: Row | None
    groups: tuple[Group, ...]
    left: float
    interaction: float
    unknown: int
    gap: np.ndarray
    kl: float | None
    mean: float
    largest: float
    is_logprobs: bool
    flips: tuple[Flip, ...]
    notes: tuple[str, ...]
    is_partial: bool = False

    def __repr__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The answer in a sentence, and in a second one what is not told apart."""
        stretch = next((group.name for group in self.groups if group.is_most), "")
        return self._answer + (
            f" {stretch} is one stretch of most operations, which are not told apart: compile the"
            " leaves of the model instead of all of it, or compare models of one architecture."
            if stretch
            else ""
        )

    @property
    def _answer(self) -> str:
        if self.is_partial:
            return self._partial_answer
        what = "log-probabilities" if self.is_logprobs else "numbers of the output"
        size = f"{self.gap.size:,} {what}"
        count = f"{len(self.rows):,} operations, {size}"
        if self.equal:
            return f"The two runs are equal: {count}, every bit."
        if not self.groups:
            made = sum(row.made == "undecided" for row in self.rows)
            if not made:
                return f"The {what} are equal, though intermediate results differ."
            return (
                f"The two runs differ, and of {made} operations it is not decided which makes it."
            )
        if not self.gap.any():
            names = ", ".join(group.name for group in self.groups)
            return (
                f"The {what} are equal, every bit, though results of {names} differ: later"
                " operations round the difference away or do not use it."
            )
        if isnan(self.groups[0].share):
            names = ", ".join(str(group) for group in self.groups)
            if lost := int((~np.isfinite(self.gap)).sum()):
                first = next((row for row in self.rows if row.ulps == inf), None)
                where = "" if first is None else f", first in {first.title}"
                return f"{lost:,} of {size} are infinite or NaN in one run{where}; made by {names}."
            return f"The {what} differ; made by {names}."
        apart = [group for group in self.groups if group.is_told_apart]
        parts = [f"{group}: {group.share:.0%}" for group in apart if abs(group.share) >= SEEN]
        rest = [str(group) for group in self.groups if not group.is_told_apart]
        parts += [f"{', '.join(rest)}: not told apart from noise"] if rest else []
        if small := [group.name for group in apart if abs(group.share) < SEEN]:
            parts.append(f"{', '.join(small)}: below {SEEN:.1%} each")
        return f"The gap of the {what} is made by {'; '.join(parts)}."

    @property
    def _partial_answer(self) -> str:
        total = len(self.rows)
        differing = [row for row in self.rows if row.made != "equal"]
        if not differing:
            also = f", and its {self.gap.size:,} log-probabilities" if self.gap.size else ""
            if self.gap.any():
                return (
                    f"The {total:,} results that B kept are equal, every bit, but its"
                    f" log-probabilities differ, by up to {self.largest:.2g}."
                )
            return f"The {total:,} results that B kept{also} are equal, every bit."
        here = sum(row.made == "here" for row in differing)
        told = f"{len(differing):,} of the {total:,} results that B kept differ"
        told += f", {here:,} of them by what is done there and {len(differing) - here:,} inherited"
        if self.first is not None:
            told += f"; the first is {self.first.title}"
        parts = [
            str(group) + ("" if isnan(group.share) else f": {group.share:.0%}")
            for group in self.groups
        ]
        named = {n for group in self.groups for n in group.rows}
        if nameless := sum(row.made == "here" and row.number not in named for row in differing):
            parts.append(f"{nameless:,} by arithmetic that is not known")
        of_gap = " of the gap" if self.groups and not isnan(self.groups[0].share) else ""
        return f"{told}. Made{of_gap} by {'; '.join(parts)}." if parts else f"{told}."
