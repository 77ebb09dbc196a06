"""The functions of `emu`: one set for NumPy arrays (Numba kernels) and JAX arrays (XLA), the same
bits from both.

Executors are imported on first use: `import roundscope.emu` brings in neither numba nor jax.
"""

import importlib
import math
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import ANY_PRODUCT, Ops
from roundscope.emu.blocks.layout import axis_of
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.numbers import check_whole
from roundscope.emu.rounding.modes import (
    BINARY32,
    NanPolicy,
    Overflow,
    Rounding,
    RoundingMode,
    rounding,
    without_saturation,
)
from roundscope.emu.rounding.random import event_bits
from roundscope.emu.stats.classify import COUNTS, SUMS
from roundscope.emu.stats.summary import Stats
from roundscope.emu.sums.accumulator import Accumulator, accumulate, check_accumulator

_BINARY32 = Accumulator()
Array = Any  # numpy.ndarray or jax.Array


def round_to(
    x: Any,
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | Overflow | None = None,
    nan: str | NanPolicy | None = None,
    seed: int | None = None,
    first: int = 0,
    out: np.ndarray | None = None,
) -> Array:
    """Every number of x rounded once to a format; the result keeps x's type and shape.

    x         float32 or float64 array, NumPy or JAX; float16, bfloat16 and float8 arrays enter as
              float32, Python numbers as float64
    format    a name ("bf16", "e4m3fn", "e5m10" ...), a `Format` or a `Rounding`
    mode      a `RoundingMode` or its name; ties-to-even by default
    overflow, nan, seed   see `Rounding`; `Format.saturates` says what overflow is by default
    first     index of x's first number in the random stream of the stochastic mode, so that pieces
              of an array round as the whole does. Entries that `jax.vmap` maps over have the same
              indices, and so the same random bits
    out       NumPy only: where the result goes; may be x or overlap it

    Exact: the result is the correctly rounded x, in every mode, subnormals included. Rounding it
    again changes nothing. Monotone where overflow is not NaN and the mode not stochastic.
    Raises ValueError for unknown names, a format wider than the array, an out of another shape or
    type; TypeError for integers. Source of the modes: IEEE 754-2019, 4.3.
    """
    r = rounding(format, mode, overflow=overflow, nan=nan, seed=seed)
    x = _carrier(x)
    _check_fits(x, r)
    _check_first(first)
    if _is_jax(x):
        if out is not None:
            raise ValueError("out: JAX arrays are immutable; leave it out")
        return _program(_round_jax, x, r.seed, first, r=replace(r, seed=0))
    _check_out(out, x)
    from roundscope.emu.backends.numba import rounding as kernels

    return kernels.round_array(x, r, _random(x, r, r.seed, first), out)


def _round_jax(x: Array, seed: Any, first: Any, *, r: Rounding) -> Array:
    from roundscope.emu.backends.xla.rounding import round_array

    return round_array(x, r, _random(x, r, seed, first))


def _check_fits(x: Array, r: Rounding) -> None:
    if x.dtype == np.float32 and not (r.format.fits_binary32 or r.format.name == "e8m0fnu"):
        raise ValueError(f"format={r.format.name}: does not fit a float32 array; pass float64")


def _check_first(first: Any) -> None:
    """Raises TypeError or ValueError for what is no index; data of a program have no numbers
    yet.
    """
    if _is_jax(first):
        return
    check_whole(
        "first", first, "it is the index of x's first number in the random stream, 0 by default"
    )
    if first < 0:
        raise ValueError(
            f"first={first}: the index of x's first number in the random stream counts from 0"
        )


def _check_out(out: Any, x: Array) -> None:
    """Raises TypeError or ValueError for what cannot hold the result."""
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError(
            f"out: a {type(out).__name__}, must be an array as x; numpy.empty_like(x) makes one"
        )
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise ValueError(f"out: {out.dtype}{out.shape}, must be {x.dtype}{x.shape} as x")


