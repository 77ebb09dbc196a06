"""The rules of the verdict, and the diagnosis of inputs whose bias is known."""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import Plan
from roundscope.tools.diagnose.tensors.coherence import Bias
from roundscope.tools.diagnose.tensors.findings import diagnose
from roundscope.tools.diagnose.tensors.repairs import Arm, Outcome
from roundscope.tools.diagnose.tensors.verdict import Effect, Kind, effect
from tests.tools.diagnose.inputs import layer, narrowed, request


def found(x, plan="qiu-yao", **more):
    return diagnose([x], request(plan, **more), "test", lambda step, text: None)


def outcome(mean, half, p, moved=(-9.0, -8.0)):
    bias = Bias(mean=mean, low=mean - half, high=mean + half, a=0.0, p=p, rms=1.0)
    return Outcome(
        arm=Arm(name="x", plan=Plan.preset("fp32")),
        invariance=0.0,
        change=0.0,
        after=bias,
        moved=moved,
        biased=0,
        time=1.0,
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (outcome(0.1, 0.3, 0.5), Effect.REMOVED),
        (outcome(0.1, 0.3, 1e-5), Effect.REDUCED),
        (outcome(0.02, 0.01, 1e-9), Effect.REMOVED),
        (outcome(0.1, 0.8, 0.5), Effect.UNCLEAR),
        (outcome(1.0, 2.0, 0.3), Effect.UNCLEAR),
        (outcome(-0.5, 0.1, 1e-9), Effect.TURNED),
        (outcome(1.02, 0.1, 1e-9, moved=(-0.05, 0.09)), Effect.LEFT),
        (outcome(1.5, 0.1, 1e-9, moved=(0.4, 0.6)), Effect.GREW),
    ],
)
def test_what_an_arm_did(after, expected):
    """Catches noise that drowns a bias passing for its removal, and a rest of a percent passing for
    a bias left.
    """
    assert effect(after, outcome(1.0, 0.1, 1e-9), biased=True) is expected


def test_without_a_bias_only_a_new_one_counts():
    """Catches an arm blamed for a bias that lies inside the uncertainty of what was there."""
    before = outcome(0.0, 1.0, 0.6)
    assert effect(outcome(0.1, 0.02, 1e-9), before, biased=False) is Effect.NONE
    assert effect(outcome(3.0, 0.5, 1e-9), before, biased=False) is Effect.MADE


@pytest.fixture(scope="module")
def repeated():
    return found(layer("repeated-maximum", t=128))


def test_repeated_maxima_are_the_chain(repeated):
    """Catches a diagnosis that misses any link where all are built in: delta, P V at P = 1, ties
    broken by sticky bits, repair, sham.
    """
    assert repeated.verdict.kind is Kind.CHAIN
    assert repeated.origin.site.site == "PV" and repeated.origin.share("PV") > 0.4
    assert repeated.origin.site.share_of("tie broken by sticky") > 0.5
    effects = {o.arm.name: repeated.effect(o) for o in repeated.outcomes}
    assert effects["stabilised softmax"] is Effect.REMOVED
    assert effects["sham: as much, no aim"] is Effect.LEFT


def test_the_row_sum_is_found_beside_the_chain(repeated):
    """Catches a bias with two origins laid at one door: O in FP32 leaves the part of l in BF16,
    both in FP32 leave nothing.
    """
    effects = {o.arm.name: repeated.effect(o) for o in repeated.outcomes}
    by_name = {o.arm.name: o for o in repeated.outcomes}
    assert "row sum" in repeated.origin.origins
    assert effects["O in FP32"] is Effect.REDUCED
    assert by_name["O in FP32"].after.mean == pytest.approx(
        repeated.origin.accounts["row sum"].mean, rel=0.02
    )
    assert effects["all origins in FP32"] is Effect.REMOVED


def test_with_an_exact_row_sum_the_repairs_of_o_remove_it():
    """Catches arms that repair something else than O. P V alone is at fault here: l and OUT are
    FP32.
    """
    plan = narrowed(Q="bf16", K="bf16", V="bf16", DO="bf16", P="bf16", PV="bf16")
    f = found(layer("repeated-maximum", t=256), plan)
    effects = {o.arm.name: f.effect(o) for o in f.outcomes}
    assert f.verdict.kind is Kind.CHAIN and f.origin.origins == ["PV"]
    for name in ("O in FP32", "delta from P dP", "stochastic rounding of O"):
        assert effects[name] is Effect.REMOVED
    assert effects["sham: as much, no aim"] is Effect.LEFT


def test_repairs_are_invariant_and_the_sham_changes_as_much(repeated):
    """Catches a repair that is no repair in exact arithmetic, and a sham that is easier to see, or
    harder, than the repair.
    """
    real = [o for o in repeated.outcomes if not o.arm.is_sham]
    assert all(o.invariance < 1e-12 for o in real) and len(real) == 7
    change = {o.arm.name: o.change for o in repeated.outcomes}
    assert change["sham: as much, no aim"] == pytest.approx(change["O in FP32"], rel=0.05)


def test_rounding_toward_zero_leans_but_is_not_the_chain():
    """Catches the paper's mechanism claimed for any bias: here OUT itself rounds one way, whatever
    P is.
    """
    f = found(layer("one-signed-v", t=128), narrowed(OUT="bf16:toward-zero"))
    assert f.verdict.kind is Kind.OTHER or not f.biased
    x = layer("one-signed-v", t=128)
    f = found(replace(x, do=-np.abs(x.do)), narrowed(OUT="bf16:toward-zero"))
    assert f.verdict.kind is Kind.OTHER and f.origin.origins == ["OUT"]
    assert {"P = 1", "sticky"} <= set(f.verdict.missing)


def test_random_tensors_have_no_bias():
    """Catches false alarms, and a verdict that does not say what it would have seen."""
    from roundscope.tools.diagnose.report import words

    f = found(layer("gaussian", t=128))
    assert f.verdict.kind is Kind.NOTHING
    assert "smallest bias" in words.headline(f) and " times the error that delta" in words.headline(
        f
    )
    near = replace(f, rows=[np.array([0.04, 0.075])])  # 0.1 is the alarm of `watch`
    assert "of which it is more than half" in words.opening(near) and "0.075" in words.opening(near)
    assert "alarm" not in words.opening(replace(f, rows=[np.array([0.01, 0.02])]))
