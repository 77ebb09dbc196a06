"""The passes of the backward: every tile once, and in which order gradients meet the tiles."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.tiles.orders import passes
from tests.checks.engines import differences, normal
from tests.some import some

BASE = Plan.preset("fa2-bf16")
orders = pytest.mark.parametrize("order", QueryOrder)
causality = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


def walked(order, is_causal, queries, keys, block_q=16, block_k=16):
    """The tiles (i, j) that the passes take, in turn."""
    found = []
    for part in passes(replace(BASE, query_order=order), is_causal):
        for j in range(keys)[:: -1 if part.keys_down else 1]:
            for i in range(queries)[:: -1 if part.queries_down else 1]:
                bounds = (i * block_q, (i + 1) * block_q), (j * block_k, (j + 1) * block_k)
                if part.takes is None or part.takes(*bounds):
                    found.append((i, j))
    return found


@orders
@pytest.mark.parametrize("sizes", [(4, 4, 16, 16), (3, 7, 32, 16), (5, 2, 16, 64)])
def test_every_tile_is_met_once(order, sizes):
    """A tile that two passes take, or none."""
    queries, keys, block_q, block_k = sizes
    tiles = [(i, j) for i in range(queries) for j in range(keys)]
    assert sorted(walked(order, False, *sizes)) == tiles
    reached = [(i, j) for i, j in tiles if j * block_k < (i + 1) * block_q]
    met = walked(order, True, *sizes)
    assert len(met) == len(set(met)) and set(met) >= set(reached)


def test_the_orders_are_those_of_the_kernels():
    """A wrap that begins one tile too late; a diagonal that is not first.

    Four tiles, the third of each.
    """
    n, third = 4, 2
    wrapped, masked = (
        walked(o, o is QueryOrder.MASKED_FIRST, n, n)
        for o in (QueryOrder.WRAPPED, QueryOrder.MASKED_FIRST)
    )
    assert [i for i, j in wrapped if j == third] == [2, 3, 0, 1]
    assert [j for i, j in wrapped if i == third] == [2, 1, 0, 3]
    assert [i for i, j in masked if j == third and i >= j] == [2, 3]
    assert [j for i, j in masked if i == third and i >= j] == [2, 0, 1]


@causality
def test_dq_begins_at_the_diagonal_where_there_is_one(is_causal):
    """dQ that goes down in full calls, and dK or dV that go down at all."""
    n, third = 4, 2
    met = walked(QueryOrder.FROM_DIAGONAL, is_causal, n, n)
    assert [i for i, j in met if j == third] == [0, 1, 2, 3]
    assert [j for i, j in met if i == third] == ([3, 2, 1, 0] if is_causal else [0, 1, 2, 3])


@orders
@causality
def test_only_the_order_of_sums_changes(order, is_causal):
    """A scale, a mask or a row of another tile: in exact sums the order is none."""
    arrays = [normal(40 + i, 1, 40, 1, 16) for i in range(4)]
    plan = BASE.changed(
        "sum=exact DQ=fp64 DK=fp64 DV=fp64 DQ.sum=ascending:fp64 DK.sum=ascending:fp64"
        " DV.sum=ascending:fp64"
    )
    options = {
        "block_q": 16,
        "block_k": 8,
        "is_causal": is_causal,
        "engine": "numpy",
        "record": Record(events=(Site.DS,)),
    }
    want, got = (
        examine(*arrays, plan=replace(plan, query_order=o), **options)
        for o in (QueryOrder.ASCENDING, order)
    )
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(
            getattr(got, name),
            getattr(want, name),
            rtol=0,
            atol=1e-6 * np.abs(getattr(want, name)).max(),
        )
    for site, stats in want.trace.stats.items():
        if site not in ("DQ", "DK", "DV"):
            assert np.array_equal(stats.n, got.trace.stats[site].n) and np.array_equal(
                stats.inexact, got.trace.stats[site].inexact
            ), site


@pytest.mark.parametrize(
    ("order", "is_causal"),
    some(itertools.product((QueryOrder.WRAPPED, QueryOrder.MASKED_FIRST), (True, False)), every=4),
)
def test_engines_agree(order, is_causal):
    """Counts of a tile that the last pass did not take; with a mask, tiles that a pass takes and
    that have no score.
    """
    arrays = [normal(60 + i, 1, 40, 2, 16) for i in range(4)]
    mask = np.random.default_rng(3).random((1, 1, 40, 40)) < 0.7
    options = {
        "plan": replace(BASE, query_order=order),
        "block_q": 16,
        "block_k": 8,
        "is_causal": is_causal,
        "mask": mask,
        "record": Record(),
    }
    ours, theirs = (examine(*arrays, engine=engine, **options) for engine in ("numpy", "xla"))
    assert differences(ours, theirs) == []


def test_split_keys_are_one_softmax():
    """A weight of a split that is not its share, a split that is left out, and rows that see no key
    of one: in binary64.
    """
    arrays = [normal(80 + i, 1, 40, 1, 16) for i in range(4)]
    plan = Plan.preset("exact")
    options = {"block_q": 16, "block_k": 8, "engine": "numpy", "record": None}
    for is_causal in (False, True):
        want = examine(*arrays, plan=plan, is_causal=is_causal, **options)
        for tiles in (1, 2, 3, 9):
            got = examine(
                *arrays, plan=plan.changed(f"split_tiles={tiles}"), is_causal=is_causal, **options
            )
            for name in (
                "out",
                "lse",
                "dq",
                "dk",
                "dv",
            ):  # expf and logf of the weights have binary32's accuracy
                np.testing.assert_allclose(
                    getattr(got, name), getattr(want, name), rtol=0, atol=2e-6
                )


@pytest.mark.parametrize(
    ("engine", "preset", "order"),
    [
        ("numpy", "cudnn", "ascending"),
        ("numpy", "cudnn", "descending"),
        pytest.param("xla", "fp32", "descending", marks=pytest.mark.thorough),
        pytest.param("xla", "fp32", "ascending", marks=pytest.mark.thorough),
    ],
)
def test_key_tiles_are_dealt_to_splits_in_turn(engine, preset, order):
    """Tile 2 in a split of its own, or beside tile 1: two splits of three tiles are the same keys
    in the order 0 2, 1 and in parts of two tiles, the last of which is masked. Scores that are
    recorded at the place of another tile.
    """
    q, k, v = (normal(80 + i, 1, 24, 1, 16) for i in range(3))
    plan = Plan.preset(preset).changed(f"split_tiles=1 key_order={order}")
    options = {"block_q": 24, "block_k": 8, "engine": engine}
    record = Record(events=(Site.S,))
    dealt = examine(q, k, v, plan=plan.changed("split_count=2"), record=record, **options)
    rows = np.concatenate([np.arange(8) + 8 * tile for tile in (0, 2, 1, 1)])
    mask = (np.arange(32) < 24)[None, None, None]
    parts = examine(
        q, k[:, rows], v[:, rows], plan=plan.changed("split_tiles=2"), mask=mask, **options
    )
    assert np.array_equal(dealt.out, parts.out) and np.array_equal(dealt.lse, parts.lse)
    apart = examine(q, k, v, plan=plan, record=record, **options)
    assert not np.array_equal(dealt.lse, apart.lse)
    assert np.array_equal(dealt.trace.events[Site.S], apart.trace.events[Site.S])


def test_xla_deals_tiles_as_numpy_does():
    """A split of XLA's that has the tiles of another one."""
    arrays = [normal(80 + i, 1, 24, 1, 16) for i in range(3)]
    plan = Plan.preset("fp32").changed("split_tiles=1 split_count=2 key_order=descending")
    ours, theirs = (
        examine(*arrays, plan=plan, block_q=24, block_k=8, record=None, engine=engine)
        for engine in ("numpy", "xla")
    )
    assert differences(ours, theirs) == []


def test_a_record_of_what_every_split_has_is_refused():
    """Events of the last split alone."""
    arrays = [normal(80 + i, 1, 40, 1, 16) for i in range(4)]
    with pytest.raises(ValueError, match="INV happens in every split"):
        examine(*arrays, plan="fa2-split", block_k=16, record=Record(events=(Site.INV,)))
