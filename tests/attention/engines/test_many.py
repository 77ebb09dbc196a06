"""A plan per batch entry: each entry as if called alone, on both engines, from one executable; and
the newer fields of a plan.
"""

from dataclasses import replace

import jax
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
    Stabilizer,
    attend,
    examine,
)
from roundscope.attention.plans.choices import Exponential, KeyOrder
from roundscope.attention.plans.traced import head_plans, structure
from roundscope.emu.roundings.modes import rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from tests.checks.engines import bits, differences, normal

QIU_YAO, FA2 = Plan.preset("qiu-yao"), Plan.preset("fa2-bf16")
RESULTS = ("out", "lse", "dq", "dk", "dv", "delta")
WATCHED = Record(ones=(Site.P, Site.ALPHA))
STOCHASTIC = QIU_YAO.at("O", "bf16", mode="stochastic", seed=1)
# plans of one structure: formats, modes, seeds and the formats of sums' steps differ
FAMILIES = {
    "formats": [
        QIU_YAO,
        QIU_YAO.at("O", "fp32"),
        *map(Plan.preset, ("fp32", "exact", "all:bf16", "all:e4m3fn")),
    ],
    "modes": [
        QIU_YAO.at("P", "e4m3fn", mode=m)
        for m in ("ties-to-away", "toward-zero", "toward-positive", "to-odd")
    ],
    "seeds": [
        STOCHASTIC.at("O", f, mode="stochastic", seed=s)
        for f, s in (("bf16", 1), ("e5m2", 2**32 - 1), ("bf16", 9))
    ],
    "into O": [FA2, Plan.preset("fa3-fp8"), FA2.at("DS", "e5m2", mode="toward-zero")],
    "stabiliser": [
        replace(p, stabiliser=Stabilizer())
        for p in (QIU_YAO, QIU_YAO.at("P", "e4m3fn"), QIU_YAO.at("M", "fp32"))
    ],
    "steps": [
        replace(QIU_YAO, accumulators=(Accumulator(step=rounding(f, "toward-zero")),) * 9)
        for f in ("bf16", "fp32", "e5m2", "e11m30")
    ],
    "chunks": [
        replace(
            FA2, accumulators=(Accumulator(order=Order.CHUNKED, step=rounding(f), chunk=8),) * 9
        )
        for f in ("bf16", "fp16")
    ],
}


def inputs(batch, heads=2, key_heads=1):
    """T = 24, S = 40, grouped heads; repeated keys, so that several P are 1."""
    shapes = (
        (batch, 24, heads, 8),
        (batch, 40, key_heads, 8),
        (batch, 40, key_heads, 8),
        (batch, 24, heads, 8),
    )
    q, k, v, do = (normal(70 + i, *shape).astype(np.float64) for i, shape in enumerate(shapes))
    k[:, ::3] = k[:, :1] * 4
    return q, k, v, do


def alone(arrays, plans, b, **options):
    """Batch entry b of a call, as a call."""
    return examine(*(x[b : b + 1] for x in arrays), plan=plans[b], engine="numpy", **options)


OFTEN = ("formats", "seeds")  # a minute of compiling each


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family",
    [*OFTEN, *(pytest.param(f, marks=pytest.mark.thorough) for f in FAMILIES if f not in OFTEN)],
)
def test_entries_are_calls_of_their_own(family):
    """A parameter lost on the way to data, an entry that sees another's plan, random bits that
    depend on the batch index.
    """
    plans = FAMILIES[family]
    arrays, tiles = inputs(len(plans)), {"block_q": 16, "block_k": 16}
    if family not in ("formats", "into O"):
        arrays = arrays[:3]  # compiling a backward takes 10 s
    inject = (
        ()
        if family != "formats"
        else (
            Injection(site=Site.O, what=AddUlps(ulps=0.5), heads=1, rows=range(4)),
            Injection(site=Site.S, what=Noise(ulps=1.0, seed=3)),
        )
    )
    many = {
        e: examine(*arrays, plan=plans, engine=e, record=WATCHED, inject=inject, **tiles)
        for e in ("numpy", "xla")
    }
    assert differences(many["numpy"], many["xla"]) == []
    for b in range(len(plans)):
        one = alone(arrays, plans, b, record=WATCHED, inject=inject, **tiles)
        for name in (n for n in RESULTS if getattr(one, n) is not None):
            assert np.array_equal(
                bits(getattr(one, name)[0]), bits(getattr(many["numpy"], name)[b])
            ), (b, name)
        for site in ("P", "ALPHA"):
            for seen in many.values():
                assert np.array_equal(one.trace.ones[site][0], seen.trace.ones[site][b])


