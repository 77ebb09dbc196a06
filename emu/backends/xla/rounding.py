"""The XLA executor of the rule, which takes and returns JAX arrays on whatever device holds them.

The rule works on integers from a bitcast, which no XLA pass removes (XLA removes a conversion by
`astype` and back).
Every function here may be traced, jitted and vmapped.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.backends.xla.traced import TracedRounding
from roundscope.emu.backends.xla.widths import narrow, widen
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.roundings.rule import C32, C64, Rule, Target, build_rule, target_of

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
