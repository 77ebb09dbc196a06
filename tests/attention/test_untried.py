"""Plans that were read from public code: their casts against the integers of that code."""

import re
from pathlib import Path

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, attend, examine
from roundscope.attention.plans.untried import UNTRIED
from roundscope.emu import round_to
from tests.checks.splash import equal

CASTS = ["P", "OUT", "P_B", "DS", "DQ_OUT", "DK_OUT", "DV_OUT"]


def upper(bits):
    """The upper half of binary32 numbers, as numbers."""
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


CONVERSIONS = {  # of positive and negative finite numbers: what is done with their integers
    "toward-zero": upper,
    "ties-to-away": lambda bits: upper(bits + np.uint32(0x8000)),
    "ties-to-even": lambda bits: upper(bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & 1)),
}


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("aiter-ck", "toward-zero"),
        ("aiter-asm", "ties-to-away"),
        ("aiter-ck casts=ties-to-even", "ties-to-even"),
    ],
)
def test_casts_of_aiter_are_those_of_its_conversion(words, mode):
    """A cast that keeps to nearest, an event in FP32 that is cut, inputs that are cut again."""
    name, *changes = words.split()
    plan = Plan.preset(name).changed(*changes)
    x = np.random.default_rng(0).standard_normal((4, 1, 24, 1, 8)).astype(np.float32)
    x += np.float32(2.0**-7) * (np.arange(8) % 2)  # some numbers end on ties of BF16
    inputs = [np.asarray(round_to(a, "bf16")) for a in x]
    found = examine(*inputs, plan=plan, record=Record(events=CASTS), is_causal=True)
    for site in CASTS:
        before, after = (np.float32(a) for a in found.trace.events[Site[site]])
        exact = np.isfinite(before)
        want = CONVERSIONS[mode](before[exact].view(np.uint32))
        np.testing.assert_array_equal(after[exact], want, err_msg=site)
    others = {s for s in Site if plan[s].format.name == "bf16"} - {Site[n] for n in CASTS}
    assert others == {Site.Q, Site.K, Site.V, Site.DO}
    assert all(str(plan.event(s)) == "bf16" for s in others)


def test_a_plan_in_fp16_keeps_its_modes():
    """FP16 in half of a plan's casts, since its BF16 was recognised by its mode."""
    plan = Plan.preset("aiter-ck-fp16")
    assert {str(plan.event(n)) for n in CASTS} == {"fp16:toward-zero"}
    assert str(plan.event("Q")) == "fp16"


def bf16(x):
    """To nearest with ties to even, by the integers of binary32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return CONVERSIONS["ties-to-even"](bits).astype(np.float64)


def by_hand(q, k, v, split, *, casts_p, sums_cast, casts_parts):
    """Attention of (T, H) arrays in binary64 but for these casts; split: the keys of a part."""
    parts, lses = [], []
    for at in range(0, len(k), split):
        s = q @ k[at : at + split].T / np.sqrt(q.shape[1])
        m = s.max(1, keepdims=True)
        e = np.exp(s - m)
        p = bf16(e) if casts_p else e
        l = (p if sums_cast else e).sum(1, keepdims=True)
        o = p @ v[at : at + split] / l
        parts.append(bf16(o) if casts_parts else o)
        lses.append(m + np.log(l))
    weights = np.exp(np.stack(lses) - np.max(lses, axis=0))
    return bf16((weights * np.stack(parts)).sum(0) / weights.sum(0))


@pytest.mark.parametrize(
    ("name", "split", "casts"),
    [
        ("aiter-ck casts=ties-to-even", 64, (True, False, False)),
        ("mlx-sdpa", 64, (False, False, False)),
        ("flash-mla", 64, (True, False, False)),
        ("flashinfer-split", 16, (True, True, True)),
        ("flashinfer-split OI=fp32", 16, (True, True, False)),
    ],
)
def test_outputs_are_those_of_the_casts_by_hand(name, split, casts):
    """A P that is cast, a row sum of what was not, partial outputs in binary32."""
    x = np.random.default_rng(1).standard_normal((3, 64, 32)).astype(np.float32)
    q, k, v = (np.asarray(round_to(a, "bf16"), np.float64) for a in x)
    preset, *changes = name.split()
    given = (np.float32(a)[None, :, None] for a in (q, k, v))
    out = attend(*given, plan=Plan.preset(preset).changed(*changes), block_k=split)
    own = np.asarray(out)[0, :, 0]

    def same(*choices):
        keys = ("casts_p", "sums_cast", "casts_parts")
        return (own == by_hand(q, k, v, split, **dict(zip(keys, choices, strict=True)))).mean()

    matters = [True, casts[0], split < 64]  # a row sum of one P, parts of one part: no difference
    others = [same(*(c != (n == i) for i, c in enumerate(casts))) for n in range(3) if matters[n]]
    assert same(*casts) > 0.999 > 0.98 > max(others)


def test_the_columns_of_flash_attention_4_are_words():
    """A word of the table that is not one, or that changes nothing."""
    page = Path(__file__).parents[2] / "docs" / "findings" / "kernels.md"
    words = set(re.findall(r"`(polynomial=[\w:]+)`", page.read_text(encoding="utf-8")))
    made = {Plan.preset("fa4-bf16").changed(word).polynomial for word in words}
    assert len(made) == len(words) == 7


def test_none_claims_to_be_compared_with_hardware():
    """A plan that was read and says nothing of it."""
    for make in UNTRIED.values():
        told = " ".join(make.__doc__.split()).lower()
        assert "not compared with hardware" in told or "not compared with a tpu" in told


@pytest.mark.thorough
def test_splash_attention_in_the_interpreter():
    """P that is cast, or tiles that are not added apart, of tpu-splash."""
    found = equal(64, 256, 0, is_causal=True)
    assert found["out"] > 0.9995 and min(found.values()) > 0.996
