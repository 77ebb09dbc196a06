"""`common_tokens`: which tokens of two runs are the same ones.

A run may have a larger batch, of which the other one is a row; its row may be padded on the left or
on the right; and it may read its tokens in several forward passes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from roundscope.operations.models.tape import Tape


class Incomparable(ValueError):
    """Two runs of which operations cannot be matched, or that are of other inputs."""


class Tokens(NamedTuple):
    """Where the tokens that both runs have are in one of them.

    Attributes:
        batch: The rows of its batch.
        row: The first of these that is compared.
        rows: How many are.
        start: The position of the first token that is compared.
        size: How many tokens of a row are compared.
        lengths: How many tokens each forward pass read; () if that is not known.
    """

    batch: int
    row: int
    rows: int
    start: int
    size: int
    lengths: tuple[int, ...]

    def span(self, step: int) -> tuple[int, int]:
        """Return which of the compared tokens a forward pass read, (first, end).

        Before the first and behind the last one it counts on: -2 is two tokens of padding before.
        """
        first = sum(self.lengths[:step]) - self.start
        return first, first + self.lengths[step]


def common_tokens(a: Tape, b: Tape) -> tuple[Tokens, Tokens] | None:
    """Return where the common tokens are in either run; None if the runs read no tokens.

    Raises:
        Incomparable: The runs read other tokens.
    """
    if a.tokens is None or b.tokens is None:
        if (a.tokens is None) != (b.tokens is None):
            raise Incomparable("tokens: one run read tokens and the other one did not")
        return None
    rows = min(len(a.tokens), len(b.tokens))
    for row_a, row_b in _rows(a, b, rows):
        x, y = a.tokens[row_a : row_a + rows], b.tokens[row_b : row_b + rows]
        # a generation does not read the last token that it gave
        for cut_a, cut_b in ((0, 0), (b.steps > 1, 0), (0, a.steps > 1)):
            own, other = x[:, : x.shape[1] - cut_a], y[:, : y.shape[1] - cut_b]
            if (starts := _starts(own, other)) is not None:
                count = min(own.shape[1], other.shape[1])
                return (
                    Tokens(len(a.tokens), row_a, rows, starts[0], count, a.lengths),
                    Tokens(len(b.tokens), row_b, rows, starts[1], count, b.lengths),
                )
    x, y = (t.tokens[t.row * rows : t.row * rows + rows] for t in (a, b))  # type: ignore[index]
    if x.shape != y.shape:
        where = f"their shapes are {x.shape} and {y.shape}"
        if rows > 1:
            where += "; of rows that are padded differently compare one, by row="
    else:
        row, t = map(int, np.argwhere(x != y)[0])
        where = f"they first differ in row {row} at token {t}, {x[row, t]} and {y[row, t]}"
    told = f" ({passes(a, b)})" if max(a.steps, b.steps) > 1 else ""
    raise Incomparable(f"tokens: the runs read other ones: {where}{told}; give both the same")


def _rows(a: Tape, b: Tape, rows: int) -> Iterator[tuple[int, int]]:
    """Yield first rows to compare: those that were asked for, and then all of a larger batch."""
    yield a.row * rows, b.row * rows
    assert a.tokens is not None and b.tokens is not None
    if len(a.tokens) != len(b.tokens) and not a.row and not b.row:
        for row_a in range(0, len(a.tokens) - rows + 1, rows):
            for row_b in range(0, len(b.tokens) - rows + 1, rows):
                yield row_a, row_b


def _starts(x: np.ndarray, y: np.ndarray) -> tuple[int, int] | None:
    """Return where the shorter tokens begin in either; what the longer ones have around them is one
    token, such as padding. None if there is no such place.
    """
    if x.shape[1] > y.shape[1]:
        found = _starts(y, x)
        return None if found is None else (found[1], found[0])
    n = x.shape[1]
    for start in range(y.shape[1] - n, -1, -1):
        around = (y[:, :start], y[:, start + n :])
        is_padding = all((part == part[:, :1]).all() for part in around)
        if is_padding and np.array_equal(x, y[:, start : start + n]):
            return 0, start
    return None


def passes(a: Tape, b: Tape) -> str:
    """Return how many forward passes there are in words."""
    words = [f"{n} forward pass{'es' * (n > 1)}" for n in (a.steps, b.steps)]
    return (
        f"A: {words[0]}, B: {words[1]}; all passes of a capture are read as one sequence, so call"
        " the model once where they are not parts of one"
    )
