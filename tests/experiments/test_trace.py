"""`roundscope trace`: the sample end to end, the statistics against independent formulas, and every kind of bad input."""

import json
import math
import re

import numpy as np
import pytest

from attention import AddUlps, Exact, FlipBit, Injection, Plan, Site, examine
from emu.formats import format_named
from emu.stats import Stats
from experiments import analysis, cli, consequences, trace_focus, trace_json, trace_table, trace_words
from experiments.analysis import lean, threshold
from experiments.tensors import Layer, read_layers, sample_path
from experiments.trace_inject import injection
from experiments.trace_options import request, with_rounding
from experiments.trace_run import observe
from experiments.trace_summary import summarise

PRESETS = ("exact", "fp32", "qiu-yao", "fa2-bf16", "fa3-fp8", "baseline-bf16", "all:e4m3fn")
OPTIONS = {
    "plan": "qiu-yao", "against": "exact", "sets": [], "inject": [], "record": [], "engine": "numpy", "seed": 0, "block_q": 16,
    "block_k": 16, "scale": None, "causal": False,
}  # fmt: skip


def asked(**changes):
    return request(**(OPTIONS | changes))


@pytest.fixture
def run(capsys):
    """Runs `roundscope trace` in this process: (exit code, stdout, stderr)."""

    def of(*args):
        with pytest.raises(SystemExit) as stop:
            cli.main(["trace", *map(str, args)])
        out = capsys.readouterr()
        return stop.value.code or 0, out.out, out.err

    return of


def tensors(layers=("a",), b=2, t=24, s=40, n=4, g=2, h=8, hv=4, do=True):
    random = np.random.default_rng(3)
    shapes = {"q": (b, t, n, h), "k": (b, s, g, h), "v": (b, s, g, hv)} | ({"do": (b, t, n, hv)} if do else {})
    return {f"{x}.{role}": random.standard_normal(shape).astype(np.float32) for x in layers for role, shape in shapes.items()}


@pytest.fixture
def small(tmp_path):
    """Writes a file of random tensors and returns its path."""

    def of(name="small", **changes):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **tensors(**changes), layout="BTNH")
        return path

    return of


@pytest.fixture(scope="module")
def sample():
    """Layer 1 of the sample under the default plan: its summary."""
    (layer,) = read_layers(sample_path(), layer="layer1")
    return summarise(observe(layer, asked(block_q=128, block_k=128)))


# ---- end to end


@pytest.mark.pictures
def test_sample_end_to_end(run, tmp_path):
    code, out, err = run("--sample", "--layer", "layer1", "--out", tmp_path / "here")
    assert (code, err) == (0, "")
    assert all(len(line) <= 100 for line in out.splitlines()[:-1])
    first = out.splitlines()[1]
    assert first.startswith(("Nothing leans", "Of ")) and "several P = 1" in " ".join(out.split())
    for site in ("S", "P", "PV", "O", "OUT", "DS", "DQ_OUT"):
        assert re.search(rf"^{site} +bf16|^{site} +fp32", out, re.M)
    assert re.search(r"^sums whose additions round inside .*DELTA", out, re.M) and "report.html" in out
    data = json.loads((tmp_path / "here" / "trace.json").read_text())
    assert data["schema"] == trace_json.SCHEMA and [x["name"] for x in data["layers"]] == ["layer1"]
    (layer,) = data["layers"]
    assert set(layer["digests"]["inputs"]) == {"q", "k", "v", "do"}
    assert set(layer["digests"]["outputs"]) == set(layer["against"]) == {"out", "lse", "delta", "dq", "dk", "dv"}
    assert {e["name"] for e in layer["events"]} == {str(s) for s in Site}
    assert layer["several_ones"]["rows"] == sum(map(sum, layer["several_ones"]["by_head"])) > 0
    page = (tmp_path / "here" / "report.html").read_text()
    assert page.count("<img ") == 6 and page.index(layer["sentence"][:40]) < page.index("<img ")


def test_report_opens_offline(run, small, tmp_path):
    assert run(small(), "--out", tmp_path / "x")[0] == 0
    page = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "PNG", (tmp_path / "x" / "report.html").read_text())
    assert page.count('src="PNG"') >= 5
    assert not re.search(r"https?:|//|<script|<link|@import|url\(", page)


