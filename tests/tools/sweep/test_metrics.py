"""Metrics of a sweep against plain formulas, entry by entry, and the laws that make them comparable
between engines.
"""

import math
import statistics

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, Trace, examine
from roundscope.emu.formats.format import format_named
from roundscope.emu.stats import comparison
from roundscope.emu.stats.summary import Stats
from roundscope.tools.sweep.measuring import metrics, sums
from roundscope.tools.trace.analysis import bias as analysis

BF16, FP16 = format_named("bf16"), format_named("fp16")


def numbers(out, golden, formats=None, unfused=None, more=None, exact=None):
    """METRICS of cells; lse is as golden's where `more` and `exact` do not say."""
    lse = np.zeros(golden.shape[:3])
    formats = formats or [BF16] * len(out)
    mine = {"out": out, "lse": lse} | (more or {})
    found = sums.sums(
        mine,
        {"out": golden, "lse": lse} | (exact or {}),
        {"out": out if unfused is None else unfused},
        np.array([f.emin for f in formats]),
    )
    return metrics.of_sums(found, formats)


def one(values):
    """One cell of one head, (1, T, 1, H), from rows."""
    return np.array(values, dtype=np.float64)[None, :, None, :]


def drawn(cells=3, t=5, n=2, h=4):
    random = np.random.default_rng(1)
    golden = random.standard_normal((cells, t, n, h))
    return golden + 1e-3 * random.standard_normal(golden.shape), golden


def test_deviations_by_hand():
    """Catches a sign, a missing root, a mean over the wrong count."""
    found = numbers(one([[1.0, 2.5], [3.0, 3.0]]), one([[1.0, 2.0], [3.0, 4.0]]))
    wanted = {
        "max_abs": 1.0,
        "mean_abs": 0.375,
        "rms": math.sqrt(1.25 / 4),
        "rel_rms": math.sqrt(1.25 / 30),
        "mean": -0.125,
        "mean_se": statistics.stdev([0.25, -0.5]) / math.sqrt(2),
    }
    assert {k: float(found[k][0]) for k in wanted} == pytest.approx(wanted, rel=1e-15)


def test_the_scatter_of_heads_by_hand():
    """An error of each head over another head's size; the deviation of means, not of logarithms."""
    out, golden = drawn(cells=1, n=3)
    logs = [
        math.log(np.linalg.norm(out[0, :, h] - golden[0, :, h]) / np.linalg.norm(golden[0, :, h]))
        for h in range(3)
    ]
    wanted = statistics.stdev(logs) / math.sqrt(3)
    assert float(numbers(out, golden)["log_rms_se"][0]) == pytest.approx(wanted, rel=1e-12)


def test_mean_in_ulps_by_hand():
    """Catches the binade of the result in place of golden's, another format's ulp, and a golden 0
    with the ulp of 1/2.
    """
    golden = one([[1.5, 2.0], [0.0, -0.25]])
    out = one([[1.5 + 2**-8, 2.0 - 2**-8], [0.125, -0.25 + 2**-12]])
    bf16, fp16 = (numbers(out, golden, [f]) for f in (BF16, FP16))
    ulp = (2**-7 + 2**-6 + 2**-9) / 4  # of BF16 at 1.5, 2 and 1/4; at 0 it is nothing
    rows = [0.0, (0.125 + 2**-12) / 2]
    assert bf16["mean_ulps"][0] == pytest.approx(rows[1] / 2 / ulp, rel=1e-15)
    assert bf16["mean_ulps_se"][0] == pytest.approx(
        statistics.stdev(rows) / math.sqrt(2) / ulp, rel=1e-15
    )
    assert fp16["mean_ulps"][0] == pytest.approx(
        rows[1] / 2 / (ulp / 8 + 2**-24 / 4), rel=1e-15
    )  # 2^-24: its subnormals


def test_ulps_below_the_smallest_normal():
    """Catches ulps that shrink below those of the subnormals."""
    tiny = format_named("e4m3fn")  # smallest normal 2^-6, smallest number 2^-9
    found = numbers(one([[2**-9]]), one([[2**-12]]), [tiny])
    assert found["mean_ulps"][0] == pytest.approx(1 - 1 / 8, rel=1e-15)


