"""Sums of products of blocked matrices: OCP MX 1.0, 6.1 and 6.2, with the accumulator specified.

For matrices A and B the sum is C. X(A_j) is the scale of block j, P_i(A_j) the i-th element of that
block, and T_A the scale of the whole matrix::

    C = T_A T_B  sum over blocks j of X(A_j) X(B_j)  sum over i of P_i(A_j) P_i(B_j)

**Scales of few bits** (E8M0 and E4M3; element and scale together have up to 26 significand bits).
The products of two numbers X P are exact, so the operands are multiplied by their scales first. The
accumulator then adds X(A) P(A) X(B) P(B) in its order, one product in each step, whatever the
blocks are. `Accumulator(order=CHUNKED, chunk=32)` adds block by block.

**Scales of binary32** (FP8 with 1 x 128 and 128 x 128 blocks). The sum follows DeepSeek-V3, arXiv
2412.19437, 3.3.2. Within a block the accumulator adds P(A) P(B), beginning at 0. Then one more step
adds the block's sum times binary32(X(A) X(B)) to the total.

At the end, in one more step, the sum is multiplied by T_A T_B, which is rounded to binary32. After
that init is added.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Ops
from roundscope.emu.blocks.api import from_blocks
from roundscope.emu.blocks.blocked import Blocked
from roundscope.emu.libraries import float_array, is_jax, library_of, ops_of, sum_by, widened
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import (
    Accumulator,
    Steps,
    accumulate,
    add_aligned,
    stochastic_step,
)
from roundscope.emu.sums.aligned import Alignment, GroupAlignment, factors_of
from roundscope.emu.sums.matrix_cores import MatrixCore

Array = Any
EXACT_FACTOR = 26  # the most significand bits of a factor with exact products in binary64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """One matrix of shape (K, lines) in float64, and the scales that multiply its sums later."""

    numbers: Array
    scales: Array | None = None  # (blocks, lines), if they are not part of the numbers
    size: int = 0  # the size of a block along K; 0 for a matrix that is not blocked
    tensor: Array | None = None
    units: Array | None = None  # the scale of each number, for a matrix unit


def dot_blocks(
    a: Any, b: Any, accumulator: Accumulator, init: Any = None, steps: Steps | None = None
) -> Array:
    """Return init + a @ b, (T, N) in float64, where a, b or both are `Blocked` along the axis of
    the sum.

    a is (T, K), b (K, N) and init (T, N), +0 by default; the list `steps` receives (before, after)
    of every addition.

    Raises:
        ValueError: for shapes that do not match, an operand blocked along its other axis and, with
            scales of binary32, operands with blocks of different sizes.
    """
    a, b = (
        x if isinstance(x, Blocked) else float_array(x, name) for name, x in (("a", a), ("b", b))
    )
    shape = _checked(a, b, init)
    on_jax = any(is_jax(x.elements if isinstance(x, Blocked) else x) for x in (a, b))
    if on_jax:
        # this registers `Blocked` with JAX, so that it may be an argument of a program
        import roundscope.emu.blocks.xla  # noqa: F401
    start = (
        np.zeros(shape) if init is None else init if on_jax and is_jax(init) else np.asarray(init)
    )
    return sum_by(_kept, on_jax, steps, a, b, start, accumulator=accumulator)


def _kept(
    a: Any, b: Any, init: Array, *, accumulator: Accumulator, keep: bool
) -> tuple[Array, Steps | None]:
    """Return the sum, and a list of (before, after) of each addition, or None unless `keep`."""
    steps: Steps | None = [] if keep else None
    return _run(library_of(init), a, b, accumulator, init, steps), steps


def _checked(a: Any, b: Any, init: Any) -> tuple[int, int]:
    """Return the shape of the result; raise ValueError for operands that do not match."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a, b: shapes {a.shape} and {b.shape}, must be (T, K) and (K, N)")
    for name, x, axis in (("a", a, 1), ("b", b, 0)):
        if isinstance(x, Blocked) and x.axis != axis:
            raise ValueError(
                f"{name}: blocked along axis {x.axis}, must be along the sum; use to_blocks({name},"
                f" format, axis={axis})"
            )
    if init is not None and tuple(np.shape(init)) != (a.shape[0], b.shape[1]):
        raise ValueError(f"init: shape {np.shape(init)}, must be {(a.shape[0], b.shape[1])}")
    return a.shape[0], b.shape[1]


def _run(xp: Any, a: Any, b: Any, acc: Accumulator, init: Any, steps: Steps | None) -> Array:
    left, right = (_operand(xp, x, acc.alignment) for x in (a.T, b))
    ops = ops_of(left.numbers)
    init = ops.hidden(widened(xp.asarray(init)))
    apart = left.scales is not None or right.scales is not None
    add = _by_blocks if apart else _at_once
    if left.tensor is None and right.tensor is None:
        return add(ops, acc, left, right, init, steps)
    total = add(ops, acc, left, right, xp.zeros_like(init), steps)
    alpha = _product(ops, left.tensor, right.tensor)
    last = 2 * left.numbers.shape[0] + 1
    total = _rounded(ops, acc, ops.multiply(total, alpha), last, steps)
    return _rounded(ops, acc, total + init, last + 1, steps)