def test_json_is_the_file_and_digests_are_stable(run, small, tmp_path):
    path = small(layers=("l.10", "l.2"))
    code, out, _ = run(path, "--json", "--out", tmp_path / "x")
    first, written = json.loads(out), json.loads((tmp_path / "x" / "trace.json").read_text())
    assert code == 0 and first == written and [x["name"] for x in first["layers"]] == ["l.2", "l.10"]
    again = json.loads(run(path, "--json", "--out", tmp_path / "y")[1])
    assert [x["digests"] for x in again["layers"]] == [x["digests"] for x in first["layers"]]
    other = json.loads(run(path, "--json", "--plan", "fp32", "--out", tmp_path / "y")[1])
    assert other["layers"][0]["digests"]["inputs"] == first["layers"][0]["digests"]["inputs"]
    assert other["layers"][0]["digests"]["outputs"] != first["layers"][0]["digests"]["outputs"]


def test_engines_give_the_same_digests(run, small, tmp_path):
    path = small(b=1, t=8, s=8, n=1, g=1, do=False)
    numpy, xla = (json.loads(run(path, "--json", "--engine", e, "--out", tmp_path / e)[1])["layers"][0] for e in ("numpy", "xla"))
    assert numpy["digests"] == xla["digests"]
    counts = lambda x: [[e[n] for n in ("name", "n", "inexact", "ties", "carries")] for e in x["events"]]  # noqa: E731
    assert counts(numpy) == counts(xla)


@pytest.mark.parametrize(("plan", "do"), [(p, True) for p in PRESETS] + [("qiu-yao", False), ("exact", False)])
def test_every_preset_with_and_without_do(run, small, tmp_path, plan, do):
    code, out, err = run(small(do=do), "--plan", plan, "--causal", "--block-k", 16, "--out", tmp_path / "x")
    assert (code, err) == (0, "") and (do or "no do" in " ".join(out.split()))


def test_one_token(run, small, tmp_path):
    assert run(small(b=1, t=1, s=1, n=1, g=1, h=1, hv=1), "--out", tmp_path / "x")[0] == 0


def test_exact_plan_rounds_nothing(run, small, tmp_path):
    assert "Nothing rounds" in run(small(), "--plan", "exact", "--out", tmp_path / "x")[1]


def test_records_and_steps(run, small, tmp_path):
    args = ("--record", "rows", "--record", "events:P,DS", "--record", "steps:PV")
    data = json.loads(run(small(), *args, "--json", "--out", tmp_path / "x")[1])
    (step,) = (e for e in data["layers"][0]["events"] if e["name"] == "PV.step")
    assert step["n"] == 2 * 4 * 24 * 4 * 40 and step["format"] == "fp32"
    with np.load(tmp_path / "x" / "records.npz") as kept:
        assert kept["a.P.after"].shape == (2, 4, 24, 40) and kept["a.P.rows"].shape == (2, 4, 24)
        assert "a.DS.before" in kept and "a.O.before" not in kept


def test_an_injected_bias_leans_and_is_named(run, small, tmp_path):
    path = small(b=1, t=64, s=64, n=4, g=4)
    out = " ".join(run(path, "--plan", "fa2-bf16", "--inject", "OUT:ulps=0.25", "--out", tmp_path / "x")[1].split())
    assert re.search(r"events that round, \d lean.*: OUT \(injected\) up by 0\.2\d* ± 0\.0\d* bf16 ulp", out)


def test_seed_decides_stochastic_rounding(run, small, tmp_path):
    path = small()
    outs = [
        json.loads(run(path, "--set", "PV=bf16:stochastic", "--seed", seed, "--json", "--out", tmp_path / "x")[1]) for seed in (1, 1, 2)
    ]
    a, b, c = (x["layers"][0]["digests"]["outputs"]["out"] for x in outs)
    assert a == b != c and outs[2]["seed"] == 2 and outs[0]["plan"]["roundings"]["PV"] == "bf16:stochastic"


# ---- what is seen


def test_reduced_events_agree_with_the_trace(sample):
    seen = sample.seen
    for site, focus in seen.focus.items():
        stats = seen.trace.stats[site]
        assert focus.histogram.sum() + focus.beyond == stats.inexact.sum()
        np.testing.assert_allclose(focus.signed.sum(2), seen.trace.rows[site], rtol=0, atol=1e-9)


def test_ones_are_counted_tile_by_tile():
    p = np.zeros((1, 1, 2, 6))
    p[0, 0, 0, [0, 1, 4]] = 1.0
    assert trace_focus.ones_of(p, 4).tolist() == [[[[2, 0], [1, 0]]]]


