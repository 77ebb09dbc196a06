"""Roundings by NumPy's own functions, for calls that would start Numba for nothing else.

Numba takes a third of a second to start in a process. Its kernels round twenty times as fast, so
they have everything that is computed often.
"""

import numpy as np

from roundscope.emu.roundings.modes import BINARY32, Rounding, RoundingMode
from roundscope.emu.roundings.rule import C64, build_rule, target_of

_RULE = build_rule(C64, np.where, lambda f: f)
_MANY = 1 << 22  # so many take as long as Numba takes to start
_PIECE = 1 << 13  # so many numbers and what is computed of them fit into a cache


def in_binary32(x: np.ndarray) -> np.ndarray:
    """Return a float64 array rounded by `BINARY32`, in C order."""
    with np.errstate(all="ignore"):  # an overflow, a signaling NaN
        y = x.astype(np.float32, order="C").astype(np.float64)
    if np.isnan(y).any():  # a NaN keeps its sign and no payload
        y = np.where(np.isnan(y), np.copysign(np.nan, x), y)
    return y


def rounded(x: np.ndarray, r: Rounding) -> np.ndarray:
    """Return a float64 array rounded in any mode but the stochastic one; many numbers by Numba."""
    if r == BINARY32:
        return in_binary32(x)
    if x.size > _MANY:
        from roundscope.emu.backends.numba.rounding import round_array

        return round_array(x, r)
    target, result = target_of(r, C64), np.empty(x.shape)
    rule = _RULE.nearest_even if r.mode is RoundingMode.TIES_TO_EVEN else _RULE.any_mode
    bits, out = np.ascontiguousarray(x).reshape(-1).view(np.int64), result.reshape(-1)
    for lo in range(0, bits.size, _PIECE):
        out[lo : lo + _PIECE] = rule(bits[lo : lo + _PIECE], target).view(np.float64)
    return result
