"""`Accumulator`: how a sum of products becomes one number, step by step or exactly.

Every step is an addition in binary64 (the products of numbers of up to 26 bits are exact in it) and one
rounding to the step's format: for operands of one machine format this is that machine's fused multiply-add.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from emu.exact_sum import exact_sum
from emu.ops import Array, Ops
from emu.rounding import BINARY32, Rounding, RoundingMode


class Order(StrEnum):
    """The order in which products are added."""

    ASCENDING = "ascending"  # ((init + x0) + x1) + x2 ...
    PAIRWISE = "pairwise"  # init + ((x0 + x1) + (x2 + x3)) ..., an odd one out moves up unchanged
    CHUNKED = "chunked"  # each chunk ascending from its first product; chunk sums ascending from init
    EXACT = "exact"  # init + the exact sum, one rounding at the end
    NATIVE = "native"  # whatever the device does, in float32: fast, not reproducible


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """How a sum of products becomes one number.

    order      which products meet first
    step       the rounding after each addition (of EXACT: the one rounding)
    chunk      products per chunk of CHUNKED
    alignment  fractional bits kept when a chunk is aligned to its largest exponent, as tensor cores do;
               reserved for the hardware models, None now

    Raises ValueError for a chunk below 1, or an alignment.
    """

    order: Order = Order.ASCENDING
    step: Rounding = BINARY32
    chunk: int = 16
    alignment: int | None = None

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: a chunk holds at least one product")
        if self.order is Order.EXACT and self.step.format.precision > 29:
            raise ValueError(f"step={self.step}: the exact sum rounds to 29 bits or fewer; use fp32 or narrower")
        if self.alignment is not None:
            raise ValueError(f"alignment={self.alignment}: hardware accumulators are not built yet; leave it None")

    def __str__(self) -> str:
        chunk = f"[{self.chunk}]" if self.order is Order.CHUNKED else ""
        return f"{self.order}{chunk}" + ("" if self.order is Order.NATIVE else f" {self.step}")


Step = Callable[[Any, Array], Array]  # (index of the addition, sum before rounding) -> rounded
Steps = list[tuple[Array, Array]]  # (before, after) of each addition, leading axis k where they were scanned


def accumulate(ops: Ops, acc: Accumulator, a: Array, b: Array, init: Array, step: Step | None = None, steps: Steps | None = None) -> Array:
    """init + sum over k of a[k, :, None] b[k, None, :], by the accumulator.

    a: (K, T); b: (K, N); init: (T, N); result (T, N). `step` replaces the rounding of each addition (a
    stochastic one needs its index); `steps` is a list to which every addition's (before, after) is appended.
    """
    if acc.order is Order.NATIVE:
        return ops.native(a.astype("float32").T, b.astype("float32")).astype("float64") + init
    if acc.order is Order.ASCENDING and step is None and steps is None:
        return ops.ascending(a, b, init, acc.step)
    step = _kept(step or _plain(ops, acc.step), steps)
    if acc.order is Order.EXACT:
        return step(0, exact_sum(ops, a, b, init))
    if acc.order is Order.ASCENDING:
        return _ascending(ops, step, a, b, init, 0, steps)
    if acc.order is Order.PAIRWISE:
        return _pairwise(ops, step, a, b, init)
    return _chunked(ops, acc, step, a, b, init, steps)


def _plain(ops: Ops, r: Rounding) -> Step:
    if r.mode is RoundingMode.STOCHASTIC:
        raise ValueError("step=stochastic: each addition needs random bits of its own; use emu.dot or a plan")
    return lambda k, total: ops.round(total, r, None)


def _kept(step: Step, steps: Steps | None) -> Step:
    """The step, with (before, after) appended to `steps` where it is not inside a scan."""
    if steps is None:
        return step

    def keeping(k: Any, total: Array) -> Array:
        after = step(k, total)
        steps.append((total[None], after[None]))
        return after

    keeping.plain = step  # type: ignore[attr-defined]
    return keeping


def _ascending(ops: Ops, step: Step, a: Array, b: Array, init: Array, first: int, steps: Steps | None) -> Array:
    plain = getattr(step, "plain", step)

    def body(total: Array, k: Any, x: tuple[Array, Array]) -> tuple[Array, Any]:
        before = total + ops.multiply(x[0][:, None], x[1][None, :])
        after = plain(first + k, before)
        return after, None if steps is None else (before, after)

    total, seen = ops.scan(body, init, (a, b))
    if steps is not None:
        steps.append(seen)
    return total


def _pairwise(ops: Ops, step: Step, a: Array, b: Array, init: Array) -> Array:
    if not a.shape[0]:
        return init
    values = ops.multiply(a[:, :, None], b[:, None, :])
    k = 0
    while values.shape[0] > 1:
        paired = values.shape[0] // 2 * 2
        sums = [step(k + n, values[2 * n] + values[2 * n + 1]) for n in range(paired // 2)]
        values = ops.xp.concatenate([ops.xp.stack(sums), values[paired:]])
        k += paired // 2
    return step(k, init + values[0])


def _chunked(ops: Ops, acc: Accumulator, step: Step, a: Array, b: Array, init: Array, steps: Steps | None) -> Array:
    zero, total = ops.xp.zeros_like(init), init
    for n, lo in enumerate(range(0, a.shape[0], acc.chunk)):
        chunk = slice(lo, lo + acc.chunk)
        part = _ascending(ops, step, a[chunk], b[chunk], zero, lo + n, steps)
        total = step(min(lo + acc.chunk, a.shape[0]) + n, total + part)
    return total
