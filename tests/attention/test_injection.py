"""Injections touch what they name and what depends on it; each does what it says; traces see everything, change nothing."""

from dataclasses import fields

import ml_dtypes
import numpy as np
import pytest

from attention import (
    PRODUCTS,
    AddUlps,
    Axes,
    Bias,
    Exact,
    FlipBit,
    Injection,
    Noise,
    Plan,
    Record,
    SetTo,
    Site,
    attend,
    examine,
)  # fmt: skip
from emu.accumulate import Accumulator, Order
from emu.classify import COUNTS, SUMS
from emu.stats import Stats
from tests.engines import RESULTS, bits, normal

B, T, S, N, G, H = 2, 24, 32, 4, 2, 8
INPUTS = [normal(110 + i, *shape) for i, shape in enumerate([(B, T, N, H), (B, S, G, H), (B, S, G, H), (B, T, N, H)])]
EVERYTHING = Record(events=tuple(Site), steps=PRODUCTS)


def run(plan="qiu-yao", inject=(), *, blocks=(8, 8), inputs=INPUTS, **options):
    plan = Plan.preset(plan) if isinstance(plan, str) else plan
    return examine(*inputs, plan=plan, block_q=blocks[0], block_k=blocks[1], inject=inject, **{"engine": "numpy"} | options)


BASE = {(plan, causal): run(plan, is_causal=causal) for plan in ("qiu-yao", "fa2-bf16") for causal in (False, True)}

# batch 1, query head 2 (key head 1), row or key 13, feature 5, column 6; what may change in each result, and must somewhere
ALL = slice(None)
AT_ROW = (1, 13, 2)
OF_GROUP = (1, ALL, 1)  # dk, dv of the key head
LATER = slice(13, None)  # queries that see key 13 under a causal mask


def _of_key_heads(batch):
    """Key head 1 has query heads 2 and 3; under a causal mask queries from 13 on see key 13."""
    heads, where = slice(2, 4), {"batch": batch, "heads": 1, "rows": 13}
    later, group = (batch, LATER, heads), (batch, ALL, 1)
    return [
        (Site.DK_OUT, where, {"dk": (batch, 13, 1)}),
        (Site.DV_OUT, where, {"dv": (batch, 13, 1)}),
        (Site.V, where | {"features": 5}, {"out": (*later, 5), "delta": later, "dq": later, "dk": group}),
        (Site.K, where | {"features": 5}, {"out": later, "lse": later, "delta": later, "dq": later, "dk": group, "dv": group}),
    ]


