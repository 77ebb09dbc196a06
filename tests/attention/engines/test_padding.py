"""Rows that only fill a tile, where V is infinite: they reach no result, on any engine."""

import numpy as np
import pytest

from roundscope.attention import examine

PARTS = ("out", "lse", "dq", "dk", "dv")


@pytest.mark.parametrize("engine", ["numpy", "xla", "pallas"])
def test_queries_before_the_first_key_of_a_causal_call_have_no_output(engine):
    """0 times an infinite V in rows whose keys are padding on the left, or in the future."""
    q, k, v, _ = (np.ones((1, 32, 1, 16), np.float32) for _ in range(4))
    v[0, 20] = np.inf
    mask = np.arange(32) >= 18
    found = examine(
        q,
        k,
        v,
        plan="fa2-bf16",
        block_q=16,
        block_k=16,
        is_causal=True,
        mask=mask,
        engine=engine,
        record=None,
    )
    assert not found.out[0, :18].any() and np.isneginf(found.lse[0, :18]).all()


@pytest.mark.parametrize(
    "is_causal", [pytest.param(False, marks=pytest.mark.thorough), True]
)  # a causal call skips tiles, whose size then decides which keys meet an infinity
def test_rows_that_fill_a_tile_reach_no_key(is_causal):
    """dK that is NaN where all finite keys have an infinite gradient: 0 times infinity of a row
    beyond the last; engines that differ.
    """
    q, k, v, do = (np.ones((1, 20, 1, 16), np.float32) for _ in range(4))
    v[0, 3] = np.inf
    call = {"plan": "fa2-bf16", "block_k": 16, "record": None, "is_causal": is_causal}
    found = {
        engine: examine(q, k, v, do, block_q=16, engine=engine, **call)
        for engine in ("numpy", "xla", "pallas")
    }
    whole = (
        found["numpy"] if is_causal else examine(q, k, v, do, block_q=20, engine="numpy", **call)
    )
    for engine, got in found.items():
        for part in PARTS:
            assert np.array_equal(getattr(got, part), getattr(whole, part), equal_nan=True), (
                engine,
                part,
            )
    assert is_causal or np.isnan(whole.dk).mean() == 0.05  # of the key whose V is infinite
