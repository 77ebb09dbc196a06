"""identify: twins, planted changes of one event, and faults that no rounding explains are told
apart; bad input is one line.
"""

import json
import sys
from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.attention import Plan, examine
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.search import MOST, Tries
from roundscope.tools.tensors.files import open_tensors
from roundscope.tools.tensors.layers import read_layers, sample_path
from tests.checks.identify_faults import answered, faults
from tests.checks.kernel_outputs import GOLDEN, inputs, of_one_head

TOKENS = 128
SCALE = 32**-0.5


@cache
def crop():
    """Tokens of one head of the shipped tensors."""
    [layer] = read_layers(sample_path(), layer="layer4")
    parts = {
        n: np.ascontiguousarray(getattr(layer, n)[:1, :TOKENS, :1]) for n in ("q", "k", "v", "do")
    }
    return Inputs(**parts, scale=SCALE, is_causal=False)


def returned(plan, x=None, block_k=TOKENS, **options):
    """Return the outputs of an emulated kernel with that plan: out alone, without gradients."""
    x = x or crop()
    options = {"scale": x.scale, **options}
    got = examine(
        x.q,
        x.k,
        x.v,
        plan=plan,
        block_q=TOKENS,
        block_k=block_k,
        record=None,
        engine="numpy",
        **options,
    )
    return Outputs(out=got.out)


def of(outputs, x=None, budget=MOST):
    return identify(x or crop(), outputs, lambda text: None, budget)


def plans(found):
    """Every plan that gives these numbers."""
    return {found.plan, *found.ties}


def on_tf32(plan, *changes):
    """A fused plan with P V on tensor cores that read any P of at most 11 bits."""
    return plan.adding("PV", Accumulator.tensor_core("hopper", "tf32")).changed(*changes)


@pytest.mark.parametrize(
    "name", ["cudnn", pytest.param("cudnn-fp16", marks=pytest.mark.thorough), "eager"]
)
def test_a_twin_is_named(name):
    """So few tokens may not tell it from another, which is then named beside it. BF16 holds the
    inputs, of a kernel in FP16 too.
    """
    found = of(returned(Plan.preset(name)))
    assert found.kind is Kind.SAME and name in plans(found) and found.parts["out"].near.equal == 1.0
    assert found.verdict.startswith(f"These are the numbers of {found.plan}: all 4,096") and all(
        t in found.verdict for t in found.ties
    )


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (TWINS["cudnn"].plan.changed("X=bf16"), "cudnn with X=bf16"),
        (TWINS["cudnn"].plan.changed("OUT=fp32"), "cudnn with OUT=fp32"),
        pytest.param(
            on_tf32(TWINS["cudnn"].plan, "P=fp16"),
            "cudnn with P=fp16 PV.sum=hopper:tf32",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            TWINS["eager"].plan.changed("OUT=fp32", "PV=fp32"),
            "eager with PV=fp32 OUT=fp32",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["X-in-bf16", "OUT-not-cast", "P-in-fp16", "eager-OUT-not-cast"],
)
def test_a_planted_event_is_named(plan, name):
    """One event of a twin changed, or a cast dropped; where that needs another sum, the sum is
    named beside it.
    """
    found = of(returned(plan))
    assert found.kind is Kind.SAME and name in plans(found), found.verdict


def test_key_tiles_are_found():
    """A twin on tiles of another size than its own."""
    found = of(returned(TWINS["cudnn"].plan, block_k=32))
    assert (found.kind, found.best.block_k) == (Kind.SAME, 32)
    assert any("key tiles of 32" in what for what, _ in found.forward.changes)


@pytest.mark.parametrize("fault", ["scale", "key"])
def test_what_is_no_rounding_is_said_so(fault):
    """Another scale, and a key that is left out."""
    plan = TWINS["cudnn"].plan
    outputs = (
        returned(plan, scale=1 / 32)
        if fault == "scale"
        else returned(plan, mask=np.arange(TOKENS) != TOKENS - 1)
    )
    found = of(outputs, budget=200)
    words = "scale = 1 / H = 1/32" if fault == "scale" else "the last key is missing"
    assert found.kind is Kind.MEANING and found.verdict.startswith(f"Explained if {words}: ")
    assert "Then: These are the numbers of " in found.verdict


