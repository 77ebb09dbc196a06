"""`row_sums` against fractions, and against the feature of dQ where K has a feature of ones."""

from fractions import Fraction

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention import Plan, Record, Site, examine, row_sums
from roundscope.attention.plans.choices import ScaleOfGradient
from tests.checks.engines import normal

B, T, S, N, G, H = 2, 20, 28, 4, 2, 8
INPUTS = [
    normal(310 + i, *shape)
    for i, shape in enumerate([(B, T, N, H), (B, S, G, H), (B, S, G, H), (B, T, N, H)])
]
MASK = np.random.default_rng(0).random((B, 1, T, S)) < 0.7
MASK[:, :, 3] = False  # a row that sees no key
BLOCKS = {"block_q": 8, "block_k": 8}
SCALE = float(np.float32(0.3))  # no power of two: the place where it enters dS matters
PRESETS = ("fp32", "fa2-bf16", "fa3-fp8", "qiu-yao", "baseline-bf16")
TWINS = ("fa2", "cudnn", "eager", "jax-xla", "pallas-mha", "qiu-yao-compiled")


def exactly_added(plan):
    """The plan whose dQ adds the same dS in binary64."""
    wide = emu.rounding("fp64")
    plan = plan.rounded(dict.fromkeys((Site.DQ, Site.DQP, Site.SDQ, Site.DQ_OUT), wide))
    return plan.adding(Site.DQ, emu.Accumulator(order=emu.Order.ASCENDING, step=wide))


def feature_of_ones(inputs, plan, **options):
    """dQ's feature behind the others, over the scale."""
    zeros = [np.zeros((*x.shape[:3], 8), x.dtype) for x in inputs]
    zeros[1][..., 0] = 1.0
    wide = [np.concatenate([x, more], -1) for x, more in zip(inputs, zeros, strict=True)]
    return np.asarray(examine(*wide, plan=plan, **options).dq)[..., H] / SCALE


def agree(plan, **options):
    """Compare the two. binary64 inputs: results are binary64 then."""
    inputs = [x.astype(np.float64) for x in INPUTS]
    plan, options = exactly_added(plan), options | BLOCKS | {"scale": SCALE}
    found = row_sums(*inputs, plan=plan, **options)
    assert found.shape == (B, T, N) and found.dtype == np.float64
    expected = feature_of_ones(inputs, plan, **options)
    size = np.abs(expected).max()
    assert size > 1e-9
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-13)
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    agree(Plan.preset(name))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    "fa2-bf16", *(pytest.param(p, marks=pytest.mark.thorough) for p in PRESETS if p != "fa2-bf16"),
])  # fmt: skip
def test_presets_under_xla(name):
    """One preset often: 20 s of compiling each."""
    agree(Plan.preset(name), engine="xla")


@pytest.mark.parametrize("name", TWINS)
def test_twins(name):
    """Plans that cast dS before or after the scale, twice, or from a P that was kept."""
    agree(Plan.preset(name), is_causal=name != "gpt-oss")


@pytest.mark.parametrize("where", list(ScaleOfGradient))
def test_wherever_the_scale_enters(where):
    agree(Plan.preset("fa2-bf16").changed(f"gradient_scale={where}"))


@pytest.mark.parametrize("options", [
    {"is_causal": True}, {"window": 5}, {"window": 5, "is_causal": True}, {"mask": MASK},
    {"mask": MASK, "is_causal": True, "window": 9}, {"inject": "DELTA:ulps=64"}, {"softcap": 2.0},
])  # fmt: skip
def test_scores_that_do_not_exist_are_no_part(options):
    found = agree(Plan.preset("fa2-bf16"), **options)
    assert "mask" not in options or not found[:, 3].any()


def test_sinks():
    sinks = normal(320, N)
    plan = exactly_added(Plan.preset("fa2-bf16"))
    found = row_sums(*INPUTS, plan=plan, scale=SCALE, sinks=sinks, **BLOCKS)
    inputs = [x.astype(np.float64) for x in INPUTS]
    expected = feature_of_ones(inputs, plan, scale=SCALE, sinks=sinks, **BLOCKS)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-13)
    assert np.abs(found).max() > 0.01


def test_sums_are_those_of_fractions():
    """Rounded once, where a sum in binary64 rounds at every number."""
    plan = Plan.preset("fp32")
    found = row_sums(*INPUTS, plan=plan, **BLOCKS)
    record = Record(events=(Site.DS,))
    ds = examine(*INPUTS, plan=plan, record=record, **BLOCKS).trace.events["DS"][1]
    for b, t, n in np.ndindex(found.shape):
        assert found[b, t, n] == float(sum(Fraction(float(x)) for x in ds[b, n, t]))


def test_exact_attention_has_none():
    assert np.abs(row_sums(*INPUTS, plan="exact")).max() < 1e-14


def test_centered_delta_takes_them_away():
    """All but those of the cast of dS itself."""
    plan = Plan.preset("fa2-bf16").changed("DS=fp32")
    before, after = (np.abs(row_sums(*INPUTS, plan=p)).mean()
                     for p in (plan, plan.changed("delta_from=CENTERED")))  # fmt: skip
    assert after < 1e-3 * before


def test_wrong_arguments():
    with pytest.raises(TypeError, match="q: a list"):
        row_sums([[1.0]], *INPUTS[1:], plan="fp32")
    with pytest.raises(ValueError, match="do: shape"):
        row_sums(*INPUTS[:3], INPUTS[3][:, :-1], plan="fp32")
    with pytest.raises(ValueError, match="mask: shape"):
        row_sums(*INPUTS, plan="fp32", mask=np.ones((3, 3), bool))
    with pytest.raises(ValueError, match="do"):
        row_sums(*INPUTS[:3], None, plan="fp32")
