"""Tiles of a trace added on the device: the same trace as where NumPy adds them."""

import numpy as np
import pytest

from attention import Record, Site, examine, trace


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_large_traces_are_those_of_small_ones(monkeypatch, causal):
    """Catches tiles of the backward not turned, a place in the wrong tile, and sites of two shapes taken for one another."""
    random = np.random.default_rng(7)
    q, do = random.standard_normal((2, 2, 11, 4, 6))
    k, v = random.standard_normal((2, 2, 13, 2, 6))
    record = Record(ones=(Site.P,), events=(Site.O,), steps=(Site.PV,))

    def seen():
        options = {"plan": "fa2-bf16", "block_q": 4, "block_k": 8, "is_causal": causal, "record": record, "engine": "xla"}
        return examine(q, k, v, do, **options).trace

    small = seen()
    monkeypatch.setattr(trace, "LARGE", 1)
    large = seen()
    assert list(small.stats) == list(large.stats) and set(small.ones) == set(large.ones) == {"P"}
    assert np.array_equal(small.events["O"], large.events["O"], equal_nan=True)
    for name, stats in small.stats.items():
        for field in stats.__dataclass_fields__:
            a, b = getattr(stats, field), getattr(large.stats[name], field)
            assert isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape == (2, 2 if name in ("K", "V") else a.shape[1])
            assert np.allclose(a, b, rtol=1e-12, atol=1e-12) if "error" in field or "ulps" in field else np.array_equal(a, b)
        assert np.allclose(small.rows[name], large.rows[name], rtol=1e-12, atol=1e-12)
