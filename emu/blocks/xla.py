"""The XLA executor of block formats, whose functions take and return JAX arrays.

In this module V is a number of a block, P its element, X the scale of the block and T the scale of
the whole array. The functions may be traced, jitted and vmapped.

`_wide` is the definition in binary64's bits, as in `emu.blocks.kernels`. `_power32` is for float32
arrays whose scales are powers of two. It uses 32-bit integers, which a GPU computes at the speed of
a copy; `_wide` is slower. V / X has the bits of V with another exponent, the rule of binary32
rounds it, and X P has the exponent moved back. For a subnormal number of binary32 the conversion of
its bits, as an integer, to a float gives the exponent, and a shift restores it. So no float
arithmetic touches a subnormal number, which XLA on a CPU would flush.

`row_of` writes a block format, or a `Rounding` without blocks, as one row of integers, so that one
compiled function serves all formats: the entries of the row may be arrays, and formats, scale
rules, modes and seeds are data. `round_row` rounds as such a row says. Only the size of a block,
and whether random bits are drawn, are static. Scales are powers of two.

`round_even` does the same for formats that need only ties-to-even and saturation (`is_even`). It
uses float arithmetic, at a fraction of the cost. Let u be the distance between elements in the
binade of V / X, and C = 2^23 u. The sum V / X + C lies in [C, 2 C). In this range the numbers of
binary32 are u apart, and the even ones are those that are even as elements. So the addition rounds,
and the subtraction of C is exact.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.backends.xla.rounding import (
    RULE32,
    RULE64,
    narrow,
    round_array,
    round_wide,
    widen,
)
from roundscope.emu.blocks.blocked import Blocked
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.four_over_six import LARGEST, chooses_four
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.blocks.rule import ONE, Quotients, build_block_rule, powers_of, quotients_of
from roundscope.emu.roundings.modes import BINARY32, Overflow, Rounding, RoundingMode
from roundscope.emu.roundings.random import random31
from roundscope.emu.roundings.rule import C32, C64, STOCHASTIC, Target, bits_of, target_of

RULE = build_block_rule(jnp.where, lambda a, b: lax.div(*jnp.broadcast_arrays(a, b)), lambda f: f)
jax.tree_util.register_dataclass(Blocked, ["elements", "scales", "tensor"], ["format", "axis"])
INFINITE32, LEAST32, NAN32 = C32.infinity, 1 << 23, C32.nan


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int64)


def _float(b: Array) -> Array:
    return lax.bitcast_convert_type(b, jnp.float64)


def _enter(x: Array) -> Array:
    return x if x.dtype == jnp.float64 else widen(x)


def _leave(y: Array, dtype: Any) -> Array:
    """Return float64 numbers in the array's type, by one rounding."""
    return y if dtype == jnp.float64 else narrow(round_wide(y, BINARY32))


def quantise(x: Array, f: BlockFormat, random: Array | None) -> tuple[Array, Array, Array]:
    """Return elements P (n, k), scales X (n, 1) and T (0-d) of blocks (n, k), all in float32."""
    with jax.enable_x64(True):
        p, scales, tensor = _wide(_enter(x), f, random)
        return narrow(p), narrow(scales), narrow(tensor)


def round_blocks(x: Array, f: BlockFormat, random: Array | None) -> Array:
    """Return blocks (n, k) of float32 or float64 numbers, rounded to the block format."""
    with jax.enable_x64(True):
        if x.dtype == jnp.float32 and f.power_of_two and _fits_32(f):
            return _power32(x, f, random)
        p, scales, tensor = _wide(_enter(x), f, random)
        return _leave(p * (scales * tensor), x.dtype)


def _fits_32(f: BlockFormat) -> bool:
    """Return whether 32-bit integers can compute a format.

    They can if every product of a scale and an element is a multiple of 2^-149, and if quotients
    below 2^-126 are too small to go up in the stochastic mode.
    """
    smallest = f.element.format.min_positive
    return smallest * f.scale.min_positive >= 2.0**-149 and smallest >= 2.0**-90