def test_formats_share_one_compilation():
    """A format, mode or seed that is static after all: a sweep would compile once per cell."""
    from roundscope.attention.engines import xla as xla_engine

    first, second = FAMILIES["formats"][:3], FAMILIES["modes"][:3]
    q, k, v, _ = inputs(3)
    options = {"block_q": 8, "block_k": 8, "engine": "xla", "record": None}
    examine(q, k, v, plan=first, **options)
    before = xla_engine.compilations()
    examine(q, k, v, plan=second, **options)
    assert xla_engine.compilations() == before
    assert structure(first[0]) == structure(second[0]) != structure(STOCHASTIC)


def test_what_cannot_be_data_is_named():
    """Plans of two structures computed as one; a batch and plans that do not match; a bit flip in
    no one format.
    """
    q, k, v, _ = inputs(2)
    with pytest.raises(ValueError, match="entries 0 and 1 differ in more"):
        examine(q, k, v, plan=[QIU_YAO, STOCHASTIC], engine="xla")
    for engine in ("numpy", "xla"):
        with pytest.raises(ValueError, match="entries 0 and 1 have different events"):
            examine(q, k, v, plan=[QIU_YAO, FA2], engine=engine)
    with pytest.raises(ValueError, match="3 plans, must be one for each of the 2"):
        examine(q, k, v, plan=[QIU_YAO] * 3)
    with pytest.raises(ValueError, match="FlipBit needs one format"):
        examine(
            q,
            k,
            v,
            plan=[QIU_YAO] * 2,
            engine="xla",
            inject=[Injection(site=Site.P, what=FlipBit(bit=1))],
        )


def test_plans_of_several_structures_run_under_numpy():
    """The engine that compiles nothing needs no common structure, only common events."""
    q, k, v, do = inputs(2)
    plans = [QIU_YAO, STOCHASTIC]
    many = examine(q, k, v, do, plan=plans, engine="numpy")
    assert all(
        np.array_equal(bits(alone((q, k, v, do), plans, b).out[0]), bits(many.out[b]))
        for b in range(2)
    )


@pytest.mark.parametrize("engine", ["numpy", pytest.param("xla", marks=pytest.mark.thorough)])
def test_descending_keys_are_ascending_over_turned_tiles(engine):
    """A key tile met at the wrong time, or an event recorded under the wrong tile's place."""
    q, k, v, _ = inputs(1, heads=1)
    plan = QIU_YAO
    tiles = {
        "block_q": 8,
        "block_k": 8,
        "engine": engine,
        "record": Record(events=(Site.P,), ones=(Site.P,)),
    }
    turned = [x.reshape(1, 5, 8, 1, 8)[:, ::-1].reshape(x.shape) for x in (k, v)]
    down = examine(q, k, v, plan=replace(plan, key_order=KeyOrder.DESCENDING), **tiles)
    up = examine(q, *turned, plan=plan, **tiles)
    assert np.array_equal(down.out, up.out) and np.array_equal(down.lse, up.lse)
    p_down, p_up = (np.asarray(e.trace.events["P"][1]).reshape(24, 5, 8) for e in (down, up))
    assert np.array_equal(p_down, p_up[:, ::-1])
    assert np.array_equal(down.trace.ones["P"], up.trace.ones["P"][:, :, ::-1])
    assert np.array_equal(down.trace.ones["P"][0, 0], (p_down == 1.0).sum(2).T)


@pytest.mark.thorough
def test_causal_descending_agrees_between_engines():
    """Tiles that do not exist, met first."""
    q, k, v, do = (x[:, :24] for x in inputs(1))
    plan = replace(FA2, key_order=KeyOrder.DESCENDING)
    seen = [
        examine(q, k, v, do, plan=plan, block_q=8, block_k=8, is_causal=True, engine=e)
        for e in ("numpy", "xla")
    ]
    assert differences(*seen) == []


def test_base_two_is_the_same_function():
    """A missing factor log2 e: exact arithmetic has to agree to the last bits; and both engines to
    all.
    """
    q, k, v, do = inputs(1)
    exact = Plan.preset("exact")
    plain, base2 = (
        examine(q, k, v, do, plan=p, block_q=8, block_k=8)
        for p in (exact, replace(exact, exp=Exponential.BASE2))
    )
    for name in RESULTS:
        assert np.allclose(getattr(plain, name), getattr(base2, name), rtol=1e-12, atol=1e-14), name
    base2 = replace(FA2, exp=Exponential.BASE2)
    seen = [
        examine(q, k, v, do, plan=base2, block_q=8, block_k=8, engine=e, record=None)
        for e in ("numpy", "xla")
    ]
    assert differences(*seen) == []


