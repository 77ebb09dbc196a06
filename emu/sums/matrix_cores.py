"""The matrix cores of AMD's CDNA architectures: how MFMA instructions add a chunk of products.

arXiv 2511.10909 names the algorithms and their parameters. How they treat zeros, subnormal numbers,
overflow and what lies below the last kept bit was found by asking its MMA-Sim 2.1.1, with which
`python -m tests.checks.other_hardware` compares every bit. Nothing here was compared with hardware.
A chunk of products p_k = a_k b_k and the running sum c become the new c::

    CDNA1: E-FDPA  c = step(c + sum over k of p_k), the exact sum rounded once
    CDNA2          c = step(c + step(step(q_0 + q_1) + step(q_2 + q_3))), where q_k = step(p_k)
    CDNA3: TR-FDPA, GTR-FDPA
                   E = the largest e(a_k) + e(b_k), and M = the larger of E and e(c)
                   T = sum over groups of floor(sum over the group of trunc(p_k))
                   c = step(floor(T) + floor(c))

`step` is to nearest in binary32. On CDNA2 subnormal factors and the first c count as +0, and every
subnormal result becomes a zero of its sign.

On CDNA3 trunc keeps 24 fractional bits below the largest exponent of the group, the floor of a
group 24 below E, floor(T) 31 below M and floor(c) 24 below M. FP8 factors have two groups, the even
and the odd products of a chunk, and a c below 2^(M - 25) counts as 0; other factors have one group.
**A floor cuts downward**, also below zero, so these sums have a bias whatever their sign. A product
beyond binary32's largest number is infinite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import binade
from roundscope.emu.sums.chunks import padded


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCore:
    """How a matrix core adds a chunk: the formats of the factors. Each subclass is an algorithm.

    Attributes:
        operand: the format of the first factor.
        second: the format of the second factor, or None if it is the same.
    """

    operand: Format
    second: Format | None = None

    @property
    def operands(self) -> tuple[Format, Format]:
        """The formats of both factors."""
        return self.operand, self.second or self.operand

    @property
    def factors(self) -> str:
        """The formats of the factors in words: bf16, or e4m3fnuz*e5m2fnuz."""
        return "*".join(dict.fromkeys(f.name for f in self.operands))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactChunk(MatrixCore):
    """CDNA1: the exact sum of a chunk and the running sum is rounded once."""

    def __str__(self) -> str:
        return "exactly"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedPairs(MatrixCore):
    """CDNA2: products and sums of neighbors round, and subnormal numbers are flushed to zero."""

    def __str__(self) -> str:
        return "in pairs without subnormal numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutDownward(MatrixCore):
    """CDNA3: products are cut toward zero, and their sum and the running sum downward.

    Attributes:
        bits: the number of fractional bits to which products, sums of groups and c are cut.
        bits_sum: the number of fractional bits to which the sum of the products is cut.
        groups: how many groups the products of a chunk are dealt to, one after the other.
        least: c counts as 0 below 2^(M - least); None where it never does.
    """

    bits: int = 24
    bits_sum: int = 31
    groups: int = 1
    least: int | None = None

    def __str__(self) -> str:
        groups = f"in {self.groups} groups " if self.groups > 1 else ""
        return f"{groups}downward to {self.bits} bits"


def begun(ops: Ops, acc: Any, init: Array) -> Array:
    """Return the number that a sum begins with, as the matrix core reads it."""
    if not isinstance(acc.alignment, FlushedPairs):
        return init
    return ops.xp.where(abs(init) < _smallest(ops, acc), 0.0, init)


def _exactly(ops: Ops, acc: Any, total: Array, a: Array, w_a: Array, b: Array, w_b: Array) -> Array:
    """Return total (T, N) + the sum over a chunk of a_k b_k, rounded once.

    The terms become an expansion (Shewchuk 1997, grow-expansion): numbers that do not overlap, in
    ascending order, whose sum is exact. Added in this order to odd they round as their exact sum.
    """
    expansion: list[Array] = [total]
    products = [x[:, None] * y[None, :] for x, y in zip(a, b, strict=True)]  # exact in binary64
    for term in products:
        grown = []
        for part in expansion:
            term, error = _two_sum(term, part)
            grown.append(error)
        expansion = [*grown, term]
    before = expansion[0]
    for part in expansion[1:]:
        before = ops.odd_sum(part, before)
    after = ops.xp.where(before == 0.0, 0.0, ops.round(before, acc.step, None))
    return _or_special(ops, total, products, after)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a + b rounded, and its error, which is exact."""
    s = a + b
    rest = s - a
    return s, (a - (s - rest)) + (b - rest)