@pytest.mark.parametrize("changes", [{}, {"inject": ["O:ulps=1:heads=3"]}, {"causal": True}, {"plan": "fa2-bf16"}])
def test_splitting_by_heads_changes_nothing(monkeypatch, small, changes):
    from experiments import trace_run

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
    direct = examine(layer.q, layer.k, layer.v, layer.do, plan=req.plan, block_q=16, block_k=16, is_causal=req.causal, inject=req.inject)
    np.testing.assert_array_equal(direct.dk, split.results["dk"])
    for a, b in zip(summarise(whole).events, summarise(split).events, strict=True):
        assert (a.lean.mean, a.lean.z, a.distinct) == (pytest.approx(b.lean.mean), pytest.approx(b.lean.z), b.distinct)


def test_sample_shows_the_paper_s_rows_and_production_far_fewer(sample):
    (layer,) = read_layers(sample_path(), layer="layer1")
    production = summarise(observe(layer, asked(plan="fa2-bf16", block_q=128, block_k=128)))
    assert sample.several.sum() > 5 * production.several.sum() > 0


def test_running_error_is_equation_5(sample):
    run = sample.running
    import ml_dtypes

    total, errors = np.float32(0.0), []
    for p, v in zip(run.p, run.v, strict=True):
        total = np.float32(total + np.float32(p * v))  # products of two BF16 numbers are exact in binary32
        errors.append(float(np.float32(total.astype(ml_dtypes.bfloat16)) - total))
    assert run.site == "PV" and np.array_equal(run.error, errors)
    assert (run.p == 1.0).sum() > 1 and run.p.max() == 1.0


def test_delta_error_is_the_output_s_error_as_do_weighs_it(sample):
    drift = sample.drift
    assert drift.identity < 1e-3 * np.abs(drift.error).max()
    d = drift.error
    np.testing.assert_allclose(drift.z, d.sum(1) / np.sqrt((d**2).sum(1)))


def test_shared_arguments_explain_what_rows_alone_do_not(sample):
    """P of BF16 differences takes few values: rows alone would call it biased."""
    (p,) = (e for e in sample.events if e.name == "P")
    assert abs(p.by_rows.z) > 10 and p.shared and not p.leans and p.distinct < 2000
    before, after = sample.seen.held["P"]
    values = np.unique(before[before != after])
    ulps = trace_focus.ulps_of(before, after, format_named("bf16"))
    sums = [ulps[before == v].sum() for v in values[:5]]
    distinct, found = trace_focus.by_argument(before, after, format_named("bf16"))
    assert distinct.size <= values.size and found.sum() == pytest.approx(ulps.sum())
    assert all(np.isclose(s, found[np.searchsorted(distinct, np.frexp(v)[0])]) or distinct.size < values.size
               for s, v in zip(sums, values[:5], strict=True))  # fmt: skip


@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16"])
def test_noise_leans_no_more_often_than_promised(plan):
    """N(0, 1) has no bias. One layer in a hundred marks an event by chance: two of four would have a chance below 1e-3.

    LSE under qiu-yao looks biased by rows in every layer, since BF16 row sums repeat; it must never lean.
    """
    marked = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        q, k, v, do = (random.standard_normal((1, 256, 4, 16)).astype(np.float32) for _ in range(4))
        s = summarise(observe(Layer(name="noise", q=q, k=k, v=v, do=do), asked(plan=plan, block_q=128, block_k=128)))
        marked += [seed] if s.leaning or trace_words.outward(s) else []
        assert "LSE" not in [e.name for e in s.leaning]
        assert plan != "qiu-yao" or "LSE" in [e.name for e in s.cleared]
    assert len(marked) <= 1


def test_lse_is_grouped_by_error():
    """One row sum below two maxima: one error, two significands."""
    before = np.array([4.0, 5.0]) + np.ldexp(1.0, -10)
    after = np.array([4.0, 5.0])
    for by_error, groups in ((False, 2), (True, 1)):
        distinct, sums = trace_focus.by_argument(before, after, format_named("bf16"), by_error=by_error)
        assert distinct.size == sums.size == groups and sums.sum() == -2 * 2.0**-5


# ---- the words