def round_with_stats(
    x: Any,
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    out: np.ndarray | None = None,
    **policies: Any,
) -> tuple[Array, Stats]:
    """round_to(x, ...) and the `Stats` of its events; float32 NumPy arrays in one pass over
    memory.
    """
    x = _carrier(x)
    r = rounding(format, mode, **policies)
    if _is_jax(x) or x.dtype != np.float32 or not r.format.fits_binary32 or not x.size:
        y = round_to(x, r, out=out)
        return y, stats_of(x, y, r.format)
    _check_out(out, x)
    if out is not None and not out.flags.c_contiguous:
        raise ValueError(
            f"out: {out.dtype}{out.shape}, must be a contiguous {x.dtype}{x.shape} as x"
        )
    from roundscope.emu.backends.numba.stats import rounded_with_stats

    return rounded_with_stats(x, r, _random(x, r, r.seed, 0), out)


def error_of(
    x: Any, format: str | Format | Rounding, mode: str | RoundingMode | None = None, **policies: Any
) -> Array:
    """round_to(x, ...) - x, in x's type. NaN where x is infinite or NaN and stays so.

    Exact where the two are within a factor of two of each other or the result is 0 (Sterbenz):
    always to nearest, but for saturation. Else, as for a tiny number that a directed mode takes
    outward, the exact difference rounded to nearest.
    """
    x = _carrier(x)
    y = round_to(x, format, mode, **policies)
    if not _is_jax(x) or x.dtype == np.float64:
        return y - x
    return _program(_difference, y, x)


def _difference(y: Array, x: Array) -> Array:
    import jax

    with jax.enable_x64(
        True
    ):  # the difference may be subnormal, which float arithmetic on CPU would flush
        return _leave(_ops(x), _enter(y) - _enter(x), x.dtype)


def ulp_of(x: Any, format: str | Format) -> Array:
    """Distance of neighbours of the format in the binade of x, float64: 2^(max(e, emin) - p + 1).

    NaN for inf, NaN.
    """
    f = rounding(format).format
    x = _carrier(x)
    return _program(_spacing, x, f=f) if _is_jax(x) else _spacing(x, f=f)


def _spacing(x: Array, *, f: Format) -> Array:
    with _wide(x):
        ops, wide = _ops(x), _enter(x)
        return ops.xp.where(ops.xp.isfinite(wide), spacing(ops, wide, f), np.nan)


def exp(
    x: Any,
    format: str | Format | Rounding = "fp32",
    mode: str | RoundingMode | None = None,
    *,
    seed: int | None = None,
    first: int = 0,
) -> Array:
    """e^x rounded to a format; the result has x's type and shape.

    x       as of `round_to`; a float64 array for formats that do not fit a float32 one
    seed, first   of the stochastic mode, as of `round_to`

    Correctly rounded for every argument that is a binary32 number, to every format of up to 24
    significand bits, in every mode but the stochastic one, whose probabilities are right to 2^-28.
    Otherwise a binary64 value is rounded once that is within 0.7 ulp of binary64 for arguments that
    binary32 holds, 1.1 ulp for others (1 more below 2^-1022).
    Raises ValueError and TypeError as `round_to` does.
    """
    r = rounding(format, mode, seed=seed)
    x = _carrier(x)
    _check_fits(x, r)
    _check_first(first)
    if _is_jax(x):
        return _program(_exp, x, r.seed, first, r=replace(r, seed=0))
    return _exp(x, r.seed, first, r=r)


def _exp(x: Array, seed: Any, first: Any, *, r: Rounding) -> Array:
    from roundscope.emu.functions import whole_exp

    with _wide(x):
        ops, wide = _ops(x), _enter(x)
        y = ops.round(whole_exp(ops, wide, to_odd=not r.is_identity), r, _random(x, r, seed, first))
        return _leave(ops, y, x.dtype) if _is_jax(x) else y.astype(x.dtype)


