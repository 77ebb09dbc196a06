"""Traces see everything, and change nothing."""

from dataclasses import fields

import numpy as np
import pytest

from roundscope.attention import PRODUCTS, Axes, Plan, Record, Site, attend, examine
from roundscope.attention.sites import OF_KERNELS
from roundscope.emu.stats.classify import COUNTS, SUMS
from roundscope.emu.stats.summary import Stats
from roundscope.emu.sums.accumulator import Accumulator, Order
from tests.attention.small import INPUTS, B, G, H, N, S, T, run
from tests.checks.engines import RESULTS, bits, normal

EVERYTHING = Record(events=tuple(Site), steps=PRODUCTS, away=True)
OTHERS = ("exact", "fp32", "fa2-bf16", "baseline-bf16", "all:bf16", "all:e4m3fn")


@pytest.mark.parametrize(
    "plan", ["qiu-yao", "fa3-fp8", *(pytest.param(p, marks=pytest.mark.thorough) for p in OTHERS)]
)
def test_a_trace_never_changes_a_bit(plan):
    """A recorded sum that adds in another order, or an event that is rounded where it is only
    looked at.
    """
    silent, *watched = (
        run(plan, record=record, blocks=(5, 7)) for record in (None, Record(), EVERYTHING)
    )
    for seen in watched:
        for name in RESULTS:
            assert np.array_equal(bits(getattr(silent, name)), bits(getattr(seen, name))), name
    alone = attend(*INPUTS[:3], plan=Plan.preset(plan), block_q=5, block_k=7)
    assert np.array_equal(alone, silent.out)


def test_places_where_v_is_wider_than_q():
    """A place in rows of v's features, of an event that has q's."""
    x = [
        normal(130 + i, *shape)
        for i, shape in enumerate([(1, 8, 1, 4), (1, 8, 1, 4), (1, 8, 1, 8), (1, 8, 1, 8)])
    ]
    plan = Plan.preset("fa2-bf16").at("DQ", "bf16").at("DK", "bf16").at("DV", "bf16")
    trace = run(
        plan, record=Record(events=(Site.DQ, Site.DK, Site.DV)), inputs=x, blocks=(4, 4)
    ).trace
    for name, (before, after) in trace.events.items():
        error = np.abs(after - before)[0, 0]  # (tiles, rows, features)
        place, width = int(trace.stats[name].place[0, 0]), error.shape[-1]
        assert trace.stats[name].peak[0, 0] > 0.0
        unit = np.exp2(np.floor(np.log2(np.abs(before[0, 0]))) - 7)
        assert (error / unit)[:, place // width, place % width].max() == trace.stats[name].peak[
            0, 0
        ], name


@pytest.mark.parametrize("order", [Order.PAIRWISE, Order.CHUNKED, Order.EXACT])
def test_recorded_steps_change_no_bit(order):
    """The accumulators of other orders, whose steps are kept in Python lists."""
    plan = Plan.preset("fa2-bf16")
    for site in (Site.S, Site.PV, Site.DELTA):
        plan = plan.adding(site, Accumulator(order=order, chunk=3))
    a, b = (run(plan, record=record) for record in (None, Record(steps=PRODUCTS)))
    for name in RESULTS:
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


def recomputed(before, after, f):
    """The statistics of events by NumPy's own frexp and fsum-like sums: (B, heads, ...) -> dict of
    (B, heads).
    """
    finite = np.isfinite(before) & np.isfinite(after)
    error = np.where(finite, np.where(finite, after, 0) - np.where(finite, before, 0), 0.0)
    exponent = np.maximum(np.frexp(np.where(finite, before, 0.0))[1] - 1, f.emin)
    exponent = np.where(before == 0, f.emin, exponent)
    ulps = np.ldexp(error, f.precision - 1 - exponent)
    axes = tuple(range(2, before.ndim))
    bigger, smaller = np.abs(after) > np.abs(before), np.abs(after) < np.abs(before)
    grown = np.where(after == 0, -9999, np.frexp(after)[1] - 1) > exponent
    out = {
        "inexact": error != 0,
        "ties": np.abs(ulps) == 0.5,
        "ties_away": (np.abs(ulps) == 0.5) & bigger,
        "away": bigger,
        "toward": smaller,
        "carries": bigger & grown,
        "underflow": (before != 0) & (after == 0),
        "subnormal": (after != 0) & (np.abs(after) < f.min_normal),
        "nan": np.isnan(after),
        "error": error,
        "abs_error": np.abs(error),
        "sq_error": error**2,
        "ulps": ulps,
        "abs_ulps": np.abs(ulps),
        "sq_ulps": ulps**2,
    }
    return {k: v.sum(axes) for k, v in out.items()} | {"peak": np.abs(ulps).max(axes)}, ulps


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_ones_are_counted_where_scores_exist(engine):
    """A masked score of 1, or one of the padding, that counts: all scores are 1 here."""
    x = [np.ones((1, n, 1, 1), np.float32) for n in (7, 7, 7)]
    options = {"plan": "fp32", "scale": 1.0, "is_causal": True, "block_q": 4, "block_k": 4}
    trace = examine(*x, record=Record(ones=(Site.S,)), engine=engine, **options).trace
    of_rows = trace.ones["S"].sum(axis=2)  # over the key tiles
    assert of_rows.reshape(-1).tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16", "all:e4m3fn"])
