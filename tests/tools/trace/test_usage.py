"""The grammar of options, and every kind of bad input: one line each."""

import json

import numpy as np
import pytest

from roundscope.attention import AddUlps, Exact, FlipBit, Injection, Plan, Site
from roundscope.tools.tensors.layers import Layer, sample_path
from roundscope.tools.trace.request import changed, injection
from roundscope.tools.trace.run import check_engine
from tests.tools.trace.inputs import asked, change


def test_grammar_of_inject():
    plan = Plan.preset("qiu-yao")
    assert injection("O:ulps=0.5:rows=0-63:heads=3", plan) == Injection(
        site=Site.O, what=AddUlps(ulps=0.5), rows=range(64), heads=range(3, 4)
    )
    assert injection("pv:exact", plan) == Injection(site=Site.PV, what=Exact())
    assert injection("P:flip=3:rows=5,9-10", plan) == Injection(
        site=Site.P, what=FlipBit(bit=3), rows=(5, 9, 10)
    )


def test_grammar_of_set():
    plan = changed(Plan.preset("fp32"), "o=bf16:toward-zero")
    assert str(plan[Site.O]) == "bf16:toward-zero" and plan[Site.PV] == Plan.preset("fp32")[Site.PV]


BAD = [
    (("--plan", "qui-yao"), "--plan 'qui-yao': unknown preset 'qui-yao'; did you mean 'qiu-yao'"),
    (("--plan", "fa22"), "did you mean 'fa2'? roundscope plans lists all, and says what each is\n"),
    (
        ("--against", "fa2-bf"),
        "--against 'fa2-bf': unknown preset 'fa2-bf'; did you mean 'fa2-bf16'",
    ),
    (("--plan", "all:bf61"), "did you mean 'bf16'"),
    (("--block-q", 0), "--block-q 0: a tile has at least one row"),
    (("--block-k", -8), "--block-k -8"),
    (("--engine", "xxl"), "unknown engine 'xxl'; did you mean 'xla'"),
    (("--scale", "inf"), "--scale 'inf'"),
    (("--scale", 0), "--scale '0': give a finite number other than 0"),
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
    (("--inject", "O:ulps=1:rows=9-3"), "'9-3': is empty"),
    (("--inject", "O:ulps=1:rows=-3"), "no whole number"),
    (("--inject", "O:ulps=1:heads=4"), "--inject O:heads=4: the layer has 4, numbered from 0 to 3"),
    (("--inject", "O:ulps=1:rows=24"), "O:rows=24: the layer has 24"),
    (("--inject", "P:ulps=1:features=1"), "features"),
    (
        ("--plan", "fa3-fp8", "--inject", "P:set=1e6"),
        "e4m3fn cannot hold 1e+06; its largest number is 448",
    ),
    (("--inject", "O:set=0.3"), "bf16 cannot hold 0.3; the nearest number it has is 0.30078125"),
    (("--record", "row"), "--record 'row': write rows"),
    (("--record", "events:ZZ"), "unknown site 'ZZ'"),
    (
        ("--plan", "fa2-bf16", "--record", "events:PV"),
        "--record: events=PV: fa2-bf16 accumulates P V into O",
    ),
    (("--record", "steps:P"), "steps are of sums of products"),
    (
        ("--record", "steps:PV", "--engine", "pallas"),
        "fused kernels keep no steps; give --engine xla",
    ),
    (("--sample",), "choose one"),
]


@pytest.mark.parametrize(
    ("args", "words"), BAD, ids=lambda v: " ".join(map(str, v)) if isinstance(v, tuple) else ""
)
def test_bad_usage_is_one_line(run, small, tmp_path, args, words):
    code, out, err = run(small(), *args, "--out", tmp_path / "x")
    assert (
        (code, out) == (2, "")
        and err.count("\n") == 1
        and err.startswith("roundscope: ")
        and words in err
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cpu", "needs a GPU, and JAX sees none; give --engine xla"),
        ("gpu", "block_q: 24, a kernel's tiles are powers of two from 16 on"),
    ],
)
def test_fused_kernels_where_they_do_not_run(run, small, tmp_path, monkeypatch, device, words):
    """Hours in an interpreter, or an error of a compiler after a folder was made."""
    monkeypatch.setattr("jax.default_backend", lambda: device)
    code, out, err = run(small(), "--engine", "pallas", "--block-q", "24", "--out", tmp_path / "x")
    assert (
        (code, out) == (2, "")
        and err.startswith("roundscope: --engine ")
        and words in err
        and "engine=" not in err
    )
    assert not (tmp_path / "x").exists()


def test_fused_kernels_where_they_run(monkeypatch):
    """A refusal of what a GPU would run."""
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    layer = Layer(
        name="a", **{name: np.zeros((1, 32, 1, 16), np.float32) for name in ("q", "k", "v", "do")}
    )
    check_engine(layer, asked(engine="pallas"))


FILES = {
    "missing": (lambda p: p.with_name("none.npz"), "no such file; give a safetensors or npz file"),
    "rank": (
        lambda p: change(p, **{"a.q": np.zeros((24, 4, 8), np.float32)}),
        "tensor a.q (24, 4, 8): needs four axes",
    ),
    "do": (
        lambda p: change(p, **{"a.do": np.zeros((2, 24, 4, 8), np.float32)}),
        "must have the output's shape (2, 24, 4, 4)",
    ),
    "nan": (
        lambda p: change(p, **{"a.q": np.full((2, 24, 4, 8), np.nan, np.float32)}),
        "NaN or infinity: 1536 in q; ",
    ),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:900]) and p, "truncated or damaged"),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_files_are_one_line(run, small, tmp_path, case):
    spoil, words = FILES[case]
    code, out, err = run(spoil(small()), "--out", tmp_path / "x")
    assert (
        (code, out) == (2, "")
        and err.count("\n") == 1
        and words in err
        and (case != "nan" or "--allow-nan" in err)
    )


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
    code, _, err = run(small(do=False), "--record", "events:DS", "--out", tmp_path / "y")
    assert (
        code == 2
        and "--record: events=DS: this call runs no backward" in err
        and not (tmp_path / "y").exists()
    )


@pytest.mark.filterwarnings("ignore:q. every number is NaN")
def test_nan_goes_on_if_allowed(run, small, tmp_path):
    path = change(small(), **{"a.q": np.full((2, 24, 4, 8), np.nan, np.float32)})
    code, out, _ = run(path, "--allow-nan", "--json", "--out", tmp_path / "x")
    assert code == 0 and json.loads(out)["layers"][0]["not_finite"] == 1536


def test_out_that_is_a_file(run, small, tmp_path):
    (tmp_path / "x").write_text("")
    code, _, err = run(small(), "--out", tmp_path / "x")
    assert code == 2 and "is a file; name a folder" in err


@pytest.mark.parametrize(
    ("engine", "device", "is_told"),
    [("xla", "cpu", True), ("xla", "gpu", False), ("numpy", "cpu", False)],
)
def test_xla_on_a_cpu_says_what_is_faster(
    run, small, tmp_path, monkeypatch, engine, device, is_told
):
    """Who waits for a compilation and is not told of the default; a hint where there is a GPU."""

    def observed(*_):
        raise KeyboardInterrupt  # nothing is compiled here

    monkeypatch.setattr("jax.default_backend", lambda: device)
    monkeypatch.setattr("roundscope.tools.trace.command.observe", observed)
    code, out, err = run(small(), "--engine", engine, "--out", tmp_path / "x")
    told = [line for line in err.splitlines() if "--engine numpy" in line]
    assert (code, out, len(told)) == (130, "", is_told)
