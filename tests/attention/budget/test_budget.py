"""`error_budget`: shares that NumPy and ml_dtypes give too, sums on tensor cores, heads, words."""

import ml_dtypes
import numpy as np
import pytest

from roundscope import Plan, Site, attend, error_budget
from roundscope.attention.budget.parts import (
    event_part,
    is_narrow,
    promotion,
    rounding_parts,
    sum_part,
    without,
)
from roundscope.attention.places import absent
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.events.plan import check_factors

BF16 = ml_dtypes.bfloat16


def tensors(seed=0, t=24, n=2, g=2, h=8):
    random = np.random.default_rng(seed)
    q, do = random.standard_normal((2, 1, t, n, h)).astype(BF16).astype(np.float32)
    k, v = random.standard_normal((2, 1, t, g, h)).astype(BF16).astype(np.float32)
    return q, k, v, do


def to_bf16(x):
    """Binary64 to BF16, rounded once: by way of binary32 rounded to odd."""
    near = x.astype(np.float32)
    off = near.astype(np.float64) != x
    down = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, 0), near)
    odd = np.where(off, (down.view(np.int32) | 1).view(np.float32), near)
    return odd.astype(BF16).astype(np.float64)


def plain(q, k, v, cast=lambda p: p):
    """Attention in binary64 by NumPy, with P cast before it multiplies V; (B, T, N, H)."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    e = np.exp(s - s.max(-1, keepdims=True))
    out = np.einsum("bnts,bsnh->btnh", cast(e), v)
    return out / e.sum(-1).transpose(0, 2, 1)[..., None]


def relative(off, exact):
    return np.sqrt((off**2).sum() / (exact**2).sum())


def line(budget, name):
    return next(x for x in budget.lines if x.part.name == name)


class TestAgainstNumPy:
    def test_the_last_rounding_alone(self):
        """OUT alone is the exact output rounded once, which ml_dtypes does too."""
        q, k, v, _ = tensors()
        budget, exact = error_budget(q, k, v, plan="fa2-bf16"), plain(q, k, v)
        expected = relative(to_bf16(exact) - exact, exact)
        assert line(budget, "OUT").alone["out"] == pytest.approx(expected, rel=1e-9)

    def test_p_alone(self):
        q, k, v, _ = tensors(1)
        budget, exact = error_budget(q, k, v, plan="fa2-bf16"), plain(q, k, v)
        off = plain(q, k, v, to_bf16) - exact
        p = line(budget, "P")
        assert p.alone["out"] == pytest.approx(relative(off, exact), rel=1e-9)
        assert p.gain["out"] == pytest.approx((off * exact).sum() / (exact**2).sum(), rel=1e-6)

    def test_without_the_last_rounding(self):
        """What is left without OUT is what P leaves, up to what is in binary32."""
        q, k, v, _ = tensors(2)
        budget, exact = error_budget(q, k, v, plan="fa2-bf16"), plain(q, k, v)
        expected = relative(plain(q, k, v, to_bf16) - exact, exact)
        assert line(budget, "OUT").without["out"] == pytest.approx(expected, rel=1e-2)

    def test_the_whole_error(self):
        q, k, v, _ = tensors(3)
        budget, exact = error_budget(q, k, v, plan="fa2-bf16"), plain(q, k, v)
        out = attend(q, k, v, plan="fa2-bf16").astype(np.float64)
        assert budget.total["out"] == pytest.approx(relative(out - exact, exact), rel=1e-9)

    def test_a_biased_rounding_has_its_gain(self):
        q, k, v, _ = tensors(4)
        plan = Plan.preset("fa2-bf16").at("P", "bf16", mode="toward-zero")
        budget = error_budget(q, k, v, plan=plan)
        assert line(budget, "P").gain["out"] < -1e-3
        assert abs(line(budget, "OUT").gain["out"]) < 5e-4


class TestShares:
    def test_shares_and_the_interaction_add_up_to_one(self):
        budget = error_budget(*tensors(5), plan="qiu-yao")
        for name in ("out", "dq", "dk", "dv"):
            shares = sum(budget.share(x, name) for x in budget.lines)
            assert shares + budget.interaction(name) == pytest.approx(1.0)

    def test_an_exact_plan_has_no_lines(self):
        q, k, v, _ = tensors()
        budget = error_budget(q, k, v, plan="exact")
        assert budget.lines == () and budget.total["out"] < 1e-14
        with pytest.raises(ValueError, match="makes no error in it"):
            error_budget(q * 0, k, v * 0, plan="fp32").largest("out")

    def test_events_that_change_nothing_have_no_line(self):
        """Q, K and V are BF16 numbers: casting them to BF16 is no event of the budget."""
        q, k, v, _ = tensors()
        plan = Plan.preset("fa2-bf16").changed("Q=bf16 K=bf16 V=bf16")
        names = [x.part.name for x in error_budget(q, k, v, plan=plan).lines]
        assert not {"Q", "K", "V"} & set(names)

    def test_what_is_in_binary32_stays_together_unless_it_matters(self):
        q, k, v, _ = tensors()
        assert any("events in fp32" in x.part.name for x in error_budget(q, k, v).lines)
        singly = [x.part.name for x in error_budget(q, k, v, plan="fp32").lines]
        assert {"OUT", "PV.step"} <= set(singly)

    def test_sums_on_tensor_cores_are_measured_by_their_absence(self):
        q, k, v, _ = tensors(n=1, g=1, h=32)
        sums = [x for x in error_budget(q, k, v, plan="fa3-fp8@hopper").lines if x.is_change]
        assert sums and all(x.without for x in sums)

    def test_an_injected_error_is_a_line(self):
        q, k, v, _ = tensors()
        budget = error_budget(q, k, v, plan="fa2-bf16", inject="P:bias=1")
        assert budget.lines[0].part.name == "injected"
        assert budget.share(budget.lines[0], "out") == pytest.approx(1.0, abs=1e-3)


class TestHeads:
    def test_whole_groups_are_chosen(self):
        q, k, v, do = tensors(n=6, g=3)
        assert error_budget(q, k, v, do, plan="fa2-bf16", heads=4).heads == (0, 1, 4, 5)

    def test_the_numbers_are_those_of_the_heads_alone(self):
        q, k, v, do = tensors(n=4, g=4)
        some = error_budget(q, k, v, do, plan="fa2-bf16", heads=2)
        own = [x[:, :, [0, 3]] for x in (q, k, v, do)]
        assert some.heads == (0, 3)
        assert some.total == error_budget(*own, plan="fa2-bf16").total

    def test_masks_and_sinks_follow_their_heads(self):
        q, k, v, do = tensors(n=4, g=4)
        random = np.random.default_rng(1)
        mask, sinks = random.random((1, 4, 24, 24)) < 0.7, random.standard_normal(4).astype("f4")
        some = error_budget(q, k, v, do, plan="fa2-bf16", heads=2, mask=mask, sinks=sinks)
        own = [x[:, :, [0, 3]] for x in (q, k, v, do)]
        alone = error_budget(*own, plan="fa2-bf16", mask=mask[:, [0, 3]], sinks=sinks[[0, 3]])
        assert some.total == alone.total

    def test_no_heads(self):
        q, k, v, _ = tensors()
        with pytest.raises(ValueError, match="heads=0: give 1 or more"):
            error_budget(q, k, v, heads=0)


def test_window_and_softcap_are_those_of_the_exact_results():
    """Else the error would be that of another function."""
    q, k, v, _ = tensors()
    for more in ({"window": 5}, {"softcap": 3.0}):
        assert error_budget(q, k, v, plan="fp32", is_causal=True, **more).total["out"] < 1e-6
    plan = Plan.preset("fp32").changed("softcap=3 window=5")
    assert error_budget(q, k, v, plan=plan, is_causal=True).total["out"] < 1e-6


@pytest.mark.parametrize("name", [*PRESETS, *TWINS])
def test_every_part_can_be_taken_away_and_promoted(name):
    """The words of a promotion give a plan that runs, in which the part is no longer narrow."""
    plan = Plan.preset(name)
    reached = {str(s) for s in Site if absent(plan, s) is None}
    for part in rounding_parts(plan, reached, backward=True):
        check_factors(without(plan, part))
        promoted = plan.changed(*promotion(plan, part))
        check_factors(promoted)
        assert not is_narrow(promoted, part)


def test_formulas():
    plan = Plan.preset("fa2-bf16")
    assert event_part(plan, Site.P).formula == "EXP as the operand of P V"
    assert sum_part(plan, Site.PV).formula == "additions of sum_s P v"
    assert event_part(Plan.preset("fa3-fp8"), Site.P).how == "e4m3fn"


def test_the_table():
    q, k, v, _ = tensors()
    text = str(error_budget(q, k, v, plan="fa2-bf16"))
    assert text.splitlines()[1].split() == ["event", "rounds", "to", "out", "out"]
    assert text.splitlines()[-2].split()[:2] == ["all", "100.0"]
    assert text.splitlines()[-1] == "relative rms errors, of heads 0 1"