def _wide(x: Array, f: BlockFormat, random: Array | None) -> tuple[Array, Array, Array]:
    """Return P (n, k), X (n, 1) and T of float64 blocks (n, k), in float64."""
    if f.rule is not ScaleRule.FOUR_OVER_SIX:
        return _wide_by(x, f, random)
    (p6, x6, tensor), (p4, x4, _) = (_wide_by(x, f, random, m) for m in LARGEST)
    products = p6 * (x6 * tensor), p4 * (x4 * tensor)
    four = chooses_four(jnp, lambda e: round_wide(e, BINARY32), x, *products)
    return jnp.where(four, p4, p6), jnp.where(four, x4, x6), tensor


def _wide_by(
    x: Array, f: BlockFormat, random: Array | None, m: float | None = None
) -> tuple[Array, Array, Array]:
    """Return what `_wide` does; m: in place of the largest element, as `quotients_of` has it."""
    b = _bits(x)
    a = b & C64.magnitude
    top = a.max(axis=1, keepdims=True)
    good = top < C64.infinity
    given = 1.0 if not f.tensor else f.tensor_scale
    tensor = _tensor(a, quotients_of(f)) if given is None else jnp.float64(given)
    if f.power_of_two:
        e = RULE.exponent(top, powers_of(f))
        q, scales = RULE.shifted(a, e), _float((e + 1023) << 52)
    else:
        scales = _scale(top, tensor, quotients_of(f, m))
        q = RULE.quotient(a, _bits(scales * tensor))
    signed = _float(jnp.where(good, q, 0) | (b & ~jnp.int64(C64.magnitude)))
    p = round_wide(signed, f.element, random)
    return jnp.where(good, p, 0.0), jnp.where(good, scales, jnp.nan), tensor


def _scale(top: Array, tensor: Array, q: Quotients) -> Array:
    """Return the scales X by a rule that rounds a quotient."""
    m = _bits(_float(jnp.int64(q.largest)) * tensor)
    return _float(jnp.maximum(_rounded(RULE.quotient(top, m), q.scale), q.smallest))


def _rounded(a: Array, t: Target) -> Array:
    magnitude: Array = RULE64.any_mode(a, Target._make(np.int64(n) for n in t))
    return magnitude


def _tensor(a: Array, q: Quotients) -> Array:
    """Return T from the largest finite magnitude."""
    top = jnp.where(a < C64.infinity, a, 0).max()
    y = _rounded(RULE.quotient(top, jnp.int64(q.tensor_top)), q.tensor)
    return jnp.where(top == 0, 1.0, _float(jnp.maximum(y, bits_of(2.0**-149, C64))))


def _power32(x: Array, f: BlockFormat, random: Array | None) -> Array:
    """Return float32 blocks rounded to a block format in 32-bit integers.

    The scales of the format must be powers of two.
    """
    b = lax.bitcast_convert_type(x, jnp.int32)
    a = b & C32.magnitude
    top = a.max(axis=1, keepdims=True)
    exponent = RULE.exponent(_bits(widen(lax.bitcast_convert_type(top, jnp.float32))), powers_of(f))
    step = exponent.astype(jnp.int32) << 23
    q = jnp.where(a == 0, 0, jnp.clip(_normal(a) - step, LEAST32, INFINITE32 - 1))
    y = round_array(
        lax.bitcast_convert_type(q | (b & ~jnp.int32(C32.magnitude)), jnp.float32),
        f.element,
        random,
    )
    back = _times(lax.bitcast_convert_type(y, jnp.int32), step)
    return lax.bitcast_convert_type(jnp.where(top < INFINITE32, back, NAN32), jnp.float32)


def _normal(a: Array) -> Array:
    """Return the bits of a magnitude as if binary32 had no smallest exponent.

    A subnormal number gets the bits of a normal one, whose exponent field may be negative.
    """
    converted = lax.bitcast_convert_type(a.astype(jnp.float32), jnp.int32) - (149 << 23)
    return jnp.where(a < LEAST32, converted, a)


