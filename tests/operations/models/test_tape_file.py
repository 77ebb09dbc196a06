"""A tape as a file: what is written is read, and whatever else is refused by name."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

pytest.importorskip("transformers")

from roundscope.operations.models.tape_file import FORMAT, load_tape
from roundscope.operations.models.torch.comparing.reviving import revived, words_of
from roundscope.torch import capture, compare
from tests.operations.models import small

IDS = small.tokens()


def captured(model, path, **options):
    with torch.no_grad(), capture(model, path, what="operations", **options):
        model(IDS)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tapes")
    both = small.with_split_k(small.with_late_cast(small.llama()))
    models = {"plain": small.llama(), "both": both, "fp8": small.with_fp8_linear(small.llama())}
    return {name: captured(model, folder / f"{name}.safetensors") for name, model in models.items()}


def test_files_give_the_shares_of_the_models(files):
    """The arithmetic of each operation is found from its numbers alone."""
    found = compare(files["plain"], files["both"])
    live = compare(
        (small.llama(), IDS), (small.with_split_k(small.with_late_cast(small.llama())), IDS)
    )
    assert [g.share for g in found.groups] == pytest.approx([g.share for g in live.groups])
    norm, linear = found.groups
    assert (norm.a, norm.b) == ("cast before the weight", "cast after the weight")
    assert linear.b.startswith("K in 2 parts")
    assert np.array_equal(found.gap, live.gap)


def test_a_file_equals_itself_and_its_model(files):
    assert compare(files["plain"], files["plain"]).equal
    assert compare(files["plain"], (small.llama(), IDS)).equal


def test_a_file_with_a_loss_equals_its_model(tmp_path):
    """A single number came back from a file with an axis, and its operation as one that differs."""
    run = (small.llama(layers=1), {"input_ids": IDS, "labels": IDS})
    path = tmp_path / "loss.safetensors"
    with torch.no_grad(), capture(run[0], path, what="operations"):
        run[0](**run[1])
    assert compare(run, path).equal and compare(path, run).equal


@pytest.mark.thorough  # tries the plans of each kind of linear layer
def test_of_unknown_arithmetic_the_difference_is_put_in(files):
    found = compare(files["plain"], files["fp8"])
    (group,) = found.groups
    assert group.name == "linear" and group.share == pytest.approx(1)
    assert any("put in" in note for note in found.notes)


def test_every_operation_runs_again(files):
    tape = revived(load_tape(files["plain"]))
    assert not [e.operation for e in tape.entries if e.number not in tape.runners]
    (table,) = (e.number for e in tape.entries if e.operation == "rope_table")
    assert words_of(tape, table) == "frequencies in BF16, angles in FP32, cast at the end"


def test_too_large_a_file_is_refused_before_it_is_written(tmp_path):
    path = tmp_path / "large.safetensors"
    with pytest.raises(ValueError, match=r"[0-9,]+ bytes, more than limit=1,000 bytes: "):
        captured(small.llama(), path, limit=1000)
    assert not path.exists()


def test_the_size_is_told(tmp_path):
    told = []
    captured(small.llama(), tmp_path / "a.safetensors", tell=told.append, weights=False)
    assert "34 operations" in told[0] and "MB" in told[0]


def test_without_weights_other_weights_are_still_refused(tmp_path):
    a = captured(small.llama(), tmp_path / "a.safetensors", weights=False)
    other = small.llama()
    other.lm_head.weight.data[0, 0] += 1
    b = captured(other, tmp_path / "b.safetensors", weights=False)
    with pytest.raises(ValueError, match=r"weights: .* 1 of 21 .* such as lm_head\.weight"):
        compare(a, b)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d["values"].pop(), "a value is missing|tensor"),
        (lambda d: d.pop("entries"), "entries"),
        (lambda d: d["entries"][0].update(arguments=[{"code": "x"}]), "arguments|argument"),
        (lambda d: d["entries"][0].update(outputs=[-1]), "outputs"),
    ],
)
def test_damaged_files_are_refused(files, tmp_path, change, text):
    from safetensors import safe_open

    with safe_open(files["plain"], "np") as file:
        data = json.loads(file.metadata()["tape"])
    change(data)
    path = tmp_path / "bad.safetensors"
    save_file(load_file(files["plain"]), path, {"format": FORMAT, "tape": json.dumps(data)})
    with pytest.raises(ValueError, match=text):
        load_tape(path)


def test_a_file_names_no_function_but_those_that_are_known(files, tmp_path):
    from roundscope.operations.models.torch.comparing.reviving import _function

    assert _function("torch.nn.functional.silu") is torch.nn.functional.silu
    for name in ("torch.load", "os.system", "torch.hub.load", "torch.ops.load_library", "silu"):
        assert _function(name) is None


def test_other_files_are_no_tapes(tmp_path):
    path = tmp_path / "qkv.safetensors"
    save_file({"q": np.zeros(3, np.float32)}, path)
    with pytest.raises(ValueError, match="format"):
        load_tape(path)
