"""Inputs for a cast to an element format: systematic float32 numbers, and random ones."""

import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.explanation.encoding import code_of
from roundscope.emu.formats.codes import decode
from roundscope.emu.formats.format import Format
from roundscope.emu.testing.casts.records import Numbers

F32 = np.float32
WHOLE = 16  # bits of a format up to which every code is a probe
SAMPLED = 1 << 15  # codes of a wider format
RANDOM = 1 << 16  # random numbers
LARGEST32 = float(np.finfo(F32).max)


def magnitudes(f: Format) -> Numbers:
    """Return the finite magnitudes of a format in ascending order, or a sample of a wide format."""
    from roundscope.emu.backends.numba.ops import numpy_ops

    count = 1 << (f.bits - int(f.signed))
    codes: Array = np.arange(min(count, 1 << WHOLE), dtype=np.int64)
    if f.bits > WHOLE:
        drawn = np.random.default_rng(0).integers(0, count - 1, SAMPLED)
        last = code_of(f.max_finite, f)
        assert last is not None
        ends = [codes[:64], np.arange(last - 64, last + 1)]
        codes = np.unique(np.concatenate([*ends, drawn, drawn + 1]))
    numbers: Numbers = decode(numpy_ops(), codes, f)
    found: Numbers = numbers[np.isfinite(numbers) & (numbers <= f.max_finite)]
    return found


def midpoints(f: Format) -> Numbers:
    """Return the numbers halfway between neighboring magnitudes, the overflow threshold included.

    The threshold is the midpoint of the largest number and the number that would follow it.
    """
    m = magnitudes(f)
    exponent = np.where(m > 0, np.maximum(np.frexp(m)[1] - 1, f.emin), f.emin)
    gap = np.ldexp(1.0, exponent - f.precision)  # half an ulp
    middles: Numbers = m + gap
    return middles


def finite_probes(f: Format) -> np.ndarray:
    """Return finite float32 inputs of both signs: numbers of the format, ties and their neighbors.

    Every number of the format and every midpoint is there, with the float32 numbers on both sides
    of each. There are numbers beyond the overflow threshold up to the largest float32 number, and
    random numbers over the whole range of the format. The array starts with the random numbers.
    """
    systematic = np.concatenate([magnitudes(f), midpoints(f), _large(f)]).astype(F32)
    systematic = systematic[np.isfinite(systematic)]
    with np.errstate(over="ignore"):
        above = np.nextafter(systematic, F32(np.inf))
    around = [systematic, above, np.nextafter(systematic, F32(0))]
    positive = np.unique(np.concatenate(around))
    positive = positive[np.isfinite(positive)]
    return np.concatenate([random_numbers(f, RANDOM), positive, -positive])


def _large(f: Format) -> Numbers:
    """Return magnitudes from the largest number on, up to the largest of float32."""
    powers = f.max_finite * 2.0 ** np.arange(0.0, 128.0, 1.0)
    beyond = f.max_finite * (1 + np.arange(1, 9) * f.epsilon / 4)
    large = np.concatenate([beyond, powers, [LARGEST32]])
    kept: Numbers = large[large <= LARGEST32]
    return kept


def random_numbers(f: Format, n: int) -> np.ndarray:
    """Return random float32 numbers of the normal range of a format, of both signs.

    Within each power of two the numbers are uniform, so that errors of rounding to nearest have the
    mean zero.
    """
    rng = np.random.default_rng(1)
    low, high = max(f.emin, -126), min(f.emax, 127)
    x = np.ldexp(rng.uniform(1, 2, n), rng.integers(low, max(low + 1, high), n))
    signed: np.ndarray = (x * rng.choice([-1.0, 1.0], n)).astype(F32)
    return signed
