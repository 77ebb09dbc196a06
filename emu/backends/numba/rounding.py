"""The Numba executor of the rule, which takes and returns NumPy arrays and uses several threads.

Kernels take flat contiguous arrays of the carrier's bits and release the interpreter lock.
`parallel` cuts an array into one piece per thread.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from roundscope.emu.backends.numba.jit import closure, compiled, njit
from roundscope.emu.backends.numba.word import from_word, to_word
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.roundings.rule import C32, C64, Rule, Target, build_rule, target_of


@njit
def where(condition: Any, yes: Any, no: Any) -> Any:
    """Return one of two scalars."""
    return yes if condition else no


@njit
def bits_of_float(x: Any) -> Any:
    """Return the int64 bits of a float64."""
    return np.float64(x).view(np.int64)


@njit
def float_of_bits(b: Any) -> float:
    """Return the float64 of int64 bits."""
    return np.int64(b).view(np.float64)


@njit
def in_place(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether two arrays begin at the same address.

    If they do, a loop is vectorized only if it reads and writes through one of them.
    """
    return x.ctypes.data == y.ctypes.data


def _loops(
    rule: Rule, width: int, enter: Callable[..., Any], leave: Callable[..., Any]
) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """Return the three roundings of a rule for arrays, which write the rounded numbers of x to y.

    Their arguments x, y and random are arrays of integers of the same size. `enter` makes of an
    element the rule's integer, which has `width` bits, and `leave` makes an element of that.
    """
    nearest_even, any_mode, drawn, _ = rule

    def over(function: Callable[..., Any], name: str) -> Callable[..., None]:
        @closure(f"{name}{width}")
        def one(element: Any, t: Target) -> Any:
            return leave(function(enter(element), t))

        @closure(f"{name}{width}")
        def loop(x: np.ndarray, y: np.ndarray, t: Target) -> None:
            if in_place(x, y):
                for i in range(y.size):
                    y[i] = one(y[i], t)
            else:
                for i in range(x.size):
                    y[i] = one(x[i], t)

        return loop

    @closure(f"{width}")
    def one(element: Any, t: Target, random: Any) -> Any:
        return leave(drawn(enter(element), t, enter(random)))

    @closure(f"{width}")
    def stochastic(x: np.ndarray, y: np.ndarray, random: np.ndarray, t: Target) -> None:
        if in_place(x, y):
            for i in range(y.size):
                y[i] = one(y[i], t, random[i])
        else:
            for i in range(x.size):
                y[i] = one(x[i], t, random[i])

    return over(nearest_even, "even"), over(any_mode, "any"), stochastic


RULE32 = build_rule(C32, where, closure("32"))
RULE64 = build_rule(C64, where, closure("64"))
LOOPS32 = _loops(RULE32, 32, to_word, from_word)
_even32, _any32, _stochastic32 = LOOPS32
_even64, _any64, _stochastic64 = _loops(RULE64, 64, numba.int64, numba.int64)


@compiled
def even32(x: np.ndarray, y: np.ndarray, t: Target) -> None:
    """Round binary32 numbers to nearest even."""
    _even32(x, y, t)


@compiled
def any32(x: np.ndarray, y: np.ndarray, t: Target) -> None:
    """Round binary32 numbers in any mode but the stochastic one."""
    _any32(x, y, t)


@compiled
def stochastic32(x: np.ndarray, y: np.ndarray, random: np.ndarray, t: Target) -> None:
    """Round binary32 numbers in the stochastic mode."""
    _stochastic32(x, y, random, t)


@compiled
def even64(x: np.ndarray, y: np.ndarray, t: Target) -> None:
    """Round binary64 numbers to nearest even."""
    _even64(x, y, t)


@compiled
def any64(x: np.ndarray, y: np.ndarray, t: Target) -> None:
    """Round binary64 numbers in any mode but the stochastic one."""
    _any64(x, y, t)


@compiled
def stochastic64(x: np.ndarray, y: np.ndarray, random: np.ndarray, t: Target) -> None:
    """Round binary64 numbers in the stochastic mode."""
    _stochastic64(x, y, random, t)


def parallel(
    kernel: Callable[..., Any], size: int, *arrays: Any, shared: tuple[Any, ...] = ()
) -> list[Any]:
    """Run kernel(*pieces, *shared) over equal pieces of arrays; return the results in order."""
    return over_threads(lambda lo, hi: kernel(*(a[lo:hi] for a in arrays), *shared), size)


def round_array(
    x: np.ndarray, r: Rounding, random: np.ndarray | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """Return x, a float32 or float64 array, rounded, as an array of its type and shape.

    If binary32 does not hold the format, a float32 array is rounded in binary64. `random` is an
    int32 array of x's shape for the stochastic mode; `out` receives the result, and may be or
    overlap x.
    """
    if x.dtype == np.float32 and not r.format.fits_binary32:
        with np.errstate(all="ignore"):  # a signaling NaN
            wide = round_array(x.astype(np.float64), r, random).astype(np.float32)
        return wide if out is None else _into(out, wide)
    source = np.ascontiguousarray(x).reshape(x.shape)  # which makes 0-d arrays 1-d
    result = out if out is not None and out.flags.c_contiguous else np.empty_like(source)
    if np.may_share_memory(source, result) and source.ctypes.data != result.ctypes.data:
        source = source.copy()
    is_single = x.dtype == np.float32
    even, any_mode, stochastic = _KERNELS32 if is_single else _KERNELS64
    target, word = target_of(r, C32 if is_single else C64), np.int32 if is_single else np.int64
    flat = (source.reshape(-1).view(word), result.reshape(-1).view(word))
    if r.mode is RoundingMode.STOCHASTIC:
        assert random is not None
        bits = np.ascontiguousarray(random).reshape(-1)
        parallel(stochastic, x.size, *flat, bits, shared=(target,))
    else:
        kernel = even if r.mode is RoundingMode.TIES_TO_EVEN else any_mode
        parallel(kernel, x.size, *flat, shared=(target,))
    return result if out is None or result is out else _into(out, result)


def _into(out: np.ndarray, values: np.ndarray) -> np.ndarray:
    out[...] = values
    return out


_KERNELS32 = (even32, any32, stochastic32)
_KERNELS64 = (even64, any64, stochastic64)
