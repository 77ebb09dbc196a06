"""A maximum that stays as it is up to a threshold, and FlashAttention-4 in FP8, which lets P clip for it."""

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, attend, examine
from roundscope.attention.plans.blackwell import fa4_fp8, fa4_fp8_offset4
from tests.checks.engines import differences, normal
from tests.checks.fa4_picture import DEVIATIONS, PUBLISHED, errors, inputs

TILE, WIDTH = 32, 16


def qkv(tokens=96):
    return [normal(900 + i, 1, tokens, 2, WIDTH) * (2.0 if i == 0 else 1.0) for i in range(3)]


def reference(q, k, v, threshold, offset):
    """One head by the public code's lines, in binary64 but for P: m old unless it grows by more than the threshold."""
    c = WIDTH**-0.5 * np.log2(np.e)
    m, l, o, kept = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros((len(q), WIDTH)), 0
    for lo in range(0, len(k), TILE):
        s = q @ k[lo : lo + TILE].T
        new = np.maximum(m, s.max(1))
        stays = (new - np.where(m == -np.inf, -1e30, m)) * c <= threshold
        kept += int((stays & (new > m)).sum())
        new = np.where(stays, m, new)
        p, alpha = np.exp2(s * c - new[:, None] * c), np.exp2((m - new) * c)
        cast = p if offset is None else np.minimum(p * 2.0**offset, 448.0).astype(ml_dtypes.float8_e4m3fn).astype(float) / 2.0**offset
        m, l, o = new, alpha * l + p.sum(1), alpha[:, None] * o + cast @ v[lo : lo + TILE]
    return o / l[:, None], kept


@pytest.mark.parametrize(("threshold", "offset"), [(1.0, None), (4.0, 8), (4.0, 4)])
def test_it_is_the_public_code(threshold, offset):
    """A threshold in the wrong units, a maximum that never or always stays, a row sum that clips with P."""
    x = qkv()
    wide = Plan.preset("exact").changed("exp=base2", "log2_e=maximum", f"stale_maximum={threshold:g}")
    plan = wide if offset is None else wide.rounded({"P": (fa4_fp8() if offset == 8 else fa4_fp8_offset4())["P"]})
    out = np.asarray(examine(*x, plan=plan, block_q=TILE, block_k=TILE, record=None).out, np.float64)
    for head in range(2):
        want, kept = reference(*(np.asarray(a[0, :, head], np.float64) for a in x), threshold, offset)
        assert kept > 0 and np.abs(out[0, :, head] - want).max() < (1e-6 if offset is None else 2e-3)


def test_without_rounding_it_changes_nothing():
    """A state that is not rescaled by what m was."""
    x = qkv()
    wide = Plan.preset("exact").changed("exp=base2", "log2_e=maximum", "stale_maximum=6")
    ours, exact = (np.asarray(examine(*x, plan=p, block_q=TILE, block_k=TILE, record=None).out) for p in (wide, "exact"))
    assert np.abs(ours - exact).max() < 1e-6


@pytest.mark.parametrize("name", ["fa4-fp8", pytest.param("fa4-bf16", marks=pytest.mark.thorough)])
def test_engines_agree(name):
    """Bits that XLA fuses."""
    x, do = qkv(64), normal(950, 1, 64, 2, WIDTH)
    sizes = {"plan": name, "block_q": TILE, "block_k": TILE, "record": None, "is_causal": True}
    assert differences(*(examine(*x, do, engine=engine, **sizes) for engine in ("numpy", "xla"))) == []


def test_published_errors_of_flash_attention_4():
    """Errors of O that are not within a third of those published for a B300; an O that does not shrink where P clips."""
    x = inputs(queries=128)
    for offset, make in ((8, fa4_fp8), (4, fa4_fp8_offset4)):
        for deviation, published in zip(DEVIATIONS, PUBLISHED[offset], strict=True):
            error, gain = errors(make(), deviation, x)
            assert published / 1.34 < error < published * 1.34, (offset, deviation, error)
            assert (gain < -0.15) == (offset == 8 and deviation > 1), gain


def test_bad_thresholds():
    """A threshold that is taken and does nothing."""
    for words, told in (
        (["stale_maximum=-1"], "0 or more"),
        (["exp=base2", "log2_e=maximum", "stale_maximum=64"], "below 64"),
        (["stale_maximum=4"], "log2_e"),
    ):
        with pytest.raises(ValueError, match=told):
            Plan.preset("fa2-bf16").changed(*words)
    with pytest.raises(ValueError, match="engine='xla'"):
        attend(*qkv(64), plan="fa4-bf16", engine="pallas", block_q=TILE, block_k=TILE)
