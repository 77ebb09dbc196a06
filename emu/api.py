"""The functions of `emu` for arrays of numbers: rounding, sums of products, exp and statistics.

There is one set of functions for NumPy arrays, which Numba kernels compute, and for JAX arrays,
which XLA computes (`emu.libraries`); both give the same bits. Tensors of PyTorch enter as one or
the other (`emu.tensors`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.emu.arrays import ArrayLike, Result
from roundscope.emu.backends.ops import ANY_PRODUCT
from roundscope.emu.backends.ops import Array as AnyArray
from roundscope.emu.blocks.blocked import Blocked
from roundscope.emu.blocks.dot import dot_blocks
from roundscope.emu.blocks.layout import axis_of
from roundscope.emu.errors import known_arguments
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.libraries import (
    check_out,
    float_array,
    is_jax,
    library_of,
    narrowed,
    numpy_array,
    ops_of,
    random_integers,
    run_program,
    sum_by,
    wide_types,
    widened,
)
from roundscope.emu.numbers import check_array, check_whole
from roundscope.emu.roundings.modes import (
    BINARY32,
    NanPolicy,
    Overflow,
    Rounding,
    RoundingMode,
    rounding,
    without_saturation,
)
from roundscope.emu.shown import shown
from roundscope.emu.stats.classify import COUNTS, SUMS
from roundscope.emu.stats.summary import Stats
from roundscope.emu.sums.accumulator import (
    Accumulator,
    Steps,
    accumulate,
    check_accumulator,
    stochastic_step,
)
from roundscope.emu.tensors import takes_tensors

_BINARY32 = Accumulator()


@known_arguments
@takes_tensors
def round_to(
    x: ArrayLike,
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | Overflow | None = None,
    nan: str | NanPolicy | None = None,
    seed: int | None = None,
    first: int = 0,
    out: np.ndarray | None = None,
) -> Result:
    """Round every number of an array once to a format.

    The result is the correctly rounded x in every mode, subnormal numbers included. Rounding it
    again changes nothing. Rounding is monotone unless overflow is NaN or the mode is stochastic.
    The modes are those of IEEE 754-2019, 4.3, and three more (`RoundingMode`).

    Args:
        x: a float32 or float64 array of NumPy or JAX, or tensor of PyTorch, of any shape. float16,
            bfloat16 and float8 arrays are converted to float32 first, Python numbers and whole
            numbers without a shape to float64. Since rounding has no derivative of use, a tensor
            that requires a gradient is refused unless gradients are switched off.
        format: the name of a format ("bf16", "e4m3fn", "e5m10" ...), a `Format`, a `Rounding`, or
            a rounding in words such as "e5m10:saturate" (`rounding`).
        mode: a `RoundingMode` or its name; ties-to-even by default.
        overflow: what a number beyond the largest finite one becomes, an `Overflow` or its name; by
            default what `Format.saturates` says.
        nan: what a NaN becomes in a format without NaN, a `NanPolicy` or its name; "keep" by
            default.
        seed: the seed of the stochastic mode's random bits, a whole number from 0 to 2^32 - 1; 0 by
            default.
        first: the index of x's first number in the random stream of the stochastic mode, so that
            pieces of an array round as the whole array does. Entries that `jax.vmap` maps over have
            the same indices, and so the same random bits.
        out: a NumPy array of x's shape and type that receives the result; it may be x or overlap
            it. It must be None for a JAX array, which is immutable, and for a tensor.

    Returns:
        An array of x's library, device and shape: float64 for float64, float32 for everything
        narrower.

    Raises:
        ValueError: for an unknown name, a block format (`round_blocks` rounds to those), a format
            wider than the array, an `out` of another shape or type or one that is read-only, or a
            tensor that requires a gradient.
        TypeError: for an array of whole numbers, or an argument that does not make an array of
            floats.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([1.01, 0.1, 300.0], np.float32)
        >>> emu.round_to(x, "bf16").tolist()
        [1.0078125, 0.10009765625, 300.0]
        >>> emu.round_to(x, "e4m3fn", "toward-zero").tolist()
        [1.0, 0.09375, 288.0]
    """
    r = rounding(format, mode, overflow=overflow, nan=nan, seed=seed)
    numbers = float_array(x)
    _check_fits(numbers, r)
    _check_first(first)
    if is_jax(numbers):
        if out is not None:
            raise ValueError("out: JAX arrays are immutable; leave it out")
        return run_program(_round_jax, numbers, r.seed, first, r=replace(r, seed=0))
    check_out(out, numbers)
    from roundscope.emu.backends.numba import rounding as kernels

    return kernels.round_array(numbers, r, random_integers(numbers, r, r.seed, first), out)


def _round_jax(x: AnyArray, seed: Any, first: Any, *, r: Rounding) -> AnyArray:
    from roundscope.emu.backends.xla.rounding import round_array

    return round_array(x, r, random_integers(x, r, seed, first))


def _check_fits(x: AnyArray, r: Rounding) -> None:
    if x.dtype == np.float32 and not (r.format.fits_binary32 or r.format.name == "e8m0fnu"):
        raise ValueError(f"format={r.format.name}: does not fit a float32 array; pass float64")


def _check_first(first: Any) -> None:
    """Check the index of a random stream.

    Raises TypeError if it is not a whole number and ValueError if it is negative. A JAX array is
    accepted, since its number may not be known yet while a program is traced.
    """
    check_array("first", first)
    if is_jax(first):
        return
    check_whole(
        "first", first, "it is the index of x's first number in the random stream, 0 by default"
    )
    if not 0 <= first < 2**63:
        raise ValueError(
            f"first={shown(first)}: the index of x's first number in the random stream counts"
            " from 0, to 2^63 - 1"
        )


@takes_tensors
def round_with_stats(
    x: ArrayLike,
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    out: np.ndarray | None = None,
    **policies: Any,
) -> tuple[Result, Stats]:
    """Round every number of an array once to a format, and summarize the rounding errors.

    For float32 NumPy arrays both happen in one pass over memory.

    Args:
        x: an array as `round_to` takes it.
        format: the name of a format, a `Format` or a `Rounding`.
        mode: a `RoundingMode` or its name; ties-to-even by default.
        out: a NumPy array of x's shape and type that receives the result, as in `round_to`. For
            float32 arrays it must be contiguous.
        **policies: `overflow`, `nan` and `seed`, as `round_to` takes them.

    Returns:
        The rounded array, bit for bit `round_to(x, format, mode, ...)`, and the `Stats` of its
        rounding events.

    Raises:
        ValueError: as `round_to` does, and for an `out` that is not contiguous.
        TypeError: as `round_to` does.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> y, stats = emu.round_with_stats(np.array([1.0, 1.01, 500.0], np.float32), "e4m3fn")
        >>> y.tolist()
        [1.0, 1.0, 448.0]
        >>> int(stats.inexact), int(stats.overflow), int(stats.place)
        (2, 1, 2)
    """
    numbers = float_array(x)
    r = rounding(format, mode, **policies)
    if (
        is_jax(numbers)
        or numbers.dtype != np.float32
        or not r.format.fits_binary32
        or not numbers.size
    ):
        y = round_to(numbers, r, out=out)
        return y, stats_of(numbers, y, r.format)
    check_out(out, numbers)
    if out is not None and not out.flags.c_contiguous:
        raise ValueError(
            f"out: {out.dtype}{out.shape}, must be a contiguous {numbers.dtype}{numbers.shape} as x"
        )
    from roundscope.emu.backends.numba.stats import rounded_with_stats

    return rounded_with_stats(numbers, r, random_integers(numbers, r, r.seed, 0), out)


@takes_tensors
def error_of(
    x: ArrayLike,
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    **policies: Any,
) -> Result:
    """Return the signed rounding error of every number: round_to(x, ...) - x.

    The difference is exact where the result and x are within a factor of two of each other
    (Sterbenz' lemma), and where the result is 0. One of the two always holds for rounding to
    nearest, unless a number saturates. Elsewhere, as for a tiny number that a directed mode takes
    away from zero, the function returns the exact difference rounded to nearest.

    Args:
        x: an array as `round_to` takes it.
        format: the name of a format, a `Format` or a `Rounding`.
        mode: a `RoundingMode` or its name; ties-to-even by default.
        **policies: `overflow`, `nan`, `seed` and `first`, as `round_to` takes them.

    Returns:
        An array of x's library, type and shape. It has NaN where both x and the result are infinite
        and where one of them is NaN.

    Raises:
        ValueError: as `round_to` does.
        TypeError: as `round_to` does.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> emu.error_of(np.array([1.0, 1.00390625, 1.01171875]), "bf16").tolist()
        [0.0, -0.00390625, 0.00390625]
    """
    numbers = float_array(x)
    rounded = round_to(numbers, format, mode, **policies)
    if is_jax(numbers) and numbers.dtype != np.float64:
        return run_program(_difference, rounded, numbers)
    with np.errstate(all="ignore"):  # inf - inf
        return rounded - numbers


def _difference(y: AnyArray, x: AnyArray) -> AnyArray:
    with wide_types(x):  # a CPU would flush a subnormal difference of float32 numbers
        return narrowed(ops_of(x), widened(y) - widened(x), x.dtype)


@known_arguments
@takes_tensors
def ulp_of(x: ArrayLike, format: str | Format) -> Result:
    """Return one ulp at every number: the distance between neighboring numbers of the format.

    The distance is that in the binade of x. It is 2^(max(e, emin) - p + 1), exactly, where e is the
    exponent of x, p the precision of the format and emin its smallest exponent. At 0, where there
    is no exponent e, it is 2^(emin - p + 1).

    Args:
        x: an array as `round_to` takes it.
        format: the name of a format or a `Format`.

    Returns:
        A float64 array of x's library and shape; NaN where x is infinite or NaN.

    Raises:
        ValueError: for an unknown name.
        TypeError: for an array of whole numbers, or an argument that does not make an array of
            floats.

    Example:
        >>> from roundscope import emu
        >>> emu.ulp_of([1.0, 100.0, 0.0], "fp16").tolist()
        [0.0009765625, 0.0625, 5.960464477539063e-08]
    """
    f = rounding(format).format
    numbers = float_array(x)
    return run_program(_spacing, numbers, f=f) if is_jax(numbers) else _spacing(numbers, f=f)


def _spacing(x: AnyArray, *, f: Format) -> AnyArray:
    with wide_types(x):
        ops, wide = ops_of(x), widened(x)
        return ops.xp.where(ops.xp.isfinite(wide), spacing(ops, wide, f), np.nan)


@known_arguments
@takes_tensors
def exp(
    x: ArrayLike,
    format: str | Format | Rounding = "fp32",
    mode: str | RoundingMode | None = None,
    *,
    seed: int | None = None,
    first: int = 0,
) -> Result:
    """Return e^x, rounded to a format.

    The result is correctly rounded for every argument that is a binary32 number and every format of
    up to 24 significand bits, in every mode but the stochastic one. The probabilities of the
    stochastic mode are right to within 2^-28. In all other cases the function rounds a binary64
    value once. This value is within 0.7 ulp of e^x for arguments that binary32 holds and within 1.1
    ulp for others, in ulps of binary64 (1 ulp more below 2^-1022).

    Args:
        x: an array as `round_to` takes it; a float64 array for formats that do not fit a float32
            array.
        format: the name of a format, a `Format` or a `Rounding`; binary32 by default.
        mode: a `RoundingMode` or its name; ties-to-even by default.
        seed: the seed of the stochastic mode's random bits, as in `round_to`.
        first: the index of x's first number in the random stream, as in `round_to`.

    Returns:
        An array of x's library, type and shape.

    Raises:
        ValueError: as `round_to` does.
        TypeError: as `round_to` does.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> emu.exp(np.array([0.0, 1.0, -1.0], np.float32), "bf16").tolist()
        [1.0, 2.71875, 0.3671875]
    """
    r = rounding(format, mode, seed=seed)
    numbers = float_array(x)
    _check_fits(numbers, r)
    _check_first(first)
    return (
        run_program(_exp, numbers, r.seed, first, r=replace(r, seed=0))
        if is_jax(numbers)
        else _exp(numbers, r.seed, first, r=r)
    )


def _exp(x: AnyArray, seed: Any, first: Any, *, r: Rounding) -> AnyArray:
    from roundscope.emu.functions import whole_exp

    with wide_types(x):
        ops, wide = ops_of(x), widened(x)
        y = whole_exp(ops, wide, to_odd=not r.format.is_binary64)
        y = ops.round(y, r, random_integers(x, r, seed, first))
        return narrowed(ops, y, x.dtype) if is_jax(x) else y.astype(x.dtype)


@known_arguments
@takes_tensors
def dot(
    a: ArrayLike | Blocked,
    b: ArrayLike | Blocked,
    accumulator: Accumulator = _BINARY32,
    init: ArrayLike | None = None,
    steps: list[tuple[AnyArray, AnyArray]] | None = None,
) -> Result:
    """Return init + a @ b, where an accumulator adds up each sum of products.

    The operands' products are exact in binary64 for factors of up to 26 bits each. A stochastic
    step takes its random bits from the step's seed, the entry of the result and the index of the
    addition; under `jax.vmap` every mapped entry has the same random bits.

    Args:
        a: a (T, K) array as `round_to` takes it, or a `Blocked` one that is blocked along axis 1.
        b: a (K, N) array, or a `Blocked` one that is blocked along axis 0. The module
            `roundscope.emu.blocks.dot` says how the scales of blocks enter the sums.
        accumulator: the order of the additions and their rounding; binary32 in ascending order by
            default. `Accumulator` says which sign a sum of zero has.
        init: a (T, N) array of numbers that the sums begin with (or, in some orders, end with); +0
            by default. It is not rounded by itself.
        steps: a list that receives pairs (before, after) of arrays, which hold the sums before and
            after the rounding of every addition. The index k of the addition is their first axis.
            `before` is the exact sum, rounded to odd in binary64.

    Returns:
        A (T, N) float64 array; a JAX array if a or b is one.

    Raises:
        ValueError: for shapes that do not match, for a `Blocked` operand that is blocked along its
            other axis and, in NumPy arrays, for factors that the operand format of a tensor core
            does not have.
        TypeError: for an accumulator or `steps` of another type, or an operand that is not an array
            of numbers.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> a, b = np.array([[1.0, 2.0**-24, 2.0**-24]], np.float32), np.ones((3, 1), np.float32)
        >>> emu.dot(a, b).item() - 1.0  # each addition is a tie, which goes to even
        0.0
        >>> emu.dot(a, b, emu.Accumulator(order="exact")).item() - 1.0 == 2.0**-23
        True
    """
    check_accumulator(accumulator)
    if steps is not None and not isinstance(steps, list):
        raise TypeError(
            f"steps={shown(steps)}: give a list, which receives every addition, or None"
        )
    _check_init(init)
    if isinstance(a, Blocked) or isinstance(b, Blocked):
        return dot_blocks(a, b, accumulator, init, steps)
    x, y = float_array(a, "a"), float_array(b, "b")
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise ValueError(f"a, b: shapes {x.shape} and {y.shape}, must be (T, K) and (K, N)")
    if accumulator.alignment is not None:
        first, second = accumulator.alignment.operands
        _checked("a", x, first)
        _checked("b", y, second)
    shape = (x.shape[0], y.shape[1])
    if init is not None and tuple(np.shape(init)) != shape:
        raise ValueError(f"init: shape {np.shape(init)}, must be {shape}")

    start = init if init is None or is_jax(init) else np.asarray(init)
    on_jax = is_jax(x) or is_jax(y)
    return sum_by(_dot, on_jax, steps, x, y, start, accumulator=accumulator)


def _check_init(init: Any) -> None:
    """Raise TypeError unless init is None or an array of numbers, which may be whole numbers."""
    check_array("init", init)
    if init is None:
        return
    dtype = init.dtype if is_jax(init) else numpy_array(init, "init").dtype
    if dtype.kind not in "iub" and "float" not in str(dtype):
        raise TypeError(
            f"init: dtype {dtype}, must be a float array; convert with init.astype('float64')"
        )


def _dot(
    a: AnyArray, b: AnyArray, init: AnyArray | None, *, accumulator: Accumulator, keep: bool
) -> tuple[AnyArray, Steps | None]:
    """Return the sum, and a list of (before, after) of each addition, or None unless `keep`."""
    ops = ops_of(a)
    xp = ops.xp
    start = xp.zeros((a.shape[0], b.shape[1])) if init is None else widened(xp.asarray(init))
    step = stochastic_step(ops, accumulator.step, start.shape)
    is_binary32 = a.dtype == b.dtype == np.float32 and init is None
    bits = 2 * BINARY32.format.precision if is_binary32 else ANY_PRODUCT
    steps: Steps | None = [] if keep else None
    return accumulate(ops, accumulator, widened(a).T, widened(b), start, step, steps, bits), steps


def _checked(name: str, x: AnyArray, f: Format) -> None:
    """Raise ValueError unless the operand format f of a tensor core holds all numbers of x.

    JAX arrays are not checked, since their numbers may not be known yet.
    """
    if is_jax(x):
        return
    held = round_to(x, without_saturation(rounding(f)))  # infinities stay if the format has them
    wrong = np.flatnonzero((held != x) & ~np.isnan(x))
    if wrong.size:
        raise ValueError(
            f"{name}: {x.flat[wrong[0]]!r} is no {f.name} number, which this tensor core takes;"
            f" round_to({name}, '{f.name}') first"
        )


@known_arguments
@takes_tensors
def sum(x: ArrayLike, accumulator: Accumulator = _BINARY32, axis: int = -1) -> Result:
    """Return the sum along one axis of an array, added up by an accumulator.

    The function is `dot` of the array and a vector of ones, so that every sum begins with +0.

    Args:
        x: an array as `round_to` takes it, of one axis or more.
        accumulator: the order of the additions and their rounding; binary32 in ascending order by
            default.
        axis: the axis that is added up; the last by default.

    Returns:
        A float64 array of x's library, with x's shape without the axis.

    Raises:
        ValueError: for an axis that x lacks, and as `dot` does.
        TypeError: as `dot` does.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.full((2, 300), 1.0, np.float32)
        >>> emu.sum(x, emu.Accumulator(step=emu.BF16)).tolist()  # stops at 256: 256 + 1 is a tie
        [256.0, 256.0]
    """
    numbers = float_array(x)
    check_accumulator(accumulator)
    moved = _last(numbers, axis_of(numbers.shape, axis))
    rows = moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])
    return dot(rows, np.ones((rows.shape[1], 1)), accumulator).reshape(moved.shape[:-1])


@known_arguments
@takes_tensors
def stats_of(before: ArrayLike, after: ArrayLike, format: str | Format) -> Stats:
    """Return the `Stats` of rounding events from the numbers before and after them.

    Args:
        before: the numbers before rounding, an array as `round_to` takes it.
        after: the numbers after rounding, of the same shape.
        format: the name or `Format` of the format that they were rounded to; it defines the ulp.

    Returns:
        One summary of all events; its `place` is the flat index of the event with the largest
        error.

    Raises:
        ValueError: for an unknown name, or arrays of different shapes.
        TypeError: for an array of whole numbers, or an argument that does not make an array of
            floats.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([1.0, 1.0078125, 1.01171875])
        >>> stats = emu.stats_of(x, emu.round_to(x, "bf16"), "bf16")
        >>> int(stats.n), int(stats.inexact), int(stats.ties), float(stats.ulps)
        (3, 1, 1, 0.5)
    """
    f = rounding(format).format
    x, y = float_array(before, "before"), float_array(after, "after")
    if is_jax(x) != is_jax(y):
        x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape:
        raise ValueError(f"after: shape {y.shape}, must be that of before, {x.shape}")
    if not x.size:
        return Stats.of(np.zeros(len(COUNTS), np.int64), np.zeros(len(SUMS)), 0.0, -1)
    return Stats.of(*(run_program(_stats, x, y, f=f) if is_jax(x) else _stats(x, y, f=f)))


def _stats(x: AnyArray, y: AnyArray, *, f: Format) -> tuple[AnyArray, ...]:
    with wide_types(x):
        a, b = widened(x).reshape(1, -1), widened(y).reshape(1, -1)
        return tuple(ops_of(x).stats([(a, b, f, library_of(x).ones(a.shape, bool))])[0][:4])


def _last(x: AnyArray, axis: int) -> AnyArray:
    """Return x with one axis moved to the end."""
    return x.transpose([*(n for n in range(x.ndim) if n != axis), axis])
