"""What `roundscope trace` says of the file that it reads and of the folder that it writes."""

import json
import os
import zipfile

import numpy as np
import pytest

from tests.experiments.trace.inputs import change


def test_tensors_that_nobody_reads_are_named(run, small, tmp_path):
    """A padded batch with its mask that is traced as if it had none, without a word."""
    path = change(small(), **{"a.mask": np.ones((2, 1, 24, 40), bool), "mlp.w": np.zeros(2)})
    code, out, _ = run(path, "--out", tmp_path / "x")
    assert code == 0 and "features, 4 of v; not used: a.mask\n" in out and "mlp.w" not in out
    (layer,) = json.loads((tmp_path / "x" / "trace.json").read_text())["layers"]
    assert layer["notes"] == ["not used: a.mask"]
    assert "not used: a.mask" in (tmp_path / "x" / "report.html").read_text()


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
    assert f"--out '{tmp_path / 'file' / 'x'}': cannot be made (not a directory); name a" in err


def test_an_unknown_engine_names_its_option(run, small):
    assert "--engine 'cuda': unknown engine 'cuda'" in run(small(), "--engine", "cuda")[2]