@pytest.mark.parametrize("causal", [False, True])
def test_recorded_events_give_the_statistics(plan, causal):
    """Statistics over other entries than the events; rows summed along the wrong axis; errors of
    negative numbers counted as those of positive ones; a place in the wrong tile.
    """
    preset = Plan.preset(plan)
    seen = run(plan, record=EVERYTHING, is_causal=causal, blocks=(8, 16))
    checked = 0
    for name, (before, after) in seen.trace.events.items():
        site, stats = Site(name), seen.trace.stats[name]
        if causal and site.axes is Axes.TS:
            hidden = ~np.tri(T, S, dtype=bool)
            assert np.array_equal(bits(before)[..., hidden], bits(after)[..., hidden]), name
            before, after = (np.where(hidden, 0.0, x) for x in (before, after))
        want, ulps = recomputed(before, after, preset[site].format)
        for field, value in want.items():
            got = getattr(stats, field)
            if field in COUNTS or field == "peak":
                assert np.array_equal(got, value), (name, field)
            else:
                size = want["abs_" + field] if field in ("error", "ulps") else value
                assert np.all(np.abs(got - value) <= 1e-12 * size), (name, field)
        row = ulps.ndim - (1 if site.axes is Axes.T else 2)
        per_row = ulps.sum(tuple(a for a in range(2, ulps.ndim) if a != row))
        assert np.all(
            np.abs(seen.trace.rows[name] - per_row) <= 1e-12 * (1 + want["abs_ulps"][..., None])
        ), name
        away = (ulps * np.where(before < 0.0, -1.0, 1.0)).sum(
            tuple(a for a in range(2, ulps.ndim) if a != row)
        )
        assert np.all(
            np.abs(seen.trace.away[name] - away) <= 1e-12 * (1 + want["abs_ulps"][..., None])
        ), name
        if (
            ulps.ndim == 4 and site.axes is not Axes.T
        ):  # not repeated: the place is a flat index of the head
            flat = np.abs(ulps).reshape(*ulps.shape[:2], -1)
            at_place = np.take_along_axis(flat, np.maximum(stats.place, 0)[..., None], -1)[..., 0]
            assert np.array_equal(at_place, stats.peak), name
        checked += 1
    assert (
        checked == len(set(Site) - OF_KERNELS) - preset.pv_into_o
    )  # PV has no event of its own where it accumulates into O


def test_counts_of_events():
    """Padding counted, a tile skipped or counted twice; the first tile's rescaling counted."""
    inputs = [x[:, :n] for x, n in zip(INPUTS, (21, 30, 30, 21), strict=True)]
    stats = run(
        "qiu-yao", inputs=inputs
    ).trace.stats  # 3 x 4 tiles of 8 x 8, the last ones not full
    for name, s in stats.items():
        site = Site(name)
        once = {Axes.TS: 21 * 30, Axes.T: 21, Axes.TH: 21 * H, Axes.SH: 30 * H}[site.axes]
        tiles = {
            "M": 4,
            "ROWSUM": 4,
            "L": 4,
            "PV": 4,
            "O": 4,
            "DQ": 4,
            "DM": 3,
            "ALPHA": 3,
            "AL": 3,
            "AO": 3,
            "DV": 3,
            "DK": 3,
        }
        assert s.n.shape == (B, G if name in ("K", "V", "DK_OUT", "DV_OUT") else N)
        assert np.all(s.n == once * tiles.get(name, 1)), name


