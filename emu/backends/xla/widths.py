"""Conversions between binary32 and binary64 under XLA, on bits.

XLA on a CPU flushes subnormal numbers in float arithmetic and in conversions, but not in integer
arithmetic. So these two functions convert binary32 arrays to the binary64 carrier and back.
"""

import jax.numpy as jnp
from jax import Array, lax

REBIAS = (1023 - 127) << 52


def widen(x: Array) -> Array:
    """Return float32 numbers as float64, exactly, subnormal numbers included.

    64-bit types must be enabled.
    """
    b = lax.bitcast_convert_type(x, jnp.int32).astype(jnp.int64)
    a = b & 0x7FFF_FFFF
    normal = (a << 29) + REBIAS
    special = (a << 29) | 0x7FF0_0000_0000_0000
    subnormal = lax.bitcast_convert_type(a.astype(jnp.float64) * 2.0**-149, jnp.int64)
    wide = jnp.where(a >= 0x7F80_0000, special, jnp.where(a < 0x0080_0000, subnormal, normal))
    return lax.bitcast_convert_type(wide | jnp.where(b < 0, jnp.int64(-(2**63)), 0), jnp.float64)


def narrow(x: Array) -> Array:
    """Return float64 numbers as float32, exactly; binary32 must hold them, so round them first."""
    b = lax.bitcast_convert_type(x, jnp.int64)
    a = b & 0x7FFF_FFFF_FFFF_FFFF
    e = a >> 52
    normal = (a - REBIAS) >> 29
    significand = (a & (2**52 - 1)) | (1 << 52)
    subnormal = significand >> jnp.clip(29 + (1023 - 126) - e, 0, 63)
    special = 0x7F80_0000 | ((a & (2**52 - 1)) >> 29)
    bits = jnp.where(e == 2047, special, jnp.where(e < 1023 - 126, subnormal, normal))
    return lax.bitcast_convert_type(
        (bits | jnp.where(b < 0, 1 << 31, 0)).astype(jnp.uint32), jnp.float32
    )
