"""Plans that were read from public code: their casts against the integers of that code."""

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine
from roundscope.emu import round_to

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
