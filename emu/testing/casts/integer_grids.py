"""Quantizers to integers with another scale, another rounding or another lowest integer than ours.

INT8 and INT4 are symmetric here: k from -127 to 127, and the scale is the largest magnitude over
127. Libraries also divide it by 128, go down to -128, and round by floor(x + 1/2).
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from roundscope.emu.blocks.format import E8M0, INTEGERS, BlockFormat
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.testing.casts.behaviors import FaultyCast
from roundscope.emu.testing.casts.records import Numbers

WHOLE: dict[str, Callable[[Numbers], Numbers]] = {
    "ties-to-even": np.rint,
    "floor(x + 1/2)": lambda k: np.floor(k + k.dtype.type(0.5)),
    "ties-to-away": lambda k: np.copysign(np.floor(np.abs(k.astype(np.float64)) + 0.5), k),
    "toward-zero": np.trunc,
}


def is_grid(f: BlockFormat) -> bool:
    """Return whether elements are the integers k of INT8 or INT4 under a scale that is no power."""
    return f.element.format in INTEGERS.values() and f.scale != E8M0 and not f.tensor


def of_own_scale(f: BlockFormat) -> Iterator[tuple[str, FaultyCast]]:
    """Yield casts of quotients by our own scale that no mode of ours is, with what is other."""
    top = _count(f) - 1
    for mode, narrow in product(WHOLE, (False, True)):
        if (narrow and mode != "ties-to-even") or mode == "floor(x + 1/2)":
            words = f"elements {mode}{', divided in float32' * narrow}"
            yield words, partial(_cast, whole=WHOLE[mode], low=-top, is_narrow=narrow)


def of_full_range(f: BlockFormat) -> Iterator[tuple[str, FaultyCast]]:
    """Yield casts of quotients by the largest magnitude over 128 (8 in INT4), with their names."""
    n = _count(f)
    for mode, low, narrow in product(WHOLE, (-n, 1 - n), (False, True)):
        words = f"scales max / {n}, elements {mode} from {low} to {n - 1}"
        cast = partial(_cast, whole=WHOLE[mode], low=low, is_narrow=narrow)
        yield f"{words}{', divided in float32' * narrow}", cast


def full_range(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    """Return the largest magnitude of each block over 128 (8), times the unit of our elements."""
    n = _count(f)
    k: Numbers = (np.abs(x).max(axis=1) / n).astype(np.float32).astype(np.float64)
    return k * (n / 2)


def _count(f: BlockFormat) -> int:
    return 1 << f.element.format.precision


def _cast(
    x: Numbers, r: Rounding, whole: Callable[[Numbers], Numbers], low: int, is_narrow: bool
) -> Numbers:
    n = 1 << r.format.precision
    k = x * (n / 2)
    k = whole(k.astype(np.float32) if is_narrow else k).astype(np.float64)
    return np.clip(k, low, n - 1) / (n / 2)
