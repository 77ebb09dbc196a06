"""The numpy engine against the xla engine, bit for bit: a selection of `make engines`, and the odd
cases.
"""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import DeltaFrom, Plan, Record, Site, Stabilizer, examine
from roundscope.emu.roundings.modes import rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from tests.checks.engines import INPUTS, PRESETS, RESULTS, TILES, compared, differences, normal
from tests.some import some

LONG = ("exact", "fp32", "all:bf16", "all:e4m3fn")  # plans whose roundings the other plans have too
# each preset once, in turn full and plain or causal and injected, on tiles that take turns; all of
# them: `make engines`
SELECTED = [
    pytest.param(
        preset,
        bool(i % 2),
        TILES[i % 4],
        bool(i % 2),
        marks=[pytest.mark.thorough] if preset in LONG else [],
    )
    for i, preset in enumerate(PRESETS)
]
WATCHED = Record(events=(Site.P, Site.DK), steps=(Site.PV,), away=True)
RECORDED = [  # 10 s each to compile
    pytest.param("qiu-yao", False, (16, 8), True, WATCHED, marks=pytest.mark.thorough),
    pytest.param("all:e4m3fn", True, (64, 64), False, Record(), marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("preset", "causal", "tile", "inject"), SELECTED)
def test_results_equal_bit_for_bit(preset, causal, tile, inject):
    """An operation that XLA fuses, reorders, flushes or deletes, in any preset; subnormal data;
    scores beyond 88.
    """
    for family in INPUTS:
        assert (
            compared(preset, family, causal=causal, tile=tile, inject=inject, record=None) == []
        ), family


@pytest.mark.parametrize(("preset", "causal", "tile", "inject", "record"), RECORDED)
def test_statistics_equal(preset, causal, tile, inject, record):
    """A count, sum, peak or place that one engine takes over other entries than the other; padding
    that is counted.
    """
    for family in INPUTS:
        assert (
            compared(preset, family, causal=causal, tile=tile, inject=inject, record=record) == []
        ), family


def both(*arrays, plan, **options):
    """Both engines on one input; the numpy engine's result once they agree."""
    ours, theirs = (
        examine(*arrays, plan=plan, engine=engine, **options) for engine in ("numpy", "xla")
    )
    assert differences(ours, theirs) == []
    return ours


def odd_inputs():
    """T = 37, S = 53, four heads on two key heads, V wider than K, two batch entries."""
    shapes = (2, 37, 4, 8), (2, 53, 2, 8), (2, 53, 2, 12), (2, 37, 4, 12)
    return [normal(90 + i, *shape) for i, shape in enumerate(shapes)]


def odd_mask():
    """Random, with two rows that see no key; (B, 1, T, S) broadcasts over heads."""
    mask = np.random.Generator(np.random.PCG64(7)).random((2, 1, 37, 53)) < 0.6
    mask[0, 0, 5] = mask[1, 0, 36] = False
    mask[:, 0, :16, :16] = False  # a whole tile
    return mask


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_grouped_heads_rectangular_masked_undivided(causal):
    """Key heads paired with wrong query heads, tiles cut wrongly, masked entries counted, NaN from
    rows without keys.
    """
    q, k, v, do = odd_inputs()
    mask = odd_mask()
    record = Record() if causal else None
    seen = both(
        q,
        k,
        v,
        do,
        plan=Plan.preset("fa2-bf16"),
        block_q=16,
        block_k=16,
        mask=mask,
        is_causal=causal,
        record=record,
    )
    alive = mask & np.tri(37, 53, dtype=bool) if causal else mask
    dead = ~np.broadcast_to(alive.any(-1), (2, 4, 37)).swapaxes(1, 2)
    assert dead[0, 5].all() and dead[1, 36].all()
    assert np.all(seen.out[dead] == 0.0) and np.all(np.isneginf(seen.lse[dead]))
    assert np.all(seen.dq[dead] == 0.0) and np.all(seen.delta[dead] == 0.0)
    for name in RESULTS:
        assert not np.isnan(getattr(seen, name)).any(), name
    unseen = ~np.broadcast_to(alive.any(-2), (2, 1, 53))[:, 0]
    assert np.all(seen.dk[unseen] == 0.0) and np.all(seen.dv[unseen] == 0.0)
    if causal:
        scores = alive.sum((-2, -1)).repeat(4, 1)
        for site in ("S", "X", "P", "DS"):
            assert np.array_equal(seen.trace.stats[site].n, scores), site


def test_everything_masked():
    """0 / 0 and -inf - -inf."""
    q, k, v, do = odd_inputs()
    mask = np.zeros((1, 1, 1, 1), dtype=bool)
    seen = examine(
        q, k, v, do, plan=Plan.preset("qiu-yao"), block_q=16, block_k=16, mask=mask, engine="numpy"
    )
    assert np.all(seen.out == 0.0) and np.all(np.isneginf(seen.lse))
    for name in ("dq", "dk", "dv", "delta"):
        assert np.all(getattr(seen, name) == 0.0), name
    for name, s in seen.trace.stats.items():
        assert s.nan.sum() == 0, name
        assert np.all(s.place[s.n == 0] == -1), name
        if Site(name).axes != Site.K.axes and Site(name) not in (Site.Q, Site.DO, Site.DQ_OUT):
            assert s.n.sum() == 0, name


def test_a_trace_without_any_score_has_every_event():
    """A KeyError of P where a mask hides everything; other names, or numbers other than 0, in a
    trace of no scores.
    """
    q, k, v, do = odd_inputs()
    record = Record(events=(Site.P, Site.DK), ones=(Site.P,), steps=(Site.PV,), away=True)
    options = {"plan": Plan.preset("fa2-bf16"), "block_q": 16, "block_k": 16, "record": record}
    nothing, something = (
        examine(q, k, v, do, mask=np.full((1, 1), x), engine="numpy", **options).trace
        for x in (False, True)
    )
    for part in ("stats", "rows", "events", "ones"):
        assert list(getattr(nothing, part)) == list(getattr(something, part))
    assert all(nothing.stats[name].n.sum() == 0 for name in ("P", "PV.step", "DS", "O"))
    assert (
        all(not x.any() for pair in nothing.events.values() for x in pair)
        and not nothing.ones["P"].any()
    )


@pytest.mark.thorough
def test_the_place_of_no_error_is_that_of_an_event():
    """Key tiles that no query sees, before the first row that is rescaled."""
    x = [normal(7 + n, 1, 32, 1, 16) for n in range(3)]
    stats = both(
        *x, None, plan=Plan.preset("exact"), block_q=16, block_k=16, is_causal=True, record=Record()
    ).trace.stats
    assert (stats["ALPHA"].peak, stats["ALPHA"].place) == (0.0, 16)
    assert stats["EXP"].place == 0


def stochastic_plan():
    """Events of every shape, and the additions of a product of either direction, stochastic."""
    plan, r = Plan.preset("qiu-yao"), rounding("bf16", "stochastic", seed=5)
    for site in (Site.K, Site.P, Site.L, Site.O, Site.OUT, Site.DS, Site.DV):
        plan = plan.at(site, r)
    return plan.adding(Site.PV, Accumulator(step=r)).adding(Site.DK, Accumulator(step=r))


def mixed_plan():
    """Every order of addition, several step formats and directed modes, delta from P dP, a
    stabiliser.
    """
    plan = replace(
        Plan.preset("qiu-yao"),
        delta_from=DeltaFrom.P_DP,
        stabiliser=Stabilizer(beta=2.0),
        row_sum_of=Site.P,
    )
    chosen = {
        Site.S: Accumulator(order=Order.PAIRWISE, step=rounding("bf16")),
        Site.ROWSUM: Accumulator(
            order=Order.CHUNKED, chunk=3, step=rounding("fp16", overflow="saturate")
        ),
        Site.PV: Accumulator(order=Order.CHUNKED, chunk=4, step=rounding("bf16", "toward-zero")),
        Site.DELTA: Accumulator(order=Order.EXACT),
        Site.S_B: Accumulator(order=Order.EXACT),
        Site.DV: Accumulator(order=Order.PAIRWISE),
        Site.DP: Accumulator(order=Order.CHUNKED, chunk=4),
        Site.DQ: Accumulator(order=Order.EXACT, step=rounding("bf16")),
        Site.DK: Accumulator(
            order=Order.ASCENDING, step=rounding("fp16", "stochastic", overflow="saturate", seed=3)
        ),
    }
    for site, accumulator in chosen.items():
        plan = plan.adding(site, accumulator)
    return plan.at(Site.O, "bf16", "toward-negative").at(Site.DS, "e5m2", "to-odd")


@pytest.mark.parametrize(
    "plan",
    [
        # test_many has it often, compiled with less effort
        pytest.param(stochastic_plan(), marks=pytest.mark.thorough),
        pytest.param(mixed_plan(), marks=pytest.mark.thorough),
        pytest.param(
            replace(Plan.preset("qiu-yao"), delta_from=DeltaFrom.CENTRED),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            replace(Plan.preset("fa2-bf16"), delta_from=DeltaFrom.WIDE_O),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["stochastic", "mixed", "centred", "wide"],
)
def test_other_plans(plan):
    """Random bits or partial sums that depend on the engine; an order of addition that differs."""
    q, k, v, do = (
        x[:1, :24, :2] for x in odd_inputs()
    )  # T: whole tiles, as the stabiliser needs at present
    both(q, k[:, :, :1], v[:, :, :1], do, plan=plan, block_q=8, block_k=8, record=None)


def test_stochastic_bits_depend_on_no_tiling_of_queries():
    """A random stream that restarts with every query tile."""
    q, k, v, _ = odd_inputs()
    outs = [
        examine(
            q, k, v, plan=stochastic_plan(), block_q=n, block_k=53, engine="numpy", record=None
        ).out
        for n in (5, 16, 37)
    ]
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(outs[0], outs[2])


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_a_step_of_a_sum_rounds_once(engine):
    """By way of binary64 the score is a tie that goes to 1: 1 + 2^-24 + 2^-54, as 205 x 5237765 =
    2^30 + 1.

    The first row sees one key, whose score is its L.
    """
    q, k = np.zeros((2, 1, 16, 1, 16))
    q[..., :2], k[..., :2] = (1.0, 205.0), (1.0, 5237765 * 2.0**-54)
    found = examine(
        q,
        k,
        k,
        plan="fp32",
        scale=1.0,
        is_causal=True,
        record=None,
        engine=engine,
        block_q=16,
        block_k=16,
    )
    assert np.asarray(found.lse).flat[0] == 1 + 2.0**-23


@pytest.mark.parametrize(
    ("keys", "block_k"), some(itertools.product((20, 40, 72), (24, 32)), every=6)
)
def test_smaller_tiles_in_the_backward_of_any_number_of_keys(keys, block_k):
    """Keys that fill no whole number of tiles of the forward, or of the backward; and tiles of the
    forward that are no whole number of those of the backward.
    """
    plan = Plan.preset("fa2").changed("backward_keys=16")
    q, k, v, do = (normal(80 + i, 1, rows, 2, 8) for i, rows in enumerate((32, keys, keys, 32)))
    tiles = {"block_q": 16, "block_k": block_k, "record": None}
    seen = both(q, k, v, do, plan=plan, **tiles)
    padded = [np.pad(x, ((0, 0), (0, 96 - keys), (0, 0), (0, 0))) for x in (k, v)]
    mask = np.broadcast_to(np.arange(96) < keys, (1, 1, 32, 96))
    whole = examine(q, *padded, do, plan=plan, engine="numpy", mask=mask, **tiles)
    for name in ("out", "dq"):
        assert np.array_equal(getattr(seen, name), getattr(whole, name)), name
    for name in ("dk", "dv"):
        assert np.array_equal(getattr(seen, name), getattr(whole, name)[:, :keys]), name


@pytest.mark.parametrize("engine", ["numpy", pytest.param("xla", marks=pytest.mark.thorough)])
def test_rounded_heads_are_separate_calls_added_up(engine):
    """dK and dV of query heads added before they are rounded, or with the scale taken twice."""
    q, k, v, do = (normal(70 + i, 1, 40, n, 8) for i, n in enumerate((4, 2, 2, 4)))
    plan = Plan.preset("cudnn")
    assert plan.rounded_heads
    tiles = {"block_q": 16, "block_k": 16, "is_causal": True, "engine": engine}
    alone = examine(q, k.repeat(2, axis=2), v.repeat(2, axis=2), do, plan=plan, **tiles)
    grouped = examine(q, k, v, do, plan=plan, **tiles)
    for name in ("dk", "dv"):
        heads = np.asarray(getattr(alone, name), np.float64).reshape(1, 40, 2, 2, 8)
        want = heads.sum(3).astype(ml_dtypes.bfloat16).astype(np.float32)
        assert np.array_equal(np.asarray(getattr(grouped, name)), want), name
    wide = examine(q, k, v, do, plan=plan.changed("rounded_heads=false"), **tiles)
    assert not np.array_equal(np.asarray(wide.dk), np.asarray(grouped.dk))
    assert np.array_equal(np.asarray(wide.dq), np.asarray(grouped.dq))
