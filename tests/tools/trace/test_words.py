"""What a trace says."""

import json
import re

import numpy as np
import pytest

from roundscope.attention import Site
from roundscope.attention.grammar.injections import injection_words
from roundscope.tools.trace import data as folder
from roundscope.tools.trace.analysis import consequences
from roundscope.tools.trace.report import tables as trace_table
from roundscope.tools.trace.report import words as trace_words
from tests.tools.trace.inputs import asked, change


def test_delta_that_crosses_and_comes_back_says_so():
    error = np.concatenate([np.ones(40), -np.ones(38)])[None, :, None]
    d = consequences.delta_drift(
        error, 0 * error, np.zeros((1, 78, 1, 2)), np.zeros((1, 78, 1, 2)), np.zeros((1, 78, 1, 2))
    )
    assert (
        not d.leans
        and 4 <= d.crossing <= 12
        and f"at token {d.crossing} but comes back" in trace_words._course(d)
    )
    flat = np.tile([1.0, -1.0], 39)[None, :, None]
    assert consequences.delta_drift(flat, 0 * flat, *[np.zeros((1, 78, 1, 2))] * 3).crossing is None


def test_injections_and_plans_in_the_words_of_the_command_line():
    texts = [
        "O:ulps=0.5:heads=3:rows=0:64",
        "PV:exact",
        "P:flip=3:rows=5,9:11",
        "OUT:set=1",
        "S:noise=0.5",
        "S:bias=0.001",
    ]
    req = asked(inject=texts, changes=["P=e4m3fn"])
    assert [injection_words(i) for i in req.inject] == texts
    assert (
        trace_words.plan_words(req)
        == f"qiu-yao with P={req.plan[Site.P]}, injected {' '.join(texts)}"
    )


def test_sums_that_round_inside_are_all_named(sample):
    """P V and dQ left out because they have no event of their own or round in another line."""
    lines = trace_table.folded(sample)
    (inside,) = (x for x in lines if x.startswith("sums whose additions round inside"))
    (exact,) = (x for x in lines if x.startswith("exact here"))
    assert {"S", "PV", "DELTA", "DQ", "DK", "DV"} <= set(inside.split()) and " Q " in exact
    inexact = {"EXP", "ALPHA", "LSE", "O", "INV", *inside.split()}
    assert not inexact & set(exact.partition(": ")[2].split())


@pytest.mark.pictures
def test_nan_and_underflow_are_said(run, small, tmp_path):
    with np.load(small()) as file:
        q = file["a.q"].copy()
    q[0, 1, 2, 3] = np.nan
    out = " ".join(
        run(change(small(), **{"a.q": q}), "--allow-nan", "--out", tmp_path / "x")[1].split()
    )
    assert "4 of 768 outputs are NaN" in out and "as under exact attention" in out
    assert "1 of 1,536 numbers of q is NaN, at batch entry 0, head 2, token 1, feature 3." in out
    out = " ".join(
        run(small(), "--plan", "fa3-fp8", "--scale", 4, "--out", tmp_path / "y")[1].split()
    )
    assert re.search(r"\d+ % of P\b.* become 0\.", out)
    why = r"P down and toward zero by 0\.\d+ ulp \(since \d+ % of it become 0\)"
    assert re.search(why, out)  # a bias of an event that rounds to nearest


def test_folder_is_named_after_the_plan_and_layers_have_a_line_each(
    run, small, tmp_path, monkeypatch
):
    path = small(layers=("a", "b"))
    monkeypatch.chdir(tmp_path)
    assert (
        run(path, "--plan", "fa3-fp8")[0]
        == run(path, "--set", "O=bf16:toward-zero", "--inject", "O:ulps=1:heads=3")[0]
        == 0
    )
    assert (tmp_path / "trace-small-fa3-fp8" / "report.html").exists()
    told = "O=bf16-toward-zero-inject-O-ulps=1-heads=3"
    page = (tmp_path / f"trace-small-qiu-yao-{told}" / "report.html").read_text()
    opening = page[: page.index("<svg ")]
    assert (
        "injected O:ulps=1:heads=3" in opening
        and "<tr><td>a<td>" in opening.replace(" class=marked", "")
        and "<tr><td>b<td>" in opening.replace(" class=marked", "")
    )