def _times(b: Array, step: Array) -> Array:
    """Return the bits of a rounded number times 2^(step >> 23).

    A subnormal result is exact, and a result that is too large for binary32 is infinite.
    """
    m = b & C32.magnitude
    moved = m + step
    units = ((m & (LEAST32 - 1)) | LEAST32) >> jnp.clip(1 - (moved >> 23), 0, 31)
    y = jnp.where(moved < LEAST32, units, jnp.where(moved > INFINITE32, INFINITE32, moved))
    sign: Array = b & ~jnp.int32(C32.magnitude)
    return jnp.where((m == 0) | (m >= INFINITE32), m, y) | sign


def dequantise(p: Array, scales: Array, tensor: Array) -> Array:
    """Return T X P in float32, from float32 parts."""
    with jax.enable_x64(True):
        return _leave(widen(p) * (widen(scales) * widen(jnp.asarray(tensor))), jnp.float32)


SIGN = np.int32(~C32.magnitude)


class Scales(NamedTuple):
    """The scale rule in the bits of binary32; if `blocked` is 0, every scale is 1."""

    blocked: Any
    push: Any
    emax: Any
    low: Any
    high: Any


T = len(Target._fields)
FIELDS = len(Scales._fields) + T + 1  # and the seed
SEED = FIELDS - 1


@lru_cache(4096)
def row_of(f: BlockFormat | Rounding) -> np.ndarray:
    """Return a format as int32 numbers of shape (FIELDS,), without its block size.

    Raises ValueError for formats that 32-bit integers cannot compute: those with scales that are
    not powers of two, with tiles, or with numbers beyond binary32.
    """
    if isinstance(f, Rounding):
        return _row(Scales(0, 0, 0, 0, 0), f)
    if not f.power_of_two or f.rows > 1 or not _fits_32(f):
        raise ValueError(f"{f}: only blocks of one line whose scales are powers of two run as data")
    p = powers_of(f)
    # the limit of the fraction is cut to 23 bits; no binary32 number lies between the two limits
    push = LEAST32 - 1 - ((ONE - 1 - p.push) >> 29)
    return _row(Scales(1, push, p.emax, p.low, p.high), f.element)


def _row(scales: Scales, element: Rounding) -> np.ndarray:
    seed = int(np.uint32(element.seed).view(np.int32))
    return np.array([*scales, *target_of(element, C32), seed], dtype=np.int32)


def round_row(x: Array, row: Array, size: int, axis: int, *, drawn: bool = False) -> Array:
    """Return a float32 array with every number rounded to the format of a row, as `row_of` writes
    it.

    The bits are those of `emu.round_blocks`, or of `emu.round_to` for a row without blocks. Blocks
    of `size` numbers run along an axis, whose length must be a multiple, since nothing is padded
    here. If `drawn`, the row's mode may be stochastic: the random bits depend on the seed in the
    row and a number's flat index in x, as in `round_blocks`.
    """
    y, _, _, back, top = _parts(x, row, size, axis, drawn)
    scaled = jnp.where(top < INFINITE32, _times(y, back), NAN32)
    bits = jnp.where(row[0] == 1, scaled, y)
    return lax.bitcast_convert_type(bits, jnp.float32).reshape(x.shape)


def is_even(f: BlockFormat | Rounding) -> bool:
    """Return whether `round_even` can round to a format.

    It can if the mode is ties-to-even. The elements of a block format must saturate. A rounding
    without blocks must be to a format with the exponents of binary32 and overflow to infinity.
    """
    if isinstance(f, Rounding):
        return (
            f.mode is RoundingMode.TIES_TO_EVEN
            and f.keeps_specials
            and (f.format.emin, f.format.emax) == (-126, 127)
        )
    return f.element.mode is RoundingMode.TIES_TO_EVEN and f.element.overflow is Overflow.SATURATE


