"""Errors of the results of attention, head by head, and how much worse than a plan they may be.

`Errors` has the size, the worst row and the bias of each head, `Margins` the ratios that are
accepted, and `Gross` a head whose errors no order of additions explains: one far from the plan, or
with numbers that are not finite.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import exact
from roundscope.emu.numbers import check_real
from roundscope.emu.shown import shown
from roundscope.emu.stats.comparison import deviations, lost


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


LEAST_ROW = 2.0**-5  # a row counts as at least so large, in units of the head's rms row
LEAST = 1e-12  # relative errors below this one are those of binary64
MOST = 1e12  # relative errors above this one count as this one where errors are compared
STATISTICS = ("rms", "row", "gain", "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The errors of one result in each of n heads, (n,).

    In a head with a number that is lost, infinite or NaN where the exact one is not, rms and row
    are infinite, and gain and mean are NaN.

    Attributes:
        rms: |x - exact| / |exact|, Euclidean norms over all tokens and features.
        row: The largest |x - exact| / |exact| of a token's row, where rows of little weight count
            as 1/32 of the rms row.
        gain: <x - exact, exact> / |exact|^2: above 0 the result is too long, below 0 too short.
        mean: The sum of x - exact over the sum of |exact|: above 0 the result is too high.
        at: The token whose row has the largest error.
    """

    rms: np.ndarray
    row: np.ndarray
    gain: np.ndarray
    mean: np.ndarray
    at: np.ndarray


def by_head(x: np.ndarray) -> np.ndarray:
    """Return an array (B, T, N, H) as (B N, T, H) in float64."""
    moved = np.ascontiguousarray(x.swapaxes(1, 2), np.float64)
    return moved.reshape(-1, *moved.shape[2:])


def errors(x: np.ndarray, exact: np.ndarray) -> Errors:
    """Return the errors of a result; both arrays are (B, T, N, H).

    A number that is not finite where the exact one is, or the reverse, has an infinite error; the
    same infinity, or NaN, in both has none. Finite errors are 0 where the exact result is 0 in the
    whole head, since there they have no scale.
    """
    want = by_head(exact)
    off = deviations(by_head(x), want)
    want = np.where(np.isfinite(want), want, 0.0)
    is_lost = np.isinf(off).any((1, 2))
    size = np.square(want).sum((1, 2))
    rows = np.sqrt(np.square(want).sum(2))
    usual = np.sqrt(size / want.shape[1])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_rows = _over(np.sqrt(np.square(off).sum(2)), np.maximum(rows, LEAST_ROW * usual))
        gain = _over((off * want).sum((1, 2)), size)
        mean = _over(off.sum((1, 2)), np.abs(want).sum((1, 2)))
        return Errors(
            rms=_over(np.sqrt(np.square(off).sum((1, 2))), np.sqrt(size)),
            row=of_rows.max(1),
            gain=np.where(is_lost, np.nan, gain),
            mean=np.where(is_lost, np.nan, mean),
            at=of_rows.argmax(1),
        )


def differences(kernel: Errors, plan: Errors) -> dict[str, np.ndarray]:
    """Return how much larger a kernel's errors are than a plan's, for each head, (n,).

    "rms" and "row" are logarithms of ratios, "gain" and "mean" are in units of the plan's relative
    rms error, and NaN where a number of either is lost.
    """
    unit = np.maximum(plan.rms, LEAST)
    return {
        "rms": np.log(ratios(kernel.rms, plan.rms)),
        "row": np.log(ratios(kernel.row, plan.row)),
        "gain": (kernel.gain - plan.gain) / unit,
        "mean": (kernel.mean - plan.mean) / unit,
    }


def ratios(kernel: np.ndarray, plan: np.ndarray, least: float = LEAST) -> np.ndarray:
    """Return the kernel's errors over the plan's, each taken to be between `least` and `MOST`.

    So the ratio of two infinite errors is 1, and that of one is large and not infinite.
    """
    return np.asarray(np.clip(kernel, least, MOST) / np.clip(plan, least, MOST))


def _over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b; where b is 0, 0 or, of an infinite a, infinity."""
    return np.where((b == 0.0) & np.isfinite(a), 0.0, a / b)


UNITS = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}
"""Half an ulp of 1 in the type of a result: smaller errors of a plan count as this large."""

FEW = 16  # tokens from which on the rms error of a head is an average of many roundings
WORDS_OF_SUMS = {
    "rms": "the rms error of the logarithms of the row sums is {:.3g}, that of the plan {:.3g}",
    "row": "the largest error of a logarithm of a row sum is {:.3g}, that of the plan {:.3g}",
}
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

    Attributes:
        name: "out", "dq", "dk" or "dv".
        tokens: The number of queries or of keys, whichever is smaller.
        mine: The kernel's result, (B, T, N, H).
        theirs: The plan's result.
        kernel: The errors of the kernel's.
        plan: The errors of the plan's.
    """

    name: str
    tokens: int
    mine: np.ndarray
    theirs: np.ndarray
    kernel: Errors
    plan: Errors