def _or_special(ops: Ops, total: Array, products: Any, after: Array) -> Array:
    """Return `after` where all terms are finite, and their sum, infinite or NaN, elsewhere."""
    plain = sum(products, total)
    return ops.xp.where(ops.xp.isfinite(plain), after, plain)


def _in_pairs(
    ops: Ops, acc: Any, total: Array, a: Array, w_a: Array, b: Array, w_b: Array
) -> Array:
    """Return total (T, N) + the sum over a chunk of a_k b_k, whose neighbors are added first."""

    def step(x: Array) -> Array:
        x = ops.round(x, acc.step, None)
        return ops.xp.where(abs(x) < _smallest(ops, acc), ops.xp.copysign(0.0, x), x)

    a, b = (
        ops.xp.where((abs(x) < w) | (x == 0.0), 0.0, x) for x, w in ((a, w_a), (b, w_b))
    )  # a subnormal number is below the binade that stands for it
    values = step(a[:, :, None] * b[:, None, :])
    while (pairs := values.shape[0] // 2) > 0:
        sums = step(values[: 2 * pairs : 2] + values[1 : 2 * pairs : 2])
        values = ops.xp.concatenate([sums, values[2 * pairs :]])
    return step(total + values[0])


def _smallest(ops: Ops, acc: Any) -> Array:
    """Return the smallest normal number of the step's format."""
    return ops.from_bits((ops.xp.asarray(acc.step.format.emin, dtype="int64") + 1023) << 52)


def _downward(
    ops: Ops, acc: Any, total: Array, a: Array, w_a: Array, b: Array, w_b: Array
) -> Array:
    """Return total (T, N) + the sum over a chunk of a_k b_k, cut as the module says."""
    xp, kept = ops.xp, acc.alignment
    products, weights = (x[:, :, None] * y[:, None, :] for x, y in ((a, b), (w_a, w_b)))
    products = xp.where(abs(products) >= 2.0**128, xp.copysign(xp.inf, products), products)
    # (groups, products of one, T, N)
    shape = (-1, kept.groups, *products.shape[1:])
    dealt, binades = (
        xp.moveaxis(padded(xp, x, kept.groups).reshape(shape), 1, 0) for x in (products, weights)
    )
    tops = binades.max(axis=1)
    group_units = _unit(xp, tops, kept.bits)
    sums = (xp.trunc(dealt / group_units[:, None]).sum(axis=1)) * group_units
    top = tops.max(axis=0)
    unit = _unit(xp, top, kept.bits)
    sum_of_products = xp.floor(sums / unit).sum(axis=0) * unit
    most = xp.maximum(top, binade(ops, total, acc.step.format.emin))
    unit, fine = (_unit(xp, most, bits) for bits in (kept.bits, kept.bits_sum))
    c = xp.floor(total / unit) * unit
    if kept.least is not None:
        c = xp.where(abs(total) < most * 2.0**-kept.least, 0.0, c)
    before = xp.floor(sum_of_products / fine) * fine + c
    after = xp.where(before == 0.0, 0.0, ops.round(before, acc.step, None))
    return _or_special(ops, total, products, after)


def _unit(xp: Any, top: Array, bits: int) -> Array:
    """Return 2^-bits of a binade, or of 1 where all terms are 0."""
    return xp.where(top == 0.0, 1.0, top) * 2.0**-bits


CHUNKS: dict[type, Callable[..., Array]] = {
    ExactChunk: _exactly,
    FlushedPairs: _in_pairs,
    CutDownward: _downward,
}
"""The function that adds a chunk, for each algorithm."""
