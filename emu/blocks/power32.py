"""Blocks of float32 numbers with powers of two as scales, rounded in binary32's bits.

This is the fast path of `emu.blocks.kernels`. The products of a scale 2^e and the elements are the
numbers of a format too: that of the elements, with e added to all exponents. The rule for binary32
rounds a block to this moved format directly. Blocks whose moved format would reach binary32's
subnormal numbers, and those with an infinity or a NaN, are rounded by the definition in binary64's
bits. The results are equal in every bit (tests/emu/blocks/test_block_round.py).
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.numba.jit import compiled, njit
from roundscope.emu.backends.numba.rounding import RULE32, bits_of_float, float_of_bits, where
from roundscope.emu.backends.numba.word import from_word, to_word
from roundscope.emu.blocks.rule import Powers
from roundscope.emu.blocks.scaled import exponent, round_block
from roundscope.emu.roundings.rule import C32, EVEN, STOCHASTIC, Target

_even32, _any32, _drawn32, _ = RULE32
MAGNITUDE32, INFINITY32, NAN32 = C32.magnitude, C32.infinity, C32.nan
AT_ONCE = 1 << 13  # numbers that are rounded while they are in the cache


@njit
def _top32(x: np.ndarray) -> Any:
    """Return the bits of the largest magnitude."""
    top = to_word(np.int32(0))
    for i in range(x.size):
        a = to_word(x[i]) & MAGNITUDE32
        top = where(a > top, a, top)
    return from_word(top)


@njit
def _moved(t: Target, e: Any) -> Target:
    """Return the target with every number multiplied by 2^e.

    Its smallest number must be in the second binade of binary32's normal numbers or above.
    """
    step = e << 23
    return Target(
        t.drop,
        24,
        t.emin + e,
        t.smallest + step,
        t.largest + step,
        where(t.over_positive < INFINITY32, t.over_positive + step, t.over_positive),
        where(t.over_negative < INFINITY32, t.over_negative + step, t.over_negative),
        t.infinite,
        t.nan,
        t.floor,
        t.signed_zero,
        t.unsigned,
        t.mode,
    )


@njit
def _exponents32(x: np.ndarray, size: int, p: Powers, t: Target, e: np.ndarray) -> int:
    """Write the scale exponent of every block to e; return how many blocks are not `_plain`."""
    special = 0
    for n in range(e.size):
        top = _top32(x[n * size : (n + 1) * size])
        e[n] = exponent(bits_of_float(np.float64(np.int32(top).view(np.float32))), p)
        special += not _plain(top, e[n], t)
    return special


@njit
def _plain(top: Any, e: Any, t: Target) -> Any:
    """Return whether a block can be rounded in binary32's bits.

    It can if its numbers are finite and its moved format lies above binary32's subnormal numbers.
    """
    return (top < INFINITY32) & (t.smallest >= 1 << 23) & ((t.smallest >> 23) + e >= 2)


@njit
def _even_blocks(x: np.ndarray, y: np.ndarray, size: int, e: np.ndarray, t: Target) -> None:
    for n in range(e.size):
        part = x[n * size : (n + 1) * size]
        out = y[n * size : (n + 1) * size]
        moved = _moved(t, np.int64(e[n]))
        for i in range(part.size):
            out[i] = from_word(_even32(to_word(part[i]), moved))


@njit
def _any_blocks(x: np.ndarray, y: np.ndarray, size: int, e: np.ndarray, t: Target) -> None:
    for n in range(e.size):
        part = x[n * size : (n + 1) * size]
        out = y[n * size : (n + 1) * size]
        moved = _moved(t, np.int64(e[n]))
        for i in range(part.size):
            out[i] = from_word(_any32(to_word(part[i]), moved))


@njit
def _drawn_blocks(
    x: np.ndarray, y: np.ndarray, random: np.ndarray, size: int, e: np.ndarray, t: Target
) -> None:
    for n in range(e.size):
        part = x[n * size : (n + 1) * size]
        out = y[n * size : (n + 1) * size]
        lots = random[n * size : (n + 1) * size]
        moved = _moved(t, np.int64(e[n]))
        for i in range(part.size):
            out[i] = from_word(_drawn32(to_word(part[i]), moved, to_word(lots[i])))


@njit
def _special_blocks(
    x: np.ndarray,
    y: np.ndarray,
    random: np.ndarray,
    size: int,
    e: np.ndarray,
    t: Target,
    t64: Target,
) -> None:
    """Write the blocks that are not plain."""
    for n in range(e.size):
        part = x[n * size : (n + 1) * size]
        out = y[n * size : (n + 1) * size]
        lots = random[n * size : (n + 1) * size]
        top = _top32(part)
        if top >= INFINITY32:
            out[:] = NAN32
        elif not _plain(top, e[n], t):
            scale = float_of_bits((np.int64(e[n]) + 1023) << 52)
            round_block(
                part.view(np.float32),
                out.view(np.float32),
                lots,
                np.int64(e[n]),
                scale,
                1.0,
                True,
                True,
                t64,
            )


@compiled
def power32(
    x: np.ndarray, y: np.ndarray, random: np.ndarray, size: int, p: Powers, t: Target, t64: Target
) -> None:
    """Round flat blocks of a float32 array, given as int32, by a rule that gives powers of two.

    t and t64 are the elements' target in the bits of binary32 and of binary64. The function takes a
    few blocks at a time, so that they stay in the cache. It computes their exponents, rounds all of
    them in one loop, and then rounds those that are not plain once more.
    """
    blocks, some = x.size // size, max(1, AT_ONCE // size)
    exponents = np.zeros(some, np.int32)
    for lo in range(0, blocks, some):
        hi = min(lo + some, blocks)
        part = x[lo * size : hi * size]
        out = y[lo * size : hi * size]
        lots = random[lo * size : hi * size]
        e = exponents[: hi - lo]
        special = _exponents32(part, size, p, t, e)
        if t.mode == STOCHASTIC:
            _drawn_blocks(part, out, lots, size, e, t)
        elif t.mode == EVEN:
            _even_blocks(part, out, size, e, t)
        else:
            _any_blocks(part, out, size, e, t)
        if special:
            _special_blocks(part, out, lots, size, e, t, t64)
