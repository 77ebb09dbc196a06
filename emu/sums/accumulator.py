"""`Accumulator`: how a sum of products becomes one number, step by step or exactly.

Every step rounds the exact sum of two numbers once to the step's format, as a fused multiply-add
does (`emu.sums.odd`). A step to 52 bits or more is an addition in binary64 instead. Products are
binary64 numbers, which are exact for factors of up to 26 bits. If the sum of two numbers is zero,
it is +0 unless both are -0. This holds for rounding toward negative too, where IEEE 754-2019, 6.3
requires -0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT, Array, Ops
from roundscope.emu.numbers import check_count
from roundscope.emu.roundings.modes import BINARY32, BINARY64, Rounding, RoundingMode, member
from roundscope.emu.roundings.random import event_bits
from roundscope.emu.shown import shown
from roundscope.emu.sums.aligned import Alignment, Factors, GroupAlignment, aligned, factors_of
from roundscope.emu.sums.chunks import in_chunks, padded
from roundscope.emu.sums.matrix_cores import MatrixCore
from roundscope.emu.sums.odd import OF_BINARY32, OF_BINARY64, exact_sum, sum_to_round
from roundscope.emu.sums.tensor_cores import core_of


class Order(StrEnum):
    """The order in which products are added.

    Attributes:
        ASCENDING: ((init + x_0) + x_1) + x_2 and so on, where x_k are the products.
        PAIRWISE: init + ((x_0 + x_1) + (x_2 + x_3)) and so on. If a level has an odd number of
            terms, the last one moves to the next level unchanged.
        HALVES: the first half of the terms is added to the second half, x_0 + x_(n/2) and so on,
            until one term is left, as the lanes of a GPU or a SIMD unit add. If the number of terms
            is odd, the last one moves on unchanged. init is added last.
        STRIDED: lane n of `chunk` lanes adds x_n, x_(n + chunk) and so on. Then the lanes are added
            as in HALVES, and init last. A warp of a GPU adds in this order.
        OCTETS: lane n of up to `chunk` lanes adds x_8n to x_(8n + 7), then the eight terms that
            come 8 * lanes places later, and so on. Then the lanes are added as in HALVES, and init
            last.
        OCTET_PAIRS: the octets are dealt to lanes as in OCTETS, but the number of lanes is the
            greatest divisor of `chunk` that divides the number of octets. A lane adds the first
            terms of all its octets, then the second ones, and so on. The lanes are added in pairs
            of neighbors: (l_0 + l_1) + (l_2 + l_3) and so on. If a level has an odd number of
            lanes, the last one moves on unchanged. FlashAttention-4 adds delta in this order.
        WARPS: each thread adds `chunk` neighboring terms in pairs, the 32 threads of a warp are
            added as in HALVES, then the warps as in HALVES, and init last. XLA's reductions on a
            GPU add in this order.
        QUAD_WARPS: thread n of `chunk` threads adds x_4n to x_(4n + 3), then the four terms that
            come 4 * chunk places later, and so on. Then threads and warps are added as in WARPS.
            PyTorch's fused RMSNorm on a GPU adds in this order (128 threads), and so do Triton's
            sums of a row of FP32 numbers.
        OCTET_WARPS: as QUAD_WARPS, with eight terms in place of four: Triton's sum of a row of
            numbers of 16 bits.
        QUAD_STRIDES: as QUAD_WARPS, but the terms behind the last 4 * chunk that all threads read
            are taken one by one, `chunk` places apart. PyTorch's softmax of more than 1024 FP32
            numbers on a GPU adds in this order (1024 threads).
        OCTET_STRIDES: as QUAD_STRIDES, with eight terms in place of four: the same softmax of
            numbers of 16 bits.
        BLOCK: PyTorch's sum of a row of float32 on a GPU, by threads in groups of `chunk`: 512
            divided by the number of rows, but at least 32 (so 32 for 16 rows or more). A row of
            more than 128 terms is read four neighbors at a time, each of which goes to a sum of its
            own; in a shorter row the four sums take terms `chunk` places apart. The four are added
            in ascending order, then the threads of a group as in HALVES. Long rows are dealt to all
            512 / `chunk` groups, which are added as in HALVES. A row of fewer numbers than `chunk`
            threads read at once has fewer threads, a power of two. Rows begin at multiples of 16
            bytes. init is added last.
        CASCADE: PyTorch's sum of a row of float32 on a CPU, for vectors of `chunk` lanes (8 for
            AVX2). Four vectors are read at a time; each of their numbers goes to a sum of its own,
            which begins at +0. After 16 of them a sum is added to one of a second level and begins
            anew, and so on up to a fourth level (2^(ceil(log2 m) / 4) in place of 16 if there are
            m > 2^19). Then the levels of each sum are added from the first to the last, to the
            first vector's sum those of the vectors that are left over, then the other three
            vectors' sums. At the end the terms that fill no vector are added from +0, then the
            lanes in ascending order, and init last. If there are fewer terms than lanes, a vector
            has one lane.
        LEVELS: PyTorch's sum of a column of float32 on a CPU: all terms go to one sum with the four
            levels of CASCADE, which are added from the first to the last, and init last.
        CHUNKED: each chunk is added in ascending order from 0, so that its first product rounds;
            the sums of the chunks are added to init.
        EXACT: init + the exact sum, with one rounding at the end.
        ALIGNED: the terms of each chunk are added at once as in matrix units: cut to a common
            exponent in tensor cores (`emu.sums.aligned`), in other ways in AMD's matrix cores
            (`emu.sums.matrix_cores`).
        NATIVE: the device's own order, in float32; it is fast and not reproducible.

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
    OCTET_PAIRS = "octet-pairs"
    WARPS = "warps"
    QUAD_WARPS = "quad-warps"
    OCTET_WARPS = "octet-warps"
    QUAD_STRIDES = "quad-strides"
    OCTET_STRIDES = "octet-strides"
    BLOCK = "block"
    CASCADE = "cascade"
    LEVELS = "levels"
    CHUNKED = "chunked"
    EXACT = "exact"
    ALIGNED = "aligned"
    NATIVE = "native"

    @property
    def has_chunk(self) -> bool:
        """Return whether a sum in this order depends on the accumulator's `chunk`."""
        return self in (Order.CHUNKED, *OF_THREADS) and self is not Order.LEVELS