def test_entries_that_are_not_finite():
    """Catches an error that is a mean over what is left of a result, and a count of entries that
    are as they should be: 1,024 outputs of infinity once had an error of 0.18 %.
    """
    golden = one([[1.0, 2.0], [3.0, 2.0], [math.nan, -math.inf]])
    found = numbers(one([[1.0, math.inf], [math.nan, 3.0], [math.nan, -math.inf]]), golden)
    assert found["not_finite"][0] == 2.0
    for name in ("max_abs", "mean_abs", "rms", "rel_rms"):
        assert found[name][0] == math.inf, name
    for name in ("mean", "mean_se", "mean_ulps", "mean_ulps_se"):
        assert math.isnan(found[name][0]), name
    same = numbers(one([[1.0, 2.5], [3.0, 2.0], [math.nan, -math.inf]]), golden)
    assert (same["not_finite"][0], same["max_abs"][0]) == (0.0, 0.5)
    assert same["rel_rms"][0] == pytest.approx(math.sqrt(0.25 / 18), rel=1e-15)
    other = numbers(one([[1.0, 2.0], [3.0, 2.0], [0.0, math.inf]]), golden)
    assert (other["not_finite"][0], other["rms"][0]) == (2.0, math.inf)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("result", ["out", "lse", "dq", "dk", "dv", "delta"])
def test_one_entry_that_is_lost_decides(result, value):
    """Catches a result whose entries that are not finite are left out: dq was 0.0 where all of it
    was NaN. The other results keep their numbers; the expectation is `emu.stats.comparison`.
    """
    random = np.random.default_rng(8)
    shapes = dict.fromkeys(("out", "dq", "dk", "dv"), (1, 6, 2, 4))
    shapes |= dict.fromkeys(("lse", "delta"), (1, 6, 2))
    exact = {n: random.standard_normal(shape) for n, shape in shapes.items()}
    mine = {n: x + 1e-3 * random.standard_normal(x.shape) for n, x in exact.items()}
    before = numbers(mine["out"], exact["out"], more=mine, exact=exact)
    mine[result] = mine[result].copy()
    mine[result].flat[11] = value
    found = numbers(mine["out"], exact["out"], more=mine, exact=exact)
    prefix = "" if result == "out" else f"{result}_"
    for name, x in found.items():
        own = name.startswith(("dq", "dk", "dv", "delta", "lse"))
        if name.startswith(prefix) if prefix else not own:
            continue
        assert np.array_equal(x, before[name], equal_nan=True), name
    lost = comparison.lost(mine[result], exact[result])
    assert found[f"{prefix}not_finite"][0] == lost.count == 1
    if result in ("out", "dq"):
        _, query, head, _ = lost.first
        assert found[f"{prefix}not_finite_row"][0] == 2 * query + head
    if f"{prefix}rel_rms" in found:
        assert found[f"{prefix}rel_rms"][0] == comparison.relative_rms(mine[result], exact[result])
        assert before[f"{prefix}rel_rms"][0] < 1e-2
    if result == "lse":
        assert found["lse_max_abs"][0] == math.inf
    if result == "delta":
        assert math.isnan(found["delta_bias"][0]) and math.isnan(found["delta_coherence"][0])


def test_one_row_has_no_standard_error():
    """Catches a standard error of 0 from a single row, which would make everything significant."""
    found = numbers(one([[1.0, 2.0]]), one([[1.0, 1.0]]))
    assert math.isnan(found["mean_se"][0]) and found["mean"][0] == 0.5


def test_standard_error_is_that_of_row_means():
    """Catches entries of a row counted as independent: a common shift of each row must show in
    full.
    """
    random = np.random.default_rng(3)
    shifts = random.standard_normal((1, 50, 2, 1))
    found = numbers(np.broadcast_to(shifts, (1, 50, 2, 16)), np.zeros((1, 50, 2, 16)))
    assert found["mean_se"][0] == pytest.approx(
        statistics.stdev(shifts.reshape(-1)) / 10, rel=1e-12
    )