def pairs(x: Inputs, own: Outputs, theirs: Outputs) -> Iterator[Pair]:
    """Yield the errors of every result that both have.

    Raises:
        ValueError: A result of the kernel has another shape than that of the plan.
    """
    want = exact(x, backward=theirs.dq is not None)
    tokens = min(x.q.shape[1], x.k.shape[1])
    for name, array in theirs.named():
        mine = getattr(own, name)
        if name == "lse":
            if mine is not None:
                yield _of_sums(mine, array, want.lse, tokens)
            continue
        if mine.shape != array.shape:
            raise ValueError(
                f"kernel: {name} has shape {mine.shape}, must be {array.shape}, (batch, tokens,"
                " heads, features); is the layout right?"
            )
        kernel, plan = (errors(a, getattr(want, name)) for a in (mine, array))
        yield Pair(name=name, tokens=tokens, mine=mine, theirs=array, kernel=kernel, plan=plan)


def _of_sums(mine: np.ndarray, theirs: np.ndarray, want: np.ndarray, tokens: int) -> Pair:
    """Return the errors of L, (B, N, T): differences, not ratios, since P = exp(S - L).

    Rows that see no key have no L: kernels return -inf, +inf or 0 there.
    """
    if mine.shape != want.shape:
        raise ValueError(f"kernel: lse has shape {mine.shape}, must be {want.shape}, (B, N, T)")
    has = np.isfinite(want)

    def off(a: np.ndarray) -> np.ndarray:
        """Return 1 plus the errors, (B, T, N, 1): errors relative to 1 are differences."""
        with np.errstate(invalid="ignore"):
            apart = np.where(has, np.asarray(a, np.float64) - np.where(has, want, 0.0), 0.0)
        return np.asarray(1.0 + apart.swapaxes(1, 2)[..., None])

    own, planned = off(mine), off(theirs)
    ones = np.ones_like(own)
    kernel, plan = errors(own, ones), errors(planned, ones)
    return Pair(name="lse", tokens=tokens, mine=own, theirs=planned, kernel=kernel, plan=plan)


def gross(kind: str, pair: Pair, margins: Margins, unit: float) -> Iterator[Gross]:
    """Yield the worst head of each gross problem of a result.

    The worst row of a head is compared with the worst of all heads of the plan: where a row of a
    gradient almost cancels, its relative error is large by chance, in other heads of a kernel than
    of the plan. The rms error of fewer than 16 tokens can be that of a single rounding too, and has
    the limit of rows.

    Args:
        kind: The kind of inputs in words.
        pair: The results of the kernel and of the plan, and their errors.
        margins: The ratios of errors that are gross.
        unit: The least error that is taken for the plan's.
    """
    strange = ~np.isfinite(pair.mine) & np.isfinite(pair.theirs)
    if strange.any():
        found = lost(pair.mine, np.where(strange, pair.theirs, pair.mine))
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
    is_sum = pair.name == "lse"
    # an error e of L is a relative error e of P, of which the least is 1/64 of P's rounding
    least, words = (max(unit / 64, 2.0**-20), WORDS_OF_SUMS) if is_sum else (unit, WORDS)
    others = ~strange.any((1, 3))  # the heads of which nothing was said yet
    largest = np.full_like(pair.plan.row, pair.plan.row.max())
    limit = margins.gross_rms if pair.tokens >= FEW else margins.gross_row
    for name, plan, most in (("rms", pair.plan.rms, limit), ("row", largest, margins.gross_row)):
        kernel = getattr(pair.kernel, name)
        over = np.where(others.reshape(-1), ratios(kernel, plan, least), 0.0)
        at = int(over.argmax())
        if over[at] > most:
            entry, head = divmod(at, others.shape[1])
            yield Gross(
                inputs=kind,
                result=pair.name,
                head=(entry, head),
                token=int(pair.kernel.at[at]),
                problem=words[name].format(kernel[at], plan[at]),
                size=float(over[at]),
            )


def all_gross(
    kind: str, x: Inputs, own: Outputs, theirs: Outputs, margins: Margins, unit: float
) -> Iterator[Gross]:
    """Yield the worst head of each gross problem of all results of a call, as `gross` does."""
    for pair in pairs(x, own, theirs):
        yield from gross(kind, pair, margins, unit)