# orders with many additions at once, for which no random bits are defined
OF_THREADS = (
    Order.ALIGNED,
    Order.STRIDED,
    Order.OCTETS,
    Order.OCTET_PAIRS,
    Order.WARPS,
    Order.QUAD_WARPS,
    Order.OCTET_WARPS,
    Order.QUAD_STRIDES,
    Order.OCTET_STRIDES,
    Order.BLOCK,
    Order.CASCADE,
    Order.LEVELS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """How a sum of products becomes one number: the order of the additions and their rounding.

    **The sign of a sum that is zero.** `dot` computes init + a @ b, where init is +0 by default;
    `sum` always has init = +0. If the sum of two numbers is zero, its sign is that of IEEE 754's
    rounding to nearest in every mode: -0 if both numbers are -0, and +0 otherwise. So exact
    cancellation gives +0. A negative sum that is not zero but rounds to zero gives -0. If the
    step's format has no -0, every zero is +0. The orders differ as follows:

    * ASCENDING begins at init. If init is +0, zeros of either sign give +0.
    * PAIRWISE, HALVES, STRIDED, OCTETS, OCTET_PAIRS, WARPS, QUAD_WARPS, OCTET_WARPS, QUAD_STRIDES
      and OCTET_STRIDES begin at the first products and add init last. Partial sums of products may
      be -0. A zero becomes +0 if init is +0; it stays -0 only if init is -0. All but the first
      three pad short sums with +0.
    * CHUNKED begins every chunk at +0 and the sum of the chunks at init. CASCADE, LEVELS and
      BLOCK begin all their sums at +0 and add init last.
    * EXACT gives +0 for every exact sum of zero, even if init and all products are -0.
    * ALIGNED gives +0 for every result of zero, even if the sum was negative before the cut; on
      CDNA1 to CDNA3 a negative sum that rounds to zero gives -0.
    * NATIVE leaves the sign of a @ b to the device and adds init to it.

    A sum without products is init. EXACT rounds it, NATIVE adds it to +0, and all other orders
    leave it unrounded.

    Args:
        order: the `Order` in which products are added, or its name.
        step: the `Rounding` after each addition. EXACT applies it once at the end; NATIVE ignores
            it.
        chunk: the number of products in a chunk (CHUNKED, ALIGNED), of lanes (STRIDED, OCTETS,
            OCTET_PAIRS, CASCADE), of threads (QUAD_WARPS, OCTET_WARPS, QUAD_STRIDES, OCTET_STRIDES,
            and BLOCK, where it must be a power of two of at most 512), or of terms that a thread
            adds (WARPS, where it must be a power of two).
        alignment: an `Alignment` or a `MatrixCore`, which says how ALIGNED adds; None for the other
            orders.
            `Accumulator.tensor_core` fills it in.

    Raises:
        ValueError: for an unknown order; a chunk below 1, or one that is not a power of two in
            WARPS and BLOCK; EXACT with a step of more than 29 bits; ALIGNED without an alignment,
            or another order with one; or a stochastic step in ALIGNED, STRIDED, OCTETS,
            OCTET_PAIRS, WARPS, QUAD_WARPS, OCTET_WARPS, QUAD_STRIDES, OCTET_STRIDES, BLOCK, CASCADE
            and LEVELS, whose additions happen at once.
        TypeError: for a step that is not a `Rounding` or a chunk that is not a whole number.

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
    alignment: Alignment | MatrixCore | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", member(Order, "order", self.order))
        if not isinstance(self.step, Rounding):
            raise TypeError(f"step={shown(self.step)}: give a Rounding, such as rounding('bf16')")
        check_count("chunk", self.chunk, 1, "a chunk holds at least one product")
        if self.order is Order.WARPS and self.chunk & (self.chunk - 1):
            raise ValueError(
                f"chunk={self.chunk}: a thread of a warp adds a power of two of neighbors, such as"
                " 4 or 8"
            )
        if self.order is Order.BLOCK and (self.chunk & (self.chunk - 1) or self.chunk > 512):
            raise ValueError(
                f"chunk={self.chunk}: a group of threads is a power of two of up to 512, such as 32"
            )
        if self.order is Order.EXACT and self.step.format.precision > 29:
            raise ValueError(
                f"step={self.step}: the exact sum rounds to 29 bits or fewer; use fp32 or narrower"
            )
        if (self.alignment is None) is (self.order is Order.ALIGNED):
            raise ValueError(
                f"alignment={shown(self.alignment)}: goes with order=aligned, here"
                f" {self.order}; use"
                " Accumulator.tensor_core"
            )
        if self.order in OF_THREADS and self.step.mode is RoundingMode.STOCHASTIC:
            raise ValueError(
                f"step={self.step}: an {self.order} sum has no random bits; use a mode that draws"
                " none"
            )

    @staticmethod
    def tensor_core(arch: str, operand: str, sum_format: str = "fp32") -> "Accumulator":
        """Return the accumulator that adds as the tensor core of an architecture does.

        Args:
            arch: volta, turing, ampere, ada, hopper, blackwell or rtx_blackwell of NVIDIA; cdna1,
                cdna2 or cdna3 of AMD.
            operand: the format of both factors, which must hold their numbers. It is fp16, bf16,
                tf32, e4m3fn or e5m2, and on Blackwell also e3m2fn, e2m3fn or e2m1fn; older
                architectures have fewer, and CDNA3 has e4m3fnuz and e5m2fnuz. Factors of two
                formats of 8 bits are "e4m3fn*e5m2". On Blackwell FP8 and FP6 factors may also be in
                blocks of 32 with E8M0 scales (`to_blocks`), and "mxfp4" and "nvfp4" are FP4
                factors in blocks with scales in E8M0 and E4M3.
            sum_format: the format of the sum: "fp32", or "fp16" for fp16 and FP8 factors.

        Returns:
            An `Accumulator` with the order `Order.ALIGNED`, which cuts the products of a chunk to
            a common exponent and adds them at once. Its chunk, alignment and step are those of the
            tensor core.

        Raises:
            ValueError: for an unknown architecture, or for a format of the factors or the sum that
                its tensor core does not have.

        Example:
            >>> from roundscope import emu
            >>> acc = emu.Accumulator.tensor_core("hopper", "bf16")
            >>> acc.chunk, acc.alignment.bits, str(acc.step)
            (16, 25, 'fp32:toward-zero')
        """
        chunk, alignment, step = core_of(arch, operand, sum_format)
        return Accumulator(order=Order.ALIGNED, step=step, chunk=chunk, alignment=alignment)

    def __str__(self) -> str:
        if self.alignment is not None:
            kept, terms = self.alignment, f"aligned[{self.chunk} {self.alignment.factors}]"
            if isinstance(kept, MatrixCore):
                return f"{terms} {kept}, {self.step}"
            groups = f"in groups of {kept.group} " if isinstance(kept, GroupAlignment) else ""
            return f"{terms} {groups}to {kept.bits} bits (0: 2^{kept.zero}), {self.step}"
        chunk = f"[{self.chunk}]" if self.order.has_chunk else ""
        return f"{self.order}{chunk}" + ("" if self.order is Order.NATIVE else f" {self.step}")


def check_accumulator(accumulator: Any) -> None:
    """Raise TypeError unless the argument is an `Accumulator`."""
    if not isinstance(accumulator, Accumulator):
        raise TypeError(
            f"accumulator={shown(accumulator)}: give an Accumulator, such as"
            " Accumulator(order='pairwise')"
        )


# (index of the addition, its sum rounded to odd) -> the sum rounded by the step
Step = Callable[[Any, Array], Array]
Add = Callable[[Array, Array], Array]
# (before, after) of each addition, with a leading axis k if several are appended at once
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
        a: a float64 array of factors, of shape (K, T).
        b: a float64 array of factors, of shape (K, N).
        init: a float64 array of the numbers that the sums begin with, of shape (T, N).
        step: a function (index, sum rounded to odd) -> rounded sum, which replaces the rounding of
            each addition. A stochastic rounding needs it, since its random bits depend on the
            index.
        steps: a list to which (before, after) of every addition is appended.
        product_bits: an upper bound of the significand bits of a product; a small one saves work.
            It may be below 53 only if all numbers are binary32 numbers.

    Returns:
        The sums, a float64 array of shape (T, N).

    Raises:
        ValueError: for a stochastic rounding without `step`.
    """
    if acc.order is Order.NATIVE:
        return ops.native(a.astype("float32").T, b.astype("float32")).astype("float64") + init
    init = ops.hidden(init)
    if acc.order is Order.ASCENDING and step is None and steps is None:
        return ops.ascending(a, b, init, acc.step, product_bits)
    if acc.alignment is not None:
        first, second = (factors_of(ops, acc.alignment, n, x) for n, x in enumerate((a, b)))
        return add_aligned(ops, acc, first, second, init, steps)
    at_once = step is None
    if acc.order is Order.CHUNKED and at_once and steps is None:
        zero, total, own = ops.hidden(ops.xp.zeros_like(init)), init, _plain(ops, acc.step)
        for lo in range(0, a.shape[0], acc.chunk):
            k = slice(lo, lo + acc.chunk)
            part = ops.ascending(a[k], b[k], zero, acc.step, product_bits)
            total = own(0, sum_to_round(ops, acc.step.format.precision, total, part))
        return total
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
    of_threads = {
        Order.OCTETS: _octets,
        Order.OCTET_PAIRS: _octets,
        Order.WARPS: _warps,
        Order.QUAD_WARPS: _reads,
        Order.OCTET_WARPS: _reads,
        Order.QUAD_STRIDES: _reads,
        Order.OCTET_STRIDES: _reads,
        Order.BLOCK: _block,
        Order.STRIDED: _strided,
    }
    if acc.order in of_threads:
        return of_threads[acc.order](ops, acc, add, step, a, b, init)
    if acc.order in (Order.CASCADE, Order.LEVELS):
        return _cascade(ops, acc, add, step, a, b, init, steps)
    return _chunked(ops, acc, add, step, a, b, init, steps)


def add_aligned(
    ops: Ops, acc: Accumulator, a: Factors, b: Factors, init: Array, steps: Steps | None = None
) -> Array:
    """Return what `accumulate` returns for ALIGNED, for factors with given exponents.

    `steps` receives two numbers for each chunk: the sum in binary64 with no term cut, and the sum
    that the accumulator computes.
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


def stochastic_step(ops: Ops, r: Rounding, shape: tuple[int, ...], offset: int = 0) -> Step | None:
    """Return the step of a sum that draws random bits for each entry, or None in other modes.

    The bits are those of additions that come after `offset` others.
    """
    if r.mode is not RoundingMode.STOCHASTIC:
        return None
    xp = ops.xp
    at = xp.arange(shape[0])[:, None], xp.arange(shape[1])
    return lambda k, x: ops.round(x, r, event_bits(xp, r.seed, 0, *at, offset + k + 1))


def _plain(ops: Ops, r: Rounding) -> Step:
    if r.mode is RoundingMode.STOCHASTIC:
        raise ValueError(
            "step=stochastic: each addition needs random bits of its own; use emu.dot or a plan"
        )
    return lambda k, total: ops.round(total, r, None)


@dataclass(frozen=True, slots=True)
class _Keeping:
    """A step that appends (before, after) of one addition, or of several at once, to `steps`.

    A scan cannot append to a list, so `plain` is used inside it.
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
    """Return the sum for PAIRWISE and HALVES, which add the products in pairs and init last.

    If `at_once` is true, the additions of a level are rounded in one call. This is possible if
    their rounding does not need an index.
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
    """Return the sum for STRIDED: add up each lane, then the lanes by halves, then init.

    The first product of each lane is rounded.
    """
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
    """Return the sum for OCTETS and OCTET_PAIRS, whose lanes read 8 BF16 numbers at a time.

    Short sums are padded with +0.
    """
    if not a.shape[0]:
        return init
    octets, is_paired = -(-a.shape[0] // 8), acc.order is Order.OCTET_PAIRS
    lanes = math.gcd(acc.chunk, octets) if is_paired else min(acc.chunk, octets)
    values = padded(ops.xp, ops.multiply(a[:, :, None], b[:, None, :]), 8 * lanes)
    values = values.reshape(values.shape[0] // (8 * lanes), lanes, 8, *values.shape[1:])
    places = list(np.ndindex(values.shape[0], 8))
    if is_paired:
        places.sort(key=lambda place: place[1])  # first numbers of octets, then second ones
    total = step(0, values[0, :, 0])
    for page, n in places[1:]:
        total = step(0, add(total, values[page, :, n]))
    joined = _by_pairs if is_paired else _by_halves
    return step(1, add(init, joined(ops.xp, add, step, total)))


def _by_pairs(xp: Any, add: Add, step: Step, values: Array) -> Array:
    """Return the sum along the first axis, whose neighbors are added in pairs repeatedly."""
    while (pairs := values.shape[0] // 2) > 0:
        values = xp.concatenate(
            [
                step(0, add(values[: 2 * pairs : 2], values[1 : 2 * pairs : 2])),
                values[2 * pairs :],
            ]
        )
    return values[0]


def _by_halves(xp: Any, add: Add, step: Step, values: Array) -> Array:
    """Return the sum along the first axis, whose second half is added to its first repeatedly."""
    while (half := values.shape[0] // 2) > 0:
        values = xp.concatenate(
            [step(0, add(values[:half], values[half : 2 * half])), values[2 * half :]]
        )
    return values[0]


def _warps(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Return the sum for WARPS: add a thread's neighbors in pairs, then threads, warps and init.

    Threads and warps are added by halves. Short sums are padded with +0.
    """
    if not a.shape[0]:
        return init
    xp = ops.xp
    values = padded(xp, ops.multiply(a[:, :, None], b[:, None, :]), 32 * acc.chunk)
    values = values.reshape(values.shape[0] // (32 * acc.chunk), 32, acc.chunk, *values.shape[1:])
    while values.shape[2] > 1:
        values = step(0, add(values[:, :, ::2], values[:, :, 1::2]))
    threads = values[:, :, 0].reshape(values.shape[0] * 32, *values.shape[3:])
    return step(1, add(init, _in_groups(xp, add, step, threads, 32)))


def _in_groups(xp: Any, add: Add, step: Step, threads: Array, size: int) -> Array:
    """Return the sum along the first axis: groups of neighbors by halves, then the groups so."""
    groups = threads.reshape(threads.shape[0] // size, size, *threads.shape[1:])
    return _by_halves(xp, add, step, _by_halves(xp, add, step, xp.moveaxis(groups, 1, 0)))


def _reads(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Return the sum for QUAD_WARPS and the three like it. Short sums are padded with +0."""
    if not a.shape[0]:
        return init
    xp, own = ops.xp, 4 if acc.order in (Order.QUAD_WARPS, Order.QUAD_STRIDES) else 8
    values = ops.multiply(a[:, :, None], b[:, None, :])
    is_apart = acc.order in (Order.QUAD_STRIDES, Order.OCTET_STRIDES)
    whole = len(values) - len(values) % (own * acc.chunk) if is_apart else len(values)
    read, rest = (
        padded(xp, values[:whole], own * acc.chunk),
        padded(xp, values[whole:], acc.chunk),
    )
    read = read.reshape(len(read) // (own * acc.chunk), acc.chunk, own, *read.shape[1:])
    rest = rest.reshape(len(rest) // acc.chunk, acc.chunk, *rest.shape[1:])
    pages = [read[page, :, n] for page, n in np.ndindex(len(read), own)]
    pages += [rest[page] for page in range(len(rest))]
    total = step(0, pages[0])
    for page in pages[1:]:
        total = step(0, add(total, page))
    return step(1, add(init, _in_groups(xp, add, step, padded(xp, total, 32), 32)))


def _block(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Return the sum for BLOCK: ATen's reduction (aten/src/ATen/native/cuda/Reduce.cuh,
    setReduceConfig, input_vectorized_thread_reduce_impl, thread_reduce_impl, block_x_reduce and
    block_y_reduce).
    """
    if not a.shape[0]:
        return init
    xp, count = ops.xp, a.shape[0]
    has_quads, groups = count > 128, 512 // acc.chunk
    reads = count // 4 if has_quads else count
    size = min(1 << (reads.bit_length() - 1), acc.chunk)
    if count < size * min(16 * groups, 256) - size + 1:
        groups = 1
    values = ops.multiply(a[:, :, None], b[:, None, :])
    rest = values[count - count % 4 :] if has_quads else values[:0]
    values = padded(xp, values[: count - rest.shape[0]], 4 * size * groups)
    four = (size * groups, 4) if has_quads else (4, size * groups)
    values = values.reshape(values.shape[0] // (4 * size * groups), *four, *values.shape[1:])
    values = values if has_quads else xp.moveaxis(values, 1, 2)
    sums = xp.zeros(values.shape[1:])
    for page in values:
        sums = step(0, add(sums, page))
    total = sums[:, 0]
    if rest.shape[0]:
        total = xp.concatenate([step(0, add(total[: len(rest)], rest)), total[len(rest) :]])
    for n in (1, 2, 3):
        total = step(0, add(total, sums[:, n]))
    return step(1, add(init, _in_groups(xp, add, step, total, size)))


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


def _cascade(
    ops: Ops,
    acc: Accumulator,
    add: Add,
    step: Step,
    a: Array,
    b: Array,
    init: Array,
    steps: Steps | None,
) -> Array:
    """Return the sum for CASCADE and LEVELS: ATen's inner and outer sum (aten/src/ATen/native/cpu/
    SumKernel.cpp, vectorized_inner_sum, row_sum and multi_row_sum).

    Sums that get no term are left out. A level's blocks are added at once, since each begins at +0.
    """
    if not a.shape[0]:
        return init
    xp = ops.xp
    plain = step.plain if isinstance(step, _Keeping) else step

    def added(values: Array) -> Array:
        """Return the sum along the first axis, one after the other from +0."""

        def body(total: Array, k: Any, x: tuple[Array]) -> tuple[Array, Any]:
            before = add(total, x[0])
            after = plain(0, before)
            return after, None if steps is None else (before, after)

        zero = ops.hidden(xp.zeros(values.shape[1:]))
        total, kept = ops.scan(body, zero, (values,))
        if steps is not None:
            before, after = (x.reshape(-1, *x.shape[-2:]) for x in kept)
            steps.append((before, after))
        return total

    def onto(total: Array, values: Sequence[Array]) -> Array:
        for x in values:
            total = step(0, add(total, x))
        return total

    def in_levels(level: Array) -> Array:
        """Return the sum along the first axis in four levels."""
        block, sums = 1 << max(4, (level.shape[0] - 1).bit_length() // 4), []
        for _ in range(3):
            blocks = level.shape[0] // block
            if level.shape[0] % block:
                sums.append(added(level[blocks * block :]))
            level = level[: blocks * block].reshape(blocks, block, *level.shape[1:])
            level = added(xp.moveaxis(level, 1, 0)) if blocks else level[:, 0]
        if level.shape[0]:
            sums.append(added(level))
        return onto(sums[0], sums[1:])

    values = ops.multiply(a[:, :, None], b[:, None, :])
    if acc.order is Order.LEVELS:
        return step(0, add(init, in_levels(values)))
    lanes = acc.chunk if a.shape[0] >= acc.chunk else 1
    whole = a.shape[0] // lanes * lanes
    vectors = values[:whole].reshape(whole // lanes, lanes, *values.shape[1:])
    if fours := vectors.shape[0] // 4:
        four = in_levels(vectors[: 4 * fours].reshape(fours, 4, *vectors.shape[1:]))
        own = onto(four[0], [*vectors[4 * fours :], *four[1:]])
    else:
        own = added(vectors)
    return step(0, add(init, added(xp.concatenate([values[whole:], own]))))