def test_another_request_never_takes_the_folder_of_one(tmp_path, monkeypatch):
    """Six different injections and the clean baseline that all write one folder; the same request
    that fills a second one.
    """
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "t.npz"
    differing = [
        {},
        {"inject": ["O:ulps=1"]},
        {"inject": ["O:ulps=2"]},
        {"causal": True},
        {"against": "fa2-bf16"},
        {"block_q": 32},
        {"block_k": 32},
        {"engine": "xla"},
        {"seed": 1},
        {"scale": 0.5},
        {"record": ["rows"]},
    ]
    requests = [(path, asked(**changes), {}) for changes in differing]
    requests += [
        (path.with_suffix(".safetensors"), asked(), {}),
        (path, asked(), {"layer": "a"}),
        (path, asked(), {"layout": "BNTH"}),
    ]
    digests = [folder.digest(a, p, **more) for p, a, more in requests]
    assert len(set(digests)) == len(requests)
    made = []
    for (p, a, _), digest in zip(requests, digests, strict=True):
        made.append(folder.folder_for(p, a, digest))
        made[-1].mkdir()
        (made[-1] / "trace.json").write_text(json.dumps({"request": digest}))
    assert [str(m) for m in made] == [
        "trace-t-qiu-yao",
        *(f"trace-t-qiu-yao-inject-O-ulps={n}" for n in (1, 2)),
        *(f"trace-t-qiu-yao-{n}" for n in range(2, len(made) - 1)),
    ]
    assert [
        folder.folder_for(p, a, d) for (p, a, _), d in zip(requests, digests, strict=True)
    ] == made


def test_folders_and_files_of_others_stay_as_they_are(tmp_path, monkeypatch):
    """A folder of the user's that gets a report, an empty one of an interrupted trace that is never
    used again.
    """
    monkeypatch.chdir(tmp_path)

    def free():
        return str(folder.folder_for(tmp_path / "t.npz", asked(), "x"))

    (tmp_path / "trace-t-qiu-yao").mkdir()
    assert free() == "trace-t-qiu-yao"
    (tmp_path / "trace-t-qiu-yao" / "notes").write_text("mine")
    assert free() == "trace-t-qiu-yao-2"
    (tmp_path / "trace-t-qiu-yao-2").write_text("a file")
    assert free() == "trace-t-qiu-yao-3"
    (tmp_path / "trace-t-qiu-yao" / "trace.json").write_text(
        '{"schema": "roundscope-trace-1"}'
    )  # of an older version
    assert free() == "trace-t-qiu-yao-3"


def test_a_second_request_goes_beside_the_first(run, small, tmp_path, monkeypatch):
    """The command that does not ask for a folder of its own, or whose trace.json does not say for
    which request it is.
    """
    path = small()
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--causal",), ()):
        assert run(path, *more)[0] == 0
    assert sorted(p.name for p in tmp_path.glob("trace-*")) == [
        "trace-small-qiu-yao",
        "trace-small-qiu-yao-2",
    ]
    assert (
        json.loads((tmp_path / "trace-small-qiu-yao-2" / "trace.json").read_text())["causal"]
        is True
    )


def test_entries_that_an_injection_hit_are_counted(run, small, tmp_path):
    """A share whose size nobody can check."""
    out = tmp_path / "x"
    code, told, _ = run(small(), "--inject", "P:ulps=1:share=0.25", "--no-budget", "--out", out)
    (layer,) = json.loads((out / "trace.json").read_text())["layers"]
    hit, n = layer["injected"]["P"]["hit"], layer["injected"]["P"]["of"]
    assert code == 0 and abs(hit - 0.25 * n) < 4 * np.sqrt(0.25 * 0.75 * n)
    assert f"Injected errors hit {hit:,} of {n:,} entries of P." in " ".join(told.split())
