"""Sums of products as tensor cores add them: cut to a common exponent, added exactly, cut again.

A chunk of products a_k b_k and the running sum c are added at once (arXiv 2511.10909, algorithm
T-FDPA). Let e(x) be the exponent of x, or the smallest normal exponent of its format if that is
larger. Let F be the number of fractional bits that are kept. Then the new c is::

    E = the maximum of e(c) and all e(a_k) + e(b_k), where a term that is 0 has the exponent `zero`
    u = 2^(E - F)
    c = step(u (trunc(c / u) + sum over k of trunc(a_k b_k / u)))

The exponent of a product may be e(a_k) + e(b_k) + 1, since it is not normalized before the cut.
Everything but the last step is exact in binary64 (integers below 2^(F + 8) times a power of two),
so the order of the inner sum does not matter. A result beyond the largest finite number is
infinite, whatever the direction of the step. A sum of zeros is +0. NaN has no sign or payload here.

Blackwell's instructions for FP4 in blocks add the 16 products of a group exactly before the cut
(`GroupAlignment`). There e is the exponent of the two scales alone, whatever the elements are, and
a group whose products are all 0 has the exponent `zero`. The chunks of AMD's matrix cores are in
`emu.sums.matrix_cores`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import binade
from roundscope.emu.stats.classify import judged
from roundscope.emu.sums.chunks import in_chunks, padded
from roundscope.emu.sums.matrix_cores import CHUNKS, begun

LEAST = -1000  # below the exponents of all scales
MAGNITUDE = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How terms are cut that are added at one common exponent.

    Attributes:
        bits: the number of fractional bits that are kept, F in `emu.sums.aligned`.
        zero: the exponent that a term of 0 has.
        operand: the format of both factors, or of the first. Its subnormal numbers have its
            smallest normal exponent.
    """

    bits: int
    zero: int
    operand: Format

    @property
    def operands(self) -> tuple[Format, Format]:
        """The formats of both factors."""
        return self.operand, self.operand

    @property
    def factors(self) -> str:
        """The formats of the factors in words: e4m3fn, or e4m3fn*e5m2."""
        return "*".join(dict.fromkeys(f.name for f in self.operands))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAlignment(Alignment):
    """An `Alignment` of factors of two formats, such as E4M3 and E5M2.

    Attributes:
        second: the format of the second factor.
    """

    second: Format

    @property
    def operands(self) -> tuple[Format, Format]:
        """The formats of both factors."""
        return self.operand, self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAlignment(Alignment):
    """An `Alignment` of elements in blocks, of which a group is added exactly before it is cut.

    Attributes:
        scale: the format of the blocks' scales. A group's exponent is that of its two scales, of
            which subnormal ones have their smallest normal exponent.
        group: how many products are a group.
    """

    scale: Format
    group: int

    @property
    def factors(self) -> str:
        """The blocks of the factors in words: mxfp4 or nvfp4."""
        return "nvfp4" if self.scale.name == "e4m3fn" else "mxfp4"


Factors = tuple[Array, Array]  # numbers (K, lines), and the binade 2^e of each, which is 0 for 0


def factors_of(ops: Ops, kept: Any, side: int, x: Array, scales: Any = None) -> Factors:
    """Return numbers (K, lines) of one factor and their binades, as a matrix unit aligns them.

    The exponent of a product of element and scale is the sum of their exponents, before it is
    normalized: a subnormal element has the smallest normal exponent, whatever its scale.

    Args:
        ops: the array library.
        kept: the accumulator's alignment.
        side: 0 for the first factor, 1 for the second.
        x: the numbers, elements times scales.
        scales: the scale of each number, a power of two except in a `GroupAlignment`; None for 1.
    """
    if isinstance(kept, GroupAlignment):
        own = ops.xp.ones_like(x) if scales is None else scales
        return x, ops.xp.where(x == 0.0, 0.0, binade(ops, own, kept.scale.emin))
    emin = kept.operands[side].emin
    if scales is None:
        return x, binade(ops, x, emin)
    elements = ops.divide(x, scales)
    return x, ops.multiply(binade(ops, elements, emin), binade(ops, scales, LEAST))


def aligned(
    ops: Ops, a: Factors, b: Factors, init: Array, acc: Any, totals: list[Array] | None = None
) -> Array:
    """Return init + the sum over k of a[k, :, None] b[k, None, :], by an accumulator.

    If `totals` is a list, it receives two arrays: the running sums before and after each chunk.
    """
    add: Callable[..., Array] = CHUNKS.get(type(acc.alignment), _chunk_added)
    init = begun(ops, acc, init)

    def body(total: Array, k: Any, x: tuple[Array, ...]) -> tuple[Array, Any]:
        after = add(ops, acc, total, *x)
        return after, None if totals is None else (total, after)

    total, running = ops.scan(body, init, tuple(in_chunks(ops, x, acc.chunk) for x in (*a, *b)))
    if totals is not None:
        totals.extend(running)
    return total


def _chunk_added(
    ops: Ops, acc: Any, total: Array, a: Array, w_a: Array, b: Array, w_b: Array
) -> Array:
    """Return total (T, N) + the sum over a chunk of a_k b_k.

    The factors a and their binades w_a have the shape (chunk, T), b and w_b the shape (chunk, N).
    """
    xp, kept, f = ops.xp, acc.alignment, acc.step.format
    # exact, since the factors have few bits
    products, weights = (x[:, :, None] * y[:, None, :] for x, y in ((a, b), (w_a, w_b)))
    if isinstance(kept, GroupAlignment):
        products, weights = _in_groups(xp, kept.group, products, weights)
    top = xp.maximum(weights.max(axis=0), binade(ops, total, f.emin))
    some_zero = (weights == 0.0).any(axis=0) | (total == 0.0)
    top = xp.where(some_zero, xp.maximum(top, 2.0**kept.zero), top)
    per_unit = 2.0**kept.bits / top
    before = (xp.trunc(products * per_unit).sum(axis=0) + xp.trunc(total * per_unit)) * (
        top * 2.0**-kept.bits
    )
    after = _finished(ops, before, ops.round(before, acc.step, None), f)
    plain = products.sum(axis=0) + total  # infinite or NaN where a term is
    return xp.where(xp.isfinite(plain), after, plain)


def _in_groups(xp: Any, size: int, products: Array, weights: Array) -> tuple[Array, Array]:
    """Return the exact sum of each group of products and its binade."""
    products, weights = (
        padded(xp, x, size).reshape(-1, size, *x.shape[1:]) for x in (products, weights)
    )
    return products.sum(axis=1), weights.max(axis=1)


def _finished(ops: Ops, before: Array, after: Array, f: Format) -> Array:
    """Return the final sum from the sum before and after rounding; every zero becomes +0.

    It is infinite if the sum before rounding was beyond the binades of the format f.
    """
    xp = ops.xp
    beyond = (ops.bits(before) & MAGNITUDE) >> 52 > judged(f).largest >> 52
    return xp.where(beyond, xp.copysign(xp.inf, before), xp.where(after == 0.0, 0.0, after))