def dot(
    a: Any,
    b: Any,
    accumulator: Accumulator = _BINARY32,
    init: Any = None,
    steps: list[tuple[Array, Array]] | None = None,
) -> Array:
    """init + a @ b, each sum of products added up by the accumulator; float64.

    a: (T, K); b: (K, N); init: (T, N), 0 by default. The operands' products are exact in binary64
    up to 26 bits each. Stochastic steps take their bits from the step's seed, the entry and the
    index of the addition. Under `jax.vmap` every mapped entry has the same random bits. steps: a
    list that receives every addition's (before, after), leading axis k; before is the exact sum, in
    binary64 to odd. The sign of a zero: `Accumulator`. `Blocked` operands: emu.blocks.dot says how
    their scales come in. Raises ValueError for shapes that do not match and, in NumPy arrays, for
    factors that are not numbers of a tensor core's type.
    """
    from roundscope.emu.blocks.api import Blocked

    check_accumulator(accumulator)
    if steps is not None and not isinstance(steps, list):
        raise TypeError(f"steps={steps!r}: give a list, which receives every addition, or None")
    _check_init(init)
    if isinstance(a, Blocked) or isinstance(b, Blocked):
        from roundscope.emu.blocks.dot import dot_blocks

        return dot_blocks(a, b, accumulator, init, steps)
    a, b = _carrier(a, "a"), _carrier(b, "b")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a, b: shapes {a.shape} and {b.shape}, must be (T, K) and (K, N)")
    if accumulator.alignment is not None:
        _checked("a", a, accumulator.alignment.operand)
        _checked("b", b, accumulator.alignment.operand)
    shape = (a.shape[0], b.shape[1])
    if init is not None and tuple(np.shape(init)) != shape:
        raise ValueError(f"init: shape {np.shape(init)}, must be {shape}")

    if init is not None and not _is_jax(init):
        init = np.asarray(init)
    return _added(_dot, _is_jax(a) or _is_jax(b), steps, a, b, init, accumulator=accumulator)


def _check_init(init: Any) -> None:
    """Raises TypeError for what is no array of numbers; whole numbers enter too."""
    if init is None:
        return
    dtype = init.dtype if _is_jax(init) else _array(init, "init").dtype
    if dtype.kind not in "iub" and "float" not in str(dtype):
        raise TypeError(
            f"init: dtype {dtype}, must be a float array; convert with init.astype('float64')"
        )


def _added(
    f: Any,
    on_jax: bool,
    steps: list[tuple[Array, Array]] | None,
    *operands: Any,
    accumulator: Accumulator,
) -> Array:
    """Return the sum that f makes of the operands, under JAX in one program; `steps` receives its
    additions.
    """
    if on_jax:
        total, kept = _program(f, *operands, accumulator=accumulator, keep=steps is not None)
    else:
        with np.errstate(all="ignore"):  # overflow and inf - inf are results
            total, kept = f(*operands, accumulator=accumulator, keep=steps is not None)
    if steps is not None:
        steps.extend(kept)
    return total


def _dot(
    a: Array, b: Array, init: Array | None, *, accumulator: Accumulator, keep: bool
) -> tuple[Array, list[tuple[Array, Array]] | None]:
    """The sum, and each addition's (before, after) where they are kept."""
    ops, r, step = _ops(a), accumulator.step, None
    start = ops.xp.zeros((a.shape[0], b.shape[1])) if init is None else _enter(ops.xp.asarray(init))
    if r.mode is RoundingMode.STOCHASTIC:
        rows, columns = ops.xp.arange(a.shape[0])[:, None], ops.xp.arange(b.shape[1])

        def step(k: Any, total: Array) -> Array:
            return ops.round(total, r, event_bits(ops.xp, r.seed, 0, rows, columns, k + 1))

    is_binary32 = a.dtype == b.dtype == np.float32 and init is None
    bits = 2 * BINARY32.format.precision if is_binary32 else ANY_PRODUCT
    steps: list[tuple[Array, Array]] | None = [] if keep else None
    return accumulate(ops, accumulator, _enter(a).T, _enter(b), start, step, steps, bits), steps


def _checked(name: str, x: Array, f: Format) -> None:
    """That a tensor core could hold the numbers of x; those of a JAX array may not be known yet."""
    if _is_jax(x):
        return
    held = round_to(x, without_saturation(rounding(f)))  # infinities stay where there are some
    wrong = np.flatnonzero((held != x) & ~np.isnan(x))
    if wrong.size:
        raise ValueError(
            f"{name}: {x.flat[wrong[0]]!r} is no {f.name} number, which this tensor core takes;"
            f" round_to({name}, '{f.name}') first"
        )


def sum(x: Any, accumulator: Accumulator = _BINARY32, axis: int = -1) -> Array:
    """The sum along one axis of an array of one axis or more, added up by the accumulator; float64.

    Raises ValueError for an axis that x lacks, and as `dot` does.
    """
    x = _carrier(x)
    check_accumulator(accumulator)
    moved = _last(x, axis_of(x.shape, axis))
    rows = moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])
    return dot(rows, np.ones((rows.shape[1], 1)), accumulator).reshape(moved.shape[:-1])


