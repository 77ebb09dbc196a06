"""The XLA executor of block formats, whose functions take and return JAX arrays.

In this module V is a number of a block, P its element, X the scale of the block and T the scale of
the whole array. The functions may be traced, jitted and vmapped.

`_wide` is the definition in binary64's bits, as in `emu.blocks.kernels`. `_power32` is for float32
arrays whose scales are powers of two. It uses 32-bit integers, which a GPU computes at the speed of
a copy; `_wide` is slower. V / X has the bits of V with another exponent, the rule of binary32
rounds it, and X P has the exponent moved back. For a subnormal number of binary32 the conversion of
its bits, as an integer, to a float gives the exponent, and a shift restores it. So no float
arithmetic touches a subnormal number, which XLA on a CPU would flush.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.backends.xla.rounding import RULE64, narrow, round_array, round_wide, widen
from roundscope.emu.blocks.api import Blocked
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.rule import Quotients, build_block_rule, powers_of, quotients_of
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.roundings.rule import C32, C64, Target, bits_of

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
    b = _bits(x)
    a = b & C64.magnitude
    top = a.max(axis=1, keepdims=True)
    good = top < C64.infinity
    tensor = _tensor(a, quotients_of(f)) if f.tensor else jnp.float64(1.0)
    if f.power_of_two:
        e = RULE.exponent(top, powers_of(f))
        q, scales = RULE.shifted(a, e), _float((e + 1023) << 52)
    else:
        scales = _scale(top, tensor, quotients_of(f))
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
