"""What comes off a device: tiles added there, rows of a sample, small arrays in one copy.

The same trace as by plain copies to NumPy.
"""

import jax
import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.trace import from_device as xla_trace


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_large_traces_are_those_of_small_ones(monkeypatch, causal):
    """Catches tiles of the backward not turned, a place in the wrong tile, and sites of two shapes
    taken for one another.
    """
    random = np.random.default_rng(7)
    q, do = random.standard_normal((2, 2, 11, 4, 6))
    k, v = random.standard_normal((2, 2, 13, 2, 6))
    record = Record(ones=(Site.P,), events=(Site.O,), steps=(Site.PV,), away=True)

    def seen():
        options = {
            "plan": "fa2-bf16",
            "block_q": 4,
            "block_k": 8,
            "is_causal": causal,
            "record": record,
            "engine": "xla",
        }
        return examine(q, k, v, do, **options).trace

    small = seen()
    monkeypatch.setattr(xla_trace, "LARGE", 1)
    large = seen()
    assert list(small.stats) == list(large.stats) and set(small.ones) == set(large.ones) == {"P"}
    assert np.array_equal(small.events["O"], large.events["O"], equal_nan=True)
    for name, stats in small.stats.items():
        for field in stats.__dataclass_fields__:
            a, b = getattr(stats, field), getattr(large.stats[name], field)
            assert (
                isinstance(b, np.ndarray)
                and a.dtype == b.dtype
                and a.shape == b.shape == (2, 2 if name in ("K", "V") else a.shape[1])
            )
            assert (
                np.allclose(a, b, rtol=1e-12, atol=1e-12)
                if "error" in field or "ulps" in field
                else np.array_equal(a, b)
            )
        for kind in ("rows", "away"):
            a, b = getattr(small, kind)[name], getattr(large, kind)[name]
            assert np.allclose(a, b, rtol=1e-12, atol=1e-12)


ENTRIES = ["fa2-bf16", Plan.preset("fa2-bf16").at("P", "fp16")]


@pytest.mark.parametrize(
    "plans", [None, pytest.param(ENTRIES, marks=pytest.mark.thorough)], ids=["one", "of entries"]
)
@pytest.mark.parametrize("size", [1 << 16, 40], ids=["small", "large"])
def test_copies_off_a_far_device(monkeypatch, plans, size):
    """Rows of another tile or head, in a batch entry that is numbered for itself too; arrays in
    each other's place; a lost one.
    """
    random = np.random.default_rng(8)
    q, do = random.standard_normal((2, 2, 11, 4, 6))
    k, v = random.standard_normal((2, 2, 13, 2, 6))
    options = {"plan": plans or "fa2-bf16", "block_q": 2, "block_k": 3, "engine": "xla"}
    record = Record(ones=(Site.P,), events=(Site.O,), every=3, away=True)
    do = do if plans else None
    near = examine(q, k, v, do, record=record, **options).trace
    copied, get = [], jax.device_get

    def counted(x):
        copied.extend(jax.tree.leaves(x))
        return get(x)

    monkeypatch.setattr(xla_trace, "SMALL", size)
    monkeypatch.setattr(xla_trace, "_is_far", lambda seen: True)
    monkeypatch.setattr(jax, "device_get", counted)
    far = examine(q, k, v, do, record=record, **options).trace
    for name, stats in near.stats.items():
        for field in stats.__dataclass_fields__:
            assert np.array_equal(getattr(stats, field), getattr(far.stats[name], field))
        assert np.array_equal(near.rows[name], far.rows[name])
        assert np.array_equal(near.away[name], far.away[name])
    assert near.rows.keys() == far.rows.keys()
    assert all(
        np.any(near.rows[name])
        for name in (("K", "P", "DQ_OUT", "DK_OUT") if plans else ("K", "P"))
    )
    assert (
        list(far.rows) == list(far.stats) == [str(site) for site in Site if str(site) in far.stats]
    )
    assert np.array_equal(near.ones["P"], far.ones["P"])
    assert all(
        np.array_equal(x, y, equal_nan=True)
        for x, y in zip(near.events["O"], far.events["O"], strict=True)
    )
    assert (len(copied) < 5) == (size > 40)
