"""Names in files of others reach no path, no terminal and no formula."""

import sqlite3

import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.experiments.cli import main as cli
from roundscope.experiments.train import record
from roundscope.tools.sweep.storage.export import _as_text

NAMES = ("../../../outside", "a/b", "x" * 255, "\x1b]0;title\x07\x1b[2J", "<script></script>")


def code(words):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return stop.value.code or 0


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """The folder of a run, deep in one where nothing else is."""
    folder = tmp_path / "1" / "2" / "3"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_layers_write_in_the_folder_alone(inside, tmp_path, capsys):
    """Pictures and records of a layer ../../x stand elsewhere, or the run fails after its work;
    a layer's name clears the screen.
    """
    rng = np.random.default_rng(0)
    arrays = {f"{n}.{r}": rng.standard_normal((1, 1, 16, 8), "f4") for n in NAMES for r in "qkv"}
    save_file(arrays, "names.safetensors", {"layout": "BNTH"})
    words = ["--png", "--record", "events:P", "--no-budget", "--out", "out", "--plan", "fa2-bf16"]
    assert code(["trace", "names.safetensors", "--full", *words]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\\x1b]0;title" in out
    files = {p.parent for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {inside, inside / "out"}
    with np.load("out/records.npz") as records:
        assert len(records.files) == 2 * len(NAMES)
        assert not any("/" in name or ".." in name for name in records.files)


def test_a_log_of_others_is_left_alone(inside):
    """A training that makes its tables in the database of another program or a newer version."""
    for application, version, word in (
        (0, 0, "another program"),
        (record.APPLICATION, 99, "newer"),
    ):
        path = inside / str(version) / record.NAME
        path.parent.mkdir()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (x)")
            connection.execute(f"PRAGMA application_id = {application}")
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        before = path.read_bytes()
        with pytest.raises(ValueError, match=word), record.writing(path.parent):
            pass
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1+1", "'=1+1"), ("@x", "'@x"), ("-1e-3", "-1e-3"), (-1.0, -1.0), ("P", "P"), ("", "")],
)
def test_no_cell_is_a_formula(cell, written):
    """A results file whose words a spreadsheet computes; a number that becomes a text."""
    assert _as_text(cell) == written
