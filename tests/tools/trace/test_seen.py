"""What a trace sees: its events against the engines', running and delta errors against their
formulas, noise.
"""

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention import examine
from roundscope.emu.formats.format import format_named
from roundscope.tools.tensors.layers import Layer, read_layers, sample_path
from roundscope.tools.trace import focus as trace_focus
from roundscope.tools.trace.analysis import running_error
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.summary import summarise
from tests.tools.trace.inputs import asked


def test_reduced_events_agree_with_the_trace(sample_seen):
    seen = sample_seen
    for site, focus in seen.focus.items():
        stats = seen.trace.stats[site]
        assert focus.histogram.size == stats.inexact.sum()
        np.testing.assert_allclose(focus.signed.sum(2), seen.trace.rows[site], rtol=0, atol=1e-9)


def test_reduced_events_of_heads_are_those_of_all_heads():
    """A head twice, in another place, or in a histogram alone."""
    before = np.random.default_rng(3).normal(size=(2, 3, 4, 20, 5))
    after, f = np.round(before, 1), format_named("bf16")
    whole = trace_focus.focus(before, after, f, per_feature=True)
    heads = [
        trace_focus.focus(before[:, h : h + 1], after[:, h : h + 1], f, per_feature=True)
        for h in range(3)
    ]
    parts = trace_focus.of_heads(heads)
    for name in ("signed", "away", "value"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), strict=True)
    assert np.array_equal(parts.histogram.counts, whole.histogram.counts)
    assert parts.histogram.beyond == whole.histogram.beyond > 0


def test_ones_are_counted_tile_by_tile():
    p = np.zeros((1, 1, 2, 6))
    p[0, 0, 0, [0, 1, 4]] = 1.0
    assert trace_focus.ones_of(p, 4).tolist() == [[[[2, 0], [1, 0]]]]


@pytest.mark.parametrize(
    "changes", [{}, {"inject": ["O:ulps=1:heads=3"]}, {"causal": True}, {"plan": "fa2-bf16"}]
)
def test_splitting_by_heads_changes_nothing(monkeypatch, small, changes):
    from roundscope.tools.trace import run as trace_run

    (layer,), req = read_layers(small()), asked(**changes)
    whole = observe(layer, req)
    monkeypatch.setattr(trace_run, "CHUNK_BYTES", 1)
    split = observe(layer, req)
    for name, array in whole.results.items():
        np.testing.assert_array_equal(array, split.results[name])
    for site, stats in whole.trace.stats.items():
        np.testing.assert_array_equal(stats.ulps, split.trace.stats[site].ulps)
        np.testing.assert_array_equal(stats.peak, split.trace.stats[site].peak)
    np.testing.assert_array_equal(whole.ones, split.ones)
    direct = examine(
        layer.q,
        layer.k,
        layer.v,
        layer.do,
        plan=req.plan,
        block_q=16,
        block_k=16,
        is_causal=req.causal,
        inject=req.inject,
    )
    np.testing.assert_array_equal(direct.dk, split.results["dk"])
    for a, b in zip(summarise(whole).events, summarise(split).events, strict=True):
        assert a.distinct == b.distinct
        for one, other in ((a.signed.error, b.signed.error), (a.away.error, b.away.error)):
            assert (one.mean, one.z) == (pytest.approx(other.mean), pytest.approx(other.z))


def test_sample_shows_the_paper_s_rows_and_production_far_fewer(sample):
    (layer,) = read_layers(sample_path(), layer="layer1")
    production = summarise(observe(layer, asked(plan="fa2-bf16", block_q=128, block_k=128)))
    assert sample.several.sum() > 5 * production.several.sum() > 0


def test_running_error_is_equation_5(sample):
    run = sample.running
    import ml_dtypes

    total, errors = np.float32(0.0), []
    for p, v in zip(run.p, run.v, strict=True):
        total = np.float32(
            total + np.float32(p * v)
        )  # products of two BF16 numbers are exact in binary32
        errors.append(float(np.float32(total.astype(ml_dtypes.bfloat16)) - total))
    assert run.site == "PV" and np.array_equal(run.error, errors)
    assert (run.p == 1.0).sum() > 1 and run.p.max() == 1.0


@pytest.mark.parametrize("kind", ["narrow", "wide", "infinite"])
def test_the_running_sum_is_that_of_emu(kind):
    """Products that binary32 does not hold, added up as if it did."""
    p, v = np.random.default_rng(3).normal(size=(2, 300)).astype(np.float16).astype(np.float64)
    p[:9], v[4] = -0.0, 2.0**-140
    if kind == "wide":
        v *= 1 + 2.0**-20
    elif kind == "infinite":
        v[100], v[200] = np.inf, -np.inf
    steps = []
    emu.dot(p[None, :], v[:, None], steps=steps)
    wanted = np.concatenate([after.reshape(-1) for _, after in steps])
    np.testing.assert_array_equal(running_error._fold(p, v), wanted)


def test_delta_error_is_the_output_s_error_as_do_weighs_it(sample):
    drift = sample.drift
    assert drift.identity < 1e-3 * np.abs(drift.error).max()
    d = drift.error
    np.testing.assert_allclose(drift.z, d.sum(1) / np.sqrt((d**2).sum(1)))


def test_shared_arguments_explain_what_rows_alone_do_not(sample, sample_seen):
    """P of BF16 differences takes few values: rows alone would call it biased."""
    (p,) = (e for e in sample.events if e.name == "P")
    assert abs(p.signed.by_rows.z) > 10 and p.is_shared and not p.is_biased and p.distinct < 2000
    before, after = sample_seen.held["P"]
    values = np.unique(before[before != after])
    ulps = trace_focus.ulps_of(before, after, format_named("bf16"))
    sums = [ulps[before == v].sum() for v in values[:5]]
    distinct, found = trace_focus.by_argument(before, after, format_named("bf16"))
    assert distinct.size <= values.size and found.sum() == pytest.approx(ulps.sum())
    assert all(
        np.isclose(s, found[np.searchsorted(distinct, np.frexp(v)[0])])
        or distinct.size < values.size
        for s, v in zip(sums, values[:5], strict=True)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [pytest.param("qiu-yao", marks=pytest.mark.thorough), "fa2-bf16"])
def test_noise_leans_no_more_often_than_promised(plan):
    """N(0, 1) has no bias. One layer in a hundred marks an event by chance: two of four would have
    a chance below 1e-3.

    LSE under qiu-yao looks biased by rows in every layer, since BF16 row sums repeat; it must never
    lean.
    """
    marked = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        q, k, v, do = (random.standard_normal((1, 256, 4, 16)).astype(np.float32) for _ in range(4))
        s = summarise(
            observe(
                Layer(name="noise", q=q, k=k, v=v, do=do),
                asked(plan=plan, block_q=128, block_k=128),
            )
        )
        marked += [seed] if s.biased_events else []
        assert "LSE" not in [e.name for e in s.biased_events]
        assert plan != "qiu-yao" or "LSE" in [e.name for e in s.cleared]
    assert len(marked) <= 1


def test_lse_is_grouped_by_error():
    """One row sum below two maxima: one error, two significands."""
    before = np.array([4.0, 5.0]) + np.ldexp(1.0, -10)
    after = np.array([4.0, 5.0])
    for by_error, groups in ((False, 2), (True, 1)):
        distinct, sums = trace_focus.by_argument(
            before, after, format_named("bf16"), by_error=by_error
        )
        assert distinct.size == sums.size == groups and sums.sum() == -2 * 2.0**-5
