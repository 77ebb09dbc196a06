"""The Numba executor of block formats, which makes one pass over memory on two threads or more.

In this module P stands for the elements, X for the scales of blocks and T for the scale of the
whole array; the numbers are T X P.

**The definition** (`scaled`), in the bits of binary64, computes the scale X of a block, the
quotients V / (T X) of its numbers V, the elements P and the products T X P.

**The fast path** (`power32`) is for float32 numbers with powers of two as scales. The products of a
scale 2^e and the elements are the numbers of a format too: that of the elements, with e added to
all exponents. The rule for binary32 rounds a block to this moved format directly. Blocks whose
moved format would reach binary32's subnormal numbers, and those with an infinity or a NaN, are
rounded by the definition. The results are equal in every bit
(tests/emu/blocks/test_block_round.py).
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.numba.jit import closure, compiled, inlined, njit
from roundscope.emu.backends.numba.rounding import (
    RULE32,
    RULE64,
    bits_of_float,
    float_of_bits,
    where,
)
from roundscope.emu.backends.numba.word import from_word, to_word
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.four_over_six import LARGEST, chooses_four
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.blocks.rule import (
    Powers,
    Quotients,
    build_block_rule,
    element_of,
    powers_of,
    quotients_of,
)
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.roundings.rule import C32, C64, EVEN, STOCHASTIC, Target, bits_of, target_of

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
    """Quantize flat blocks of `size` numbers x; random: the stochastic mode's integers, or empty.

    y receives the products T X P if `times` is true, else the elements P; `scales` receives the
    scales X, one for each block; `tensor` is the scale T of the whole array. If `power` is true,
    the scales are powers of two, by the rule p; otherwise q rounds quotients. t is the rounding of
    the elements.
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


NO_BITS = np.zeros(0, np.int32)
_NO_QUOTIENTS = Quotients(0, target_of(BINARY32, C64), 0, 0, target_of(BINARY32, C64))
_NO_POWERS = Powers(0, 0, 0, 0)


def tensor_scale(x: np.ndarray, f: BlockFormat) -> float:
    """Return the scale T of a whole array of blocks, which is 1 where the format has none."""
    if not f.tensor:
        return 1.0
    if f.tensor_scale is not None:
        return f.tensor_scale
    finite = np.abs(x[np.isfinite(x)])
    top = float(finite.max()) if finite.size else 0.0
    return tensor_of(int(np.float64(top).view(np.int64)), quotients_of(f)) if top else 1.0


def _parts(size: int, block: int) -> Any:
    """Return a function that maps the range (lo, hi) of a thread to a slice of whole blocks.

    `size` is the number of all numbers and `block` that of the numbers in a block.
    """
    return lambda lo, hi: slice(lo // block * block, hi // block * block if hi < size else size)


def round_blocks(
    x: np.ndarray, f: BlockFormat, random: np.ndarray | None, out: np.ndarray | None = None
) -> np.ndarray:
    """Return blocks (n, k) of float32 or float64 numbers, rounded to the block format.

    `out`, a contiguous array, receives the result; it may be x itself.
    """
    y = np.empty(x.shape, x.dtype) if out is None else out
    x = x.copy() if np.shares_memory(x, y) else x
    lots = NO_BITS if random is None else np.ascontiguousarray(random).reshape(-1)
    if x.dtype != np.float32 or not f.power_of_two:
        _run_scaled(x, y, lots, f, times=True)
        return y
    k, cut = x.shape[1], _parts(x.size, x.shape[1])
    flat, result = np.ascontiguousarray(x).reshape(-1).view(np.int32), y.reshape(-1).view(np.int32)
    shared = (k, powers_of(f), target_of(f.element, C32), element_of(f))
    over_threads(
        lambda lo, hi: power32(
            flat[(p := cut(lo, hi))], result[p], lots[p] if lots.size else lots, *shared
        ),
        x.size,
    )
    return y


def quantise(
    x: np.ndarray, f: BlockFormat, random: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Return elements P (n, k), scales X (n, 1) and T of blocks (n, k), all in float32."""
    y = np.empty(x.shape, np.float32)
    lots = NO_BITS if random is None else np.ascontiguousarray(random).reshape(-1)
    scales, tensor = _run_scaled(x, y, lots, f, times=False)
    return y, scales.astype(np.float32)[:, None], np.float32(tensor)


def dequantise(p: np.ndarray, scales: np.ndarray, tensor: float) -> np.ndarray:
    """Return the numbers T X P in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (p.astype(np.float64) * (scales.astype(np.float64) * float(tensor))).astype(
            np.float32
        )


def _run_scaled(
    x: np.ndarray, y: np.ndarray, lots: np.ndarray, f: BlockFormat, times: bool
) -> tuple[np.ndarray, float]:
    """Write what `scaled` does to y; return the scales X, (n,) in float64, and the scale T."""
    if f.rule is not ScaleRule.FOUR_OVER_SIX:
        return _run_by(x, y, lots, f, times)
    pairs = [(p := np.empty_like(x), _run_by(x, p, lots, f, False, m)) for m in LARGEST]
    products = [p * (scales[:, None] * tensor) for p, (scales, tensor) in pairs]  # in binary64
    four = chooses_four(np, lambda e: e.astype(np.float32).astype(np.float64), x, *products)
    by_six, by_four = products if times else [p for p, _ in pairs]
    (in_six, tensor), (in_four, _) = (found for _, found in pairs)
    with np.errstate(over="ignore"):
        y[:] = np.where(four, by_four, by_six)
    return np.where(four[:, 0], in_four, in_six), tensor


def _run_by(
    x: np.ndarray,
    y: np.ndarray,
    lots: np.ndarray,
    f: BlockFormat,
    times: bool,
    m: float | None = None,
) -> tuple[np.ndarray, float]:
    """Run `scaled` over threads; m: in place of the largest element, as `quotients_of` has it."""
    k, power, tensor = x.shape[1], f.power_of_two, tensor_scale(x, f)
    scales, cut = np.empty(x.shape[0]), _parts(x.size, x.shape[1])
    flat, result = np.ascontiguousarray(x).reshape(-1), y.reshape(-1)
    p, q = (powers_of(f), _NO_QUOTIENTS) if power else (_NO_POWERS, quotients_of(f, m))

    def job(lo: int, hi: int) -> None:
        part = cut(lo, hi)
        blocks = slice(part.start // k, part.stop // k)
        scaled(
            flat[part],
            result[part],
            scales[blocks],
            lots[part] if lots.size else lots,
            k,
            tensor,
            times,
            power,
            p,
            q,
            element_of(f),
        )

    over_threads(job, x.size)
    return scales, tensor