def test_numbers_that_are_not_finite_are_counted():
    outputs = returned(TWINS["cudnn"].plan)
    outputs.out[0, :64] = np.nan
    found = of(outputs, budget=0)
    assert found.kind is Kind.NO_ROUNDING
    assert found.verdict.startswith("2,048 of 4,096 numbers of out are NaN, first at batch entry 0")
    assert "2,048 numbers of out are not finite where" in found.verdict
    assert found.errors.kernel == found.errors.between == np.inf


def test_half_precision():
    """A kernel of FP16, given FP16: the same structures in that format."""
    x = crop()
    narrow = {
        n: getattr(x, n).astype(np.float16).astype(np.float32) * np.float32(1 + 2**-10)
        for n in ("q", "k", "v", "do")
    }
    x = Inputs(
        **{n: a.astype(np.float16).astype(np.float32) for n, a in narrow.items()},
        scale=SCALE,
        is_causal=False,
    )
    plan = Plan.preset("fa2-bf16").changed(
        "Q=fp16", "K=fp16", "V=fp16", "DO=fp16", "P=fp16", "OUT=fp16"
    )
    found = of(returned(plan, x), x)
    assert found.parts["out"].near.equal > 0.95 and found.best.plan["P"].format.name == "fp16"


def stored(kernel, mode="full"):
    with open_tensors(GOLDEN / f"{kernel}.safetensors") as file:
        return {n: file[f"layer4/{mode}/{n}"] for n in ("out", "dq", "dk", "dv")}


KNOWN = {
    "sdpa-cudnn": "cudnn",
    "pallas": "pallas-mha",
    "sdpa-flash-few": "fa2-split",
    "sdpa-flash": "fa2",
    "sdpa-math": "sdpa-math",
    "sdpa-efficient": "sdpa-efficient",
    "flex": "flex",
    "eager": "eager",
    "jax-xla": "jax-xla",
    "released-eager-512": "qiu-yao-eager",
    "released-compiled-512": "qiu-yao-compiled",
    "released-compiled-256": "qiu-yao-compiled",
    "triton-tutorial": "triton-tutorial",
    "flex-served": "flex",
    "gemma2": "eager",
    "gpt-oss": "gpt-oss",
}
OFTEN = ("sdpa-cudnn", "pallas", "gpt-oss")


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        pytest.param(k, n, marks=[] if k in OFTEN else pytest.mark.thorough, id=k)
        for k, n in KNOWN.items()
    ],
)
def test_a_real_kernel_is_known(kernel, name):
    """A kernel that is named after another whose forward is the same, or by a row of changes."""
    found = of(
        Outputs(**stored(kernel, "causal")),
        of_one_head(inputs("layer4", causal=True, kernel=kernel)),
    )
    assert (found.kind, found.base, found.words) == (Kind.SAME, name, [])
    assert found.parts["out"].near.equal == 1.0 and all(
        p.near.equal > 0.9998 for p in found.parts.values()
    )


@pytest.mark.thorough
def test_the_compiled_code_on_two_tiles_without_a_mask_is_named():
    """Its first query tile rescales the row sum in another way than the second."""
    outputs = Outputs(**stored("released-compiled-256"))
    found = of(outputs, of_one_head(inputs("layer4", causal=False)))
    assert (found.kind, found.plan) == (Kind.SAME, "qiu-yao-compiled with rescaled_sum=first-tile")
    assert {part.near.equal for part in found.parts.values()} == {1.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("qiu-yao-eager", [], marks=pytest.mark.thorough),
        ("qiu-yao-compiled", ["first_tile_apart=false"]),
    ],
)
def test_tiles_and_the_first_of_them_are_found(name, words):
    """Tiles of another size than the twin's, and a first query tile that is like the others, which
    the last rows do not show.
    """
    x = replace(crop(), **longer())
    plan = TWINS[name].plan.changed(*words)
    got = examine(
        *(x.q, x.k, x.v, x.do), plan=plan, block_q=64, block_k=64, record=None, engine="numpy",
        **x.options,
    )  # fmt: skip
    found = of(Outputs(out=got.out, dq=got.dq, dk=got.dk, dv=got.dv), x)
    assert (found.kind, found.base, found.words) == (Kind.SAME, name, words), found.verdict
    assert (found.best.block_q, found.best.block_k) == (64, 64)
    assert {part.near.equal for part in found.parts.values()} == {1.0}