def round_even(x: Array, row: Array, size: int, axis: int) -> Array:
    """Return what `round_row` returns, for rows of formats that are `is_even`.

    The bits are the same except for arguments and results that are subnormal numbers of binary32,
    which a device may replace by zeros.
    """
    s, t, b, _, axis = _opened(x, row, size, axis)
    a = b & C32.magnitude
    top = a.max(axis=axis + 1, keepdims=True)
    exponent = jnp.clip(((top + s.push) >> 23) - C32.bias - s.emax, s.low, s.high)
    half = exponent >> 1
    down, up = _power(-half), _power(half)
    rest_down, rest_up = _power(half - exponent), _power(exponent - half)
    q = _floats(a) * down * rest_down
    c = _floats((jnp.maximum(lax.bitcast_convert_type(q, jnp.int32) >> 23, t.emin) + t.drop) << 23)
    p = (q + c) - c
    # if V / X is far too large, c and p are NaN, and the comparison gives the largest element too
    p = jnp.where(p < _floats(t.largest), p, _floats(t.largest))
    y = lax.bitcast_convert_type(p * up * rest_up, jnp.int32)
    scaled = jnp.where(top < INFINITE32, RULE32.signed(y, b, t), NAN32)
    return _floats(jnp.where(s.blocked == 1, scaled, _plain(b, a, t))).reshape(x.shape)


def _plain(b: Array, a: Array, t: Target) -> Array:
    """Return the bits b rounded to nearest even, with the last t.drop bits cleared; a is |b|.

    A carry goes into the exponent, and on to infinity, by itself.
    """
    unit = 1 << t.drop
    return jnp.where(
        a >= INFINITE32, b, ((a + ((unit - 1 + ((a >> t.drop) & 1)) >> 1)) & -unit) | (b & SIGN)
    )


def _floats(bits: Any) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _power(n: Array) -> Array:
    """Return 2^n for n from -126 to 127."""
    return _floats((n + C32.bias) << 23)


def ends_row(x: Array, row: Array, size: int, axis: int) -> tuple[Array, Array]:
    """Return (clipped, last), two shares of the numbers.

    `clipped` is the share of numbers that are too large for their scale, and `last` the share of
    numbers whose element is the largest one.
    """
    y, q, t, _, _ = _parts(x, row, size, axis, False)

    def share(flags: Array) -> Array:
        return jnp.mean(flags.astype(jnp.float32))

    return share(q > t.largest), share((y & C32.magnitude) == t.largest)


def _parts(
    x: Array, row: Array, size: int, axis: int, drawn: bool
) -> tuple[Array, Array, Target, Array, Array]:
    """Return the parts of a rounding by a row, in the shape of blocks.

    They are the bits of the elements, the bits of the quotients of magnitudes and scales, the
    target, the exponents of the scales shifted to the exponent field, and the bits of the blocks'
    largest magnitudes.
    """
    s, t, b, shape, axis = _opened(x, row, size, axis)
    a = b & C32.magnitude
    top = a.max(axis=axis + 1, keepdims=True)
    exponent = jnp.clip(((_normal(top) + s.push) >> 23) - C32.bias - s.emax, s.low, s.high)
    step = exponent << 23
    moved = jnp.where(a == 0, 0, jnp.clip(_normal(a) - step, LEAST32, INFINITE32 - 1))
    q = jnp.where(s.blocked == 1, moved, a)
    v = q | (b & SIGN)
    y = RULE32.any_mode(v, t)
    if drawn:
        lots = _lots(x.shape, row[SEED]).reshape(shape)
        y = jnp.where(t.mode == STOCHASTIC, RULE32.stochastic(v, t, lots), y)
    return y, q, t, step, top


def _opened(
    x: Array, row: Array, size: int, axis: int
) -> tuple[Scales, Target, Array, tuple[int, ...], int]:
    """Return the row's parts, the bits of x in the shape of blocks, that shape, and the axis."""
    axis %= x.ndim
    shape = (*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])
    s, t = Scales._make(row[i] for i in range(5)), Target._make(row[5 + i] for i in range(T))
    return s, t, lax.bitcast_convert_type(x, jnp.int32).reshape(shape), shape, axis


def _lots(shape: tuple[int, ...], seed: Array) -> Array:
    """Return `emu.roundings.random.event_bits` of each number's flat index, which is below 2^32."""
    index = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32)
    zero = jnp.zeros((), jnp.uint32)
    key = lax.bitcast_convert_type(seed, jnp.uint32), zero
    lots: Array = random31(key, (jnp.broadcast_to(zero, index.shape), index))
    return lots.astype(jnp.int32)
