"""The definition of a block's rounding for NumPy arrays, in the bits of binary64.

It computes the scale X of a block, the quotients V / (T X) of its numbers V, the elements P and the
products T X P, where T is the scale of the whole array. `power32` is its fast path.
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.numba.jit import closure, compiled, inlined, njit
from roundscope.emu.backends.numba.rounding import RULE64, bits_of_float, float_of_bits, where
from roundscope.emu.blocks.rule import Powers, Quotients, build_block_rule
from roundscope.emu.roundings.rule import C64, STOCHASTIC, Target, bits_of

_, _any64, _drawn64, _ = RULE64
MAGNITUDE64, INFINITY64, SIGN64 = C64.magnitude, C64.infinity, ~C64.magnitude
SMALLEST32 = bits_of(2.0**-149, C64)


@njit
def _divide(a: Any, b: Any) -> Any:
    """Return a // b for a >= 0 and b > 0, without Python's test for zero."""
    return np.int64(np.uint64(a) // np.uint64(b))


RULE = build_block_rule(where, _divide, closure("block"))
exponent, _shifted, _quotient = RULE


@njit
def _largest(x: np.ndarray) -> int:
    """Return the float64 bits of the largest magnitude of an array; NaN counts as the largest."""
    top = 0
    for i in range(x.size):
        top = max(top, bits_of_float(np.float64(x[i])) & MAGNITUDE64)
    return top


@njit
def _scale(top: int, tensor: float, q: Quotients) -> int:
    """Return the bits of a block's scale, by a rule that rounds a quotient."""
    m = float_of_bits(q.largest) * tensor
    y: int = _any64(_quotient(top, bits_of_float(m)), q.scale)
    return max(y, q.smallest)


@njit
def _element(b: int, random: int, t: Target) -> float:
    """Return a rounded quotient from its bits; `random` is read in the stochastic mode only."""
    return float_of_bits(_drawn64(b, t, random) if t.mode == STOCHASTIC else _any64(b, t))


@njit
def round_block(
    part: np.ndarray,
    out: np.ndarray,
    lots: np.ndarray,
    e: int | np.int64,
    x: float,
    tensor: float,
    times: bool,
    power: bool,
    t: Target,
) -> None:
    """Round one block with the scale x, which is 2^e if `power` is true."""
    x_t = x * tensor
    for i in range(part.size):
        b = bits_of_float(np.float64(part[i]))
        a = b & MAGNITUDE64
        v = _shifted(a, e) if power else _quotient(a, bits_of_float(x_t))
        number = _element(v | (b & SIGN64), lots[i] if lots.size else 0, t)
        out[i] = number * x_t if times else number


@inlined
def _divided(part: np.ndarray, out: np.ndarray, x_t: float, times: bool, t: Target) -> None:
    """Round one block of float32 numbers by the processor's division, without random bits.

    The division rounds V / (X T) to 53 bits, which never moves it onto or across a rounding
    boundary m of the elements. For m has at most 12 bits, so m X T is a binary64 number, as V is.
    Either V = m X T, or they are at least one ulp of V apart, and then V / (X T) is more than half
    an ulp of m away from m. (A float64 V could be so small that the quotient becomes 0, so such
    arrays are rounded by `round_block`.)
    """
    factor = x_t if times else 1.0
    for i in range(part.size):
        out[i] = float_of_bits(_any64(bits_of_float(np.float64(part[i]) / x_t), t)) * factor


@compiled
def scaled(
    x: np.ndarray,
    y: np.ndarray,
    scales: np.ndarray,
    random: np.ndarray,
    size: int,
    tensor: float,
    times: bool,
    power: bool,
    p: Powers,
    q: Quotients,
    t: Target,
) -> None:
    """Quantize flat blocks.

    Args:
        x: the numbers, flat.
        y: receives the products T X P if `times` is true, else the elements P.
        scales: receives the scales X, one for each block.
        random: the stochastic mode's integers, of the shape of x, or an empty array.
        size: how many numbers a block has.
        tensor: the scale T of the whole array.
        times: whether y receives T X P.
        power: whether the scales are powers of two, given by p; otherwise q gives them.
        p: the rule that gives powers of two.
        q: the rule that rounds quotients.
        t: the rounding of the elements.
    """
    wide = x.itemsize == 8
    for n in range(scales.size):
        part = x[n * size : (n + 1) * size]
        out = y[n * size : (n + 1) * size]
        lots = random[n * size : (n + 1) * size]
        top = _largest(part)
        if top >= INFINITY64:
            scales[n], out[:] = np.nan, np.nan if times else 0.0
        else:
            e = exponent(top, p) if power else 0
            scales[n] = float_of_bits((e + 1023) << 52 if power else _scale(top, tensor, q))
            if wide or power or lots.size:
                round_block(part, out, lots, e, scales[n], tensor, times, power, t)
            else:
                _divided(part, out, scales[n] * tensor, times, t)


@compiled
def tensor_of(top: int, q: Quotients) -> float:
    """Return the scale T of an array from the bits of its largest finite magnitude."""
    return float_of_bits(max(_any64(_quotient(top, q.tensor_top), q.tensor), SMALLEST32))
