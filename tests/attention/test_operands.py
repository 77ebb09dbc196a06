"""What is done to Q and K before their product: the scale in q, keys less their mean, scales apart.

Expected numbers are NumPy's, or those of a call whose inputs have the step already.
"""

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, Record, attend, examine
from tests.checks.engines import normal

BF16 = ml_dtypes.bfloat16
TILES = {"block_q": 16, "block_k": 16}
FA2 = Plan.preset("fa2-bf16").changed("exp=base2 log2_e=scale")
SCALED = FA2.changed("scaled_queries=true")


def inputs(keys=40, heads=2, key_heads=1, width=16):
    shapes = ((1, 40, heads, width), (1, keys, key_heads, width), (1, keys, key_heads, width))
    return [normal(40 + i, *shape) for i, shape in enumerate(shapes)]


def test_q_is_multiplied_by_c_and_then_rounded():
    """A product that is rounded once, or the scale in base e."""
    q, k, v = inputs()
    c = np.float32(0.3 * np.log2(np.e))
    found = examine(q, k, v, plan=SCALED, scale=0.3, record=Record(events=("Q", "SCALED")), **TILES)
    want = (q * c).astype(BF16).astype(np.float64)
    assert np.array_equal(found.trace.events["Q"][1][0, 0], want[0, :, 0])
    s = want[0, :, 0] @ k[0, :, 0].astype(np.float64).T
    assert np.allclose(found.trace.events["SCALED"][1][0, 0], s, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ["numpy", "xla"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_keys_lose_their_mean(engine, is_causal):
    """A mean over padding, over queries' heads, or one that is not rounded."""
    q, k, v = inputs(keys=37)
    mean = k.astype(np.float64).mean(axis=1, keepdims=True).astype(BF16).astype(np.float32)
    less = (k - mean).astype(BF16).astype(np.float32)
    call = TILES | {"is_causal": is_causal, "engine": engine, "alignment": "top-left"}
    found = attend(q, k, v, plan=FA2.changed("smoothed_keys=true KM=bf16"), **call)
    assert np.array_equal(found, attend(q, less, v, plan=FA2, **call))


@pytest.mark.parametrize("words", ["K=int8[8x64]", "K=int8[64x16]", "K=mxfp8_e4m3"])
def test_scales_of_keys_leave_the_product(words):
    """A scale of another key, or of a tile in place of its block: tiles of 16 keys cut blocks."""
    q, k, v = inputs()
    wide = Plan.preset("exact").changed("scaled_queries=true", words)
    apart = wide.changed("key_scales=true")
    for causal in (False, True):
        one, other = (attend(q, k, v, plan=p, is_causal=causal, **TILES) for p in (wide, apart))
        assert np.abs(one - other).max() < 1e-12
    record = Record(events=("S",))
    s, scaled = (
        examine(q, k, v, plan=p, record=record, **TILES).trace.events["S"] for p in (apart, wide)
    )
    ratio = scaled[1][0, 0] / s[1][0, 0]
    assert np.allclose(ratio, ratio[:1], rtol=1e-12)  # one factor for all queries of a key


def test_blocks_that_share_no_scale_are_refused():
    q, k, v = inputs()
    plan = SCALED.changed("K=int8[64x8] key_scales=true")
    with pytest.raises(ValueError, match=r"key_scales=True.*int8.*16 features"):
        attend(q, k, v, plan=plan, **TILES)


def test_a_mean_has_no_random_bits():
    with pytest.raises(ValueError, match=r"KM=bf16:stochastic.*rounds the mean"):
        FA2.changed("smoothed_keys=true KM=bf16:stochastic")
