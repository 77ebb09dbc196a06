"""`Accumulator`: how a sum of products becomes one number, step by step or exactly.

Every step is one rounding of the exact sum of two numbers to the step's format, as a machine's
fused multiply-add does it for factors of any of its formats. Products are binary64 numbers, exact
for factors of up to 26 bits (`emu.sums.odd`; a step to 52 bits or more is an addition in binary64).
A sum of two numbers that is 0 is +0 unless both are -0; that holds for rounding toward negative
too, where IEEE 754-2019, 6.3 asks for -0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT, Array, Ops
from roundscope.emu.formats.format import unknown
from roundscope.emu.numbers import check_whole
from roundscope.emu.roundings.modes import BINARY32, BINARY64, Rounding, RoundingMode
from roundscope.emu.sums.aligned import Alignment, Factors, aligned, binade, in_chunks
from roundscope.emu.sums.exact import OF_BINARY32, OF_BINARY64, exact_sum
from roundscope.emu.sums.odd import sum_to_round


class Order(StrEnum):
    """The order in which products are added.

    Attributes:
        ASCENDING: ((init + x_0) + x_1) + x_2 and so on.
        PAIRWISE: init + ((x_0 + x_1) + (x_2 + x_3)) and so on; an odd one out moves up unchanged.
        HALVES: the first half added to the second, x_0 + x_(n/2), ..., until one is left, as lanes
            of a GPU or a SIMD unit add; an odd one out moves up unchanged, and init comes last.
        STRIDED: `chunk` lanes, of which lane n adds x_n, x_(n + chunk), ...; then the lanes as
            HALVES, and init: a warp of a GPU.
        OCTETS: up to `chunk` lanes, of which lane n adds x_8n to x_(8n + 7), then the eight that
            lie 8 lanes further; then the lanes as HALVES, and init.
        WARPS: `chunk` neighbors two by two, 32 such lanes of a warp as HALVES, the warps as HALVES,
            and init: XLA's reductions on a GPU.
        CHUNKED: each chunk ascending from 0, so that its first product rounds; the chunks' sums are
            added to init.
        EXACT: init + the exact sum, with one rounding at the end.
        ALIGNED: chunks cut to a common exponent, as tensor cores add them (`emu.sums.aligned`).
        NATIVE: whatever the device does, in float32; it is fast and not reproducible.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([1.0, 2.0**-24, 2.0**-24, 2.0**-24], np.float32)
        >>> sums = [emu.sum(x, emu.Accumulator(order=order)) for order in ("ascending", "pairwise")]
        >>> [float(s - 1.0) for s in sums]  # in pairs, 2^-24 + 2^-24 is large enough to count
        [0.0, 1.1920928955078125e-07]
    """

    ASCENDING = "ascending"
    PAIRWISE = "pairwise"
    HALVES = "halves"
    STRIDED = "strided"
    OCTETS = "octets"
    WARPS = "warps"
    CHUNKED = "chunked"
    EXACT = "exact"
    ALIGNED = "aligned"
    NATIVE = "native"


# orders with many additions at once, which have no random bits of their own
OF_THREADS = (Order.ALIGNED, Order.STRIDED, Order.OCTETS, Order.WARPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """How a sum of products becomes one number: the order of the additions and their rounding.

    **The sign of a sum that is zero.** A sum that `dot` computes is init + a @ b, with init = +0
    unless it is given; `sum` always has init = +0. Adding two numbers gives zero with the sign of
    IEEE 754 to nearest, whatever the mode: -0 if both are -0, +0 otherwise, so exact cancellation
    gives +0. A negative sum that is not zero and rounds to zero gives -0. Where the step's format
    has no -0, every zero is +0. By order:

    * ASCENDING begins at init: from +0, zeros of either sign give +0.
    * PAIRWISE, HALVES, STRIDED, OCTETS and WARPS begin at the first products and add init last.
      Sums of products may be -0 on the way; init = +0 makes a zero +0, and only init = -0 lets one
      stay -0. OCTETS and WARPS pad short sums with +0.
    * CHUNKED begins every chunk at +0 and the sum of the chunks at init.
    * EXACT gives +0 for every exact sum of zero, even if init and all products are -0.
    * ALIGNED gives +0 for every result of zero, also for one that was negative before the cut.
    * NATIVE leaves the sign of a @ b to the device and adds init to it.

    A sum without products is init, unrounded, in all orders but EXACT, which rounds it, and NATIVE,
    which adds it to +0.

    Args:
        order: an `Order` or its name: which products meet first.
        step: the `Rounding` after each addition (in EXACT, the one rounding at the end; NATIVE has
            none).
        chunk: products of one chunk in CHUNKED and ALIGNED, lanes in STRIDED and OCTETS, numbers of
            one thread in WARPS, where it is a power of two.
        alignment: what ALIGNED keeps of its terms, an `Alignment`; None for the other orders.
            `Accumulator.tensor_core` fills it in.

    Raises:
        ValueError: for an unknown order, a chunk below 1 or in WARPS not a power of two, EXACT with
            a step of more than 29 bits, ALIGNED without an alignment, an alignment elsewhere, or a
            stochastic step in ALIGNED, STRIDED, OCTETS and WARPS, whose additions happen at once.
        TypeError: for a step that is no `Rounding` or a chunk that is no whole number.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> acc = emu.Accumulator(order="chunked", chunk=2, step=emu.BF16)
        >>> str(acc), emu.sum(np.array([256.0, 1.0, 1.0, 1.0]), acc).item()
        ('chunked[2] bf16', 258.0)
        >>> str(emu.sum(np.array([-0.0, -0.0]), acc))  # begins at +0
        '0.0'
    """

    order: Order = Order.ASCENDING
    step: Rounding = BINARY32
    chunk: int = 16
    alignment: Alignment | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", _order_named(self.order))
        if not isinstance(self.step, Rounding):
            raise TypeError(f"step={self.step!r}: give a Rounding, such as rounding('bf16')")
        check_whole("chunk", self.chunk, "a chunk holds at least one product")
        if self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: a chunk holds at least one product")
        if self.order is Order.WARPS and self.chunk & (self.chunk - 1):
            raise ValueError(
                f"chunk={self.chunk}: a thread of a warp adds a power of two of neighbors, such as"
                " 4 or 8"
            )
        if self.order is Order.EXACT and self.step.format.precision > 29:
            raise ValueError(
                f"step={self.step}: the exact sum rounds to 29 bits or fewer; use fp32 or narrower"
            )
        if (self.alignment is None) is (self.order is Order.ALIGNED):
            raise ValueError(
                f"alignment={self.alignment}: goes with order=aligned, here {self.order}; use"
                " Accumulator.tensor_core"
            )
        if self.order in OF_THREADS and self.step.mode is RoundingMode.STOCHASTIC:
            raise ValueError(
                f"step={self.step}: an {self.order} sum has no random bits; use a mode that draws"
                " none"
            )

    @staticmethod
    def tensor_core(arch: str, operand: str, sum_format: str = "fp32") -> "Accumulator":
        """Return the accumulator of a tensor core, by architecture and format of the factors.

        Args:
            arch: volta, turing, ampere, ada, hopper or blackwell.
            operand: the format of both factors, such as "bf16" (`roundscope.emu.sums.tensor_cores`
                lists them).
            sum_format: "fp32", or "fp16" for fp16 and FP8 factors.

        Returns:
            An accumulator of order ALIGNED.

        Raises:
            ValueError: for an architecture, factors or a sum that do not exist.

        Example:
            >>> from roundscope import emu
            >>> acc = emu.Accumulator.tensor_core("hopper", "bf16")
            >>> acc.chunk, acc.alignment.bits, str(acc.step)
            (16, 25, 'fp32:toward-zero')
        """
        from roundscope.emu.sums.tensor_cores import tensor_core

        return tensor_core(arch, operand, sum_format)

    def __str__(self) -> str:
        if self.alignment is not None:
            kept = self.alignment
            return (
                f"aligned[{self.chunk} {kept.operand.name}] to {kept.bits} bits (0: 2^{kept.zero}),"
                f" {self.step}"
            )
        chunk = (
            f"[{self.chunk}]"
            if self.order in (Order.CHUNKED, Order.STRIDED, Order.OCTETS, Order.WARPS)
            else ""
        )
        return f"{self.order}{chunk}" + ("" if self.order is Order.NATIVE else f" {self.step}")


def _order_named(name: Any) -> Order:
    """Return the order of that name; raise ValueError with the nearest name."""
    try:
        return name if isinstance(name, Order) else Order(str(name).lower())
    except ValueError:
        raise ValueError(unknown("order", name, Order)) from None


def check_accumulator(accumulator: Any) -> None:
    """Raise TypeError unless the argument is an `Accumulator`."""
    if not isinstance(accumulator, Accumulator):
        raise TypeError(
            f"accumulator={accumulator!r}: give an Accumulator, such as"
            " Accumulator(order='pairwise')"
        )


# (index of the addition, its sum rounded to odd) -> the sum rounded by the step
Step = Callable[[Any, Array], Array]
Add = Callable[[Array, Array], Array]
# (before, after) of each addition, with a leading axis k where several came at once
Steps = list[tuple[Array, Array]]


def accumulate(
    ops: Ops,
    acc: Accumulator,
    a: Array,
    b: Array,
    init: Array,
    step: Step | None = None,
    steps: Steps | None = None,
    product_bits: int = ANY_PRODUCT,
) -> Array:
    """Return init + sum over k of a[k, :, None] b[k, None, :], added up by the accumulator.

    Args:
        ops: the array library.
        acc: the order of the additions and their rounding.
        a: factors (K, T), float64.
        b: factors (K, N), float64.
        init: the sums' beginnings (T, N), float64.
        step: takes the place of the rounding of each addition: (index, sum rounded to odd) ->
            rounded sum. A stochastic rounding needs one, since its random bits depend on the index.
        steps: a list to which every addition's (before, after) is appended.
        product_bits: the most significand bits that a product has, which spares work; below 53 only
            where all numbers are binary32 ones.

    Returns:
        The sums (T, N), float64.

    Raises:
        ValueError: for a stochastic rounding without `step`.
    """
    if acc.order is Order.NATIVE:
        return ops.native(a.astype("float32").T, b.astype("float32")).astype("float64") + init
    init = ops.hidden(init)
    if acc.order is Order.ASCENDING and step is None and steps is None:
        return ops.ascending(a, b, init, acc.step, product_bits)
    if acc.alignment is not None:
        emin = acc.alignment.operand.emin
        return add_aligned(
            ops, acc, (a, binade(ops, a, emin)), (b, binade(ops, b, emin)), init, steps
        )
    at_once = step is None
    step = step or _plain(ops, acc.step)
    step = step if steps is None else _Keeping(step, steps)
    add = partial(sum_to_round, ops, acc.step.format.precision)
    if acc.order is Order.EXACT:
        words = OF_BINARY32 if product_bits < EXACT_PRODUCT else OF_BINARY64
        return step(0, exact_sum(ops, a, b, init, words))
    if acc.order is Order.ASCENDING:
        return _ascending(ops, add, step, a, b, init, 0, steps)
    if acc.order in (Order.PAIRWISE, Order.HALVES):
        return _tree(ops, acc.order, add, step, a, b, init, at_once)
    if acc.order is Order.OCTETS:
        return _octets(ops, acc, add, step, a, b, init)
    if acc.order is Order.WARPS:
        return _warps(ops, acc, add, step, a, b, init)
    if acc.order is Order.STRIDED:
        return _strided(ops, acc, add, step, a, b, init)
    return _chunked(ops, acc, add, step, a, b, init, steps)


def add_aligned(
    ops: Ops, acc: Accumulator, a: Factors, b: Factors, init: Array, steps: Steps | None = None
) -> Array:
    """Return what `accumulate` does for ALIGNED, for factors whose exponents are given.

    `steps` receives each chunk's sum in binary64 with nothing cut, and what became of it.
    """
    if not a[0].shape[0]:
        return init
    if steps is None:
        return ops.aligned(a, b, init, acc)
    totals: list[Array] = []
    total = aligned(ops, a, b, init, acc, totals)
    pieces = (in_chunks(ops, a[0], acc.chunk), in_chunks(ops, b[0], acc.chunk), totals[0])
    _, whole = ops.scan(
        lambda _, k, x: (None, ops.ascending(x[0], x[1], x[2], BINARY64, EXACT_PRODUCT)),
        None,
        pieces,
    )
    steps.append((whole, totals[1]))
    return total


def _plain(ops: Ops, r: Rounding) -> Step:
    if r.mode is RoundingMode.STOCHASTIC:
        raise ValueError(
            "step=stochastic: each addition needs random bits of its own; use emu.dot or a plan"
        )
    return lambda k, total: ops.round(total, r, None)


@dataclass(frozen=True, slots=True)
class _Keeping:
    """A step that appends (before, after) of one addition, or of several at once, to `steps`.

    Nothing can be appended from inside a scan; there, `plain` takes its place.
    """

    plain: Step
    steps: Steps

    def __call__(self, k: Any, total: Array) -> Array:
        after = self.plain(k, total)
        listed = (-1, *total.shape[-2:])
        self.steps.append((total.reshape(listed), after.reshape(listed)))
        return after


def _ascending(
    ops: Ops, add: Add, step: Step, a: Array, b: Array, init: Array, first: int, steps: Steps | None
) -> Array:
    plain = step.plain if isinstance(step, _Keeping) else step

    def body(total: Array, k: Any, x: tuple[Array, Array]) -> tuple[Array, Any]:
        before = add(total, ops.multiply(x[0][:, None], x[1][None, :]))
        after = plain(first + k, before)
        return after, None if steps is None else (before, after)

    total, additions = ops.scan(body, init, (a, b))
    if steps is not None:
        steps.append(additions)
    return total


def _tree(
    ops: Ops, order: Order, add: Add, step: Step, a: Array, b: Array, init: Array, at_once: bool
) -> Array:
    """Add the products two by two, for PAIRWISE and HALVES; init comes last.

    at_once: whether the additions of one level are rounded in one call, as they can be where their
    rounding needs no index.
    """
    if not a.shape[0]:
        return init
    values, k = ops.multiply(a[:, :, None], b[:, None, :]), 0
    while (pairs := values.shape[0] // 2) > 0:
        halves = order is Order.HALVES
        left, right = (
            (values[:pairs], values[pairs : 2 * pairs])
            if halves
            else (values[: 2 * pairs : 2], values[1 : 2 * pairs : 2])
        )
        sums = add(left, right)
        sums = (
            step(k, sums) if at_once else ops.xp.stack([step(k + n, sums[n]) for n in range(pairs)])
        )
        values = ops.xp.concatenate([sums, values[2 * pairs :]])
        k += pairs
    return step(k, add(init, values[0]))


def _strided(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Add up each lane from its first product, which rounds; then the lanes by halves, and init."""
    if not a.shape[0]:
        return init
    xp, lanes = ops.xp, min(acc.chunk, a.shape[0])
    values = ops.multiply(a[:, :, None], b[:, None, :])
    total = step(0, values[:lanes])
    for lo in range(lanes, values.shape[0], lanes):
        more = values[lo : lo + lanes]
        sums = step(0, add(total[: more.shape[0]], more))
        total = xp.concatenate([sums, total[more.shape[0] :]])
    return step(0, add(init, _by_halves(xp, add, step, total)))