def test_delta_that_crosses_and_comes_back_says_so():
    error = np.concatenate([np.ones(40), -np.ones(38)])[None, :, None]
    d = consequences.delta_drift(error, 0 * error, np.zeros((1, 78, 1, 2)), np.zeros((1, 78, 1, 2)), np.zeros((1, 78, 1, 2)))
    assert not d.leans and 4 <= d.crossing <= 12 and f"at token {d.crossing} but comes back" in trace_words._course(d)
    flat = np.tile([1.0, -1.0], 39)[None, :, None]
    assert consequences.delta_drift(flat, 0 * flat, *[np.zeros((1, 78, 1, 2))] * 3).crossing is None


def test_injections_and_plans_in_the_words_of_the_command_line():
    texts = ["O:ulps=0.5:heads=3:rows=0-63", "PV:exact", "P:flip=3:rows=5,9-10", "OUT:set=1", "S:noise=0.5", "S:bias=0.001"]
    req = asked(inject=texts, sets=["P=e4m3fn"])
    assert [trace_words.injection_words(i) for i in req.inject] == texts
    assert trace_words.plan_words(req) == f"qiu-yao with P=e4m3fn, injected {' '.join(texts)}"


def test_sums_that_round_inside_are_set_apart(sample):
    lines = trace_table.folded(sample)
    (inside,) = (x for x in lines if x.startswith("sums whose additions round inside"))
    (exact,) = (x for x in lines if x.startswith("exact here"))
    assert "DELTA" in inside and "DELTA" not in exact and " Q " in exact


@pytest.mark.pictures
def test_nan_and_underflow_are_said(run, small, tmp_path):
    with np.load(small()) as file:
        q = file["a.q"].copy()
    q[0, 1, 2, 3] = np.nan
    out = " ".join(run(change(small(), **{"a.q": q}), "--allow-nan", "--out", tmp_path / "x")[1].split())
    assert "1 NaN in q; 40 scores, 4 outputs are NaN. " in out
    out = " ".join(run(small(), "--plan", "fa3-fp8", "--scale", 4, "--out", tmp_path / "y")[1].split())
    assert re.search(r"\d+ % of P\b.* become 0\.", out)


def test_folder_is_named_after_the_plan_and_layers_have_a_line_each(run, small, tmp_path, monkeypatch):
    path = small(layers=("a", "b"))
    monkeypatch.chdir(tmp_path)
    assert run(path, "--plan", "fa3-fp8")[0] == run(path, "--set", "O=bf16:toward-zero", "--inject", "O:ulps=1:heads=3")[0] == 0
    assert (tmp_path / "trace-small-fa3-fp8" / "report.html").exists()
    page = (tmp_path / "trace-small-qiu-yao-O=bf16-toward-zero" / "report.html").read_text()
    opening = page[: page.index("<img ")]
    assert "injected O:ulps=1:heads=3" in opening and "<b>a</b>: leaning" in opening and "<b>b</b>: leaning" in opening


# ---- the statistics


def test_z_is_the_formula_and_its_null_is_standard_normal():
    random = np.random.default_rng(0)
    rows = random.standard_normal(50)
    assert lean([rows], 500).z == pytest.approx(rows.sum() / math.sqrt((rows**2).sum()))
    flipped = [lean([rows * random.choice([-1, 1], 50)], 500).z for _ in range(4000)]
    assert abs(np.mean(flipped)) < 0.06 and np.std(flipped) == pytest.approx(1.0, abs=0.04)


def test_the_widest_null_counts():
    rows, values = np.ones(100), np.array([60.0, 40.0])
    assert lean([rows], 1000).z == pytest.approx(10.0)
    assert lean([rows, values], 1000).z == pytest.approx(100 / math.hypot(60, 40))
    assert lean([rows], 1000, independent=1e4).z == pytest.approx(1.0)
    assert lean([np.zeros(3)], 9).z == 0.0


def test_standard_error_is_that_of_the_rows():
    random = np.random.default_rng(1)
    errors = [lean([random.normal(0.3, 1.0, 400)], 400) for _ in range(300)]
    assert np.mean([e.se for e in errors]) == pytest.approx(np.std([e.mean for e in errors]), rel=0.1)


@pytest.mark.parametrize(("bias", "leans"), [(0.05, True), (-0.05, True), (0.0, False)])
def test_planted_bias_is_found_and_none_is_not(bias, leans):
    random = np.random.default_rng(2)
    errors = random.uniform(-0.5, 0.5, (1, 3, 200, 32)) + bias
    e = analysis.event("O", format_named("bf16"), _stats(errors), errors.sum(-1), threshold(30))
    assert e.leans is leans and e.lean.mean == pytest.approx(errors.mean())
    assert not leans or math.copysign(1, e.lean.z) == math.copysign(1, bias)
    assert e.lean.se == pytest.approx(errors.std() / math.sqrt(errors.size), rel=0.1)


