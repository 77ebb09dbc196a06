"""A `Rounding` as numbers that XLA traces, so that one compiled function serves all roundings.

`row_of` writes a rounding as one row of integers, and `rounding_of` reads such a row as a
`TracedRounding`, which takes the place of a `Rounding`. The entries of a row may be arrays, so
formats, modes and seeds are data. Only the choice of the function that rounds is static; `kind_of`
makes this choice. `rounding_in` makes a `Rounding` of a row of numbers.
"""

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from roundscope.emu.formats.format import NAMED, Format
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode
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
    is_deep: bool  # whether the format may be deep and round (`Format.is_deep`)


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


@lru_cache(4096)
def rounding_in(row: tuple[int, ...]) -> Rounding:
    """Return the rounding whose row this is (`row_of`).

    Of roundings with equal rows, which give the same numbers, it is the one of a named format.
    """
    mode, seed = RoundingMode(list(RoundingMode)[row[T - 1]]), row[-1]
    for format, overflow, nan in product(_formats_in(row), Overflow, NanPolicy):
        lacks = {Overflow.INF: not format.inf, Overflow.NAN: not format.nan}
        if lacks.get(overflow):
            continue
        r = Rounding(format=format, mode=mode, overflow=overflow, nan=nan, seed=seed)
        if tuple(row_of(r).tolist()) == row:
            return r
    raise ValueError(f"row={row}: no rounding has it; row_of makes one")


def _formats_in(row: tuple[int, ...]) -> Iterator[Format]:
    """Return the formats that may be those of a row: named ones, then ones made from the row."""
    target, judge = Target(*row[:T]), Judged(*row[T : T + J])
    largest = float(np.int64(judge.largest).view(np.float64))
    size = judge.precision, judge.emin - 1023, largest
    yield from (f for f in NAMED.values() if (f.precision, f.emin, f.max_finite) == size)
    for inf, nan in product((True, False), (True, False)):
        yield Format(
            name=f"p{size[0]} from 2^{size[1]} to {largest:g}",
            precision=size[0],
            emin=size[1],
            max_finite=largest,
            inf=inf,
            nan=nan,
            signed=not target.unsigned,
            zero=target.floor == 0,
            negative_zero=target.signed_zero >= 0,
        )


def rounding_of(row: Any, kind: Kind) -> TracedRounding:
    """Return the rounding that a row of shape (FIELDS,) represents."""
    target, judge = Target(*(row[i] for i in range(T))), Judged(*(row[T + i] for i in range(J)))
    window = lax.bitcast_convert_type(row[T + J], jnp.float64)
    known = {Kind.NEAREST: RoundingMode.TIES_TO_EVEN, Kind.STOCHASTIC: RoundingMode.STOCHASTIC}
    mode = known.get(kind)
    return TracedRounding(
        mode,
        # of deep formats only binary64, in which nothing is rounded, has the kind NEAREST
        TracedFormat(judge.precision, judge.emin - 1023, window, judge, kind is not Kind.NEAREST),
        target,
        row[T + J + 1],
    )
