"""Infinite and NaN results come first: planted in inputs, at events and in gradients."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from roundscope import Injection, SetTo, error_budget
from roundscope.tools.report import html
from roundscope.tools.report.terminal import plain, show
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace import data as trace_json
from roundscope.tools.trace.report import report, words
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.summary import summarise
from roundscope.tools.trace.verdict import verdict
from tests.tools.trace.inputs import asked

TOKENS, HEADS, FEATURES = 16, 2, 8


def tensors():
    random = np.random.default_rng(5)
    return random.standard_normal((4, 1, TOKENS, HEADS, FEATURES)).astype(np.float32)


def layer(**changes) -> Layer:
    q, k, v, do = tensors()
    return Layer(**({"name": "a", "q": q, "k": k, "v": v, "do": do} | changes))


def overflow():
    """O in FP16, over a channel of V with a mean: outputs infinite, dq and dk NaN."""
    v = tensors()[2]
    v[..., 3] += 3e4
    return layer(v=v), asked(plan="fa2-bf16", changes=["O=fp16"], block_k=4), "infinite"


def large():
    """Finite q whose scores are beyond binary32."""
    q, k = tensors()[:2]
    return layer(q=np.sign(q) * np.float32(3e38), k=100 * k), asked(plan="fa2-bf16"), "NaN"


def scaled():
    return layer(), asked(plan="fp32", scale=1e38, budget=True), "NaN"


def in_k():
    k = tensors()[1]
    k[0, 2, 1, 0] = np.nan
    return layer(k=k), asked(plan="fa2-bf16", budget=True), "NaN"


def in_v():
    v = tensors()[2]
    v[0, 2, 1, 0] = np.inf
    return layer(v=v), asked(plan="fa2-bf16"), "infinite"


def in_sinks():
    sinks = np.array([0.0, np.nan], np.float32)
    return layer(sinks=sinks), asked(plan="fa2-bf16"), "NaN"


def _injected(site, value):
    at = Injection(site=site, what=SetTo(value=value), heads=1, rows=5)
    return layer(), replace(asked(plan="fa2-bf16"), inject=(at,))


def at_p():
    return *_injected("P", np.inf), "NaN"


def at_dq():
    """A gradient alone: the output is as it should be."""
    return *_injected("DQ", np.nan), "NaN"


PLANTED = [overflow, large, scaled, in_k, in_v, in_sinks, at_p, at_dq]
LOST = {  # the results with an infinite error
    overflow: ("out", "delta", "dq", "dk"),
    large: ("out", "lse", "delta", "dq", "dk", "dv"),
    scaled: ("out", "lse", "delta", "dq", "dk", "dv"),
    at_p: ("out", "delta", "dq", "dk"),
    at_dq: ("dq",),
}


def shown(s) -> str:
    console = Console(width=2000, record=True, file=io.StringIO(), color_system=None)
    show(report.of_layer(s), console)
    return console.export_text()


@pytest.mark.parametrize("planted", PLANTED)
def test_the_first_sentence_of_a_trace_says_so(planted):
    """An output that is NaN and "is exact attention", "neither too long nor too short", "delta
    equals that of exact", an error of the finite numbers in place of all, a crash.
    """
    x, request, kind = planted()
    s = summarise(observe(x, request))
    text, lost = shown(s), LOST.get(planted, ())
    data = json.loads(json.dumps(plain(trace_json.layer(s)), allow_nan=False))
    first = text.splitlines()[2]
    page = html.page(
        report.report(
            [s],
            {
                "file": "x",
                "plan": {"name": "x", "roundings": {}, "accumulators": {}},
                "against": {"name": "exact"},
                "block_q": 4,
                "block_k": 4,
                "engine": "numpy",
                "command": ["x"],
                "versions": {},
                "platform": "x",
                "seed": 0,
                "layers": [],
            },
        )
    )
    opening = page[page.index("<div class='verdict bad'>") :].partition("</p>")[0]
    for said in (first, words.sentence(s), words.short(s), opening, data["sentence"]):
        assert f" {kind}" in said.split(". ")[0], said
    for said in (first, opening):
        assert "of" in said and ("head" in said)
    for name, own in data["results"].items():
        cells = next(line for line in text.splitlines() if line.startswith(f"{name} "))
        assert (own["relative_rms"] == "inf") == (name in lost), name
        assert (cells.split()[1] == "inf") == (name in lost), cells
        if name in lost:
            assert own["not_finite"] > 0
            assert data["infinite_or_nan"]["lost"][name]["first"] is not None
            assert own["gain"] is None or own["gain"]["mean"] == "nan"
            assert f"{name} is neither" not in verdict(s).text
    everything = text + page
    assert "to the last digit" not in everything
    assert "delta equals" not in everything or "delta" not in lost
    for odd in ("+nan", "nan %", "inf %", "= nan", "Infinity"):
        assert odd not in everything, odd
    follows = words.sentence(s)
    assert follows.index("finite numbers alone") < follows.index("biased")


@pytest.mark.parametrize("planted", PLANTED)
def test_the_first_line_of_a_budget_says_so(planted):
    x, request, kind = planted()
    how = {"block_q": request.block_q, "block_k": request.block_k}
    more = {} if x.sinks is None else {"sinks": x.sinks}
    budget = error_budget(
        x.q,
        x.k,
        x.v,
        x.do,
        plan=request.plan,
        inject=request.inject,
        scale=request.scale,
        **how,
        **more,
    )
    text = str(budget).splitlines()
    assert f" {kind}" in text[0]
    lost = [n for n in LOST.get(planted, ()) if n in budget.total]
    assert [n for n, e in budget.total.items() if np.isinf(e)] == lost
    names = list(budget.total)
    for line in text[3:-1]:
        cells = line.split()[-2 * len(names) :][: len(names)]
        if line.startswith(("interaction", "all")):
            continue
        for name, cell in zip(names, cells, strict=True):
            assert name not in lost or cell in ("-", "inf"), line


@pytest.mark.parametrize(("planted", "plan"), [(overflow, "all:fp16"), (large, "fa2")])
def test_a_diagnosis_stops_with_it(roundscope, tmp_path, planted, plan):
    """A traceback of the sham, after all the work; advice to give an option that is not there."""
    x, _, kind = planted()
    path = tmp_path / "x.safetensors"
    v = x.v * (2.0 if planted is overflow else 1.0)
    save_file({"q": x.q, "k": x.k, "v": v, "do": x.do}, path, metadata={"layout": "BTNH"})
    code, out, err = roundscope("diagnose", path, "--plan", plan, "--out", tmp_path / "d")
    assert (code, err) == (0, "")
    data = json.loads((tmp_path / "d" / "diagnosis.json").read_text())
    for said in (out, data["verdict"]["first_line"]):
        assert f" {kind}, " in said.splitlines()[0] and "first at" in said
    assert data["verdict"]["kind"] == "infinite or NaN results"
    assert data["infinite_or_nan"]["attention"]["lost"]["out"]["of"] == x.q.size
    page = (tmp_path / "d" / "report.html").read_text()
    assert page.index(f" {kind}") < page.index("steps 3 to 6 were not run")


def test_a_diagnosis_leaves_out_a_layer_and_names_it(roundscope, tmp_path):
    path, fine = tmp_path / "x.safetensors", layer()
    lost = large()[0]
    arrays = {f"{n}.{r}": getattr(x, r) for n, x in (("a", lost), ("b", fine)) for r in "qkv"}
    save_file(arrays | {"a.do": lost.do, "b.do": fine.do}, path, metadata={"layout": "BTNH"})
    code, out, _ = roundscope("diagnose", path, "--plan", "qiu-yao", "--out", tmp_path / "d")
    assert code == 0 and out.startswith("verdict: a: 256 of 256 outputs are NaN and all ")
    assert "What follows leaves out a. " in out


@pytest.mark.parametrize("verb", ["trace", "diagnose"])
def test_nan_in_sinks_is_counted_and_advice_is_that_of_the_verb(roundscope, tmp_path, verb):
    path, x = tmp_path / "x.safetensors", layer()
    arrays = {r: getattr(x, r) for r in ("q", "k", "v", "do")}
    sinks = np.array([-np.inf, np.nan], np.float32)  # a sink of -inf is none
    save_file(arrays | {"sinks": sinks}, path, metadata={"layout": "BTNH"})
    code, _, err = roundscope(verb, path, "--out", tmp_path / "d")
    assert code == 2 and "NaN or infinity: 1 in sinks; repair the tensors" in err
    assert ("--allow-nan" in err) == (verb == "trace")