def stats_of(before: Any, after: Any, format: str | Format) -> Stats:
    """The `Stats` of rounding events from the numbers before and after; `place` is the flat index
    of the peak.
    """
    f = rounding(format).format
    x, y = _carrier(before, "before"), _carrier(after, "after")
    if x.shape != y.shape:
        raise ValueError(f"after: shape {y.shape}, must be that of before, {x.shape}")
    if not x.size:
        return Stats.of(np.zeros(len(COUNTS), np.int64), np.zeros(len(SUMS)), 0.0, -1)
    return Stats.of(*(_program(_stats, x, y, f=f) if _is_jax(x) else _stats(x, y, f=f)))


def _stats(x: Array, y: Array, *, f: Format) -> tuple[Array, ...]:
    with _wide(x):
        a, b = _enter(x).reshape(1, -1), _enter(y).reshape(1, -1)
        return tuple(_ops(x).stats([(a, b, f, _library(x).ones(a.shape, bool))])[0][:4])


def _is_jax(x: Any) -> bool:
    return "jax" in sys.modules and isinstance(x, sys.modules["jax"].Array)


def _program(f: Any, /, *arrays: Any, **fixed: Any) -> Any:
    """f(*arrays, **fixed) on JAX arrays, as one compiled program."""
    from roundscope.emu.backends.xla.program import run

    return run(f, *arrays, **fixed)


def _wide(x: Array) -> Any:
    """A context with 64-bit types, which JAX has only where they are asked for."""
    return sys.modules["jax"].enable_x64(True) if _is_jax(x) else nullcontext()


def _library(x: Array) -> Any:
    """The functions of x's library by the names of NumPy's."""
    return importlib.import_module("jax.numpy") if _is_jax(x) else np


def _array(x: Any, name: str) -> np.ndarray:
    """NumPy's array of an argument. Raises TypeError for lists that are none."""
    try:
        return np.asarray(x)
    except ValueError:
        raise TypeError(
            f"{name}: a {type(x).__name__} of rows of several lengths, must be an array of floats"
        ) from None


def _carrier(x: Any, name: str = "x") -> Array:
    """x as a float32 or float64 array; narrower floats exactly as float32. name: of the argument,
    for its refusal.
    """
    if not _is_jax(x):
        x = _array(x, name)
    if x.dtype in (np.float32, np.float64):
        return x
    if x.dtype.kind in "iub" and x.ndim == 0:
        return np.asarray(float(x))
    if "float" not in str(x.dtype) or x.dtype.itemsize > 4:
        raise TypeError(
            f"{name}: dtype {x.dtype}, must be a float array; convert with {name}.astype('float32')"
        )
    return x.astype(np.float32)


def _ops(x: Array) -> Ops:
    if _is_jax(x):
        from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

        return xla_ops(opaque_zero(x))
    from roundscope.emu.backends.numba.ops import numpy_ops

    return numpy_ops()


def _enter(x: Array) -> Array:
    """The carrier: float64, exactly. For JAX arrays with 64-bit types enabled."""
    if _is_jax(x):
        from roundscope.emu.backends.xla.widths import widen

        return x if x.dtype == np.float64 else widen(x)
    return x.astype(np.float64)


def _leave(ops: Ops, y: Array, dtype: Any) -> Array:
    """A JAX carrier as float64, or as float32 by one rounding. With 64-bit types enabled."""
    from roundscope.emu.backends.xla.widths import narrow

    return y if dtype == np.float64 else narrow(ops.round(y, BINARY32, None))


def _last(x: Array, axis: int) -> Array:
    """x with one axis moved to the end."""
    return x.transpose([*(n for n in range(x.ndim) if n != axis), axis])


def _random(x: Array, r: Rounding, seed: Any, first: Any) -> Array | None:
    """The random integers that round x, which only the stochastic mode has: stream 0, coordinates
    the two words of the flat index.
    """
    if r.mode is not RoundingMode.STOCHASTIC:
        return None
    with _wide(x):
        xp = _library(x)
        index = first + xp.arange(x.size, dtype=xp.int64)
        return event_bits(xp, seed, 0, index >> 32, index & 0xFFFF_FFFF).reshape(x.shape)
