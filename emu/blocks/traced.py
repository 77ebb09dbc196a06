"""A `BlockFormat` as numbers that XLA traces, so that one compiled function serves all formats.

`row_of` writes a block format, or a `Rounding` without blocks, as one row of integers. `round_row`
rounds as such a row says; the entries of the row may be arrays. So formats, scale rules, modes and
seeds are data. Only the size of a block, and whether random bits are drawn, are static. The
arithmetic is that of `emu.blocks.xla` in binary32's bits, and scales are powers of two.

`round_even` does the same for formats that need only ties-to-even and saturation (`is_even`). It
uses float arithmetic, at a fraction of the cost. Let V be a number, X its scale, u the distance
between elements in the binade of V / X, and C = 2^23 u. The sum V / X + C lies in [C, 2 C). In this
range the numbers of binary32 are u apart, and the even ones are those that are even as elements. So
the addition rounds, and the subtraction of C is exact.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.backends.xla.rounding import RULE32
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.rule import ONE, powers_of
from roundscope.emu.blocks.xla import INFINITE32, LEAST32, NAN32, _fits_32, _normal, _times
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode
from roundscope.emu.roundings.random import random31
from roundscope.emu.roundings.rule import C32, STOCHASTIC, Target, target_of

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
    """Return a float32 array with every number rounded to the format of a row.

    The bits are those of `emu.round_blocks`, or of `emu.round_to` for a row without blocks.

    Args:
        x: a float32 array.
        row: the format, as `row_of` writes it.
        size: how many numbers a block has; x.shape[axis] must be a multiple of it, since nothing is
            padded here.
        axis: the axis along which the blocks run.
        drawn: whether the row's mode may be stochastic. The random bits then depend on the seed in
            the row and a number's flat index in x, as in `round_blocks`.
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
