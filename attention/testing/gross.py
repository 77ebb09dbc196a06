"""Errors that no order of additions explains: a head far from the plan, or numbers not finite."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.errors import Errors, errors, ratios
from roundscope.attention.testing.exact import exact
from roundscope.attention.testing.margins import Margins
from roundscope.emu.stats.comparison import lost

UNITS = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}
"""Half an ulp of 1 in the type of a result: smaller errors of a plan count as this large."""

FEW = 16  # tokens from which on the rms error of a head is an average of many roundings
WORDS = {
    "rms": "the relative rms error is {:.3g}, that of the plan {:.3g}",
    "row": "the error of the worst row is {:.3g}, the largest of the plan in any head {:.3g}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gross:
    """A head whose errors no order of additions explains.

    Attributes:
        inputs: The kind of inputs in words.
        result: "out", "dq", "dk" or "dv".
        head: The batch entry and the head.
        token: The token of the worst row, or of the first number that is not finite.
        problem: What is wrong, in words.
        size: How large the problem is: the ratio of errors, or infinity for numbers that are not
            finite.
        feature: The feature of the first number that is not finite; None if all are.
    """

    inputs: str
    result: str
    head: tuple[int, int]
    token: int
    problem: str
    size: float
    feature: int | None = None

    @property
    def sentence(self) -> str:
        """The problem in words."""
        at, feature = "at", ""
        if self.feature is not None:
            at, feature = "the first at", f", feature {self.feature}"
        return (
            f"{self.inputs}: {self.result}: {self.problem}, {at} batch entry {self.head[0]}, head"
            f" {self.head[1]}, token {self.token}{feature}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The errors of one result of a kernel and of a plan, from the same exact result.

    `tokens` is the number of queries or of keys, whichever is smaller.
    """

    name: str
    tokens: int
    kernel: Errors
    plan: Errors


def pairs(x: Inputs, own: Outputs, theirs: Outputs) -> Iterator[Pair]:
    """Yield the errors of every result that both have.

    Raises:
        ValueError: A result of the kernel has another shape than that of the plan.
    """
    want = exact(x)
    for name, array in theirs.named():
        mine = getattr(own, name)
        if mine.shape != array.shape:
            raise ValueError(
                f"kernel: {name} has shape {mine.shape}, must be {array.shape}, (batch, tokens,"
                " heads, features); is the layout right?"
            )
        kernel, plan = (errors(a, getattr(want, name)) for a in (mine, array))
        tokens = min(x.q.shape[1], x.k.shape[1])
        yield Pair(name=name, tokens=tokens, kernel=kernel, plan=plan)


def gross(
    kind: str, pair: Pair, mine: np.ndarray, theirs: np.ndarray, margins: Margins, unit: float
) -> Iterator[Gross]:
    """Yield the worst head of each gross problem of a result.

    The worst row of a head is compared with the worst of all heads of the plan: where a row of a
    gradient almost cancels, its relative error is large by chance, in other heads of a kernel than
    of the plan. The rms error of fewer than 16 tokens can be that of a single rounding too, and has
    the limit of rows.

    Args:
        kind: The kind of inputs in words.
        pair: The errors of the kernel and of the plan.
        mine: The kernel's result, (B, T, N, H).
        theirs: The plan's result.
        margins: The ratios of errors that are gross.
        unit: The least error that is taken for the plan's.
    """
    strange = ~np.isfinite(mine) & np.isfinite(theirs)
    if strange.any():
        found = lost(mine, np.where(strange, theirs, mine))
        assert found.first is not None
        entry, token, head, feature = found.first
        yield Gross(
            inputs=kind,
            result=pair.name,
            head=(entry, head),
            token=token,
            problem=f"{found.words('numbers')} where the plan's are finite",
            size=math.inf,
            feature=feature,
        )
    limit = margins.gross_rms if pair.tokens >= FEW else margins.gross_row
    largest = np.full_like(pair.plan.row, pair.plan.row.max())
    others = ~strange.any((1, 3))  # the heads of which nothing was said yet
    yield from _far(kind, pair, "rms", pair.plan.rms, limit, others, unit)
    yield from _far(kind, pair, "row", largest, margins.gross_row, others, unit)


def _far(
    kind: str,
    pair: Pair,
    statistic: str,
    plan: np.ndarray,
    limit: float,
    heads: np.ndarray,
    unit: float,
) -> Iterator[Gross]:
    """Yield the head, of some, whose error is furthest from the plan's, if beyond the limit."""
    kernel = getattr(pair.kernel, statistic)
    over = np.where(heads.reshape(-1), ratios(kernel, plan, unit), 0.0)
    at = int(over.argmax())
    if over[at] > limit:
        entry, head = divmod(at, heads.shape[1])
        yield Gross(
            inputs=kind,
            result=pair.name,
            head=(entry, head),
            token=int(pair.kernel.at[at]),
            problem=WORDS[statistic].format(kernel[at], plan[at]),
            size=float(over[at]),
        )


def all_gross(
    kind: str, x: Inputs, own: Outputs, theirs: Outputs, margins: Margins, unit: float
) -> Iterator[Gross]:
    """Yield the worst head of each gross problem of all results of a call.

    Args:
        kind: The kind of inputs in words.
        x: The inputs.
        own: The kernel's results.
        theirs: The plan's results.
        margins: The ratios of errors that are gross.
        unit: The least error that is taken for the plan's.
    """
    for pair in pairs(x, own, theirs):
        mine, array = getattr(own, pair.name), getattr(theirs, pair.name)
        yield from gross(kind, pair, mine, array, margins, unit)