def _octets(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Add up lanes that read 16 bytes of BF16 at a time; short sums are padded with +0."""
    if not a.shape[0]:
        return init
    lanes = min(acc.chunk, -(-a.shape[0] // 8))
    values = _padded(ops.xp, ops.multiply(a[:, :, None], b[:, None, :]), 8 * lanes)
    values = values.reshape(values.shape[0] // (8 * lanes), lanes, 8, *values.shape[1:])
    total = step(0, values[0, :, 0])
    for page in range(values.shape[0]):
        for n in range(page == 0, 8):
            total = step(0, add(total, values[page, :, n]))
    return step(1, add(init, _by_halves(ops.xp, add, step, total)))


def _by_halves(xp: Any, add: Add, step: Step, values: Array) -> Array:
    """Add the second half of the first axis to the first, x_0 + x_(n/2), ..., until one is left."""
    while (half := values.shape[0] // 2) > 0:
        values = xp.concatenate(
            [step(0, add(values[:half], values[half : 2 * half])), values[2 * half :]]
        )
    return values[0]


def _padded(xp: Any, values: Array, unit: int) -> Array:
    """Return the values with zeros behind them, to a multiple of `unit` along the first axis."""
    missing = -values.shape[0] % unit
    return xp.concatenate([values, xp.zeros((missing, *values.shape[1:]))]) if missing else values


def _warps(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Add neighbors of a thread two by two, then lanes by halves, then warps by halves.

    Sums of other lengths are padded with +0.
    """
    if not a.shape[0]:
        return init
    xp = ops.xp
    values = _padded(xp, ops.multiply(a[:, :, None], b[:, None, :]), 32 * acc.chunk)
    values = values.reshape(values.shape[0] // (32 * acc.chunk), 32, acc.chunk, *values.shape[1:])
    while values.shape[2] > 1:
        values = step(0, add(values[:, :, ::2], values[:, :, 1::2]))
    warps = _by_halves(xp, add, step, xp.moveaxis(values[:, :, 0], 1, 0))
    return step(1, add(init, _by_halves(xp, add, step, warps)))


def _chunked(
    ops: Ops,
    acc: Accumulator,
    add: Add,
    step: Step,
    a: Array,
    b: Array,
    init: Array,
    steps: Steps | None,
) -> Array:
    zero, total = ops.hidden(ops.xp.zeros_like(init)), init
    for n, lo in enumerate(range(0, a.shape[0], acc.chunk)):
        chunk = slice(lo, lo + acc.chunk)
        part = _ascending(ops, add, step, a[chunk], b[chunk], zero, lo + n, steps)
        total = step(min(lo + acc.chunk, a.shape[0]) + n, add(total, part))
    return total
