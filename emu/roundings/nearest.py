"""Rounding to nearest even by two float additions, for the inner loop of a sum under XLA.

The result is y = (x + c) - c with c = 1.5 * 2^(e + 53 - p). Here e is the exponent of x, or the
target's smallest exponent emin if that is larger, and p is the target's precision. In x + c the
last bit of binary64 is the last bit that the target keeps, so the addition rounds x to nearest even
there; the subtraction is exact. This is five times as fast as the rule on a CPU and equal to it in
every bit (tests/emu/roundings/test_nearest.py). c depends on x, so no compiler folds (x + c) - c.
Where |x| is 2^(971 + p) or more, c would lie beyond binary64: its bits are those of NaN for one
binade, and those of tiny numbers above it. Then y is NaN or x itself, and the test against the
largest number treats both as overflows.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.roundings.modes import NanPolicy, Rounding, RoundingMode
from roundscope.emu.roundings.rule import Target

EXPONENT = 0x7FF0_0000_0000_0000
SIGN = -(2**63)


def takes_nearest_even(r: Rounding) -> bool:
    """Return whether `nearest_even` covers a rounding.

    It covers the mode ties-to-even in signed formats that have -0 and fit binary32, where NaN stays
    NaN.
    """
    f = r.format
    keeps_nan = f.nan or r.nan is NanPolicy.KEEP
    plain = f.fits_binary32 and f.negative_zero and f.signed and keeps_nan
    return plain and r.mode is RoundingMode.TIES_TO_EVEN


def nearest_even(x: Array, t: Target) -> Array:
    """Return a float64 array rounded once to a target in binary64's bits; NaN stays NaN.

    64-bit types must be enabled. A target whose parameters are arrays may be binary64 itself, which
    drops no bits; x then stays unchanged.
    """
    b = lax.bitcast_convert_type(x, jnp.int64)
    exponent = b & EXPONENT
    e = jnp.maximum(exponent, _word(t.emin) << 52)
    c = _float(e + ((_word(t.drop) << 52) | (1 << 51)))  # drop = 53 - p
    y = (x + c) - c
    # (x + c) - c loses the sign of a zero
    y = _float(lax.bitcast_convert_type(y, jnp.int64) | (b & SIGN))
    y = jnp.where(
        jnp.abs(y) <= _float(_word(t.largest)), y, jnp.copysign(_float(_word(t.over_positive)), x)
    )
    y = jnp.where(
        exponent == EXPONENT,
        jnp.where(jnp.isnan(x), x, jnp.copysign(_float(_word(t.infinite)), x)),
        y,
    )
    return y if isinstance(t.drop, int) else jnp.where(t.drop == 0, x, y)


def _word(n: Any) -> Any:
    return np.int64(n) if isinstance(n, int) else n


def _float(bits: Any) -> Any:
    return (
        bits.view(np.float64)
        if isinstance(bits, np.int64)
        else lax.bitcast_convert_type(bits, jnp.float64)
    )
