"""Tests that files of a cache are read back only as they were written, and are never needed."""

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roundscope.emu.backends import kept
from roundscope.emu.backends.fused import program as programs
from roundscope.emu.backends.fused.program import program
from roundscope.emu.backends.numba.jit import compiled
from roundscope.emu.backends.threads import kept_folder

X = np.arange(12.0).reshape(3, 4)


def one_more(x: np.ndarray) -> float:
    total = 1.0
    for entry in x.ravel():
        total += entry
    return total


def numba_sum() -> float:
    """Compile a kernel anew in this process, or take it from the disk."""
    return compiled(one_more)(X)


def fused_sum() -> float:
    run, form = program(lambda o, a: a[0] + 1.0, ((X,),), ((False,),))
    found: Any = form([part[0] for part in run(1, [X[None]])[0]])
    return float(found.sum())


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of caches, for a process that has noted nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    noted: list[str] = []
    monkeypatch.setattr(kept, "notes", lambda: noted)
    monkeypatch.setattr(kept, "_unwritten", {})
    return tmp_path / "caches"


def _as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _as_dangling_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nothing")


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda f: f.write_bytes(b""),
    "cut": lambda f: f.write_bytes(f.read_bytes()[:700]),
    "one byte short": lambda f: f.write_bytes(f.read_bytes()[:-1]),
    "one bit": lambda f: f.write_bytes(f.read_bytes()[:-1] + bytes([f.read_bytes()[-1] ^ 1])),
    "zeros": lambda f: f.write_bytes(bytes(f.stat().st_size)),
    "text": lambda f: f.write_text("no code" * 500),
    "a pickle": lambda f: f.write_bytes(pickle.dumps([1, 2])),
    "a folder": _as_folder,
    "a pipe": _as_pipe,
    "a dangling link": _as_dangling_link,
}


@pytest.mark.parametrize("job", [numba_sum, fused_sum])
def test_damaged_code_is_compiled_anew(
    job: Callable[[], float], base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Machine code that is run whatever it has become: crashes, and errors of pickle, in every run
    until somebody deletes the folder.
    """
    wanted = job()
    (file,) = [f for f in base.rglob("*") if f.is_file()]
    for damage in DAMAGES.values():
        damage(file)
        assert job() == wanted
        if file.is_dir():  # is left as it is, and said
            assert str(file) in caplog.text
            file.rmdir()
            kept._unwritten.clear()  # as in another process
            assert job() == wanted
        assert kept.read_kept(file.parent, file.name) is not None
    assert [f for f in base.rglob("*") if f.is_file()] == [file]  # nothing is left over


def test_code_is_taken_from_the_disk(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is never read, or that is written again in every run."""
    wanted = numba_sum(), fused_sum()
    monkeypatch.setattr(kept.tempfile, "mkstemp", None)
    assert (numba_sum(), fused_sum()) == wanted


def test_code_of_another_program_is_not_run(base: Path) -> None:
    """A whole file under the name of another: its digest fits, its numbers do not."""
    folder = kept_folder("fused", "0")
    kept.keep(folder, "one", b"code")
    assert folder is not None
    (folder / "two").write_bytes((folder / "one").read_bytes())
    assert kept.read_kept(folder, "one") == b"code" and kept.read_kept(folder, "two") is None


def _full(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)


def _homeless(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(kept.Path, "home", home)


def _foreign(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "roundscope").mkdir(parents=True)
    monkeypatch.setattr(kept, "foreign", lambda status: "user 7")


STATES: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], Any], str]] = {
    "a full disk": (_full, "no space left on device"),
    "no home": (_homeless, "no home folder"),
    "the folder of another user": (_foreign, "belongs to user 7"),
    "a file in its place": (lambda base, _: base.write_text(""), "exists"),
}


@pytest.mark.parametrize("state", STATES)
def test_no_cache_is_needed(
    state: str,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """A home that cannot be written ends a call, says nothing, says it for every kernel, or leaves
    a folder of temporary files, or compiles one program many times.
    """
    spoil, words = STATES[state]
    spoil(base, monkeypatch)
    with caplog.at_level(logging.WARNING, "roundscope"):
        assert (numba_sum(), fused_sum()) == (67.0, 78.0)
        assert kept.writable_folder("jax") is None
    (note,) = caplog.messages
    assert words in note and "XDG_CACHE_HOME" in note
    assert not [f for f in base.rglob("*") if f.is_file()]
    monkeypatch.setattr(programs, "written", None)  # a program that nobody holds any more
    assert (numba_sum(), fused_sum()) == (67.0, 78.0)


def test_one_place_for_everything(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that does not follow XDG_CACHE_HOME, or that others may write, or a relative path."""
    monkeypatch.setattr(kept.Path, "home", None)
    old = os.umask(0)
    try:
        folder = kept.cache_folder("data/tokens")
    finally:
        os.umask(old)
    assert folder == base / "roundscope" / "data" / "tokens"
    assert all(p.stat().st_mode & 0o777 == 0o700 for p in [folder, *folder.parents][:4])
    monkeypatch.setattr(kept.Path, "home", lambda: base)
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert kept.cache_base() == base / ".cache"


def test_kernels_are_compiled_where_numba_is_switched_off(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NUMBA_DISABLE_JIT=1, set for kernels that are not ours, and integers of Python in ours."""
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert compiled(one_more)(X) == 67.0 and numba.njit(one_more) is one_more
    assert hasattr(compiled(one_more), "signatures")
