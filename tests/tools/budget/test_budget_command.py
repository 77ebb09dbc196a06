"""`roundscope budget`: the answer on the terminal, in JSON and on a page, and the exit codes."""

import json

import pytest
import torch
from torch import nn

from roundscope.experiments.cli.main import main
from roundscope.torch import Side
from tests.operations.models.test_budget import Large, Widened, total


def mine():
    torch.manual_seed(0)
    x = torch.randn(1, 8, dtype=torch.float64)
    return Side(Widened(1), {"x": x}, loss=total)


def rough():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16)).bfloat16()
    return model, {"input": torch.randn(8, 16).bfloat16()}


def wide():
    return rough()[0].double(), {"input": torch.ones(2, 16).double()}


def infinite():
    return Large(), {"x": torch.tensor([[1.0, 2.0, 3.0, 300.0]], dtype=torch.float16)}


HERE = "tests.tools.budget.test_budget_command"


def told(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["budget", *words])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_gradients_alone(capsys, tmp_path):
    code, out, _ = told(capsys, f"{HERE}:mine", "--out", str(tmp_path))
    assert (
        code == 0
        and "cast bf16 to fp64 makes 100% of the squared error of the gradients"
        in " ".join(out.split())
    )
    page = (tmp_path / "report.html").read_text()
    assert "Gradients of the weights" in page and "<svg" in page
    data = json.loads((tmp_path / "budget.json").read_text())
    (line,) = data["lines"]
    assert line["shares"]["gradients"] == pytest.approx(1) and line["shares"]["end"] == 0
    assert data["total"]["weights"]["weight"] == data["total"]["gradients"]


def test_an_output_and_a_plan(capsys):
    words = ("--no-gradients", "--plan", "silu: OUT=fp32", "--plan", "linear:fp32", "--json")
    code, out, _ = told(capsys, f"{HERE}:rough", *words)
    data = json.loads(out)
    assert code == 0 and {x["group"] for x in data["lines"]} == {"linear", "silu"}
    assert ("silu", "OUT") in {(x["group"], x["event"]) for x in data["events"]}
    last = data["tried"][-1]
    assert last["words"] == "silu: OUT=fp32; linear: fp32"
    assert last["errors"]["end"] < 1e-4 < data["total"]["end"]


def test_what_has_no_error_or_an_infinite_one(capsys):
    code, out, _ = told(capsys, f"{HERE}:wide", "--no-gradients")
    assert code == 0 and "The step of 3 operations makes no error" in out
    code, out, _ = told(capsys, f"{HERE}:infinite", "--no-gradients")
    assert code == 0 and out.startswith("1 of 4 results is infinite, first in mul")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((f"{HERE}:rough",), "loss= is needed where a model has no logits"),
        (("nowhere",), "RUN 'nowhere': no such file"),
        ((f"{HERE}:rough", "--plan", "silu"), "--plan 'silu': write GROUP:WORDS"),
        ((f"{HERE}:rough", "--plan", "a:fp32", "--plan", "a:exact"), "a is given twice"),
        ((f"{HERE}:rough", "--no-gradients", "--plan", "silo:fp32"), "silo"),
        ((f"{HERE}:rough", "--no-gradients", "--plan", "silu:OT=fp32"), "plan silu='OT=fp32': "),
        ((__file__,), "a file; gradients need the model"),
    ],
)
def test_wrong_words_are_one_line(capsys, words, text):
    code, out, err = told(capsys, *words)
    assert code == 2 and not out and text in err and err.count("\n") == 1
