"""Places to write are tried before the work: folders and files, devices, names that are too"
" long."""

import os
from pathlib import Path

import pytest

LINES = [
    ("trace", "--sample", "--out"),
    ("diagnose", "--sample", "--out"),
    ("check", "km:none", "--out"),
    ("check", "km:none", "--junit"),
    ("check-cast", "km:none", "--format", "bf16", "--junit"),
    ("accumulators", "--out"),
    ("kernels", "--out"),
    ("sweep", "T=16", "--out"),
    ("reproduce", "golden", "--out"),
    ("dose", "--out"),
    ("proxy", "--out"),
    ("train", "steps=1", "--out"),
    ("bench", "round", "--out"),
    ("identify", "km:none", "--out"),
    ("watch", "a_file", "--out"),
    ("report", "a_file", "--out"),
    ("prepare", "a_file", "--out"),
]
PLACES = ["/dev/full", "/dev/null/x", "a_file/x", "n" * 300, "", "/proc/x/y"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    roundscope, tmp_path, monkeypatch, line, place
):
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("")
    code, out, err = roundscope(*line, place)
    assert (code, out, err.count("\n")) == (2, "", 1) and line[-1] in err
    assert os.listdir() == ["a_file"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (("trace", "--sample"), ("trace.json", "report.html")),
        (("diagnose", "--sample"), ("diagnosis.json", "report.html")),
        (("check", "km:none"), ("check.json", "report.html")),
        (("check-cast", "km:none", "--format", "bf16"), ("check-cast.json", "report.html")),
        (("identify", "km:none"), ("identify.json",)),
        (("accumulators",), ("accumulators.json", "report.html")),
        (("bench", "round"), ("bench-round.json", "bench-round.png")),
        (("prepare", "a_file"), ("meta.json", "val.bin")),
    ],
    ids=str,
)
def test_a_folder_with_a_pipe_in_place_of_a_file_is_told_before_the_work(
    roundscope, tmp_path, monkeypatch, line, names
):
    """The first file of two is written, and the second refused after minutes."""
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("a text " * 9)
    for pipe in names:
        folder = tmp_path / f"with-{pipe}"
        folder.mkdir()
        for name in names:
            os.mkfifo(folder / name) if name == pipe else (folder / name).write_text("{}")
        code, out, err = roundscope(*line, "--out", str(folder))
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert f"its {pipe} is" in err
        assert all((folder / name).read_text() == "{}" for name in names if name != pipe)


def test_a_device_is_never_replaced_or_read(roundscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = roundscope("watch", "/dev/full")
    assert (code, err.count("\n")) == (2, 1) and "is a device or a pipe" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trace", "--sample", "--set", ""), "--set ''"),
        (("trace", "--sample", "--set="), "--set ''"),
        (("formats", " "), "' '"),
        (("trace", "--seed", "x"), "--seed 'x'"),
        (("trace", "--seed=1.5"), "'1.5'"),
        (("trace", "--no\x1b[2J"), r"--no\x1b[2J"),
        (("nothing",), "'nothing'"),
    ],
)
def test_words_that_cannot_be_read_are_one_line(roundscope, words, told):
    code, out, err = roundscope(*words)
    assert (code, out, err.count("\n")) == (2, "", 1) and told in err


def test_a_page_has_the_name_of_a_page(roundscope, tmp_path, monkeypatch):
    """`report` writes a file, every other command a folder."""
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("")
    code, _, err = roundscope("report", "a_file", "--out", "drawn")
    assert code == 2 and "drawn.html" in err and not Path("drawn").exists()