LOCAL = [
    # site, selection, {result: where}; results that are not named must keep every bit
    (Site.PV, {"rows": 13}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.AO, {"rows": 13}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.O, {"rows": 13, "features": 5}, {"out": (*AT_ROW, 5), "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.O, {"rows": 13, "tiles": 1}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.OUT, {"rows": (13,), "features": range(5, 6)}, {"out": (*AT_ROW, 5), "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.INV, {"rows": 13}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.P, {"rows": 13, "columns": 6}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.L, {"rows": 13}, {"out": AT_ROW, "lse": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (Site.EXP, {"rows": 13, "columns": 6},
     {"out": AT_ROW, "lse": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (Site.S, {"rows": 13, "columns": 6},
     {"out": AT_ROW, "lse": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (Site.LSE, {"rows": 13}, {"lse": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (Site.DELTA, {"rows": 13}, {"delta": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP}),
    (Site.DELTA, {"rows": 13, "tiles": 0}, {"delta": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP}),
    (Site.S_B, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1), "dv": (1, 6, 1)}),
    (Site.SCALED_B, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1), "dv": (1, 6, 1)}),
    (Site.EXP_B, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1), "dv": (1, 6, 1)}),
    (Site.P_B, {"rows": 13, "columns": 6}, {"dv": (1, 6, 1)}),
    (Site.DP, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1)}),
    (Site.DPD, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1)}),
    (Site.DS, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1)}),
    (Site.DQ, {"rows": 13, "features": 5}, {"dq": (*AT_ROW, 5)}),
    (Site.DK, {"rows": 13, "features": 5}, {"dk": (1, 13, 1, 5)}),
    (Site.DV, {"rows": 13, "features": 5, "tiles": 1}, {"dv": (1, 13, 1, 5)}),
    (Site.DQ_OUT, {"rows": 13, "features": 5}, {"dq": (*AT_ROW, 5)}),
    (Site.DO, {"rows": 13}, {"delta": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (Site.Q, {"rows": 13, "features": 5},
     {"out": AT_ROW, "lse": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    *_of_key_heads(0), *_of_key_heads(1),
]  # fmt: skip


@pytest.mark.parametrize(("site", "selection", "reach"), LOCAL, ids=lambda x: str(x) if isinstance(x, Site) else "")
@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16"])
def test_touches_what_it_names_and_what_depends_on_it(plan, site, selection, reach):
    """Rows, heads, batches, features or tiles mixed up; an event whose value another path does not use."""
    if site is Site.PV and plan == "fa2-bf16":
        return  # refused: test_no_injection_at_an_event_that_the_plan_does_not_have
    selection = {"batch": 1, "heads": 2} | selection
    hurt = run(plan, [Injection(site=site, what=Bias(value=0.75), **selection)], is_causal=True)
    base = BASE[plan, True]
    for name in RESULTS:
        changed = bits(getattr(hurt, name)) != bits(getattr(base, name))
        may = np.zeros(changed.shape, bool)
        if name in reach:
            may[reach[name]] = True
            assert changed.any(), f"{name} did not change"
        assert not np.any(changed & ~may), f"{name} changed elsewhere, at {np.argwhere(changed & ~may)[:3].tolist()}"


def test_an_injection_of_nothing_is_nothing():
    """The injected path (guarded products, extra sums) with other bits than the plain one."""
    for plan, causal in BASE:
        hurt = run(plan, [Injection(site=s, what=Bias(value=0.0)) for s in (Site.O, Site.P, Site.DQ)], is_causal=causal)
        for name in RESULTS:
            assert np.array_equal(getattr(hurt, name), getattr(BASE[plan, causal], name)), name


# --- each What, at OUT, where the result is the event ---------------------------------------------------------


def at_out(what, plan="fa2-bf16", **selection):
    """(without, with) the injection at OUT, as float64."""
    a, b = (run(plan, i).out for i in ((), [Injection(site=Site.OUT, what=what, **selection)]))
    return a.astype(np.float64), b.astype(np.float64)


def ulp_bf16(x):
    return 2.0 ** (np.frexp(x)[1] - 1.0 - 7)


def test_add_ulps():
    a, b = at_out(AddUlps(ulps=-1.5), rows=range(2, 20, 3))
    want = a.copy()
    want[:, 2:20:3] += -1.5 * ulp_bf16(a[:, 2:20:3])
    assert np.array_equal(b, want)


def test_bias():
    a, b = at_out(Bias(value=0.125))
    assert np.array_equal(b, (a + 0.125).astype(np.float32))


def test_set_to():
    a, b = at_out(SetTo(value=3.0), features=(1, 7))
    a[..., [1, 7]] = 3.0
    assert np.array_equal(b, a)


@pytest.mark.parametrize(("plan", "dtype", "bit"), [
    ("fa2-bf16", ml_dtypes.bfloat16, 0), ("fa2-bf16", ml_dtypes.bfloat16, 6), ("fa2-bf16", ml_dtypes.bfloat16, 7),
    ("fa2-bf16", ml_dtypes.bfloat16, 15), ("all:fp16", np.float16, 3), ("all:fp16", np.float16, 10),
    ("all:e4m3fn", ml_dtypes.float8_e4m3fn, 2), ("all:e4m3fn", ml_dtypes.float8_e4m3fn, 3), ("all:e5m2", ml_dtypes.float8_e5m2, 7),
])  # fmt: skip
def test_flip_bit(plan, dtype, bit):
    """Bits counted from the wrong end, or of another code; subnormal results."""
    a, b = at_out(FlipBit(bit=bit), plan)
    code = a.astype(dtype).view(np.uint16 if np.dtype(dtype).itemsize == 2 else np.uint8)
    want = (code ^ code.dtype.type(1 << bit)).view(dtype).astype(np.float64)
    assert np.array_equal(b, want, equal_nan=True)


def test_exact_is_the_value_before_rounding():
    a, b = at_out(Exact())
    before, after = run("fa2-bf16", record=Record(events=(Site.OUT,))).trace.events["OUT"]
    assert np.array_equal(after.swapaxes(1, 2), a)
    assert np.array_equal(b, before.swapaxes(1, 2).astype(np.float32))


def test_noise_is_a_fair_coin():
    """A noise with a mean, or one that depends on tiles; the same coin for every head."""
    a, b = at_out(Noise(ulps=2.0, seed=3))
    coin = (b - a) / (2 * ulp_bf16(a))
    assert set(np.unique(coin)) == {-1.0, 1.0}
    assert abs(coin.sum()) < 5 * np.sqrt(coin.size)
    assert np.array_equal(b, at_out(Noise(ulps=2.0, seed=3))[1])
    assert not np.array_equal(b, at_out(Noise(ulps=2.0, seed=4))[1])
    flat = coin.swapaxes(1, 2).reshape(B * N, -1)
    assert np.abs(flat @ flat.T - T * H * np.eye(B * N)).max() < 5 * np.sqrt(T * H)
    other = run("fa2-bf16", [Injection(site=Site.OUT, what=Noise(ulps=2.0, seed=3))], blocks=(5, 8)).out
    assert np.array_equal(other, b)


def test_noise_at_scores_does_not_depend_on_tiles():
    """A noise arm that changes with the tile size it is meant to be compared across."""
    noise = [Injection(site=Site.DS, what=Noise(ulps=1.0, seed=3))]
    record = Record(events=(Site.DS,))
    signs = []
    for blocks in ((8, 8), (8, 16)):
        before, after = run("fp32", noise, blocks=blocks, record=record).trace.events["DS"]
        signs.append(after > before)
    assert np.mean(signs[0] == signs[1]) > 0.99


def test_several_injections_act_in_order():
    """A list of which only the first or last acts."""
    a, b = (run("fa2-bf16", i).out for i in (
        (), [Injection(site=Site.OUT, what=SetTo(value=1.0), rows=4), Injection(site=Site.OUT, what=Bias(value=0.5))],
    ))  # fmt: skip
    assert np.all(b[:, 4] == 1.5)
    assert np.array_equal(b[:, 5], (a[:, 5] + np.float32(0.5)))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: Injection(site=Site.O, what=SetTo(value=0.0), columns=3), ("columns=(3,)", "O", "rows or features")),
    (lambda: Injection(site=Site.S, what=SetTo(value=0.0), features=3), ("features=(3,)", "S", "rows or columns")),
    (lambda: Injection(site=Site.L, what=SetTo(value=0.0), features=3), ("features=(3,)", "L")),
    (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows=slice(3, None)), ("rows=", "stop")),
    (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows=slice(-3, 5)), ("rows=",)),
    (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows="3"), ("rows='3'", "range")),
    (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows=1.5), ("rows=1.5",)),
    (lambda: run("fa2-bf16", [Injection(site=Site.P, what=FlipBit(bit=16))]), ("bit=16", "bf16", "0 to 15")),
    (lambda: run("fa2-bf16", [Injection(site=Site.P, what=FlipBit(bit=-1))]), ("bit=-1",)),
    (lambda: run("exact", [Injection(site=Site.P, what=FlipBit(bit=1))]), ("FlipBit", "P", "fp64")),
    (lambda: run("fa2-bf16", [Injection(site=Site.PV, what=Exact())]), ("site=PV", "inject at O")),
])  # fmt: skip
def test_errors_name_the_value_and_the_repair(call, words):
    """A selection that silently selects nothing."""
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("what", [Bias(value=1.0), SetTo(value=1.0), AddUlps(ulps=1.0)])
def test_no_injection_at_an_event_that_the_plan_does_not_have(what):
    """An experiment whose injection did nothing."""
    with pytest.raises(ValueError, match="PV"):
        run("fa2-bf16", [Injection(site=Site.PV, what=what)])


