"""`roundscope compare`: the answer on the terminal, in JSON and on a page, and the exit codes."""

import json
from dataclasses import replace

import jax
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers")

from roundscope.experiments.cli.main import main
from roundscope.operations.models.comparing.comparison import Flip
from roundscope.tools.compare.options import CompareOptions
from roundscope.tools.compare.report import report
from roundscope.tools.report.html import page
from roundscope.torch import capture, compare
from tests.operations.models import jax_small, small


def plain():
    return small.llama(), small.tokens()


def late():
    return small.with_late_cast(small.llama()), small.tokens()


def of_jax(function=jax_small.llama):
    return function, jax_small.parameters(1), jax_small.tokens()


def late_of_jax():
    return of_jax(jax_small.changed(norm=jax_small.late_rms_norm))


def no_llama():
    return torch.nn.Linear(4, 4), {"input": torch.ones(1, 4)}


def nothing():
    return None


def wrong():
    raise OSError("no weights")


def no_such_tokens():
    return small.llama(), small.tokens() + 256


def no_logits():
    return small.llama(), small.tokens(), lambda model, ids: 7.5


def no_logprobs():
    return small.llama(), small.tokens(), None, lambda logits, ids: "none"


def no_model():
    return "model", small.tokens()


HERE = "tests.tools.compare.test_compare_command"


def told(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_runs_that_differ(capsys, tmp_path):
    code, out, _ = told(capsys, f"{HERE}:plain", f"{HERE}:late", "--out", str(tmp_path))
    assert code == 1
    assert "rms_norm (A: cast before the weight; B: cast after the" in out
    page = (tmp_path / "report.html").read_text()
    assert "rms_norm" in page and "<svg" in page
    assert "made here" in page and "noise<br>of alone" in page
    decided, operations = (
        page.index(f">{title}</h2>") for title in ("Decisions that differ", "Operations")
    )
    assert decided < operations and "±" not in out.split("what makes the difference")[0]
    data = json.loads((tmp_path / "compare.json").read_text())
    assert data["groups"][0]["share"] == pytest.approx(1) and not data["equal"]
    assert data["first"] == "rms_norm model.layers.0.input_layernorm"


def test_runs_of_jax(capsys):
    with jax.numpy_dtype_promotion("standard"):
        code, out, _ = told(capsys, f"{HERE}:of_jax", f"{HERE}:late_of_jax", "--json")
        (group,) = json.loads(out)["groups"]
        assert (code, group["name"]) == (1, "rms_norm") and group["share"] == pytest.approx(1)
        code, _, err = told(capsys, f"{HERE}:of_jax", f"{HERE}:no_llama")
    assert code == 2 and "runs of two libraries, A JAX and B PyTorch: compare runs of one" in err


def test_of_many_decisions_the_first_are_shown():
    found = compare(plain(), late())
    many = replace(found, flips=tuple(Flip(t, "argmax", (1,), (2,), 0.5) for t in range(1300)))
    told = report(CompareOptions(a="x", b="y"), many, 1.0)
    shown = page(told)
    assert "The first 12 of 1,300; compare.json has all." in shown
    assert shown.count("<td>argmax") == 12 and len(told.data["flips"]) == 1300
    assert "decisions that differ: 12 of 1,300" in [getattr(p, "title", "") for p in told.brief]


def test_equal_runs(capsys, tmp_path):
    path = tmp_path / "a.safetensors"
    model, ids = plain()
    with torch.no_grad(), capture(model, path, what="operations"):
        model(ids)
    code, out, _ = told(capsys, str(path), f"{HERE}:plain", "--json")
    assert code == 0 and json.loads(out)["equal"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("nowhere.safetensors", f"{HERE}:plain"),
            "A 'nowhere.safetensors': no such file; must be a safetensors file, or module:function",
        ),
        ((f"{HERE}:absent", f"{HERE}:plain"), "absent"),
        ((f"{HERE}:HERE", f"{HERE}:plain"), "no function"),
        ((f"{HERE}:nothing", f"{HERE}:plain"), "returned no"),
        ((f"{HERE}:no_model", f"{HERE}:plain"), "returned no"),
        ((f"{HERE}:wrong", f"{HERE}:plain"), "no weights"),
        ((f"{HERE}:plain", f"{HERE}:no_such_tokens"), "no_such_tokens': token 511 has no row"),
        ((f"{HERE}:no_logits", f"{HERE}:plain"), "no_logits': run= returned 7.5, must return"),
        ((f"{HERE}:plain", f"{HERE}:no_logprobs"), "logprobs= returned 'none', must return a"),
        ((".", f"{HERE}:plain"), "must be a safetensors file"),
    ],
)
def test_wrong_words_are_one_line(capsys, words, text):
    code, out, err = told(capsys, *words)
    assert code == 2 and not out and text in err and err.count("\n") == 1


def test_a_file_of_something_else_is_refused(capsys, tmp_path):
    junk, other = tmp_path / "junk.safetensors", tmp_path / "other.safetensors"
    junk.write_bytes(b"no tensors at all")
    save_file({"x": torch.ones(2)}, other)
    for path, text in ((junk, "not a safetensors file"), (other, 'what="operations"')):
        code, out, err = told(capsys, f"{HERE}:plain", str(path))
        assert code == 2 and not out and f"B {str(path)!r}: " in err and text in err
        assert err.count(str(path)) == 1
    with jax.numpy_dtype_promotion("standard"):
        code, _, err = told(capsys, f"{HERE}:of_jax", str(other))
    assert code == 2 and "has results of another program; A must be one of PyTorch" in err
