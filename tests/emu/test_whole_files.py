"""Files are written whole or not at all, and names from outside never lead out of a folder."""

import errno
import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundscope.emu import whole_files
from roundscope.emu.whole_files import safe_names, whole_file, write_whole


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    """Half a page in the place of the whole one."""
    page = tmp_path / "report.html"
    write_whole(page, "old")

    def half():
        with whole_file(page) as unfinished:
            unfinished.write_text("ne")
            raise OSError(28, "No space left on device")  # of a write, which knows no name

    with pytest.raises(OSError, match=r"report\.html"):
        half()
    assert page.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    """Unfinished files that pile up, one of another process that still writes it, or a file that
    somebody else calls unfinished.
    """
    left, foreign = tmp_path / ".0123abcd-1.unfinished", tmp_path / ".mine.unfinished"
    left.write_text("ha")
    foreign.write_text("no file of ours")
    with whole_file(tmp_path / "one") as held:
        held.write_text("one")
        write_whole(tmp_path / "two", "two")
        assert held.exists() and not left.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [foreign.name, "one", "two"]


def test_without_locks_age_decides(tmp_path, monkeypatch):
    """A file system without locks, on which files pile up or are taken from who writes them."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    old, new = (tmp_path / f".0123abcd-{pid}.unfinished" for pid in (1, 2))
    for left, age in ((old, 7200.0), (new, 60.0)):
        left.write_text("ha")
        os.utime(left, (time.time() - age,) * 2)
    write_whole(tmp_path / "page", "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == [new.name, "page"]


def test_a_name_that_another_writer_has_now_is_kept(tmp_path, monkeypatch):
    """A file that a writer made between the look at an old one and its removal, which it then
    lacks when it is done.
    """
    left, was_free = tmp_path / ".0123abcd-1.unfinished", whole_files._is_free
    left.write_text("old")

    def renamed_meanwhile(descriptor):
        left.replace(tmp_path / "done")
        left.write_text("new")
        return was_free(descriptor)

    monkeypatch.setattr(whole_files, "_is_free", renamed_meanwhile)
    write_whole(tmp_path / "page", "whole")
    assert left.read_text() == "new"


def test_threads_write_one_file_in_turn(tmp_path):
    """Two writers of one name in one process, of which one loses its file to the other."""
    texts = [str(n) * 100_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_whole(tmp_path / "page", text), texts))
    assert (tmp_path / "page").read_text() in texts and len(list(tmp_path.iterdir())) == 1


def test_text_that_is_no_unicode_is_written(tmp_path):
    """A run whose page is lost since its file's name is no UTF-8."""
    write_whole(tmp_path / "x", "file \udcff é")
    assert (tmp_path / "x").read_text("utf-8") == "file \\udcff é"


@given(
    st.lists(st.text(max_size=300) | st.sampled_from(["a", "A", "0-a", "..", "a/b"]), max_size=6)
)
def test_no_name_leads_elsewhere(tmp_path_factory, names):
    """A layer ../../x, an absolute one, one that a file system does not take, two that are one."""
    found = safe_names(names)
    assert len({name.lower() for name in found}) == len(names)
    for name in found:
        assert name.isascii() and not {*name} & {*"/\\\0:"} and 0 < len(name) <= 80
        assert not name.startswith((".", "-"))


def test_names_of_ours_are_not_taken_twice():
    assert safe_names(["2-a", "b", "a/"]) == ["2-a", "b", "2-a_"]


@pytest.mark.parametrize("name", ["layers.0", "attention", "model_layers-3.attn"])
def test_an_ordinary_name_stays(name):
    assert safe_names([name]) == [name]
