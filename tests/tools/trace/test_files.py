"""What `roundscope trace` says of the file that it reads and of the folder that it writes."""

import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from roundscope.tools.tensors.layers import read_layers
from roundscope.tools.trace import command
from tests.tools.trace.inputs import change, tensors


def test_tensors_that_nobody_reads_are_named(run, small, tmp_path):
    """A tensor of a layer that takes no part, without a word."""
    path = change(small(), **{"a.beta": np.ones((2, 1, 24, 40), bool), "mlp.w": np.zeros(2)})
    code, out, _ = run(path, "--out", tmp_path / "x")
    assert code == 0 and "features, 4 of v\nnot used: a.beta\n" in out and "mlp.w" not in out
    (layer,) = json.loads((tmp_path / "x" / "trace.json").read_text())["layers"]
    assert layer["notes"] == ["not used: a.beta"]
    assert "not used: a.beta" in (tmp_path / "x" / "report.html").read_text()


def test_a_layout_that_the_file_contradicts_is_said(run, small, tmp_path):
    """Heads that are taken for tokens because a flag is wrong."""
    path = change(small(s=24, g=4, hv=8), layout="BNTH")
    for said, words in (("BTNH", True), ("BNTH", False)):
        out = " ".join(run(path, "--layout", said, "--out", tmp_path / said)[1].split())
        assert ("read as BTNH as asked, although the file says BNTH" in out) == words


def test_a_folder_for_a_file(run, tmp_path):
    code, _, err = run(tmp_path)
    assert code == 2 and f"FILE '{tmp_path}': is a folder; give a safetensors" in err


def test_objects_in_an_npz_file_are_refused_by_name(run, small, tmp_path):
    path = change(small(), **{"a.q": np.array([{}, 1], object)})
    code, _, err = run(path, "--out", tmp_path / "x")
    assert code == 2 and err.count("\n") == 1
    assert "small.npz: tensor 'a.q': an array of Python objects" in err


def test_a_file_of_torch_save_is_known_as_such(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    code, _, err = run(tmp_path / "x.pt", "--layout", "BNTH")
    assert code == 2 and "written by torch.save; save the tensors by safetensors.torch" in err


@pytest.mark.skipif(os.name != "posix", reason="a path below a file")
def test_a_folder_that_cannot_be_made(run, small, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = run(small(), "--out", tmp_path / "file" / "x")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert f"--out '{tmp_path / 'file' / 'x'}': {tmp_path / 'file'} is not a directory; ch" in err


def test_an_unknown_engine_names_its_option(run, small):
    assert "--engine 'cuda': unknown engine 'cuda'" in run(small(), "--engine", "cuda")[2]


def test_the_documentation_saves_transposed_tensors_as_they_are(tmp_path, monkeypatch):
    """The memory of a transpose, which `save_file` writes as if it had not been turned."""
    text = (Path(__file__).parents[3] / "docs" / "howto" / "save-tensors.md").read_text(
        encoding="utf-8"
    )
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, re.DOTALL)
    (code,) = (c for c in cells if "numpy import save_file" in c)
    made = tensors(b=1, t=3, s=3, n=2, g=2, h=4, hv=4)
    turned = {name[2:]: x.transpose(0, 2, 1, 3) for name, x in made.items()}
    monkeypatch.chdir(tmp_path)
    exec(re.sub(r"\nq, k, v, do = .*\n", "\n", code), dict(turned))
    (layer,) = read_layers(tmp_path / "qkv.safetensors")
    assert all(np.array_equal(getattr(layer, n), made[f"a.{n}"]) for n in turned)


def test_an_interrupted_trace_says_so(run, small, tmp_path, monkeypatch):
    """An exit code alone, and a folder that may look complete."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "observe", interrupted)
    code, out, err = run(small(), "--out", tmp_path / "x")
    assert (code, out) == (130, "") and err == (
        f"roundscope: interrupted; {tmp_path / 'x'} is not complete\n"
    )


def test_help_has_the_units_of_an_injection_and_where_npz_keeps_the_layout(run):
    out = " ".join(run("--help")[1].split())
    for words in ("bias=X (in value, not in ulps)", "noise=ULPS", "layout and scale are metadata"):
        assert words in out


def test_the_page_of_another_command_is_kept(run, small, tmp_path):
    """A benchmark's or a run's report that a trace writes over."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "report.html").write_text("of a training")
    code, _, err = run(small(), "--out", tmp_path / "x")
    assert code == 2 and "its report.html is of another command; choose another folder" in err
    assert (tmp_path / "x" / "report.html").read_text() == "of a training"
