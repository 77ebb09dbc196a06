"""Block formats on both engines, bit for bit; plans as data; random bits."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import (
    AddUlps,
    FlipBit,
    Injection,
    Noise,
    Plan,
    Record,
    Site,
    attend,
    examine,
)
from roundscope.attention.engines import numpy as numpy_engine
from roundscope.attention.engines import xla as xla_engine
from roundscope.attention.plans.traced import common_structure, head_plans, structure
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.blocks.format import block_format
from tests.checks.engines import differences, normal

SMALL = replace(block_format("mxfp8_e4m3"), size=8)
INJECTED = (
    Injection(site=Site.P, what=FlipBit(bit=1), rows=range(4, 20)),
    Injection(site=Site.V, what=AddUlps(ulps=0.5), features=3),
    Injection(site=Site.K, what=Noise(ulps=1.0, seed=3)),
)


def inputs(seed=0, heads=2, size=40, width=16):
    return [normal(60 + 4 * seed + i, 1, size, heads, width) for i in range(4)]


def mixed(seed=1):
    """All seven operands in blocks: powers of two, a tensor's scale, binary32 scales, stochastic
    elements, saturating FP4.
    """
    nvfp4 = replace(block_format("nvfp4"), size=8)
    formats = {
        Site.Q: block_format("mxfp8_e5m2"),
        Site.K: block_format("mxfp4", "stochastic", rule="rceil", seed=seed),
        Site.V: SMALL,
        Site.P: nvfp4,
        Site.DS: nvfp4,
        Site.DO: replace(block_format("fp8_1x128"), size=8),
        Site.P_B: block_format(SMALL, "stochastic", seed=seed),
    }
    return Plan.preset("fa2-bf16").rounded(formats)


def both(plan, x, **options):
    ours, theirs = (examine(*x, plan=plan, engine=engine, **options) for engine in ("numpy", "xla"))
    assert differences(ours, theirs) == []
    return ours


@pytest.mark.parametrize(
    ("name", "causal", "tile"),
    [
        pytest.param("mxfp8-attention", False, (40, 40), marks=pytest.mark.thorough),
        ("mxfp8-attention", True, (16, 32)),
        ("fa3-fp8-scaled", True, (16, 32)),
    ],
)
def test_presets(name, causal, tile):
    """Catches a scale, an element or a product of 28 bits that one engine rounds otherwise."""
    both(
        Plan.preset(name), inputs(), is_causal=causal, block_q=tile[0], block_k=tile[1], record=None
    )


@pytest.mark.thorough
def test_forward_injected_and_recorded():
    """Catches statistics, ulps or random bits of blocks that depend on the engine; padding with a
    say in a scale.
    """
    x, options = inputs(heads=1)[:3], {"is_causal": True, "block_q": 16, "block_k": 16}
    seen = both(mixed(), x, inject=INJECTED, record=Record(events=(Site.P, Site.K)), **options)
    other = examine(*x, plan=mixed(seed=2), engine="numpy", inject=INJECTED, **options)
    assert not np.array_equal(seen.out, other.out)


def flipped_fp8(after):
    """Keys (S, H) with one scale, max|K| / 448 in binary32, and bit 1 of every E4M3 code
    flipped.
    """
    unit = np.float64(np.float32(np.abs(after).max() / 448.0))
    elements = (after / unit).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(elements.astype(np.float64) * unit, after)
    return (elements.view(np.uint8) ^ 2).view(ml_dtypes.float8_e4m3fn).astype(np.float64) * unit


def key_event(engine, plan, x, inject=()):
    """The event of K alone: its result (S, H), and counts, sums, peak and place of what a trace
    saw. x: (1, S, 1, H), one key tile.
    """
    sizes = {
        "queries": x.shape[1],
        "keys": x.shape[1],
        "block_q": x.shape[1],
        "block_k": x.shape[1],
        "heads": 1,
        "key_heads": 1,
    }
    setup = Setup(
        plan=plan,
        scale=1.0,
        whole_scale=1.0,
        is_causal=False,
        inject=tuple(inject),
        record=Record(),
        **sizes,
    )
    result, seen = engine.round_inputs(setup, Site.K, engine.enter(x, x.shape[1]))
    return np.asarray(result)[0], [np.asarray(part) for part in seen["K"][:4]]


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("what", [FlipBit(bit=1), AddUlps(ulps=1.0), Noise(ulps=1.0, seed=3)])
def test_one_scale_for_a_head_is_divided_by(what):
    """XLA multiplies by the reciprocal of a divisor that it sees to be one number: a code next to
    the right one, half an ulp.
    """
    plan, inject = Plan.preset("fa3-fp8-scaled"), [Injection(site=Site.K, what=what)]
    for seed in range(4):
        x = draw(seed, 1, 16, 1, 8)
        (ours, _), (theirs, _) = (
            key_event(engine, plan, x, inject) for engine in (numpy_engine, xla_engine)
        )
        assert np.array_equal(ours, theirs, equal_nan=True)
        if isinstance(what, FlipBit):
            assert np.array_equal(
                theirs, flipped_fp8(key_event(xla_engine, plan, x)[0]), equal_nan=True
            )


@pytest.mark.parametrize(
    "inject", [(), [Injection(site=Site.K, what=FlipBit(bit=1))]], ids=["clean", "flipped"]
)
@pytest.mark.parametrize("name", ["e4m3fn", "fp8_128x128"])
def test_counts_of_one_scale_for_a_head(name, inject):
    """Elements that such a product puts on the other side of a number: counted as inexact, or as
    exact, or as away from zero.
    """
    plan = Plan.preset("fa3-fp8-scaled")
    plan = plan if name == "e4m3fn" else plan.at(Site.K, name)
    for seed in range(8):
        x = draw(seed, 1, 64, 1, 64)
        (_, ours), (_, theirs) = (
            key_event(engine, plan, x, inject) for engine in (numpy_engine, xla_engine)
        )
        for part, other in zip(ours, theirs, strict=True):
            is_sums = part.dtype == np.float64 and part.ndim > 1
            np.testing.assert_allclose(
                part, other, rtol=0, atol=1e-12 * np.max(part) if is_sums else 0
            )


@pytest.mark.thorough
def test_plans_as_data_keep_their_blocks():
    """Catches a block format lost, or a seed frozen, where formats are data: heads with plans of
    their own equal single calls.
    """
    plans = [mixed(seed=3).at("O", "bf16"), mixed(seed=4)]
    x = [jnp.asarray(a) for a in inputs(1)]
    pulled = jax.jit(
        lambda p, q, k, v, do: jax.vjp(
            lambda *y: attend(*y, plan=p, block_q=16, block_k=16), q, k, v
        )[1](do)
    )
    found = pulled(head_plans(plans), *x)
    for h, plan in enumerate(plans):
        # a head's random bits are its own number's: two equal heads, of which the h-th is compared
        twice = [np.repeat(np.asarray(a)[:, :, h : h + 1], 2, axis=2) for a in x]
        want = examine(*twice, plan=plan, block_q=16, block_k=16, engine="numpy", record=None)
        for ours, name in zip(found, ("dq", "dk", "dv"), strict=True):
            np.testing.assert_array_equal(np.asarray(ours)[:, :, h], getattr(want, name)[:, :, h])


def test_what_can_share_a_compilation():
    """Catches block formats taken for data, and seeds of elements taken for structure."""
    plan = mixed(seed=3)
    assert (
        structure(plan)
        == structure(mixed(seed=4))
        == structure(plan.at("O", "bf16"))
        != structure(plan.at("P", SMALL))
    )
    with pytest.raises(ValueError, match="entries 0 and 1 differ"):
        common_structure([plan, plan.at("P", "bf16")])