def test_an_order_of_tiles_that_the_first_head_does_not_show():
    """Two plans give every bit of it, and one of them those of the second head."""
    fault = faults()["tiles descending"]
    assert fault.score(answered(fault.x, fault.outputs)) == "right"


def longer():
    """More tokens than the search looks at first."""
    [layer] = read_layers(sample_path(), layer="layer4")
    return {n: np.ascontiguousarray(getattr(layer, n)[:1, :256, :1]) for n in ("q", "k", "v", "do")}


def test_the_backward_of_another_kernel_is_found():
    """A backward that is not the forward's own, as of code that calls two kernels: an error, or the
    forward's, which is not it.
    """
    x = crop()
    plan = TWINS["fa2"].plan.changed(
        "gradient_scale=register", "query_order=ascending", "exponent_again=after"
    )
    got = examine(
        x.q,
        x.k,
        x.v,
        x.do,
        plan=plan,
        block_q=TOKENS,
        block_k=TOKENS,
        scale=x.scale,
        record=None,
        engine="numpy",
    )
    found = of(Outputs(out=got.out, dq=got.dq, dk=got.dk, dv=got.dv))
    assert found.kind is Kind.SAME
    assert {n: part.near.equal for n, part in found.parts.items()} == dict.fromkeys(
        ("out", "dq", "dk", "dv"), 1.0
    )


def test_the_plans_of_the_backward_are_limited():
    """With no plan at all it says so."""
    outputs = Outputs(**stored("sdpa-cudnn"))
    outputs.dq[:] *= 2
    found = identify(
        of_one_head(inputs("layer4", causal=False)), outputs, lambda text: None, budget=0
    )
    assert (
        found.backward.stopped
        and any("search of the backward ended after" in note for note in found.notes)
        and found.kind is Kind.SAME
    )


@pytest.fixture
def file(tmp_path):
    """Writes a file of a call and returns its path."""

    def write(arrays=None, kind="safetensors", **about):
        x = crop()
        arrays = (
            {"q": x.q, "k": x.k, "v": x.v, "out": returned(TWINS["cudnn"].plan).out}
            if arrays is None
            else arrays
        )
        about = {"layout": "BTNH", "scale": repr(SCALE), "is_causal": "false", **about}
        about = {n: text for n, text in about.items() if text is not None}
        path = tmp_path / f"mine.{kind}"
        if kind == "npz":
            np.savez(path, **arrays, **about)
        else:
            save_file(
                {n: np.ascontiguousarray(a.astype(ml_dtypes.bfloat16)) for n, a in arrays.items()},
                path,
                about,
            )
        return path

    return write


