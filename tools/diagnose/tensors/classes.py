"""Rounding classes of events (before, after): where the argument lay between two numbers.

They are defined by the discarded part f = |before| / ulp - floor(|before| / ulp):

    exact                  nothing is discarded
    below half, above half the round bit decides alone
    tie                    f = 1/2: the tie rule decides
    tie broken by sticky   the main part of the sum ties, what is small beside it does not: the tie
                           rule never acts, and the side is that of the small rest (arXiv
                           2510.04212, section 3.3.2)
    carry                  rounded up into the next binade (whatever f)

The main part is given by the caller (for P V: the sum of V over the keys with P = 1), if the rest
is below 1/4 ulp; without it, it is `before` to the nearest 1/16 ulp, so that |f - 1/2| < 1/32: of
arguments spread evenly one in sixteen falls there.
"""

import numpy as np

from roundscope.emu.formats.format import Format

CLASSES = ("exact", "below half", "tie", "tie broken by sticky", "above half", "carry")
EXACT, BELOW, TIE, STICKY, ABOVE, CARRY = range(len(CLASSES))
LEFT_OUT = -1  # not finite, before or after


def classify(
    before: np.ndarray, after: np.ndarray, format: Format, main: np.ndarray | None = None
) -> np.ndarray:
    """Return the class of every event, int8, as an index into CLASSES; -1 where not finite.

    before, after   binary64, any shape;  main: the same shape, or None

    The result is exact for every format up to 50 bits wide: |before| / ulp and its parts are
    binary64 numbers.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    finite = np.isfinite(before) & np.isfinite(after)
    before, after = np.where(finite, before, 0.0), np.where(finite, after, 0.0)
    exponent = np.maximum(np.frexp(before)[1] - 1, format.emin)
    per_ulp = format.precision - 1 - exponent
    f = _fraction(before, per_ulp)
    found = np.where(f > 0.5, ABOVE, BELOW)
    found = np.where(_main_ties(before, main, per_ulp, f), STICKY, found)
    found = np.where(f == 0.5, TIE, found)
    found = np.where(
        (np.abs(after) >= np.ldexp(1.0, exponent + 1)) & (after != before), CARRY, found
    )
    found = np.where(after == before, EXACT, found)
    return np.where(finite, found, LEFT_OUT).astype(np.int8)


def _fraction(x: np.ndarray, per_ulp: np.ndarray) -> np.ndarray:
    units = np.ldexp(np.abs(x), per_ulp)
    return np.asarray(units - np.floor(units))


def _main_ties(
    before: np.ndarray, main: np.ndarray | None, per_ulp: np.ndarray, f: np.ndarray
) -> np.ndarray:
    if main is None:
        return np.asarray(np.abs(f - 0.5) < 1.0 / 32.0)
    main = np.where(np.isfinite(main), main, 0.0)
    close = np.ldexp(np.abs(before - main), per_ulp) < 0.25
    return np.asarray(close & (before != main) & (_fraction(main, per_ulp) == 0.5))
