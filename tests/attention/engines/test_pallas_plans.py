"""Several plans in one call of the fused kernels, interpreted: the bits of the other engines."""

import re

import jax
import jax.numpy as jnp
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
from roundscope.attention.engines.kernels.engine import key_heads
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.traced import head_plans, plan_in, structure, table_of
from tests.checks.engines import bits, differences, normal

HOPPER = Plan.preset("fa2-bf16@hopper")
NARROW = HOPPER.at("O", "bf16").at("DK_OUT", "bf16")
DRAWN = HOPPER.at("OUT", "bf16", "stochastic", seed=3)
DRAWN_APART = HOPPER.at("OUT", "bf16", "stochastic", seed=5)
TILES = {"block_q": 32, "block_k": 16}


def inputs(batch, queries, keys, heads, of_keys):
    shapes = (
        (batch, queries, heads, 16),
        (batch, keys, of_keys, 16),
        (batch, keys, of_keys, 16),
        (batch, queries, heads, 16),
    )
    return [jnp.asarray(2.0 * normal(90 + i, *shape)) for i, shape in enumerate(shapes)]


def output_and_gradients(plans, arrays, engine, **options):
    """The output, dQ, dK and dV of a jitted call."""
    *qkv, do = arrays

    def run(*x):
        out = attend(*x, plan=head_plans(plans), engine=engine, **TILES, **options)
        return (out * do).sum(), out

    with jax.enable_x64(True):
        gradients, out = jax.jit(jax.grad(run, argnums=(0, 1, 2), has_aux=True))(*qkv)
    return out, *gradients


def assert_equal(plans, arrays, **options):
    ours, theirs = (
        output_and_gradients(plans, arrays, engine, **options) for engine in ("pallas", "xla")
    )
    for name, x, y in zip(("out", "dq", "dk", "dv"), ours, theirs, strict=True):
        assert np.array_equal(bits(x), bits(y)), name
    return ours[0]


@pytest.mark.thorough
def test_heads_of_a_group_have_different_plans():
    """A head under another's plan, dK and dV added up in another order."""
    assert_equal([HOPPER, NARROW], inputs(1, 32, 32, 2, 1))


