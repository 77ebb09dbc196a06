"""Roundings and products by a GPU's own instructions, for kernels: a few operations where the rule takes forty.

A GPU converts binary64 to binary32 and binary32 to bfloat16 or binary16 to nearest even, subnormal numbers included. There is no
conversion from binary64 to the narrow two, and two in a row would round twice. So the first rounds **to odd**: where binary32 had to
drop something, the result is the neighbour whose last bit is 1, which lies on no boundary of a format with 22 bits or fewer, so that
the second conversion sees on which side of it x was (Boldo and Melquiond 2008).
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

from emu.rounding import BF16, BINARY32, FP16, Rounding

NARROW = {BF16: jnp.bfloat16, FP16: jnp.float16}


def converted(x: Array, r: Rounding) -> Array | None:
    """A float64 array rounded once, by conversions; None where they do not do that."""
    if r == BINARY32:
        return x.astype(jnp.float32).astype(jnp.float64)
    if r not in NARROW:
        return None
    return to_odd(x).astype(NARROW[r]).astype(jnp.float32).astype(jnp.float64)


def to_odd(x: Array) -> Array:
    """A float64 array as float32: itself, or the neighbour with an odd last bit. Beyond the largest number: that, or infinity."""
    y = x.astype(jnp.float32)
    b, back = lax.bitcast_convert_type(y, jnp.int32), y.astype(jnp.float64)
    toward = jnp.where(jnp.abs(x) > jnp.abs(back), 1, -1).astype(jnp.int32)
    moves = (back != x) & (b & 1 == 0) & (x == x)
    return lax.bitcast_convert_type(jnp.where(moves, b + toward, b), jnp.float32)


def multiplied(a: Array, b: Array) -> Array:
    """a * b of float64 arrays inside a kernel; an instruction that says how it rounds is not fused with an addition."""
    a, b = jnp.broadcast_arrays(jnp.asarray(a, jnp.float64), jnp.asarray(b, jnp.float64))
    (product,) = triton.elementwise_inline_asm(
        "mul.rn.f64 $0, $1, $2;", args=[a, b], constraints="=d,d,d", pack=1, result_shape_dtypes=[jax.ShapeDtypeStruct(a.shape, a.dtype)]
    )
    return product
