"""The two libraries of arrays, NumPy and JAX: what the functions of `emu` do alike for both.

An argument enters as a float32 or float64 array of its library (`float_array`). What computes on it
is imported when it is first used, so `import roundscope.emu` loads neither numba nor jax.
"""

import sys
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.numbers import check_array
from roundscope.emu.roundings.modes import BINARY32, Rounding, RoundingMode
from roundscope.emu.roundings.random import event_bits
from roundscope.emu.sums.accumulator import Accumulator, Steps
from roundscope.emu.tensors import is_tensor


def is_jax(x: Any) -> bool:
    """Return whether x is an array of JAX, which has then been imported."""
    return "jax" in sys.modules and isinstance(x, sys.modules["jax"].Array)


def numpy_array(x: Any, name: str) -> np.ndarray:
    """Return an argument as a NumPy array; raise TypeError for nested lists of unequal lengths."""
    try:
        return np.asarray(x)
    except ValueError:
        raise TypeError(
            f"{name}: a {type(x).__name__} of rows of several lengths, must be an array of floats"
        ) from None


def float_array(x: Any, name: str = "x") -> Array:
    """Return x as a float32 or float64 array; narrower floats become float32, exactly.

    Anything else raises TypeError; `name` is the argument's name in the message.
    """
    if is_tensor(x):
        raise TypeError(
            f"{name}: a PyTorch tensor, which this function does not take; {name}.detach().float()"
            ".cpu().numpy() makes an array of it, exactly"
        )
    check_array(name, x)
    if not is_jax(x):
        x = numpy_array(x, name)
    if x.dtype in (np.float32, np.float64):
        return x
    if x.dtype.kind in "iu" and x.ndim == 0:
        return np.asarray(float(x))
    if "float" not in str(x.dtype) or x.dtype.itemsize > 4:
        raise TypeError(
            f"{name}: dtype {x.dtype}, must be a float array; convert with {name}.astype('float32')"
        )
    return x.astype(np.float32)


def check_out(out: Any, x: Array) -> None:
    """Raise TypeError or ValueError if `out` cannot hold the result of an array like x."""
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError(
            f"out: a {type(out).__name__}, must be an array as x; numpy.empty_like(x) makes one"
        )
    if type(out) not in (np.ndarray, np.memmap, type(None)):  # one with a reshape of its own
        raise TypeError(f"out: a {type(out).__name__}, must be a plain array; numpy.asarray(out)")
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise ValueError(f"out: {out.dtype}{out.shape}, must be {x.dtype}{x.shape} as x")
    if out is not None and not out.flags.writeable:
        raise ValueError("out: is read-only; give an array that can be written, such as a copy")


def library_of(x: Array) -> Any:
    """Return the module of x's library that has NumPy's function names: numpy or jax.numpy."""
    return sys.modules["jax"].numpy if is_jax(x) else np


def ops_of(x: Array) -> Ops:
    """Return what an algorithm needs from x's library; 64-bit types must be enabled for JAX."""
    if is_jax(x):
        from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

        return xla_ops(opaque_zero(x))
    from roundscope.emu.backends.numba.ops import numpy_ops

    return numpy_ops()


def wide_types(x: Array) -> Any:
    """Return a context in which JAX has 64-bit types, and NumPy reports no errors.

    Infinities, NaN, zeros and subnormal numbers are results here, whatever `numpy.seterr` says.
    """
    return sys.modules["jax"].enable_x64(True) if is_jax(x) else np.errstate(all="ignore")


def widened(x: Array) -> Array:
    """Return x in float64, exactly; for JAX arrays, 64-bit types must be enabled."""
    if is_jax(x):
        from roundscope.emu.backends.xla.rounding import widen

        return x if x.dtype == np.float64 else widen(x)
    return x.astype(np.float64)


def narrowed(ops: Ops, y: Array, dtype: Any) -> Array:
    """Return a float64 JAX array in the given dtype, by one rounding if that is float32.

    64-bit types must be enabled.
    """
    from roundscope.emu.backends.xla.rounding import narrow

    return y if dtype == np.float64 else narrow(ops.round(y, BINARY32, None))


def run_program(f: Any, /, *arrays: Any, **fixed: Any) -> Any:
    """Return f(*arrays, **fixed) on JAX arrays, run as one compiled program."""
    from roundscope.emu.backends.xla.rounding import run

    return run(f, *arrays, **fixed)


def sum_by(
    f: Any, on_jax: bool, steps: Steps | None, *operands: Any, accumulator: Accumulator
) -> Array:
    """Return the sum that f computes from the operands; under JAX, in one compiled program.

    If `steps` is a list, it receives the additions.
    """
    if on_jax:
        total, kept = run_program(f, *operands, accumulator=accumulator, keep=steps is not None)
    else:
        with np.errstate(all="ignore"):  # overflow and inf - inf are results
            total, kept = f(*operands, accumulator=accumulator, keep=steps is not None)
    if steps is not None:
        steps.extend(kept)
    return total


def random_integers(x: Array, r: Rounding, seed: Any, first: Any) -> Array | None:
    """Return the random integers that round x, or None outside the stochastic mode.

    They belong to stream 0. The coordinates of a number are the two 32-bit words of its flat index.
    """
    if r.mode is not RoundingMode.STOCHASTIC:
        return None
    with wide_types(x):
        xp = library_of(x)
        index = first + xp.arange(x.size, dtype=xp.int64)
        return event_bits(xp, seed, 0, index >> 32, index & 0xFFFF_FFFF).reshape(x.shape)