@pytest.mark.parametrize("rows", [-1, (3, -2), range(-3, 2)])
def test_no_negative_selections(rows):
    """An experiment whose injection did nothing: NumPy would count -1 from the end."""
    with pytest.raises(ValueError, match="rows"):
        Injection(site=Site.O, what=SetTo(value=0.0), rows=rows)


# --- traces ---------------------------------------------------------------------------------------------------


OTHERS = ("exact", "fp32", "fa2-bf16", "baseline-bf16", "all:bf16", "all:e4m3fn")


@pytest.mark.parametrize("plan", ["qiu-yao", "fa3-fp8", *(pytest.param(p, marks=pytest.mark.thorough) for p in OTHERS)])
def test_a_trace_never_changes_a_bit(plan):
    """A recorded sum that adds in another order, or an event that is rounded where it is only looked at."""
    silent, *watched = (run(plan, record=record, blocks=(5, 7)) for record in (None, Record(), EVERYTHING))
    for seen in watched:
        for name in RESULTS:
            assert np.array_equal(bits(getattr(silent, name)), bits(getattr(seen, name))), name
    alone, _ = attend(*INPUTS[:3], plan=Plan.preset(plan), block_q=5, block_k=7, record=EVERYTHING)
    assert np.array_equal(alone, silent.out)


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
    """The statistics of events by NumPy's own frexp and fsum-like sums: (B, heads, ...) -> dict of (B, heads)."""
    finite = np.isfinite(before) & np.isfinite(after)
    error = np.where(finite, np.where(finite, after, 0) - np.where(finite, before, 0), 0.0)
    exponent = np.maximum(np.frexp(np.where(finite, before, 0.0))[1] - 1, f.emin)
    exponent = np.where(before == 0, f.emin, exponent)
    ulps = np.ldexp(error, f.precision - 1 - exponent)
    axes = tuple(range(2, before.ndim))
    bigger, smaller = np.abs(after) > np.abs(before), np.abs(after) < np.abs(before)
    grown = np.where(after == 0, -9999, np.frexp(after)[1] - 1) > exponent
    out = {
        "inexact": error != 0, "ties": np.abs(ulps) == 0.5, "ties_away": (np.abs(ulps) == 0.5) & bigger,
        "away": bigger, "toward": smaller, "carries": bigger & grown, "underflow": (before != 0) & (after == 0),
        "subnormal": (after != 0) & (np.abs(after) < f.min_normal), "nan": np.isnan(after),
        "error": error, "abs_error": np.abs(error), "sq_error": error**2,
        "ulps": ulps, "abs_ulps": np.abs(ulps), "sq_ulps": ulps**2,
    }  # fmt: skip
    return {k: v.sum(axes) for k, v in out.items()} | {"peak": np.abs(ulps).max(axes)}, ulps