@pytest.fixture
def run(roundscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: roundscope("identify", *words)


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_the_command(run, file, tmp_path, kind):
    code, out, err = run(file(kind=kind))
    assert code == 0, err
    assert out.startswith(
        "These are the numbers of fa2: all 4,096 numbers of out are equal. fa2-split, cudnn,"
        " cudnn-split, "
    ) and "structures tried on the last rows, nearest first" in " ".join(out.split())
    data = json.loads((tmp_path / "identify-mine" / "identify.json").read_text())
    assert (data["verdict"], data["plan"], data["equal"]) == (
        "same",
        "fa2",
        {"out": 1.0},
    ) and "cudnn" in data["ties"]


def test_another_call_has_a_folder_of_its_own(run, file, tmp_path):
    code, out, _ = run(file(), "--json")
    assert code == 0 and "cudnn" in json.loads(out)["ties"]
    assert run(file())[0] == 0 and not (tmp_path / "identify-mine-2").exists()
    x = crop()
    file({"q": x.q, "k": x.k, "v": x.v, "out": returned(TWINS["eager"].plan).out})
    code, out, _ = run(tmp_path / "mine.safetensors")
    assert "numbers of eager" in out and (tmp_path / "identify-mine-2" / "identify.json").exists()


def test_probes_of_a_kernel_are_told(run, tmp_path, monkeypatch):
    """A kernel that fails at its second call loses its probes, and nothing else."""
    (tmp_path / "once.py").write_text(ONCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = run("once:attention", "--full", "--budget", "0", "--out", "found")
    said = "probe of every sum over 512 keys: not found: the kernel fails: raised RuntimeError"
    assert code == 0 and said in " ".join(out.split()), err
    data = json.loads((tmp_path / "found" / "identify.json").read_text())
    [probe] = data["probes"]
    assert (probe["sum"], probe["block"]) == ("every sum", None) and data["verdict"]
    del sys.modules["once"]
    out = run("once:attention", "--full", "--budget", "0", "--no-probe")[1]
    assert "probe of" not in out


ONCE = """
import numpy as np

calls = []

def attention(q, k, v, *, scale, is_causal):
    calls.append(q.shape)
    if len(calls) > 1:
        raise RuntimeError("once is enough")
    s = np.float32(scale) * np.einsum("btnh,bsnh->bnts", q, k)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
"""


def test_bad_input_is_one_line(run, file, tmp_path):
    """Each names the argument, its value and the repair."""
    x = crop()
    out = returned(TWINS["cudnn"].plan).out
    good = {"q": x.q, "k": x.k, "v": x.v, "out": out}

    def said(*words):
        return _refused(*run(*words))

    assert "did you mean 'sdpa-cudnn'?" in said("sdpa-cudn")
    assert "no such file" in said("there/is/none.safetensors")
    assert "not_there" in said("not_there:attention")
    assert "no out, what the kernel returned; it has k, q, v" in said(
        file({n: a for n, a in good.items() if n != "out"})
    )
    assert "no v; it has" in said(file({n: a for n, a in good.items() if n != "v"}))
    assert "tensor out (1, 64, 1, 32): must be (1, 128, 1, 32)" in said(
        file({**good, "out": out[:, :64]})
    )
    assert "has dq, but no do" in said(file({**good, "dq": x.q}))
    assert "give --causal or --full" in said(file(is_causal=None))
    assert "metadata is_causal 'perhaps'" in said(file(is_causal="perhaps"))
    assert "give --layout" in said(file(layout=None))
    assert "--scale 'nan'" in said(file(), "--scale", "nan")
    assert "--window 1.5: write how many keys" in said(file(), "--window", "1.5")
    assert "--softcap '-1'" in said(file(), "--softcap", "-1")
    assert "--head 1: there are 1 key heads" in said(file(), "--head", "1")
    assert "--layout 'BTNH': is for a file" in said("jax-xla", "--layout", "BTNH")
    assert "--budget 45: counts plans, and no longer seconds" in said(file(), "--budget", "45")
    taken = tmp_path / "taken"
    taken.touch()
    assert "is a file; name a folder" in said(file(), "--out", taken)


def _refused(code, out, err):
    assert (code, out) == (2, "") and err.startswith("roundscope: ") and err.count("\n") == 1, err
    return err


def test_a_library_that_is_not_there(run, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("roundscope.tools.identify.reading.kernel", missing)
    assert "KERNEL 'flex': needs torch, which is not installed here" in _refused(*run("flex"))


def test_time_left_is_that_of_the_stage_alone():
    """Half an hour left of a search that ends in ten seconds: an upper bound is no estimate."""
    told = []
    tries = Tries(8000, told.append)
    tries.begin("tiles", 64)
    for _ in range(64):
        tries.count()
    assert told[0] == "tiles: plan 16 of 64" and told[-1] == "tiles: plan 64 of 64, 0:00:00 left"
    assert all(line.endswith(" left") for line in told[1:])
    told.clear()
    tries.begin("further changes")
    for _ in range(48):
        tries.count()
    assert told == [f"further changes: plan {n}" for n in (16, 32, 48)]
    tries = Tries(8, told.append)
    tries.begin("structures", 40)
    assert tries.plans == 8 and not tries.is_over