def test_counts_of_steps():
    """Additions that are not seen, or seen twice."""
    stats = run("qiu-yao", record=Record(steps=(Site.PV, Site.S, Site.DELTA, Site.DK))).trace.stats
    assert np.all(stats["PV.step"].n == T * H * S)
    assert np.all(stats["S.step"].n == T * S * H)
    assert np.all(stats["DELTA.step"].n == T * H)
    assert np.all(stats["DK.step"].n == S * H * T)
    assert np.all(stats["PV.step"].inexact > 0)


def test_counts_of_steps_without_padding():
    """Shares (inexact %, ties %) thinned by additions of keys that do not exist."""
    inputs = [x[:, :n] for x, n in zip(INPUTS, (21, 30, 30, 21), strict=True)]
    stats = run("qiu-yao", inputs=inputs, record=Record(steps=(Site.PV, Site.DK))).trace.stats
    assert np.all(stats["DK.step"].n == 30 * H * 21)
    assert np.all(stats["PV.step"].n == 21 * H * 30)


def test_steps_are_the_accumulators_own_roundings():
    """Steps of another sum: recomputed for one row by hand."""
    plan = Plan.preset("qiu-yao").adding(Site.PV, Accumulator(step=Plan.preset("all:bf16")[Site.O]))
    seen = run(plan, record=Record(events=(Site.P, Site.PV), steps=(Site.PV,)), blocks=(8, S))
    p, v = seen.trace.events["P"][1], INPUTS[2].repeat(2, axis=2).swapaxes(1, 2)
    total, inexact, error = np.zeros((B, N, T, H)), np.zeros((B, N), np.int64), np.zeros((B, N))
    for s in range(S):
        before = total + p[:, :, :, s, None] * v[:, :, None, s]
        exponent = np.frexp(before)[1] - 8
        total = np.ldexp(np.rint(np.ldexp(before, -exponent)), exponent)  # eight bits, ties to even
        inexact += (total != before).sum((2, 3))
        error += (total - before).sum((2, 3))
    assert np.array_equal(seen.trace.stats["PV.step"].inexact, inexact)
    assert np.allclose(seen.trace.stats["PV.step"].error, error, rtol=0, atol=1e-12)
    assert np.array_equal(seen.trace.events["PV"][0][:, :, 0], total)


def test_statistics_of_inputs_do_not_depend_on_tiles():
    """A summary that depends on how the work was cut."""
    noisy = [x * np.float32(1.0 + 2.0**-12) for x in INPUTS]
    a, b = (
        run("fa2-bf16", inputs=noisy, blocks=blocks).trace.stats for blocks in ((8, 8), (5, 32))
    )
    for name in ("Q", "K", "V", "DO"):
        for field in fields(Stats):
            assert np.allclose(
                getattr(a[name], field.name), getattr(b[name], field.name), rtol=1e-12, atol=1e-9
            ), (name, field.name)
        assert np.all(a[name].inexact > 0)


def test_summaries_merge():
    """Merging that loses the worst event, or averages sums."""
    stats = run("qiu-yao").trace.stats["P"]
    parts = [
        Stats(**{f.name: getattr(stats, f.name)[:, h] for f in fields(Stats)}) for h in range(N)
    ]
    forward, backward = sum(parts[1:], parts[0]), sum(parts[-2::-1], parts[-1])
    for name in COUNTS:
        assert np.array_equal(getattr(forward, name), getattr(stats, name).sum(1))
        assert np.array_equal(getattr(forward, name), getattr(backward, name))
    for name in SUMS:
        assert np.allclose(getattr(forward, name), getattr(backward, name), rtol=1e-12, atol=1e-12)
    assert np.array_equal(forward.peak, stats.peak.max(1))
    total = stats.total()
    assert total.n == B * N * T * S
    assert total.peak == stats.peak.max()
    assert total.place == stats.place.reshape(-1)[stats.peak.reshape(-1).argmax()]


def test_wide_inputs_are_events_too():
    """binary64 inputs rounded twice, or not at all."""
    wide = [x.astype(np.float64) * (1 + 2.0**-8 + 2.0**-40) for x in INPUTS]
    wide[0][:, :, :, 0] = 1 + 2.0**-8 + 2.0**-40
    seen = run("fa2-bf16", inputs=wide, record=Record(events=(Site.Q,)))
    before, after = seen.trace.events["Q"]
    assert np.array_equal(before, wide[0].swapaxes(1, 2))
    assert np.all(after[..., 0] == 1.0078125)  # through binary32 it would be a tie, and 1
    assert seen.out.dtype == np.float64