@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16", "all:e4m3fn"])
@pytest.mark.parametrize("causal", [False, True])
def test_recorded_events_give_the_statistics(plan, causal):
    """Statistics over other entries than the events; rows summed along the wrong axis; a place in the wrong tile."""
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
        assert np.all(np.abs(seen.trace.rows[name] - per_row) <= 1e-12 * (1 + want["abs_ulps"][..., None])), name
        if ulps.ndim == 4 and site.axes is not Axes.T:  # not repeated: the place is a flat index of the head
            flat = np.abs(ulps).reshape(*ulps.shape[:2], -1)
            at_place = np.take_along_axis(flat, np.maximum(stats.place, 0)[..., None], -1)[..., 0]
            assert np.array_equal(at_place, stats.peak), name
        checked += 1
    assert checked == len(Site) - preset.pv_into_o  # PV has no event of its own where it accumulates into O


def test_counts_of_events():
    """Padding counted, a tile skipped or counted twice; the first tile's rescaling counted."""
    inputs = [x[:, :n] for x, n in zip(INPUTS, (21, 30, 30, 21), strict=True)]
    stats = run("qiu-yao", inputs=inputs).trace.stats  # 3 x 4 tiles of 8 x 8, the last ones not full
    for name, s in stats.items():
        site = Site(name)
        once = {Axes.TS: 21 * 30, Axes.T: 21, Axes.TH: 21 * H, Axes.SH: 30 * H}[site.axes]
        tiles = {"M": 4, "ROWSUM": 4, "L": 4, "PV": 4, "O": 4, "DQ": 4, "DM": 3, "ALPHA": 3, "AL": 3, "AO": 3, "DV": 3, "DK": 3}
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
    a, b = (run("fa2-bf16", inputs=noisy, blocks=blocks).trace.stats for blocks in ((8, 8), (5, 32)))
    for name in ("Q", "K", "V", "DO"):
        for field in fields(Stats):
            assert np.allclose(getattr(a[name], field.name), getattr(b[name], field.name), rtol=1e-12, atol=1e-9), (name, field.name)
        assert np.all(a[name].inexact > 0)


def test_summaries_merge():
    """Merging that loses the worst event, or averages sums."""
    stats = run("qiu-yao").trace.stats["P"]
    parts = [Stats(**{f.name: getattr(stats, f.name)[:, h] for f in fields(Stats)}) for h in range(N)]
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
