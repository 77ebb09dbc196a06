"""Traces of a sample in fused kernels: the order of tiles, and the summaries of their events."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Record
from roundscope.attention.engines.kernels.by_row import Written, summarized_by_row
from roundscope.attention.engines.kernels.call import Work
from roundscope.attention.engines.kernels.record import recorder
from roundscope.attention.settings import Options, setup_of
from roundscope.attention.tiles import sample
from roundscope.emu import round_to
from roundscope.emu.backends.numba.stats import stats
from roundscope.emu.roundings.modes import BF16, FP16
from roundscope.emu.stats.classify import COUNTS, SUMS

TILES = 11


def walked(begins: int, first: int, last: int, is_down: bool) -> list[tuple[int, bool]]:
    """The tiles that a program walks over, in order, and whether it may record each."""
    like = np.zeros((1, TILES * 16, 1, 16), np.float32)
    options = Options(block_q=16, block_k=16, record=Record(every=3), engine="pallas")
    setup, _ = setup_of(like, like, like, "fa2-bf16", options)
    watch = recorder(setup, (), (16, 16)), jnp.int32(begins), SimpleNamespace()
    work = Work(machine=None, setup=setup, head=None, own=None, watch=watch, exists=lambda _: None)

    def tile(work: Work, n, state):
        seen, at = state
        return seen.at[at].set(2 * n + int(work.watch is not None)), at + 1

    start = jnp.full(TILES, -1), jnp.int32(0)
    seen, count = work.walk(tile, jnp.int32(first), last, start, is_down)
    return [(int(n) // 2, bool(n % 2)) for n in seen[: int(count)]]


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize(
    ("begins", "first", "last"), [(0, 0, 11), (7, 0, 11), (10, 2, 9), (4, 5, 5)]
)
def test_a_sample_stands_in_its_place(begins, first, last, is_down):
    """A tile left out, twice or in another order; one recorded that the sample does not take, or
    the other way round.
    """
    taken = {(begins + 3 * k) % TILES for k in range(sample.count(3, TILES))}
    numbers = range(first, last)[:: -1 if is_down else 1]
    assert walked(begins, first, last, is_down) == [(n, n in taken) for n in numbers]


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (64, 16), (512, 16)])
def test_events_in_memory_by_row(rows, columns):
    """A column read twice or not at all, the format of another site, an event that does not exist,
    another column of the largest error.
    """
    rng, formats = np.random.default_rng(0), (BF16, FP16)
    before = rng.standard_normal((3, 2, rows, columns)) * np.exp2(
        rng.integers(-20, 18, (3, 2, rows, 1))
    )
    before[0, 0, 0, :4] = 1.0, np.nan, np.inf, 0.0
    before[1, 1, 1] = 1.0 + 2.0**-11  # errors of equal size: the first column counts
    after = np.stack([round_to(before[:, n], r) for n, r in enumerate(formats)], 1)
    valid = rng.integers(0, columns + 1, (3, 2, rows)).astype(np.int32)
    valid[1, 1, 1] = columns
    with jax.enable_x64(True):
        given = map(jnp.asarray, (before, after, valid))
        found = summarized_by_row(*given, [r.format for r in formats], False)
        own = Written(found, 2, False)
        counts, sums = (
            np.stack([f(x) for x in names], -1)
            for f, names in ((own.flag, COUNTS), (own.sum, SUMS))
        )
        ones, away = np.asarray(own.flag("ones")), np.asarray(own.away())
        peak, column = map(np.asarray, own.worst())
    for at in np.ndindex(3, 2, rows):
        there = np.arange(columns) < valid[at]
        event = before[at][None], after[at][None], formats[at[1]].format
        wanted = stats(*event, there[None])
        assert np.array_equal(counts[at], wanted[0])
        np.testing.assert_allclose(sums[at], wanted[1], rtol=1e-12, atol=1e-300)
        assert int(ones[at]) == ((after[at] == 1.0) & there).sum()
        sign = np.where(before[at] < 0.0, -1.0, 1.0)  # an error away from zero is positive
        outward = stats(event[0] * sign, event[1] * sign, event[2], there[None])[4]
        np.testing.assert_allclose(away[at], outward[0], rtol=1e-12, atol=1e-12)
        if valid[at]:
            assert (peak[at], column[at]) == (wanted[2], wanted[3])
