"""`Accumulator`: how a sum of products becomes one number, step by step or exactly.

Every step is one rounding of the exact sum of two numbers to the step's format: a machine's fused
multiply-add, for factors of any of its formats. Products are binary64 numbers, exact for factors of
up to 26 bits (emu.sums.odd; a step to 52 bits or more is an addition in binary64). A sum of two
numbers that is 0 is +0 unless both are -0; toward negative too, where IEEE 754-2019, 6.3 asks for
-0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT, Array, Ops
from roundscope.emu.formats.format import unknown
from roundscope.emu.numbers import check_whole
from roundscope.emu.rounding.modes import BINARY32, BINARY64, Rounding, RoundingMode
from roundscope.emu.sums.aligned import Alignment, Factors, aligned, binade, in_chunks
from roundscope.emu.sums.exact import OF_BINARY32, OF_BINARY64, exact_sum
from roundscope.emu.sums.odd import sum_to_round


class Order(StrEnum):
    """The order in which products are added."""

    ASCENDING = "ascending"  # ((init + x0) + x1) + x2 ...
    PAIRWISE = "pairwise"  # init + ((x0 + x1) + (x2 + x3)) ..., an odd one out moves up unchanged
    # the first half added to the second, x0 + x_(n/2), ..., until one is left: how lanes of a GPU
    # or SIMD unit add
    HALVES = "halves"
    # `chunk` lanes: lane n adds x_n, x_(n + chunk), ...; then the lanes as HALVES: a warp of a GPU
    STRIDED = "strided"
    # up to `chunk` lanes: lane n adds x_8n to x_(8n + 7), then those 8 lanes further on; the lanes
    # as HALVES
    OCTETS = "octets"
    # `chunk` neighbours two by two, 32 such lanes of a warp as HALVES, the warps as HALVES: XLA's
    # reductions on a GPU
    WARPS = "warps"
    CHUNKED = "chunked"  # each chunk ascending from 0: its first product rounds; the sums from init
    EXACT = "exact"  # init + the exact sum, one rounding at the end; +0 where all terms are zeros
    ALIGNED = "aligned"  # chunks cut to a common exponent, as tensor cores do: emu.sums.aligned
    NATIVE = "native"  # whatever the device does, in float32: fast, not reproducible


OF_THREADS = (
    Order.ALIGNED,
    Order.STRIDED,
    Order.OCTETS,
    Order.WARPS,
)  # many additions at once, which have no random bits of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """How a sum of products becomes one number.

    order      which products meet first
    step       the rounding after each addition (of EXACT: the one rounding)
    chunk      products per chunk of CHUNKED and ALIGNED, lanes of STRIDED and OCTETS, numbers of a
               thread of WARPS
    alignment  what ALIGNED keeps, None for the others; `Accumulator.tensor_core` fills it in

    Raises ValueError for a chunk below 1, ALIGNED without an alignment or with a stochastic step,
    an alignment elsewhere.
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
                f"chunk={self.chunk}: a thread of a warp adds a power of two of neighbours, such as"
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
        """A tensor core's, by architecture and type of the factors: see `tensor_cores`.

        Raises ValueError for what does not exist.
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
    """The order of that name. Raises ValueError with the nearest name."""
    try:
        return name if isinstance(name, Order) else Order(str(name).lower())
    except ValueError:
        raise ValueError(unknown("order", name, Order)) from None


def check_accumulator(accumulator: Any) -> None:
    """Raises TypeError for what is no accumulator."""
    if not isinstance(accumulator, Accumulator):
        raise TypeError(
            f"accumulator={accumulator!r}: give an Accumulator, such as"
            " Accumulator(order='pairwise')"
        )


Step = Callable[[Any, Array], Array]  # (index of the addition, the sum rounded to odd) -> rounded
Add = Callable[[Array, Array], Array]
Steps = list[
    tuple[Array, Array]
]  # (before, after) of each addition, leading axis k where they were scanned


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
    """init + sum over k of a[k, :, None] b[k, None, :], by the accumulator.

    a: (K, T); b: (K, N); init: (T, N); result (T, N). `step` replaces the rounding of each addition
    (a stochastic one needs its index); `steps` is a list to which every addition's (before, after)
    is appended. `product_bits` spares work: the most significand bits of a product; below 53 only
    where all numbers are binary32 ones.
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
    """`accumulate` for ALIGNED, with the exponents of the factors said.

    `steps`: each chunk's sum in binary64, with nothing cut, and what became of it.
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
    """A step that appends (before, after) to `steps`, of one addition or of several along the first
    axes. Inside a scan, where nothing can be appended, `plain` takes its place.
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

    total, seen = ops.scan(body, init, (a, b))
    if steps is not None:
        steps.append(seen)
    return total


def _tree(
    ops: Ops, order: Order, add: Add, step: Step, a: Array, b: Array, init: Array, at_once: bool
) -> Array:
    """Two by two; at_once: additions of one level in one call, where their rounding needs no
    index.
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
    """Each lane from its first product on, which rounds; then the lanes by halves, and init."""
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
    """Lanes that read 16 bytes of BF16 at a time; sums of other lengths are padded with 0."""
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
    """Along the first axis, x_0 + x_(n/2), ..., until one is left."""
    while (half := values.shape[0] // 2) > 0:
        values = xp.concatenate(
            [step(0, add(values[:half], values[half : 2 * half])), values[2 * half :]]
        )
    return values[0]


def _padded(xp: Any, values: Array, unit: int) -> Array:
    """With zeros behind, to a multiple of `unit` along the first axis."""
    missing = -values.shape[0] % unit
    return xp.concatenate([values, xp.zeros((missing, *values.shape[1:]))]) if missing else values


def _warps(
    ops: Ops, acc: Accumulator, add: Add, step: Step, a: Array, b: Array, init: Array
) -> Array:
    """Threads add neighbours two by two; then lanes by halves, then warps; sums of other lengths
    are padded with 0.
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
