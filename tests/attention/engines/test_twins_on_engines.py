"""Twins of real kernels on the NumPy engine, under XLA and in fused kernels, which run four of
them and refuse the others: every bit.
"""

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.plans.twins import TWINS
from roundscope.emu import rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from tests.checks.engines import differences, normal

TOKENS = 40  # no whole number of tiles
WHOLE = 48  # one key tile, for a softmax of whole rows
UNFUSED = [name for name in TWINS if TWINS[name].plan.normalise_first]
thorough = pytest.mark.thorough
FUSED_TOO = (("fa2", False), ("cudnn", True), ("qiu-yao-compiled", True), ("qiu-yao-eager", False))
IN_EVERY_RUN = {"cudnn": True, "eager": False}  # name -> causal; each compiles once


def inputs(tokens=TOKENS, heads=2, key_heads=2):
    shapes = [(1, tokens, n, 16) for n in (heads, key_heads, key_heads, heads)]
    q, k, v, do = (normal(500 + i, *shape) for i, shape in enumerate(shapes))
    return q * 2, k, v, do


def run(twin, *arrays, engine, record=None, block_q=16, **options):
    block_k = WHOLE if twin in UNFUSED else 16 if block_q == 16 else 32
    return examine(
        *arrays,
        plan=TWINS[twin].plan,
        engine=engine,
        record=record,
        block_q=block_q,
        block_k=block_k,
        **options,
    )


def compared(twin, *arrays, **options):
    ours, theirs = (run(twin, *arrays, engine=engine, **options) for engine in ("numpy", "xla"))
    return differences(ours, theirs)


def cells():
    for twin in TWINS:
        for causal in (False, True):
            often = IN_EVERY_RUN.get(twin) is causal
            mode = "causal" if causal else "full"
            yield pytest.param(twin, causal, marks=[] if often else [thorough], id=f"{twin}-{mode}")


@pytest.mark.parametrize(("twin", "causal"), list(cells()))
def test_every_bit_is_equal(twin, causal):
    """A step of a kernel that XLA contracts, reorders or deletes; lanes and pages that are cut
    otherwise.
    """
    record = Record() if twin == "eager" else None
    q, k, v, do = inputs()
    assert compared(twin, q, k, v, do, is_causal=causal, record=record) == []
    # no new program: scores beyond the range of exp, a sum of infinities
    assert compared(twin, q * 16, k * 8, v, do, is_causal=causal, record=record) == []
    v[0, 3, 0, 2] = np.inf
    assert compared(twin, q, k, v, do, is_causal=causal, record=record) == []


@thorough
@pytest.mark.parametrize("twin", TWINS)
def test_statistics_are_equal(twin):
    """A register, a lane or an addition that one engine counts and the other does not."""
    record = Record(events=(Site.P, Site.DS), steps=(Site.DELTA, Site.ROWSUM, Site.PV))
    for causal in (False, True):
        assert compared(twin, *inputs(), is_causal=causal, record=record) == []


@thorough
@pytest.mark.parametrize("twin", TWINS)
def test_other_tiles_and_grouped_heads_are_equal(twin):
    """Rows of lanes that take tiles of 16 keys for granted; key heads paired with the wrong query
    heads.
    """
    mask = np.random.default_rng(4).random((1, 1, TOKENS, TOKENS)) < 0.6
    mask[0, 0, 5] = False
    assert compared(twin, *inputs(key_heads=1), block_q=32, mask=mask) == []


@pytest.mark.parametrize(
    ("twin", "causal"),
    [
        ("fa2", True),
        ("cudnn", False),
        pytest.param("qiu-yao-compiled", False, marks=thorough),
        *(pytest.param(*x, marks=thorough) for x in FUSED_TOO),
    ],
)
def test_fused_kernels_give_every_bit(twin, causal):
    """Lanes that a reduction adds in another order, a product that is rounded before its sum,
    queries walked the wrong way.
    """
    wide = [
        f"{site}=fp32" for site in ("OUT", "DQ_OUT", "DK_OUT", "DV_OUT")
    ]  # a last cast would hide the order of a sum
    options = {
        "plan": TWINS[twin].plan.changed(*wide),
        "block_q": 16,
        "block_k": 16,
        "is_causal": causal,
        "record": None,
    }
    ours, fused = (examine(*inputs(64), engine=engine, **options) for engine in ("numpy", "pallas"))
    assert differences(ours, fused) == []


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=thorough)])
def test_fused_kernels_add_rows_in_the_lanes_of_a_warp(causal):
    """Row sums of 128 keys, in which each of 32 lanes adds four: by halves the bits are others."""
    options = {"block_q": 16, "block_k": 128, "is_causal": causal, "record": None}
    plan, x = TWINS["qiu-yao-compiled"].plan.changed("LANES=fp32", "OUT=fp32"), inputs(128)
    ours, fused = (examine(*x, plan=plan, engine=e, **options) for e in ("numpy", "pallas"))
    assert differences(ours, fused) == []
    halves = plan.adding(Site.ROWSUM, Accumulator(order=Order.HALVES))
    assert differences(ours, examine(*x, plan=halves, engine="numpy", **options)) != []


FP32, COMPILED = Plan.preset("fp32"), TWINS["qiu-yao-compiled"].plan
BF16_STEPS = Accumulator(order=Order.STRIDED, chunk=8, step=rounding("bf16"))
APART = [
    FP32.changed("gradients_apart=all"),
    FP32.changed("gradients_apart=dq"),
    COMPILED.adding(Site.ROWSUM, BF16_STEPS).changed("LANES=fp32", "OUT=fp32"),
]


@pytest.mark.parametrize("plan", APART, ids=["all", "dq", "steps in BF16"])
def test_fused_kernels_round_a_tile_as_the_plan_says(plan):
    """Slices of a tile that are rounded one by one; a lane whose first number is not rounded."""
    options = {"block_q": 32, "block_k": 32, "record": None}
    ours, fused = (
        examine(*inputs(64, heads=1, key_heads=1), plan=plan, engine=engine, **options)
        for engine in ("numpy", "pallas")
    )
    assert differences(ours, fused) == []


@pytest.mark.parametrize("twin", sorted(set(TWINS) - {twin for twin, _ in FUSED_TOO}))
def test_fused_kernels_refuse_other_twins_and_name_the_engine(twin):
    """Another arithmetic than the plan's, in silence."""
    arrays = inputs(32)
    with pytest.raises(ValueError, match="engine='xla'"):
        examine(
            *arrays, plan=TWINS[twin].plan, engine="pallas", record=None, block_q=16, block_k=32
        )


def test_fused_kernels_refuse_to_trace_a_twin():
    """A trace in which the events of a real kernel are missing."""
    with pytest.raises(ValueError, match=r"record: .* engine='xla'"):
        run("cudnn", *inputs(32), engine="pallas", record=Record())
