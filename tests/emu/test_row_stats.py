"""`Stats` of rows, looked at some columns at a time, against those of whole arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emu import round_to
from emu.classify import COUNTS, SUMS, judged
from emu.numba_stats import stats
from emu.rounding import BF16, E4M3, FP16, rounding
from emu.row_stats import BITS, NOWHERE, nothing_seen, of_exact_rows, of_rows, with_columns

ROWS, COLUMNS, PART = 5, 12, 4


def numbers(f):
    """Rows of ordinary numbers, ties, overflows and underflows, subnormal numbers, infinities and NaN; the last row has no event."""
    rng = np.random.Generator(np.random.PCG64(3))
    x = rng.normal(size=(ROWS, COLUMNS)) * np.exp2(rng.integers(-3, 4, (ROWS, COLUMNS)))
    x[1] = [f.max_finite * 1.5, -f.max_finite * 2, np.inf, np.nan, f.min_positive / 4, -f.min_positive / 4, *[f.min_positive * 1.5] * 6]
    x[2] = (1.0 + 2.0**-(f.precision)) * np.exp2(np.arange(COLUMNS) % 5)
    x[3] = x[0][::-1]
    return x


def looked_at(x, y, valid, f):
    with jax.enable_x64(True):
        seen = nothing_seen((ROWS, PART))
        for lo in range(0, COLUMNS, PART):
            column = lo + jnp.broadcast_to(jnp.arange(PART, dtype=jnp.int32), (ROWS, PART))
            part = (jnp.asarray(a[:, lo : lo + PART]) for a in (x, y))
            seen = with_columns(seen, *part, column < valid[:, None], column, judged(f))
        return jax.tree.map(np.asarray, of_rows(seen))


@pytest.mark.parametrize("r", [BF16, FP16, E4M3, rounding("e2m1fn")], ids=str)
def test_rows_are_those_of_the_whole(r):
    """A count in another's bits, an error lost between parts, a largest error of a later part or of an event that is none."""
    x, valid = numbers(r.format), np.array([COLUMNS, COLUMNS, 7, 1, 0], np.int32)
    y = round_to(x, r)
    found = looked_at(x, y, valid, r.format)
    for row in range(ROWS):
        exists = np.arange(COLUMNS) < valid[row]
        counts, sums, peak, place, _ = stats(x[row : row + 1], y[row : row + 1], r.format, exists[None])
        assert [found.counts[name][row] for name in COUNTS] == list(counts)
        assert np.allclose([found.sums[name][row] for name in SUMS], sums, rtol=1e-13, atol=0.0)
        assert (found.peak[row], found.column[row]) == ((peak, place) if valid[row] else (-1.0, NOWHERE))


def test_exact_rows_are_those_of_the_whole():
    """Results that are subnormal or NaN are counted, where they exist, and nothing else."""
    y, valid = round_to(numbers(BF16.format), BF16), np.array([COLUMNS, COLUMNS, 7, 1, 0], np.int32)
    whole = looked_at(y, y, valid, BF16.format)
    with jax.enable_x64(True):
        found = of_exact_rows(jnp.asarray(y), jnp.asarray(valid), judged(BF16.format))
    for name in COUNTS:
        assert np.array_equal(found.counts.get(name, np.zeros(ROWS)), whole.counts[name]), name
    assert not any(x.any() for x in whole.sums.values())
    assert np.array_equal(found.peak, whole.peak)
    assert whole.counts["subnormal"].any() and whole.counts["nan"].any()


def test_two_counts_have_room_in_a_word():
    """Every event of the widest tile that a kernel has raises both flags of a word."""
    assert 2 * BITS < 31 and 2**BITS > 16384
