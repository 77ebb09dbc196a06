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
        (("trace", "--seed", "x"), "'--seed'"),
        (("trace", "--seed=1.5"), "'1.5'"),
        (("trace", "--no\x1b[2J"), r"--no\x1b[2J"),
        (("nothing",), "'nothing'"),
    ],
)
def test_words_that_cannot_be_read_are_one_line(roundscope, words, told):
    code, out, err = roundscope(*words)
    assert (code, out, err.count("\n")) == (2, "", 1) and told in err
