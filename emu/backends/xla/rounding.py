"""The XLA executor of the rule, which takes and returns JAX arrays on whatever device holds them.

The rule works on integers from a bitcast, which no XLA pass removes (XLA removes a conversion by
`astype` and back). Every function here may be traced, jitted and vmapped.

XLA on a CPU flushes subnormal numbers in float arithmetic and in conversions, but not in integer
arithmetic. So `widen` and `narrow` convert binary32 arrays to the binary64 carrier and back, on
bits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.backends.xla.traced import TracedRounding
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.roundings.rule import C32, C64, Rule, Target, build_rule, target_of

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


RULE32 = build_rule(C32, jnp.where, lambda f: f)
RULE64 = build_rule(C64, jnp.where, lambda f: f)


def round_array(x: Array, r: Rounding, random: Array | None = None) -> Array:
    """Return x, a float32 or float64 array, rounded once.

    `random`, an int32 array of x's shape, has the integers of the stochastic mode.
    """
    if x.dtype == jnp.float64:  # to binary64 too: NaN loses its payload, as in every format
        return _apply(RULE64, jnp.int64, x, r, target_of(r, C64), random)
    if not r.format.fits_binary32:
        with jax.enable_x64(True):
            return narrow(round_wide(widen(x), r, random))
    return _apply(RULE32, jnp.int32, x, r, target_of(r, C32), random)


def round_wide(x: Array, r: Rounding | TracedRounding, random: Array | None = None) -> Array:
    """Return a float64 array rounded once to the format; 64-bit types must be enabled."""
    if r.is_identity:
        return x
    target = r.target if isinstance(r, TracedRounding) else target_of(r, C64)
    return _apply(RULE64, jnp.int64, x, r, target, random)


def _apply(
    rule: Rule,
    word: Any,
    x: Array,
    r: Rounding | TracedRounding,
    t: Target,
    random: Array | None,
) -> Array:
    """Return x rounded by the rule of one carrier, whose integers have the type `word`."""
    t = Target(*(np.dtype(word).type(field) if isinstance(field, int) else field for field in t))
    b = lax.bitcast_convert_type(x, word)
    if r.mode is RoundingMode.STOCHASTIC:
        assert random is not None
        y = rule.stochastic(b, t, random.astype(word))
    elif r.mode is RoundingMode.TIES_TO_EVEN:
        y = rule.nearest_even(b, t)
    else:
        y = rule.any_mode(b, t)
    return lax.bitcast_convert_type(y, x.dtype)


def run(f: Callable[..., Any], /, *arrays: Any, **fixed: Any) -> Any:
    """Return f(*arrays, **fixed), run as one compiled program with 64-bit types enabled.

    It is compiled once for each shape and dtype of the arrays (those of JAX or NumPy, numbers,
    None, or structures of them; tracers too) and each value of `fixed`, hashable constants. f is
    defined in a module, since its identity is part of the program's key. If the operations of a
    first call ran one by one, they would be some fifty programs, and each call would pass over
    memory once for each.
    """
    with jax.enable_x64(True):
        return _compiled(f, tuple(fixed.items()), arrays)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(
    f: Callable[..., Any], fixed: tuple[tuple[str, Any], ...], arrays: tuple[Any, ...]
) -> Any:
    return f(*arrays, **dict(fixed))
