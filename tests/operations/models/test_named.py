"""The operations of a captured run by their plans: named, compared, and run again by them."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

pytest.importorskip("transformers")

from roundscope.experiments.cli.main import main
from roundscope.operations import run
from roundscope.operations.models.calls import Named, calls_of, named
from roundscope.operations.models.tape_file import load_tape
from roundscope.operations.models.torch.comparing import candidates
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side
from roundscope.torch import capture, compare
from tests.operations.by_torch import torch_of
from tests.operations.models import small

IDS = small.tokens(1, 16)


@pytest.fixture(scope="module")
def tape():
    torch_of("")
    return record(Side(small.llama(layers=1), IDS))


def test_every_call_is_read_as_the_catalogue_has_it(tape):
    """An eps, a weight or a table of angles in the wrong place: the exact result is far away."""
    read = set()
    for entry in tape.counted:
        for call in calls_of(tape, entry.number):
            exact = run(call.operation, "exact", call.inputs, settings=call.settings).outputs
            (out,), wanted = call.outputs.values(), next(iter(exact.values()))
            error = np.abs(out.astype(np.float64) - wanted).max() / np.abs(wanted).max()
            assert out.shape == wanted.shape and error < 2**-7, entry.title
            read.add(entry.operation)
    assert read == {"embedding", "rms_norm", "linear", "rope", "silu", "add"}


def test_it_is_said_why_an_operation_was_not_compared():
    """One sentence for a call of another form and for numbers that the file lacks."""
    found = Named("rope_table", "Table", ("m",), None, "the file lacks some of its numbers")
    assert str(found) == "rope_table x 1: not compared, since the file lacks some of its numbers"


@pytest.mark.thorough
def test_operations_of_one_arithmetic_are_one_line(tape, monkeypatch):
    entries = [e for e in tape.entries if e.operation != "linear"]
    monkeypatch.setitem(tape.__dict__, "counted", [e for e in entries if e.is_counted])
    found = {each.operation: each for each in named(tape)}
    norm = found["rms_norm"]
    assert len(norm.modules) == 3 and norm.found.plan == "transformers-llama"
    assert str(norm).startswith("rms_norm x 3: transformers-llama or ")
    assert str(found["mul"]) == "mul x 1: no plan is known of torch.Tensor.mul"
    assert "identify those" in str(found["attention"])


@pytest.mark.thorough
def test_files_that_no_function_gives_are_compared_by_plans(tmp_path, monkeypatch):
    """As those of a GPU: the shares are those of the models, and the plans differ."""
    torch_of("")
    models = small.llama(layers=1), small.with_late_cast(small.llama(layers=1))
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for model, path in zip(models, paths, strict=True):
        with torch.no_grad(), capture(model, path, what="operations"):
            model(IDS)
    live = compare(*((model, IDS) for model in models))
    monkeypatch.delitem(candidates.CANDIDATES, "rms_norm")
    found = compare(*paths)
    (group,), (wanted,) = found.groups, live.groups
    assert group.name == "rms_norm" and group.share == pytest.approx(wanted.share)
    assert group.a.startswith("transformers-llama") and group.b.startswith("torch-cpu")
    assert np.array_equal(found.gap, live.gap)
    assert any("6 operations run again by plans" in note for note in found.notes)
    assert compare(paths[0], paths[0]).equal
    tape = load_tape(paths[0])
    assert not tape.runners


def test_the_command_names_one_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)
    out = run("rms_norm", "torch-cuda-fp32; SS.sum=pairwise", {"x": x}, settings={"eps": 1e-5})
    about = {"operation": "rms_norm", "settings": '{"eps": 1e-5}'}
    save_file({"x": x, "out": out.outputs["out"]}, "norm.safetensors", metadata=about)
    with pytest.raises(SystemExit, match="0"):
        main(["identify", "norm.safetensors"])
    assert "These are the numbers of" in capsys.readouterr().out
    (one,) = json.loads((tmp_path / "identify-norm" / "identify.json").read_text())["operations"]
    assert one["found"] and any("SS.sum=pairwise" in x for x in (one["plan"], *one["ties"]))


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"operation": "norm"}, "operation"),
        ({"operation": "rms_norm", "settings": "eps"}, "no JSON"),
        ({"operation": "rms_norm", "settings": "[1]"}, "JSON object"),
        ({"operation": "rms_norm", "settings": '{"epsilon": 1}'}, "epsilon"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, monkeypatch, capsys, about, told):
    monkeypatch.chdir(tmp_path)
    x = np.ones((2, 8), np.float32)
    save_file({"x": x, "out": x}, "norm.safetensors", metadata=about)
    with pytest.raises(SystemExit) as ended:
        main(["identify", "norm.safetensors"])
    assert ended.value.code == 2
    assert "norm.safetensors" in (err := capsys.readouterr().err) and told in err


def test_the_command_names_the_operations_of_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.SiLU()).bfloat16()
    x = torch.linspace(-4, 4, 128).reshape(4, 32).bfloat16()
    with torch.no_grad(), capture(model, "run.safetensors", what="operations"):
        model(x)
    with pytest.raises(SystemExit, match="0"):
        main(["identify", "run.safetensors", "--json"])
    (one,) = json.loads(capsys.readouterr().out)["operations"]
    assert one["operation"] == "silu" and one["found"] and one["modules"] == ["0", "1"]
