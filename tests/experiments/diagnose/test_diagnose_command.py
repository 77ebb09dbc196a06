"""`roundscope diagnose`: files, report, JSON and every kind of bad input."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.attention.models.capture_file import Captured, write_captures
from roundscope.tools.tensors.layers import read_layers, sample_path
from tests.tools.diagnose.inputs import layer


@pytest.fixture
def run(roundscope):
    """Runs the verb in this process: (exit code, stdout, stderr)."""

    return partial(roundscope, "diagnose")


def saved(path, x, without=()):
    save_file(
        {r: getattr(x, r) for r in ("q", "k", "v", "do") if r not in without},
        path,
        metadata={"layout": "BTNH"},
    )
    return path


def test_a_biased_file_gets_the_chain_with_its_numbers(run, tmp_path):
    """Catches steps out of order or missing without a word, a picture without its sentence, a
    verdict without evidence or limits, and words that are explained nowhere.
    """
    file = saved(tmp_path / "biased.safetensors", layer("repeated-maximum", t=128))
    code, out, err = run(file, "--plan", "qiu-yao", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    data = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert (code, err) == (0, "") and "verdict: the chain" in out
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", page)[:5] == [
        "3. Carrier",
        "4. Coherence",
        "5. Origin",
        "6. Repair",
        "Verdict: the chain",
    ]
    # why the first step is the third, and what the words mean
    assert page.index("steps 1 and 2 replay a training run") < page.index(">3. ")
    for name in ("atom", "carrier", "coherence, A", "sticky", "production order", "sham"):
        assert f"<b>{name}:</b>" in page
    assert (
        page.count("<svg ") - page.count("<div class='chart narrow'>") == 7
        and "<script" not in page
        and "http" not in page.replace("http-equiv", "")
    )
    assert data["verdict"]["kind"] == "the chain" and all(
        x["holds"] for x in data["verdict"]["links"]
    )
    assert {x["replay_survives"] for x in data["steps"]["6 repair"]} == {None}
    assert any("no replay" in line for line in data["verdict"]["not_shown"])
    total = data["steps"]["5 origin"]["total"]["mean"]
    assert sum(a["mean"] for a in data["steps"]["5 origin"]["accounts"].values()) == pytest.approx(
        total
    )


@pytest.mark.thorough
def test_the_sample_has_no_bias_and_says_what_it_would_have_seen(run, tmp_path):
    """Catches a false alarm on real tensors, and silence about the power."""
    x = read_layers(sample_path(), layer="layer4")[0]
    some = replace(x, **{role: getattr(x, role)[:, :, :4] for role in ("q", "k", "v", "do")})
    code, out, _ = run(
        saved(tmp_path / "some.safetensors", some), "--out", tmp_path / "out", "--json"
    )
    data = json.loads(out)
    assert code == 0 and data["verdict"]["kind"] == "nothing seen"
    assert "smallest bias that this would have shown" in data["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "is missing"),
        (("--sample", "x"), "choose one"),
        (("{folder}",), "is a folder"),
        (("{nodo}",), "has no do"),
        (("{short}",), "too few"),
        (("--sample", "--plan", "qiu"), "unknown preset"),
        (("--sample", "--layer", "x"), "unknown layer"),
        (("{folder}/none",), "no such file"),
        (("--sample", "--out", "{nodo}"), "is a file"),
    ],
)
def test_bad_usage_ends_in_one_line(run, tmp_path, args, words):
    """Catches tracebacks, and a run directory that is taken for a file of tensors."""
    names = {
        "folder": tmp_path,
        "nodo": saved(tmp_path / "nodo.safetensors", layer(t=16), without=("do",)),
        "short": saved(tmp_path / "short.safetensors", layer(t=8)),
    }
    code, out, err = run(*(a.format(**names) for a in args))
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "plan",
    [
        "exact",
        "baseline-bf16",
        "fa2",
        *(pytest.param(p, marks=pytest.mark.thorough) for p in ("fa3-fp8", "all:e4m3fn")),
    ],
)
def test_every_plan_gets_through(run, tmp_path, plan):
    """Catches a step that needs a rounding, a stage or a P = 1 that a plan does not have.

    Two sequences, grouped heads, T != S.
    """
    rng = np.random.default_rng(3)
    shapes = {"q": (2, 24, 4, 8), "k": (2, 40, 2, 8), "v": (2, 40, 2, 4), "do": (2, 24, 4, 4)}
    path = tmp_path / "small.npz"
    np.savez(
        path,
        **{role: rng.standard_normal(shape).astype(np.float32) for role, shape in shapes.items()},
        layout="BTNH",
    )
    code, out, err = run(path, "--plan", plan, "--causal", "--out", tmp_path / "out")
    assert (code, err) == (0, "") and "verdict: nothing seen" in out


def captured(path, x, **changes):
    arrays = {r: getattr(x, r).swapaxes(1, 2) for r in ("q", "k", "v", "do")}
    said = {"number": 0, "name": "attn", "scale": x.q.shape[3] ** -0.5, "is_causal": True}
    write_captures(path, [Captured(**said | arrays | changes)], {})
    return path


def test_a_layer_is_causal_as_its_file_says(run, tmp_path):
    """The digests, and so the numbers, are those of --causal on a file that says nothing."""
    x = layer(t=32)
    files = {
        "said": (captured(tmp_path / "said.safetensors", x),),
        "asked": (saved(tmp_path / "asked.safetensors", x), "--causal"),
        "full": (captured(tmp_path / "full.safetensors", x), "--full"),
    }
    found = {}
    for name, words in files.items():
        code, out, err = run(*words, "--out", tmp_path / name, "--json")
        assert (code, err) == (0, "")
        data = json.loads(out)
        found[name] = (data["causal"], data["steps"]["4 coherence"])
    heads = {name: next(iter(coherence.values())) for name, (_, coherence) in found.items()}
    assert [found[name][0] for name in files] == [True, True, False]
    assert heads["said"] == heads["asked"] != heads["full"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"mask": np.random.default_rng(0).random((32, 32)) < 0.9}, "a mask that is not causal"),
        ({"window": 8}, "a window"),
        ({"softcap": 20.0}, "a softcap"),
        ({"sinks": np.zeros(2, np.float32)}, "sinks"),
    ],
)
def test_what_the_accounts_lack_is_refused(run, tmp_path, call, words):
    path = captured(tmp_path / "a.safetensors", layer(t=32), **call)
    code, out, err = run(path, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert f"layer 'layers.0': has {words}," in err and "roundscope trace" in err


def test_causality_is_for_tensors(run, tmp_path):
    code, _, err = run(tmp_path, "--full")
    assert code == 2 and "--full True: is for tensors" in err