@pytest.mark.thorough
def test_heads_are_in_the_order_of_the_call():
    """A head at another's place; causal, with rows and keys beyond the end of a tile."""
    arrays = inputs(1, 40, 56, 4, 2)
    plans = [HOPPER, NARROW, NARROW, HOPPER]
    out = assert_equal(plans, arrays, is_causal=True)
    q, k, v, _ = map(np.asarray, arrays)
    for h, plan in enumerate(plans):
        own = k[:, :, [h // 2]], v[:, :, [h // 2]]
        alone = attend(q[:, :, [h]], *own, plan=plan, is_causal=True, engine="numpy", **TILES)
        assert np.array_equal(bits(out[:, :, h]), bits(alone[:, :, 0])), h


@pytest.mark.thorough
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "plans",
    [[HOPPER, HOPPER, NARROW, NARROW], [DRAWN, DRAWN_APART, DRAWN, DRAWN]],
    ids=["whole-groups", "random-bits"],
)
def test_heads_keep_their_numbers(plans, is_causal):
    """Random bits or an injection of the head that has this place in a kernel's arrays."""
    inject = (
        Injection(site=Site.O, what=AddUlps(ulps=1.0), batch=1, heads=3, rows=range(3, 30, 4)),
        Injection(site=Site.P, what=Noise(ulps=1.0, seed=3), rows=range(9, 30)),
        Injection(site=Site.DS, what=AddUlps(ulps=1.0), heads=2, rows=range(0, 30, 2)),
    )
    assert_equal(plans, inputs(2, 32, 48, 4, 2), is_causal=is_causal, inject=inject)


@pytest.mark.thorough
@pytest.mark.parametrize("every", [1, 2])
def test_entries_are_calls_of_their_own(every):
    """An entry that draws another's bits; a trace that looks at the tiles of another head."""
    options = {
        "plan": [DRAWN, DRAWN_APART, DRAWN],
        "record": Record(ones=(Site.P, Site.DV), every=every, away=True),
        "is_causal": True,
        **TILES,
    }
    ours, theirs = (
        examine(*inputs(3, 96, 48, 2, 1), engine=engine, **options)
        for engine in ("pallas", "numpy")
    )
    assert differences(ours, theirs) == []


def test_heads_of_a_plan_share_a_kernel():
    """A kernel for each head, which compiles as many times and leaves a GPU idle."""
    x = jax.ShapeDtypeStruct((2, 64, 4, 16), jnp.float32)

    def run(q, k, v):
        plans = head_plans([HOPPER, NARROW, NARROW, NARROW])
        return attend(q, k, v, plan=plans, engine="pallas", **TILES)

    with jax.enable_x64(True):
        text = str(jax.make_jaxpr(run)(x, x, x))
    assert re.findall(r"grid=\(([^)]*)\)", text) == ["2, 2", "6, 2"]  # heads, tiles


def test_key_heads_are_repeated_only_for_groups_that_are_split():
    """A key head of another group; every key head once more for each of its query heads."""
    assert key_heads(np.array([2, 3, 6, 7]), 2).tolist() == [1, 3]
    assert key_heads(np.array([1, 2]), 2).tolist() == [0, 1]
    assert key_heads(np.array([0, 3, 4]), 2).tolist() == [0, 1, 2]
    assert key_heads(np.array([0, 1, 2]), 2).tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", list(PRESETS))
def test_plans_come_back_from_their_table(name):
    """A kernel made for another format, mode or policy than the table has."""
    plan = Plan.preset(name)
    found = plan_in(structure(plan), table_of(plan))
    assert np.array_equal(table_of(found), table_of(plan))
    for site in Site:
        a, b = found[site], plan[site]
        assert (a.mode, a.overflow, a.seed) == (b.mode, b.overflow, b.seed)
        assert a.format.name == b.format.name or "/" in b.format.name  # not a named format
        assert a.keeps_specials == b.keeps_specials


@pytest.mark.parametrize(
    ("plans", "options", "said"),
    [
        ([HOPPER] * 3, {}, "plan: 3 plans, must be one for each of the 4 heads of q"),
        (
            [HOPPER.at("AO", "fp64")] * 4,
            {},
            "accumulator of PV: its first term, AO in fp64, is no binary32 number; use"
            " engine='xla'",
        ),
        (
            [Plan.preset("fp32"), *[Plan.preset("baseline-bf16")] * 3],
            {},
            "plan: entries 0 and 1 differ in more than is data",
        ),
        (
            [Plan.preset("baseline-bf16")] * 4,
            {},
            "plan=of head 0: softmax before P V needs whole rows",
        ),
        (
            [HOPPER, *[HOPPER.at("P", "bf16")] * 3],
            {"inject": (Injection(site=Site.P, what=AddUlps(ulps=2.0)),)},
            "inject at P: AddUlps(ulps=2.0) may leave",
        ),
    ],
)
def test_plans_of_heads_that_cannot_be_are_named(plans, options, said):
    """A plan that no kernel runs, which XLA would run in silence."""
    q, k, v, _ = inputs(1, 32, 32, 4, 2)
    with pytest.raises(ValueError, match=re.escape(said)):
        attend(q, k, v, plan=head_plans(plans), engine="pallas", **TILES, **options)


def test_plans_that_are_data_are_refused():
    """A kernel is compiled for its plans: an argument of jit has no numbers yet."""
    q, k, v, _ = inputs(1, 32, 32, 2, 2)

    def run(plans):
        return attend(q, k, v, plan=plans, engine="pallas", **TILES)

    with pytest.raises(ValueError, match=r"plan: the plans of heads are traced.*engine='xla'"):
        jax.jit(run)(head_plans([HOPPER, NARROW]))


def test_entries_that_cannot_be_are_named():
    """Plans of two structures, or a bit flip in no one format."""
    q, k, v, _ = inputs(2, 32, 32, 2, 2)
    options = {"engine": "pallas", "record": None, **TILES}
    with pytest.raises(ValueError, match="entries 0 and 1 differ in more"):
        examine(q, k, v, plan=[HOPPER, DRAWN], **options)
    flip = Injection(site=Site.P, what=FlipBit(bit=1))
    with pytest.raises(ValueError, match="FlipBit needs one format"):
        examine(q, k, v, plan=[HOPPER, NARROW], inject=flip, **options)
