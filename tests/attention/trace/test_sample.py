"""A trace of a sample of tiles: the same events on every engine, as the docstring says, and the
statistics of those and no others.
"""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from roundscope.attention import Axes, Plan, Record, Site, examine
from roundscope.attention.engines.kernels.record import ONCE
from roundscope.attention.tiles import sample
from roundscope.emu.backends.numba.stats import stats
from tests.attention.small import INPUTS, B, H, N, S, T, run
from tests.checks.engines import RESULTS, bits, differences

EVERY, BLOCKS = 3, (4, 5)
WHOLE = (
    *(site for site in Site if site.stage == "inputs"),
    *ONCE,
    Site.OD,
    Site.DELTA,
    Site.DQ_OUT,
    Site.DK_OUT,
    Site.DV_OUT,
)
QUERIES, KEYS = -(-T // BLOCKS[0]), -(-S // BLOCKS[1])


def begins(number, tiles):
    """b of `attention.tiles.sample`, by fractions."""
    golden = Fraction(2654435769, 2**32)
    return math.floor(number * golden % 1 * tiles)


def tiles_seen(number, tiles):
    return {(begins(number, tiles) + EVERY * k) % tiles for k in range(math.ceil(tiles / EVERY))}


def pairs_seen(head, own, walked):
    """(own tile, tile it meets) of a head."""
    return {(a, b) for a in tiles_seen(head, own) for b in tiles_seen(head * own + a, walked)}


def entries_seen(site, head, shape):
    """Of the events of a site in one head, as `Record.events` has them, which are in the sample."""
    seen = np.zeros(shape, bool)
    by_key, (q, k) = site.axes is Axes.SH, BLOCKS
    if site in WHOLE:
        for tile in tiles_seen(head, KEYS if by_key else QUERIES):
            size = k if by_key else q
            seen[..., tile * size : (tile + 1) * size, :] = True
        return seen
    for own, walked in pairs_seen(head, *((KEYS, QUERIES) if by_key else (QUERIES, KEYS))):
        if site.axes is Axes.TS:
            seen[own * q : (own + 1) * q, walked * k : (walked + 1) * k] = True
        else:
            size = k if by_key else q
            seen[walked, own * size : (own + 1) * size] = True
    return seen


def test_the_statistics_of_the_sample():
    """Another tile, one of another head, rows of inputs that no tile of the sample has; a place
    counted in the rows seen, not in all.
    """
    plan = Plan.preset("qiu-yao")
    seen, whole = (
        run("qiu-yao", record=Record(events=tuple(Site), every=n), blocks=BLOCKS)
        for n in (EVERY, 1)
    )
    assert [x for x in differences(seen, whole) if x.startswith("events of")] == []
    compared = set()
    for name, (before, after) in seen.trace.events.items():
        site, found = Site(name), seen.trace.stats[name]
        if site in (
            Site.DM,
            Site.ALPHA,
            Site.AL,
            Site.AO,
        ):  # events that a row's first tile does not have
            continue
        for b, n in np.ndindex(found.n.shape):
            head = b * found.n.shape[1] + n
            x, y = (v[b, n].reshape(_shape(site, v[b, n])) for v in (before, after))
            there = np.ascontiguousarray(entries_seen(site, head, x.shape))
            flat = [v.reshape(1, -1) for v in (x, y, there)]
            counts, sums, peak, place, _ = stats(flat[0], flat[1], plan[site].format, flat[2])
            assert found.n[b, n] == counts[0] == there.sum() > 0, name
            assert found.away[b, n] == counts[4], name
            assert np.allclose(found.ulps[b, n], sums[3], rtol=1e-12, atol=1e-12), name
            assert found.peak[b, n] == peak, name
            if site in WHOLE:
                assert found.place[b, n] == place, name
            elif site.axes is Axes.TS:  # the first tile that has the peak, by its number
                assert there.flat[found.place[b, n]], name
            compared.add(site)
    assert {site.axes for site in compared} == set(Axes)
    assert {site.stage for site in compared} == {"inputs", "forward", "backward"}


def _shape(site, x):
    """Rows of one number are rows of one column."""
    return (*x.shape, 1) if site.axes is Axes.T else x.shape


def test_ones_and_rows_are_of_the_sample():
    """Ones counted in tiles that nobody looks at; sums of rows that are not those of the
    statistics.
    """
    whole, part = (
        run("qiu-yao", record=Record(ones=(Site.ALPHA, Site.INV), every=n), blocks=BLOCKS).trace
        for n in (1, EVERY)
    )
    assert 0 < part.ones["ALPHA"].sum() < whole.ones["ALPHA"].sum()
    for b, n in np.ndindex(B, N):
        tiles = np.arange(T) // BLOCKS[0]
        pairs = pairs_seen(b * N + n, QUERIES, KEYS)
        looked = np.array([[(i, j) in pairs for i in tiles] for j in range(KEYS)])
        assert np.array_equal(
            part.ones["ALPHA"][b, n], np.where(looked, whole.ones["ALPHA"][b, n], 0)
        )
        own = np.isin(tiles, list(tiles_seen(b * N + n, QUERIES)))
        assert np.array_equal(part.rows["OUT"][b, n], np.where(own, whole.rows["OUT"][b, n], 0.0))


@pytest.mark.thorough
def test_engines_look_at_the_same_tiles():
    """Arithmetic of 32 bits in one of them."""
    options = {
        "plan": "fa2-bf16",
        "record": Record(ones=(Site.P, Site.INV), every=2),
        "block_q": 8,
        "block_k": 8,
        "is_causal": True,
    }
    ours, theirs = (examine(*INPUTS[:3], engine=name, **options) for name in ("numpy", "xla"))
    assert differences(ours, theirs) == []


def test_a_sample_changes_no_bit_and_has_steps():
    """A rounding where a tile is looked at; steps of a sum that are counted in every tile."""
    part, whole = (
        run("fa2-bf16", record=Record(steps=(Site.PV, Site.DELTA), every=n), blocks=BLOCKS)
        for n in (EVERY, 1)
    )
    of_keys = [min(BLOCKS[1], S - j * BLOCKS[1]) for j in range(KEYS)]
    for b, n in np.ndindex(B, N):
        pairs = pairs_seen(b * N + n, QUERIES, KEYS)
        rows = BLOCKS[0] * len(tiles_seen(b * N + n, QUERIES))
        assert part.trace.stats["PV.step"].n[b, n] == sum(
            BLOCKS[0] * of_keys[j] * H for _, j in pairs
        )
        assert part.trace.stats["DELTA.step"].n[b, n] == rows * H
    for name in RESULTS:
        assert np.array_equal(bits(getattr(part, name)), bits(getattr(whole, name))), name


@pytest.mark.parametrize(("tiles", "every"), [(1, 4), (7, 3), (64, 32), (16, 1), (2048, 100)])
def test_no_place_is_preferred(tiles, every):
    """A tile that comes twice, or a place of the sequence that heads avoid."""
    heads, count = 24 * tiles, -(-tiles // every)
    seen = [sample.chosen(every, tiles, head, np.arange(count)) for head in range(heads)]
    assert all(len(set(own.tolist())) == count for own in seen)
    for head, own in enumerate(seen[:100]):
        places = sample.place(np, every, tiles, head, np.arange(tiles))
        assert np.array_equal(places[own], np.arange(count))
        assert (places >= 0).sum() == count
    often = Counter(np.concatenate(seen).tolist())
    assert set(often) == set(range(tiles))
    assert (
        max(often.values()) - min(often.values()) <= 4 * count
    )  # of 24 count: a discrepancy, not a law of large numbers


def test_a_sample_of_no_tile_is_refused():
    for every in (0, 2.0):
        with pytest.raises(
            ValueError,
            match=(
                f"every={every}: a whole number, one tile in so many, both ways; 1 for all events"
            ),
        ):
            Record(every=every)