def test_errors_that_agree_inside_a_row_do_not_pass_for_bias():
    """Each row's 32 errors are equal: 200 coins, not 6400."""
    random = np.random.default_rng(4)
    zs = []
    for _ in range(200):
        errors = np.repeat(random.uniform(-0.5, 0.5, (1, 1, 200, 1)), 32, -1)
        zs.append(analysis.event("O", format_named("bf16"), _stats(errors), errors.sum(-1), 3.3).lean.z)
    assert np.std(zs) == pytest.approx(1.0, abs=0.15)


def _stats(errors):
    """Stats (B, N) of errors (B, N, T, H) in ulps."""
    zero = np.zeros(errors.shape[:2], np.int64)
    n, axes = zero + errors[0, 0].size, (2, 3)
    fields = dict.fromkeys(Stats.__dataclass_fields__, zero) | {
        "n": n, "inexact": n, "ulps": errors.sum(axes), "abs_ulps": np.abs(errors).sum(axes), "sq_ulps": (errors**2).sum(axes),
        "peak": np.abs(errors).max(axes),
    }  # fmt: skip
    return Stats(**fields)


def test_threshold_is_bonferroni():
    from scipy.stats import norm

    for tests in (1, 30, 400):
        assert 2 * tests * norm.sf(threshold(tests)) == pytest.approx(analysis.FALSE_ALARMS)


def test_difference():
    d = consequences.difference(np.array([1.0, 2.0, np.nan, np.inf]), np.array([1.0, 4.0, np.nan, 1.0]))
    assert (d["max_abs"], d["mean"], d["not_finite"]) == (2.0, pytest.approx(-2 / 3), 1)


def test_share_of_rows_with_several_ones():
    away = np.zeros((1, 1, 2, 50))
    several = np.zeros((1, 1, 2, 50), dtype=bool)
    several[..., 0, :10] = True
    away[several], away[..., 1, :] = 3.0, 0.6
    s = consequences.share("O", away, away, several, np.ones((2, 50), dtype=bool), 4)
    assert s.events == (40, 360) and s.share == pytest.approx(0.5)
    assert s.away[0].mean == pytest.approx(0.75) and s.away[1].mean == pytest.approx(30 / 360)


# ---- options


def test_grammar_of_inject():
    plan = Plan.preset("qiu-yao")
    assert injection("O:ulps=0.5:rows=0-63:heads=3", plan) == Injection(
        site=Site.O, what=AddUlps(ulps=0.5), rows=range(64), heads=range(3, 4)
    )
    assert injection("pv:exact", plan) == Injection(site=Site.PV, what=Exact())
    assert injection("P:flip=3:rows=5,9-10", plan) == Injection(site=Site.P, what=FlipBit(bit=3), rows=(5, 9, 10))


def test_grammar_of_set():
    plan = with_rounding(Plan.preset("fp32"), "o=bf16:toward-zero")
    assert str(plan[Site.O]) == "bf16:toward-zero" and plan[Site.PV] == Plan.preset("fp32")[Site.PV]