def _operand(xp: Any, x: Any, alignment: Alignment | MatrixCore | None) -> _Operand:
    """Return a matrix (K, lines), whose blocks run along axis 0, as an operand of the sum."""
    if not isinstance(x, Blocked):
        return _Operand(numbers=widened(xp.asarray(x)))
    if alignment is not None:
        return _aligned_operand(xp, x, alignment)
    f, one = x.format, np.float32(1.0)
    tensor = widened(xp.asarray(x.tensor)) if f.tensor else None
    if f.element.format.precision + f.scale.precision <= EXACT_FACTOR:
        numbers = from_blocks(replace(x, tensor=xp.asarray(one)))
        return _Operand(numbers=widened(xp.asarray(numbers)), size=f.size, tensor=tensor)
    scales = xp.repeat(widened(xp.asarray(x.scales)), f.rows, axis=1)[:, : x.shape[1]]
    return _Operand(
        numbers=widened(xp.asarray(x.elements)), scales=scales, size=f.size, tensor=tensor
    )


def _aligned_operand(xp: Any, x: Blocked, alignment: Alignment | MatrixCore) -> _Operand:
    """Return a matrix for a matrix unit: the products of scale and element, and the scales."""
    own = x.format.element.format == alignment.operand
    if isinstance(alignment, GroupAlignment):
        if not own or x.format.scale != alignment.scale or x.format.size % alignment.group:
            raise ValueError(
                f"{x.format}: this tensor core takes {alignment.factors}, blocks of"
                f" {alignment.operand.name} with scales in {alignment.scale.name}"
            )
    elif not own or not x.format.power_of_two:
        raise ValueError(
            f"{x.format}: this tensor core takes blocks of {alignment.operand.name} with"
            " power-of-two scales"
        )
    elements = widened(xp.asarray(x.elements))
    scales = xp.repeat(widened(xp.asarray(x.scales)), x.format.size, axis=0)[: x.shape[0]]
    tensor = widened(xp.asarray(x.tensor)) if x.format.tensor else None
    return _Operand(numbers=elements * scales, units=scales, size=x.format.size, tensor=tensor)


def _at_once(
    ops: Ops, acc: Accumulator, left: _Operand, right: _Operand, init: Array, steps: Steps | None
) -> Array:
    if acc.alignment is not None:
        a, b = (
            factors_of(ops, acc.alignment, n, x.numbers, x.units)
            for n, x in enumerate((left, right))
        )
        return add_aligned(ops, acc, a, b, init, steps)
    step = stochastic_step(ops, acc.step, init.shape)
    return accumulate(ops, acc, left.numbers, right.numbers, init, step, steps)


def _by_blocks(
    ops: Ops, acc: Accumulator, left: _Operand, right: _Operand, init: Array, steps: Steps | None
) -> Array:
    sizes = {x.size for x in (left, right) if x.size}
    if len(sizes) != 1:
        raise ValueError(
            f"a, b: blocks of {left.size} and {right.size} along the sum; scales of binary32 need"
            " one size"
        )
    size, total = sizes.pop(), init
    for j, lo in enumerate(range(0, left.numbers.shape[0], size)):
        part, offset = slice(lo, lo + size), j * (2 * size + 2)
        inner = left.numbers[part], right.numbers[part]
        inside = stochastic_step(ops, acc.step, init.shape, offset)
        block = accumulate(ops, acc, *inner, ops.xp.zeros_like(init), inside, steps)
        factor = _product(ops, _row(left, j), _row(right, j))
        total = total + ops.multiply(block, factor)
        total = _rounded(ops, acc, total, offset + 2 * size, steps)
    return total


def _row(x: _Operand, j: int) -> Array | None:
    """Return the scale of block j in every line, or None for a matrix without separate scales."""
    return None if x.scales is None else x.scales[j]


def _product(ops: Ops, x: Array | None, y: Array | None) -> Array:
    """Return x y of binary32 numbers, rounded to binary32; None stands for 1.

    For two vectors it is the matrix that x as a column and y as a row give.
    """
    if x is None:
        return y
    column = x[:, None] if x.ndim else x
    return column if y is None else ops.round(column * y, BINARY32, None)


def _rounded(ops: Ops, acc: Accumulator, total: Array, offset: int, steps: Steps | None) -> Array:
    """Return a sum rounded by the step; (before, after) is appended to `steps`.

    Its random bits are those of an addition that comes after `offset` others.
    """
    step = stochastic_step(ops, acc.step, total.shape, offset)
    after = step(0, total) if step else ops.round(total, acc.step, None)
    if steps is not None:
        steps.append((total[None], after[None]))
    return after
