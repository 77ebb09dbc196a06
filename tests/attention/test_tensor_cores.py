"""Presets on tensor cores: which products run there, the same bits on both engines, and what they
cannot read.
"""

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention import Plan, Record, Site, attend, examine
from roundscope.attention.plans.traced import head_plans
from roundscope.attention.sites import FACTORS, PRODUCTS
from roundscope.emu.sums.accumulator import Accumulator
from tests.checks.engines import bits, differences, normal

HOPPER = Plan.preset("fa2-bf16@hopper")


def inputs(batch=1, heads=2):
    """T = 24, S = 40: no tile divides the keys, no chunk a tile of 24."""
    shapes = (
        (batch, 24, heads, 48),
        (batch, 40, heads, 48),
        (batch, 40, heads, 8),
        (batch, 24, heads, 8),
    )
    return [normal(50 + i, *shape) for i, shape in enumerate(shapes)]


def types(name):
    """Which type's tensor core each product runs on."""
    plan = Plan.preset(name)
    kept = {str(site): plan.accumulator(site).alignment for site in PRODUCTS}
    return {site: a.operand.name for site, a in kept.items() if a is not None}


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("fa2-bf16@hopper", dict.fromkeys(map(str, FACTORS), "bf16")),
        ("qiu-yao@hopper", {"S": "bf16", "PV": "bf16", "S_B": "bf16", "DP": "bf16"}),
        (
            "fa3-fp8@hopper",
            {"S": "e4m3fn", "PV": "e4m3fn", "S_B": "e4m3fn"}
            | dict.fromkeys(("DV", "DP", "DQ", "DK"), "bf16"),
        ),
        ("fa2-bf16@volta", {}),
        ("all:fp16@volta", dict.fromkeys(map(str, FACTORS), "fp16")),
        ("exact@hopper", {}),
        ("mxfp8-attention@blackwell", {"DV": "bf16"}),
        ("fa2-bf16@cdna3", dict.fromkeys(map(str, FACTORS), "bf16")),
        ("fa3-fp8@cdna3", dict.fromkeys(map(str, FACTORS), "bf16")),  # FP8 there is FNUZ
        ("all:e4m3fnuz@cdna3", dict.fromkeys(map(str, FACTORS), "e4m3fnuz")),
        ("all:tf32@cdna2", {}),
    ],
)
def test_products_run_where_both_factors_can_be_read(name, want):
    """A product of FP32 factors on a unit that has none; FP8 and BF16 factors on the unit of
    FP8.
    """
    assert types(name) == want and Plan.preset(name).name == name


def test_a_scaled_operand_is_what_the_tensor_core_reads():
    """DS fits BF16, and DS times the scale, which dQ and dK read, is in FP32."""
    plan = Plan.preset("fa2-bf16@hopper").changed("gradient_scale=operand")
    assert plan.factors(Site.DQ) == (Site.SDS, Site.K)
    assert plan.factors(Site.DK) == (Site.SDS, Site.Q)
    q, k, v, do = inputs(heads=1)
    with pytest.raises(ValueError, match=r"DQ: a tensor core of bf16 cannot read SDS in fp32"):
        examine(q, k, v, do, plan=plan)
    examine(q, k, v, do, plan=plan.at("SDS", "bf16"))


def test_scores_are_the_tensor_core_s():
    """A sum of scores in another order, or with a tile's padding where the chunk has a factor."""
    q, k, v, _ = inputs(heads=1)
    plan = (
        Plan.preset("fp32").adding("S", HOPPER.accumulator(Site.S)).at("Q", "bf16").at("K", "bf16")
    )
    seen = examine(
        q, k, v, plan=plan, block_q=24, block_k=16, engine="numpy", record=Record(events=(Site.S,))
    )
    want = emu.dot(q[0, :, 0], k[0, :, 0].T, Accumulator.tensor_core("hopper", "bf16"))
    assert np.array_equal(seen.trace.events["S"][1][0, 0], want)


@pytest.mark.parametrize(
    "name",
    [
        "fa2-bf16@hopper",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("fa3-fp8@hopper", "fa2-bf16@cdna1", "fa2-bf16@cdna2", "fa2-bf16@cdna3")
        ),
    ],
)
def test_both_engines_agree(name):
    """An accumulator that one engine adds otherwise, forward or backward."""
    arrays, options = inputs(heads=1), {"plan": name, "block_q": 16, "block_k": 16, "record": None}
    one, other = (examine(*arrays, engine=engine, **options) for engine in ("numpy", "xla"))
    assert differences(one, other) == []
    plain = examine(*arrays, engine="numpy", **options | {"plan": name.partition("@")[0]})
    assert not np.array_equal(one.lse, plain.lse)


def test_its_steps_are_traced():
    """Steps of padding counted, or of another accumulator."""
    seen = examine(
        *inputs(),
        plan=HOPPER,
        block_q=16,
        block_k=16,
        engine="numpy",
        record=Record(steps=(Site.PV,)),
    )
    steps = seen.trace.stats["PV.step"]
    assert (steps.n == 24 * 8 * 3).all()  # one chunk of 16 keys for each of three tiles
    assert (steps.inexact > 0).all() and (steps.toward > steps.away).all()  # cut toward zero


def test_formats_are_data_beside_it():
    """A tensor core lost, or another's, where plans share an executable."""
    q, k, v, _ = (x.astype(np.float32) for x in inputs())
    plans = [HOPPER, HOPPER.at("OUT", "e4m3fn")]
    out = attend(q, k, v, plan=head_plans(plans), block_q=16, block_k=16)
    for h, plan in enumerate(plans):
        alone = attend(
            *(x[:, :, [h]] for x in (q, k, v)), plan=plan, engine="numpy", block_q=16, block_k=16
        )
        assert np.array_equal(bits(out[:, :, [h]]), bits(alone))


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (HOPPER.at("P", "fp32"), "accumulator of PV: a tensor core of bf16 cannot read P in fp32"),
        (HOPPER.at("K", "fp16"), "accumulator of S: .* cannot read K in fp16"),
        (HOPPER.at("Q", "mxfp8_e4m3"), "cannot read Q in mxfp8_e4m3"),
        (
            HOPPER.adding("ROWSUM", HOPPER.accumulator(Site.S)),
            "accumulator of ROWSUM: no matrix unit computes it",
        ),
    ],
)
def test_what_it_cannot_read_is_named(plan, named):
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match=named):
        examine(q, k, v, plan=plan, engine="numpy")
    with pytest.raises(ValueError, match=named):
        head_plans([plan] * 2)


def test_an_architecture_that_is_none():
    with pytest.raises(ValueError, match="did you mean 'hopper'"):
        Plan.preset("fa2-bf16@hoper")