BAD = [
    (("--plan", "qui-yao"), "--plan 'qui-yao': unknown preset 'qui-yao'; did you mean 'qiu-yao'"),
    (("--against", "fa2-bf"), "--against 'fa2-bf': unknown preset 'fa2-bf'; did you mean 'fa2-bf16'"),
    (("--plan", "all:bf61"), "did you mean 'bf16'"),
    (("--block-q", 0), "--block-q 0: a tile has at least one row"),
    (("--block-k", -8), "--block-k -8"),
    (("--engine", "xxl"), "unknown engine 'xxl'; did you mean 'xla'"),
    (("--scale", "inf"), "--scale inf"),
    (("--seed", -1), "--seed -1"),
    (("--layout", "NHWC"), "layout 'NHWC': use BNTH"),
    (("--layer", "b"), "unknown layer 'b'"),
    (("--set", "O"), "--set 'O': write SITE=FORMAT"),
    (("--set", "OO=bf16"), "unknown site 'OO'"),
    (("--set", "O=bf61"), "unknown format 'bf61'; did you mean 'bf16'"),
    (("--set", "O=bf16:stochastik"), "did you mean 'stochastic'"),
    (("--set", "O=e8m0fnu"), "scale format"),
    (("--plan", "fa2-bf16", "--set", "PV=bf16"), "so PV never rounds alone; use O"),
    (("--plan", "baseline-bf16", "--inject", "AO:ulps=1"), "never rescales"),
    (("--inject", "OUTT:exact"), "unknown site 'OUTT'; did you mean 'OUT'"),
    (("--inject", "O:upls=1"), "did you mean 'ulps'"),
    (("--inject", "O:ulps=much"), "'much' is no finite number"),
    (("--inject", "O:flip=16"), "bits 0 to 15"),
    (("--inject", "O:ulps=1:row=3"), "did you mean 'rows'"),
    (("--inject", "O:ulps=1:rows=9-3"), "'9-3' is empty"),
    (("--inject", "O:ulps=1:rows=-3"), "no whole number"),
    (("--inject", "O:ulps=1:heads=4"), "--inject O:heads=4: the layer has 4, numbered from 0 to 3"),
    (("--inject", "O:ulps=1:rows=24"), "O:rows=24: the layer has 24"),
    (("--inject", "P:ulps=1:features=1"), "features"),
    (("--plan", "fa3-fp8", "--inject", "P:set=1e6"), "e4m3fn cannot hold 1e+06; its largest number is 448"),
    (("--inject", "O:set=0.3"), "bf16 cannot hold 0.3; the nearest number it has is 0.30078125"),
    (("--record", "row"), "--record 'row': write rows"),
    (("--record", "events:ZZ"), "unknown site 'ZZ'"),
    (("--record", "steps:P"), "steps are of sums of products"),
    (("--sample",), "choose one"),
]


@pytest.mark.parametrize(("args", "words"), BAD, ids=lambda v: " ".join(map(str, v)) if isinstance(v, tuple) else "")
def test_bad_usage_is_one_line(run, small, tmp_path, args, words):
    code, out, err = run(small(), *args, "--out", tmp_path / "x")
    assert (code, out) == (2, "") and err.count("\n") == 1 and err.startswith("roundscope: ") and words in err
    assert not (tmp_path / "x").exists()


def change(path, **arrays):
    with np.load(path) as file:
        kept = {n: file[n] for n in file.files}
    np.savez(path, **(kept | arrays))
    return path


FILES = {
    "missing": (lambda p: p.with_name("none.npz"), "no such file; give a safetensors or npz file"),
    "rank": (lambda p: change(p, **{"a.q": np.zeros((24, 4, 8), np.float32)}), "tensor a.q (24, 4, 8): needs four axes"),
    "do": (lambda p: change(p, **{"a.do": np.zeros((2, 24, 4, 8), np.float32)}), "must have the output's shape (2, 24, 4, 4)"),
    "nan": (lambda p: change(p, **{"a.q": np.full((2, 24, 4, 8), np.nan, np.float32)}), "NaN or infinity: 1536 in q; "),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:900]) and p, "truncated or damaged"),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_files_are_one_line(run, small, tmp_path, case):
    spoil, words = FILES[case]
    code, out, err = run(spoil(small()), "--out", tmp_path / "x")
    assert (code, out) == (2, "") and err.count("\n") == 1 and words in err and (case != "nan" or "--allow-nan" in err)


def test_truncated_safetensors(run, tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(sample_path().read_bytes()[:5000])
    code, _, err = run(path)
    assert code == 2 and err.count("\n") == 1 and "truncated or damaged" in err


def test_no_file_and_no_sample(run):
    code, _, err = run()
    assert code == 2 and "FILE is missing: give one, or --sample" in err


def test_backward_injection_needs_do(run, small, tmp_path):
    code, _, err = run(small(do=False), "--inject", "DS:exact", "--out", tmp_path / "x")
    assert code == 2 and "the file has no do" in err


def test_nan_goes_on_if_allowed(run, small, tmp_path):
    path = change(small(), **{"a.q": np.full((2, 24, 4, 8), np.nan, np.float32)})
    code, out, _ = run(path, "--allow-nan", "--json", "--out", tmp_path / "x")
    assert code == 0 and json.loads(out)["layers"][0]["not_finite"] == 1536


def test_out_that_is_a_file(run, small, tmp_path):
    (tmp_path / "x").write_text("")
    code, _, err = run(small(), "--out", tmp_path / "x")
    assert code == 2 and "is a file; name a folder" in err
