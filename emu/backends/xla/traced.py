"""A `Rounding` as numbers that XLA traces, so that one compiled function serves all roundings.

`row_of` writes a rounding as one row of integers, and `rounding_of` reads such a row as a
`TracedRounding`, which takes the place of a `Rounding`. The entries of a row may be arrays, so
formats, modes and seeds are data. Only the choice of the function that rounds is static; `kind_of`
makes this choice.
"""

from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.roundings.nearest import takes_nearest_even
from roundscope.emu.roundings.rule import C64, Target, target_of
from roundscope.emu.stats.classify import Judged, judged

T, J = len(Target._fields), len(Judged._fields)
FIELDS = T + J + 2  # the last two are the tie window's bits and the seed


class Kind(Enum):
    """The function that rounds."""

    NEAREST = "two additions"  # the mode ties-to-even, in formats that fit binary32 or in binary64
    ANY = "the rule, its mode as data"
    STOCHASTIC = "the rule with random bits"


class TracedFormat(NamedTuple):
    """The parameters of a format that rounding events need besides its `Target`."""

    precision: Any
    emin: Any
    tie_window: Any
    judged: Judged


class TracedRounding(NamedTuple):
    """A rounding whose parameters are data; `mode` is None if the mode is data too."""

    mode: RoundingMode | None
    format: TracedFormat
    target: Target
    seed: Any
    # False for every format, since a program is traced without knowing the format; the rule runs
    # for binary64 too, and does not change any number there
    is_identity: bool = False


def kind_of(r: Rounding) -> Kind:
    """Return the kind of the fastest function that can do this rounding."""
    if r.mode is RoundingMode.STOCHASTIC:
        return Kind.STOCHASTIC
    plain = takes_nearest_even(r) or (r.is_identity and r.mode is RoundingMode.TIES_TO_EVEN)
    return Kind.NEAREST if plain else Kind.ANY


@lru_cache(4096)
def row_of(r: Rounding) -> np.ndarray:
    """Return the rounding as int64 numbers of shape (FIELDS,).

    Raises ValueError if binary64 cannot hold its format.
    """
    window = int(np.float64(r.format.tie_window).view(np.int64))
    return np.array([*target_of(r, C64), *judged(r.format), window, r.seed], dtype=np.int64)


def rounding_of(row: Any, kind: Kind) -> TracedRounding:
    """Return the rounding that a row of shape (FIELDS,) represents."""
    target, judge = Target(*(row[i] for i in range(T))), Judged(*(row[T + i] for i in range(J)))
    window = lax.bitcast_convert_type(row[T + J], jnp.float64)
    mode = {
        Kind.NEAREST: RoundingMode.TIES_TO_EVEN,
        Kind.STOCHASTIC: RoundingMode.STOCHASTIC,
        Kind.ANY: None,
    }[kind]
    return TracedRounding(
        mode,
        TracedFormat(judge.precision, judge.emin - 1023, window, judge),
        target,
        row[T + J + 1],
    )