# A plan per head, under JAX transformations

HEADS = FAMILIES["formats"][:4]


def loss(plan, q, k, v, do):
    return (attend(q, k, v, plan=plan, block_q=16, block_k=16, is_causal=True) * do).sum()


def head_alone(arrays, plans, h):
    """Head h of a call, as a call with its plan; two query heads share a key head."""
    q, k, v, do = (x[:, :, (h if x.shape[2] == 4 else h // 2)][:, :, None] for x in arrays)
    return examine(
        q, k, v, do, plan=plans[h], block_q=16, block_k=16, is_causal=True, engine="numpy"
    )


def test_a_plan_per_head():
    """A head that runs under its neighbour's plan, forward or backward; a table cut to 32 bits by
    the caller's jit.
    """
    arrays = [x.astype(np.float32) for x in inputs(2, heads=4, key_heads=4)]
    value, (dq, dk, dv) = jax.jit(jax.value_and_grad(loss, argnums=(1, 2, 3)))(
        head_plans(HEADS), *arrays
    )
    alone = [head_alone([a[:, :, [h]].repeat(4, 2) for a in arrays], HEADS, h) for h in range(4)]
    for name, found in (("dq", dq), ("dk", dk), ("dv", dv)):
        for h in range(4):
            assert np.array_equal(bits(found[:, :, h]), bits(getattr(alone[h], name)[:, :, 0])), (
                name,
                h,
            )
    out = np.stack([a.out[:, :, 0] for a in alone], axis=2)
    assert float(value) == pytest.approx(
        float((out.astype(np.float64) * arrays[3]).sum()), rel=1e-5
    )


def test_a_plan_per_head_adds_in_the_lanes_of_its_plan():
    """A row sum in lanes of 16 where the plan has 4."""
    q, k, v = (x.astype(np.float32) for x in inputs(1)[:3])
    plan = Plan.preset("fa2-bf16").changed("ROWSUM.sum=warps4 OUT=fp32")
    options = {"block_q": 16, "block_k": 32}
    alone = attend(q, k, v, plan=plan, engine="numpy", **options)
    assert np.array_equal(
        bits(attend(q, k, v, plan=head_plans([plan] * 2), **options)), bits(alone)
    )
    assert not np.array_equal(
        bits(attend(q, k, v, plan=plan.changed("ROWSUM.sum=warps16"), engine="numpy", **options)),
        bits(alone),
    )


def test_key_heads_round_as_their_first_query_head():
    """A key head that takes the plan of the wrong group."""
    q, k, v, _ = (x.astype(np.float32) for x in inputs(1, heads=4, key_heads=2))
    plans = [QIU_YAO, QIU_YAO, QIU_YAO.at("V", "e4m3fn"), QIU_YAO.at("V", "e4m3fn")]
    tiles = {"block_q": 16, "block_k": 16}
    out = attend(q, k, v, plan=head_plans(plans), **tiles)
    for h in range(4):
        group = slice(h // 2, h // 2 + 1)
        alone = attend(
            q[:, :, [h]], k[:, :, group], v[:, :, group], plan=plans[h], engine="numpy", **tiles
        )
        assert np.array_equal(bits(out[:, :, h]), bits(alone[:, :, 0]))


@pytest.mark.thorough
def test_arms_are_mapped_in_one_executable():
    """A sweep or a training of many arms that compiles once per arm."""
    arrays = [x.astype(np.float32) for x in inputs(1, heads=2, key_heads=2)]
    arms = [head_plans([p, QIU_YAO]) for p in HEADS]
    stacked = jax.tree.map(lambda *x: np.stack(x), *arms)
    many = jax.jit(jax.vmap(jax.grad(loss, argnums=1), in_axes=(0, None, None, None, None)))(
        stacked, *arrays
    )
    for n, arm in enumerate(arms):
        assert np.array_equal(bits(many[n]), bits(jax.grad(loss, argnums=1)(arm, *arrays)))


def test_plans_of_heads_that_cannot_be_are_named():
    """Too few plans, or a trace that nobody keeps."""
    q, k, v, _ = inputs(1)
    with pytest.raises(ValueError, match="3 plans, must be one for each of the 2 heads"):
        attend(q, k, v, plan=head_plans([QIU_YAO] * 3))
    with pytest.raises(ValueError, match="runs under xla or pallas, without a record"):
        attend(q, k, v, plan=head_plans([QIU_YAO] * 2), engine="numpy")
    with pytest.raises(ValueError, match="entries 0 and 1 differ"):
        head_plans([QIU_YAO, FA2])
