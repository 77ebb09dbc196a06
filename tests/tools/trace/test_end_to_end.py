"""`roundscope trace` as a whole: the sample, files, every preset, records, injections, seeds."""

import gc
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from roundscope.attention import Site
from roundscope.attention.sites import OF_KERNELS
from roundscope.tools.cli import commands as garbage
from roundscope.tools.trace import command as trace_command
from roundscope.tools.trace import data as trace_json
from tests.tools.trace.inputs import PRESETS

FAILED = """
import gc
from contextlib import suppress
from roundscope.tools.cli import commands as garbage
before = gc.get_threshold()
if {is_frozen}:
    gc.freeze()
count = gc.get_freeze_count()
with suppress(ZeroDivisionError), garbage.few_collections():
    assert gc.get_threshold()[0] == garbage.ALLOCATIONS
    raise ZeroDivisionError
assert (gc.get_threshold(), gc.get_freeze_count()) == (before, count)
assert ({is_frozen}) == (count > 0)
"""


@pytest.mark.parametrize("is_frozen", [False, True])
def test_garbage_is_looked_for_as_before_when_a_trace_is_done(is_frozen):
    """A Python whose caller's objects are never freed, since a trace failed; objects of the caller
    that a trace thaws. It has a process of its own, since threads of other tests free objects.
    """
    code = FAILED.format(is_frozen=is_frozen)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_caller_that_looks_for_no_garbage_keeps_that():
    """A collection that a trace switches on."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with garbage.few_collections():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


@pytest.mark.thorough
def test_the_sample_does_not_start_numba(tmp_path):
    """A kernel for a few numbers, which makes the command a quarter slower."""
    words = ["trace", "--sample", "--layer", "layer4", "--no-budget", "--out", str(tmp_path)]
    code = (
        f"import sys; from roundscope.experiments.cli.main import main; main({words});"
        " assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


@pytest.mark.pictures
@pytest.mark.thorough
def test_sample_end_to_end(run, tmp_path):
    code, out, err = run("--sample", "--layer", "layer1", "--all", "--out", tmp_path / "here")
    assert (code, err) == (0, "")
    assert all(len(line) <= 100 for line in out.splitlines()[:-1])
    text = " ".join(out.split())
    assert text.index("The output differs from exact attention by") < text.index("result rms error")
    assert "several P = 1" in text
    for site in ("S", "P", "PV", "O", "OUT", "DS", "DQ_OUT"):
        assert re.search(rf"^{site} +bf16|^{site} +fp32", out, re.M)
    assert (
        re.search(r"^sums whose additions round inside .*DELTA", out, re.M) and "report.html" in out
    )
    data = json.loads((tmp_path / "here" / "trace.json").read_text())
    assert data["schema"] == trace_json.SCHEMA and [x["name"] for x in data["layers"]] == ["layer1"]
    (layer,) = data["layers"]
    assert set(layer["digests"]["inputs"]) == {"q", "k", "v", "do"}
    assert (
        set(layer["digests"]["outputs"])
        == set(layer["results"])
        == {"out", "lse", "delta", "dq", "dk", "dv"}
    )
    assert {e["name"] for e in layer["events"]} == {str(s) for s in set(Site) - OF_KERNELS}
    assert layer["several_ones"]["rows"] == sum(map(sum, layer["several_ones"]["by_head"])) > 0
    page = (tmp_path / "here" / "report.html").read_text()
    assert page.count("<svg ") == 3
    assert page.index(layer["verdict"]["accuracy"][:40]) < page.index("<svg ")


def test_report_opens_offline(run, small, tmp_path):
    assert run(small(), "--out", tmp_path / "x")[0] == 0
    page = re.sub(
        r"data:image/png;base64,[A-Za-z0-9+/=]+",
        "PNG",
        (tmp_path / "x" / "report.html").read_text(),
    )
    assert page.count("<svg ") >= 3
    assert not re.search(r"https?:|//|<script[^>]|<link|@import|url\((?!#)", page)


def test_json_is_the_file_and_digests_are_stable(run, small, tmp_path):
    path = small(layers=("l.10", "l.2"))
    code, out, _ = run(path, "--json", "--out", tmp_path / "x")
    first, written = json.loads(out), json.loads((tmp_path / "x" / "trace.json").read_text())
    assert (
        code == 0 and first == written and [x["name"] for x in first["layers"]] == ["l.2", "l.10"]
    )
    again = json.loads(run(path, "--json", "--out", tmp_path / "y")[1])
    assert [x["digests"] for x in again["layers"]] == [x["digests"] for x in first["layers"]]
    other = json.loads(run(path, "--json", "--plan", "fp32", "--out", tmp_path / "y")[1])
    assert other["layers"][0]["digests"]["inputs"] == first["layers"][0]["digests"]["inputs"]
    assert other["layers"][0]["digests"]["outputs"] != first["layers"][0]["digests"]["outputs"]


@pytest.mark.thorough
def test_engines_give_the_same_digests(run, small, tmp_path):
    path = small(b=1, t=8, s=8, n=1, g=1, do=False)
    numpy, xla = (
        json.loads(run(path, "--json", "--engine", e, "--out", tmp_path / e)[1])["layers"][0]
        for e in ("numpy", "xla")
    )
    assert numpy["digests"] == xla["digests"]

    def counts(x):
        return [[e[n] for n in ("name", "n", "inexact", "ties", "carries")] for e in x["events"]]

    assert counts(numpy) == counts(xla)


@pytest.mark.thorough
def test_fused_kernels_give_the_same_digests(run, small, tmp_path, monkeypatch):
    """Events of a tile that no query sees, or in another order; interpreted here."""
    monkeypatch.setattr(trace_command, "check_engine", lambda *_: None)
    path = small(b=1, t=32, s=32, n=1, g=1, h=16, hv=16)
    words = (
        "--json",
        "--plan",
        "fa2-bf16@hopper",
        "--block-q",
        "16",
        "--block-k",
        "16",
        "--causal",
        "--record",
        "events:P,DK",
    )
    numpy, fused = (
        json.loads(run(path, *words, "--engine", e, "--out", tmp_path / e)[1])["layers"][0]
        for e in ("numpy", "pallas")
    )
    assert numpy["digests"] == fused["digests"]
    assert numpy["several_ones"] == fused["several_ones"]
    ours, theirs = (dict(np.load(tmp_path / e / "records.npz")) for e in ("numpy", "pallas"))
    assert ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name], theirs[name]) for name in ours
    )


@pytest.mark.parametrize(
    ("plan", "do"), [(p, True) for p in PRESETS] + [("qiu-yao", False), ("exact", False)]
)
def test_every_preset_with_and_without_do(run, small, tmp_path, plan, do):
    code, out, err = run(
        small(do=do), "--plan", plan, "--causal", "--block-k", 16, "--out", tmp_path / "x"
    )
    assert (code, err) == (0, "") and (do or "no do" in " ".join(out.split()))


def test_one_token(run, small, tmp_path):
    assert run(small(b=1, t=1, s=1, n=1, g=1, h=1, hv=1), "--out", tmp_path / "x")[0] == 0


def test_exact_plan_rounds_nothing(run, small, tmp_path):
    assert "No event rounds" in run(small(), "--plan", "exact", "--out", tmp_path / "x")[1]


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
    out = " ".join(
        run(path, "--plan", "fa2-bf16", "--inject", "OUT:ulps=0.25", "--out", tmp_path / "x")[
            1
        ].split()
    )
    assert re.search(r"that round \d (?:is|are) biased: .*OUT \(injected\) up by 0\.2\d* ulp", out)


def test_seed_decides_stochastic_rounding(run, small, tmp_path):
    path = small()
    outs = [
        json.loads(
            run(
                path,
                "--set",
                "PV=bf16:stochastic",
                "--seed",
                seed,
                "--json",
                "--out",
                tmp_path / "x",
            )[1]
        )
        for seed in (1, 1, 2)
    ]
    a, b, c = (x["layers"][0]["digests"]["outputs"]["out"] for x in outs)
    assert (
        a == b != c
        and outs[2]["seed"] == 2
        and outs[0]["plan"]["roundings"]["PV"] == "bf16:stochastic"
    )