def test_a_cell_alone_and_among_others_are_equal_to_the_bit():
    """Catches sums whose order depends on the other cells, or on the memory layout of an engine's
    result.
    """
    out, golden = drawn(cells=3, t=37, n=3, h=19)
    whole = numbers(out, golden, [BF16, FP16, BF16])
    turned = np.ascontiguousarray(out.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    assert not turned.flags.c_contiguous
    for name, values in numbers(turned, np.asfortranarray(golden), [BF16, FP16, BF16]).items():
        assert np.array_equal(values, whole[name]), name
    alone = numbers(out[1:2], golden[1:2], [FP16])
    assert all(np.array_equal(v, whole[name][1:2]) for name, v in alone.items())


def test_against_unfused_by_hand():
    """Catches a ratio upside down, and the difference of the two taken against golden."""
    golden, out, unfused = one([[0.0, 0.0]]), one([[3.0, -1.0]]), one([[-1.0, 1.0]])
    found = numbers(out, golden, unfused=unfused)
    wanted = {
        "unfused_max_abs": 1.0,
        "unfused_rms": 1.0,
        "vs_unfused_max": 4.0,
        "ratio_max": 3.0,
        "ratio_rms": math.sqrt(5),
        "ratio_mean_abs": 2.0,
    }
    assert {k: float(found[k][0]) for k in wanted} == pytest.approx(wanted, rel=1e-15)


def test_ratio_without_unfused_deviation():
    """Catches a warning or a 1 where the unfused result is exact: 0 / 0 has no value, x / 0 is
    infinite.
    """
    zero, one_off = one([[0.0]]), one([[1.0]])

    def ratio(out):
        return numbers(out, zero, unfused=zero)["ratio_max"][0]

    assert math.isnan(ratio(zero)) and ratio(one_off) == math.inf


def test_softmax_events_by_hand():
    """Catches ones of two tiles counted as several (each raised the maximum), and a first tile
    counted as a rescale.
    """
    zeros = np.zeros((1, 1, 11))
    counts = zeros.copy()
    counts[0, 0, 0] = 6  # three rows, two later tiles each
    stats = {"ALPHA": Stats.of(counts, np.zeros((1, 1, 6)), np.zeros((1, 1)), np.zeros((1, 1)))}
    ones = {
        "P": np.array([[[[0, 1, 0], [0, 1, 2]]]]),
        "ALPHA": np.array([[[[1, 1, 0], [1, 0, 0]]]]),
    }  # a row of tiles each
    found = metrics.softmax_events(Trace(stats=stats, rows={}, events={}, ones=ones))
    assert found["several_ones"][0] == pytest.approx(1 / 3) and found["rescales"][
        0
    ] == pytest.approx(1.0)


def test_rescales_from_the_events_themselves():
    """Catches a count that misses causal tiles or rows: recounted from every single ALPHA and P."""
    random = np.random.default_rng(4)
    q, k, v = (random.standard_normal((1, 40, 2, 8)) for _ in range(3))
    record = Record(ones=(Site.P, Site.ALPHA), events=(Site.P, Site.ALPHA))
    trace = examine(
        q, k, v, plan="qiu-yao", block_q=16, block_k=8, is_causal=True, record=record
    ).trace
    alpha, p = trace.events["ALPHA"][1], trace.events["P"][1]
    row, first_key = np.arange(40), np.arange(0, 40, 8)
    later = (first_key[:, None] <= (row // 16 * 16 + 15)[None, :]) & (first_key > 0)[
        :, None
    ]  # tiles that run, after the first
    found = metrics.softmax_events(trace)
    assert found["rescales"][0] == pytest.approx(((alpha != 1.0) & later).sum() / 80, rel=1e-15)
    assert found["several_ones"][0] == pytest.approx(
        ((p.reshape(2, 40, 5, 8) == 1.0).sum(-1) >= 2).any(-1).mean(), rel=1e-15
    )


def test_backward_by_hand():
    """Catches gradients mixed up, and a coherence that is not 1 / sqrt(rows) for one error and
    sqrt(rows) for equal ones.
    """
    golden = {g: np.zeros((2, 4, 1, 2)) for g in metrics.GRADIENTS} | {"delta": np.zeros((2, 4, 1))}
    seen = {g: x + i for i, (g, x) in enumerate(golden.items(), start=1)}
    seen["delta"] = np.array([[[2.0]] * 4, [[3.0], [0.0], [-3.0], [4.0]]])
    out = np.zeros((2, 4, 1, 2))
    found = numbers(out, out, more=seen, exact=golden)
    assert [found[f"{g}_mean"][0] for g in metrics.GRADIENTS] == [1.0, 2.0, 3.0]
    assert found["delta_bias"].tolist() == [2.0, 1.0] and found["delta_coherence"] == pytest.approx(
        [2.0, 4 / math.sqrt(34)]
    )
    assert found["delta_bias_se"] == pytest.approx(
        [0.0, statistics.stdev([3.0, 0.0, -3.0, 4.0]) / 2]
    )
    assert set(found) == set(metrics.METRICS) - {"several_ones", "rescales"}


def test_lse_of_rows_without_keys():
    """Catches a NaN from -inf - -inf."""
    x, lse = np.zeros((1, 2, 1, 3)), {"lse": np.array([[[1.0], [-math.inf]]])}
    assert (
        numbers(x, x, more=lse, exact={"lse": np.array([[[1.5], [-math.inf]]])})["lse_max_abs"][0]
        == 0.5
    )


def test_sites_agree_with_the_trace_report():
    """Catches a standard error that takes events as independent, and totals over the wrong
    heads.
    """
    random = np.random.default_rng(5)
    q, k, v, do = (random.standard_normal((2, 24, 3, 8)) for _ in range(4))
    plan = Plan.preset("qiu-yao")
    trace = examine(q, k, v, do, plan=plan, block_q=8, block_k=8).trace
    found = metrics.sites(trace)
    for cell in range(2):
        assert list(found[cell]) == list(trace.stats)
        for name, stats in trace.stats.items():
            own = Stats(
                **{f: getattr(stats, f)[cell : cell + 1] for f in stats.__dataclass_fields__}
            )
            rows = trace.rows[name][cell : cell + 1]  # also in place of those away from zero
            event = analysis.event(name, plan[Site[name]].format, own, rows, rows, limit=3.0)
            total, mine = own.total(), found[cell][name]
            assert set(mine) == set(metrics.SITE_METRICS)
            assert (mine["n"], mine["ties"], mine["nan"]) == (
                total.n,
                event.share("ties"),
                total.nan,
            )
            wanted = [
                event.signed.error.mean,
                event.signed.error.se,
                event.mean_abs,
                event.peak,
                total.coherence,
                total.error / total.n,
            ]
            names = (
                "mean_ulps",
                "se_ulps",
                "mean_abs_ulps",
                "peak_ulps",
                "coherence",
                "mean_error",
            )
            assert [mine[x] for x in names] == pytest.approx(wanted, rel=1e-12, abs=1e-15), name


def test_sites_without_events_are_left_out():
    """Catches a row of zeros for events that never happen: one key tile rescales nothing."""
    x = np.ones((1, 4, 1, 2))
    (found,) = metrics.sites(examine(x, x, x, plan="qiu-yao", block_q=4, block_k=4).trace)
    assert "ALPHA" not in found and "AO" not in found and found["P"]["n"] == 16.0


def test_gain_is_that_of_a_trace_and_scatters_over_heads():
    """Catches a gain of the mean in place of that of the length, of all heads together, or with
    another sign, and a z that takes few heads for many.
    """
    from roundscope.tools.trace.analysis import consequences

    golden = np.random.default_rng(3).standard_normal((2, 6, 4, 8))
    out = golden * (1.0 + np.array([1e-3, 2e-3, 4e-3, 3e-3])[:, None])
    found = numbers(out, golden)
    assert found["gain"] == pytest.approx([2.5e-3] * 2, rel=1e-12)
    one = consequences.gain(out[:1], golden[:1], 4, 1)
    assert found["gain"][0] == pytest.approx(one.mean, rel=1e-12)
    assert found["gain_se"][0] == pytest.approx(one.se, rel=1e-9)
    # Student's with 3 degrees of freedom has the two-sided 1 % point 5.841, the normal one 2.576
    z = metrics.deviate(np.array([5.841, -5.841, 0.0]), np.ones(3), np.array([4, 4, 4]))
    assert z == pytest.approx([2.576, -2.576, 0.0], abs=1e-3)
    assert abs(found["mean"][0]) < 1e-3 < found["gain"][0]  # numbers of both signs


def test_a_gain_of_lost_entries_or_of_one_head_is_not_told():
    """Catches a gain of the finite entries alone, and a z of a single head."""
    golden = np.random.default_rng(3).standard_normal((2, 6, 4, 8))
    out = 1.001 * golden
    out[0, 0, 0, 0] = np.nan
    found = numbers(out, golden)
    assert np.isnan(found["gain"][0])
    assert found["gain"][1] == pytest.approx(1e-3)
    single = numbers(1.001 * golden[:, :, :1], golden[:, :, :1])
    assert single["gain"] == pytest.approx([1e-3] * 2)
    assert np.isnan(single["gain_z"]).all()
