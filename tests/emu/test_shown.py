"""Values in messages: one short line, whatever somebody gives."""

import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.shown import shown, tidy
from roundscope.emu.whole_files import path_given, whole_file


class Odd:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param(10**5000, "a whole number of 16610 bits", id="huge"),
        ("a\x1b\n", r"'a\x1b\n'"),
        (np.str_("x"), "'x'"),
        (np.ones((4, 32)), "an array of shape (4, 32)"),
        (len, "a builtin_function_or_method"),
        (int, "the type int"),
        (Odd(), "a Odd"),
    ],
)
def test_a_value_is_one_short_line(value, told):
    assert shown(value) == told
    assert len(shown("x" * 10**6)) < 200 and len(tidy("x" * 10**6)) < 200


def test_a_matrix_receives_nothing():
    """Its reshape keeps two axes, so that a compiled loop wrote beyond its memory."""
    x = np.ones((4, 32), np.float32)
    with pytest.warns(PendingDeprecationWarning):
        out = np.asmatrix(np.empty_like(x))
    with pytest.raises(TypeError, match="out: a matrix, must be a plain array"):
        emu.round_to(x, "bf16", out=out)


def test_a_device_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError), whole_file(tmp_path / "folder") as unfinished:
        unfinished.write_text("")


@pytest.mark.parametrize("path", ["", " ", "a\0b", "x" * 300, 3, None])
def test_what_is_no_path(path):
    with pytest.raises((TypeError, ValueError), match=r"^log="):
        path_given("log", path, "watch.jsonl")
