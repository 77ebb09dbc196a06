"""Inputs for a quantizer to blocks: float32 arrays (rows, K) with blocks along the last axis."""

from dataclasses import replace

import numpy as np

from roundscope.emu.blocks.format import E8M0, BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of
from roundscope.emu.testing.casts.elements import LARGEST32, magnitudes, midpoints
from roundscope.emu.testing.casts.integer_grids import is_grid
from roundscope.emu.testing.casts.quantized import expected_scales
from roundscope.emu.testing.casts.records import Numbers

F32 = np.float32
ACROSS = 4  # blocks in a row of the array
ROWS = 128  # the rows are a multiple of this, so that blocks along the columns exist too
BUDGET = 1 << 20  # numbers of an array at most
NEAR = (*range(-4, 5), *(s * 2**k for k in (3, 5, 8, 12, 16) for s in (-1, 1)))  # float32 ulps
EXPONENTS = range(-149, 128)  # those of float32
PER_EXPONENT = 8  # random significands


def arranged(blocks: Numbers, f: BlockFormat) -> np.ndarray:
    """Return blocks (n, numbers of a block) as a float32 array (rows, K) of the blocks in order.

    The blocks are repeated from the first on until the last row is full.
    """
    across = ACROSS if f.rows == 1 else 2
    step = across * (ROWS if f.rows == 1 else 1)
    n = -(-len(blocks) // step) * step
    full = np.resize(blocks, (n, f.size * f.rows)).astype(F32)
    shape = (n // across * f.rows, across * f.size)
    array: np.ndarray = np.ascontiguousarray(from_lines(np, full, layout_of(shape, f, -1)))
    return array


def edge_blocks(f: BlockFormat) -> np.ndarray:
    """Return blocks whose largest magnitudes lie at the thresholds of every scale rule.

    Where scales are powers of two, every exponent of float32 occurs with every threshold and the
    float32 numbers around it. Otherwise the largest magnitudes are those whose scale lies at or
    beside a number of the scale format or a midpoint of two, as far as the budget goes.
    """
    rng = np.random.default_rng(2)
    maxima = _power_maxima(f, rng) if f.power_of_two else _quotient_maxima(f, rng)
    maxima = maxima[(maxima > 0) & (maxima <= LARGEST32)]
    most = BUDGET // (f.size * f.rows)
    kept = rng.permutation(maxima)[:most]
    return arranged(_anchored(_filled(kept, f, rng), f), f)


def element_blocks(f: BlockFormat) -> np.ndarray:
    """Return blocks of every element, tie and neighbor of a tie, times several known scales."""
    e, rng = f.element.format, np.random.default_rng(3)
    scales, top = _known_scales(f), _largest_of_scale_one(f)
    levels = np.concatenate([magnitudes(e), midpoints(e)])
    found = []
    tops = [(s, top) for s in scales]
    if is_grid(f):  # ties of scales that are the largest magnitude over 128 in place of 127
        tops += [(s, 2.0) for s in (1.0, 0.5, 2.0**20)]
    for s, top in tops:
        near = (levels * s).astype(F32)
        x = np.unique(np.concatenate([near, np.nextafter(near, F32(1e38)), np.nextafter(near, 0)]))
        x = x[x <= F32(top * s)]
        x = rng.permutation(np.concatenate([x, -x]))
        room = f.size * f.rows - 1
        x = np.resize(x, (-(-x.size // room), room))
        found.append(np.concatenate([np.full((len(x), 1), top * s), x], axis=1))
    blocks = rng.permuted(np.concatenate(found), axis=1)
    return arranged(_anchored(blocks, f), f)


def random_blocks(f: BlockFormat, blocks: int = 4096) -> np.ndarray:
    """Return blocks of normal random numbers, each times a random power of two."""
    rng = np.random.default_rng(4)
    n = min(blocks, BUDGET // (f.size * f.rows))
    x = rng.standard_normal((n, f.size * f.rows))
    x *= np.ldexp(f.tensor_scale or 1.0, rng.integers(-8, 9, (n, 1)))
    return arranged(x, f)


def _power_maxima(f: BlockFormat, rng: np.random.Generator) -> Numbers:
    e = f.element.format
    thresholds = {1.0, np.ldexp(e.max_finite, -e.emax), 2 - 2.0**-e.precision, 1.5, 1.75}
    exact = np.array(sorted(thresholds), F32)
    steps = np.array(NEAR, np.int32)
    near = (exact.view(np.int32)[:, None] + steps).view(F32).reshape(-1).astype(np.float64)
    drawn = rng.uniform(1, 2, (len(EXPONENTS), PER_EXPONENT))
    each = np.concatenate([np.tile(near, (len(EXPONENTS), 1)), drawn], axis=1)
    maxima = np.ldexp(each, np.array(EXPONENTS)[:, None]).reshape(-1)
    in_float32: Numbers = maxima.astype(F32).astype(np.float64)
    return in_float32


def _quotient_maxima(f: BlockFormat, rng: np.random.Generator) -> Numbers:
    m, s = f.element.format.max_finite, f.scale
    levels = np.concatenate([magnitudes(s), midpoints(s), s.min_positive * 2.0 ** -np.arange(8.0)])
    if s.precision > 11:  # more scales than anyone can try
        levels = rng.uniform(1, 2, 4096) * 2.0 ** rng.integers(-100, 100, 4096)
    if f.tensor_scale is not None:  # an array may exceed a scale that is given
        levels = np.append(levels, s.max_finite * np.array([1.0625, 1.5, 4.0, 1000.0]))
        levels = levels * f.tensor_scale
    else:
        levels = levels[levels <= s.max_finite]
    exact = (levels * m).astype(F32)
    around = [exact, np.nextafter(exact, F32(np.inf)), np.nextafter(exact, F32(0))]
    maxima = np.concatenate(around).astype(np.float64)
    if f.tensor and f.tensor_scale is None:  # the largest magnitude of the array is fixed
        return maxima[maxima <= s.max_finite * m]
    return maxima


def _filled(maxima: Numbers, f: BlockFormat, rng: np.random.Generator) -> Numbers:
    """Return blocks with these largest magnitudes, and random numbers below them.

    A quarter of the numbers are so small that their elements are subnormal, or nearly so: only
    these differ between scales that do not clip.
    """
    n, k, e = maxima.size, f.size * f.rows, f.element.format
    small = e.emax - e.emin + rng.integers(-1, e.precision, (n, k))
    powers = np.where(rng.random((n, k)) < 0.25, small, rng.integers(0, 6, (n, k)))
    share = rng.uniform(0, 1, (n, k)) * np.ldexp(1.0, -powers)
    blocks = np.minimum((share * maxima[:, None]).astype(F32), maxima[:, None])
    blocks[np.arange(n), rng.integers(0, k, n)] = maxima
    signed: Numbers = blocks * rng.choice([-1.0, 1.0], (n, k))
    return signed


def _anchored(blocks: Numbers, f: BlockFormat) -> Numbers:
    """Return blocks of which the first makes the scale of the whole array 1, if there is one."""
    if not f.tensor or f.tensor_scale is not None:
        return blocks
    first = blocks[:1] * 0.0
    first[0, 0] = f.scale.max_finite * f.element.format.max_finite
    return np.concatenate([first, blocks])


def _known_scales(f: BlockFormat) -> Numbers:
    if f.scale == E8M0:
        return 2.0 ** np.array([0.0, 1.0, -1.0, 20.0, -30.0, 100.0, -100.0])
    if f.scale.precision > 11:
        return np.array([1.0, 0.5, 1.1, 3e5, 7e-9], F32).astype(np.float64)
    numbers = magnitudes(f.scale)
    return numbers[1 :: max(1, numbers.size // 16)] * (f.tensor_scale or 1.0)


def _largest_of_scale_one(f: BlockFormat) -> float:
    """Return the largest magnitude of a block whose scale is 1, among two candidates."""
    e = f.element.format
    if not f.power_of_two:
        return e.max_finite
    one = replace(f, size=1, rows=1)
    found = [
        a
        for a in (e.max_finite, np.ldexp(1.0, e.emax))
        if expected_scales(np.array([[a]], F32), one)[0][0] == 1.0
    ]
    return float(max(found))
