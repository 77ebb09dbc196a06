"""Tests of what `doctor` checks outside the package, each with a fault and without one."""

import json
import os
import warnings

import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from roundscope.emu.backends import kept
from roundscope.tools import compile_cache
from roundscope.tools.look import probes, self_check, surroundings
from roundscope.tools.look.doctor import _found, devices, parts_of
from roundscope.tools.report.model import Text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder of the cache with two whole files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    found = kept.cache_folder("fused-0")
    for name in ("one", "two"):
        kept.keep(found, name, b"code")
    return found


@pytest.mark.parametrize(
    ("immune", "words"),
    [(True, "nothing to do"), (False, "please report"), (None, "says what to do")],
)
def test_the_traps_say_what_to_do(immune, words):
    """Seven rows of yes and no, of which nobody knows whether they are a fault."""
    trap = {"name": "subnormals flushed", "seen": "0", "present": True, "immune": True, "how": "h"}
    traps = [trap, trap | {"name": "exp inexact", "immune": immune}]
    report = {"surroundings": [], "traps": traps, "self_check": [], "passed": True}
    parts = parts_of(report | {"versions": {}, "devices": []})
    [told] = [p.text for p in parts if isinstance(p, Text) and words in p.text]
    assert ("exp inexact" in told) == (immune is not True) and "subnormals" not in told


def _of_kernels(folder):
    return surroundings.cache("kernels", folder, lambda f: kept.read_kept(folder, f.name) is None)


def test_a_damaged_file_is_counted(folder):
    """A doctor for whom all is well while every run meets a damaged file."""
    assert _of_kernels(folder).right and "2 files" in _of_kernels(folder).seen
    (folder / "two").write_bytes(b"")
    found = _of_kernels(folder)
    assert not found.right and "1 damaged" in found.seen and f"rm -r '{folder}'" in found.do


@pytest.mark.parametrize("damage", [b"", b"text", None])
def test_a_damaged_program_of_jax(tmp_path, monkeypatch, damage):
    """A program that JAX compiles in every run, which it says with two lines for each."""
    import jax

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    with warnings.catch_warnings():
        try:
            compile_cache.keep_compilations()
            jax.config.update(names[1], 0)
            reset_cache()
            assert jax.jit(lambda x: x + 41)(1.0) == 42.0
            (file, *_) = files = [*(tmp_path / "roundscope" / "jax").glob("*-cache")]
            assert not any(map(compile_cache.is_damaged, files))
            file.write_bytes(file.read_bytes()[:-9] if damage is None else damage)
            assert compile_cache.is_damaged(file)
            jax.clear_caches()
            assert jax.jit(lambda x: x + 41)(1.0) == 42.0  # and no warning, which is an error here
        finally:
            for name, value in zip(names, before, strict=True):
                jax.config.update(name, value)
            reset_cache()


def test_who_may_write(folder, monkeypatch):
    """A cache that others may write, that nobody can write, or that is another user's."""
    folder.chmod(0o777)
    assert "other users may write" in _of_kernels(folder).seen and not _of_kernels(folder).right
    folder.chmod(0o700)
    monkeypatch.setattr(surroundings, "writing_fails", lambda f: "no space left on device")
    found = _of_kernels(folder)
    assert not found.right and "no space left" in found.seen and "XDG_CACHE_HOME" in found.do
    monkeypatch.setattr(kept, "foreign", lambda status: "user 7")
    found = _of_kernels(kept.cache_folder("fused-0"))
    assert not found.right and "belongs to user 7" in found.seen and "remove it" in found.do


def test_the_namespace_trap(tmp_path, monkeypatch):
    """A folder above a clone, in which `import roundscope` is an empty package."""
    assert surroundings.importing(tmp_path).right
    (tmp_path / "roundscope" / "roundscope").mkdir(parents=True)
    monkeypatch.setattr(surroundings.sys, "path", [])  # as an editable installation has it
    found = surroundings.importing(tmp_path)
    assert not found.right and str(tmp_path / "roundscope") in found.seen and "another" in found.do
    (tmp_path / "roundscope" / "__init__.py").write_text("")
    found = surroundings.importing(tmp_path)
    assert not found.right and "this one is" in found.seen


@pytest.mark.parametrize("error", [RuntimeError, AssertionError])
def test_a_platform_that_is_not_here(run_doctor, monkeypatch, error):
    """JAX_PLATFORMS=bogus: a traceback in place of the report, or a report that passes."""
    import jax

    def missing():
        raise error("Backend 'bogus' is not in the list")

    monkeypatch.setenv("JAX_PLATFORMS", "bogus")
    monkeypatch.setattr(jax, "devices", missing)
    code, report = run_doctor()
    (row,) = [r for r in report["surroundings"] if r["name"] == "JAX's platform"]
    assert code == 1 and not row["right"] and "bogus" in row["seen"] and "unset" in row["do"]
    assert [c["xla_wrong"] for c in report["self_check"]] == [None] and len(devices()) == 1


@pytest.mark.pictures
def test_settings_with_which_nothing_is_drawn(monkeypatch):
    """text.usetex without TeX in a matplotlibrc of the user, of which a trace dies at its end."""
    import matplotlib

    from roundscope.tools.report import pictures

    def fails(figure):
        raise RuntimeError("Failed to process string with tex because latex could not be found")

    assert surroundings.picture().right
    monkeypatch.setattr(pictures, "png", fails)
    found = surroundings.picture()
    assert not found.right and "latex" in found.seen
    assert "text.usetex" in found.do and matplotlib.matplotlib_fname() in found.do


@pytest.fixture
def run_doctor(roundscope, monkeypatch):
    """Returns doctor with one format and no probes: (exit code, report)."""
    monkeypatch.setattr(probes, "PROBES", ())
    monkeypatch.setattr(self_check, "JUDGES", {"bf16": self_check.JUDGES["bf16"]})

    def of():
        code, out, _ = roundscope("doctor", "--json")
        return code, json.loads(out)

    return of


def test_every_row_that_is_not_right_says_what_to_do(run_doctor, tmp_path, monkeypatch, roundscope):
    """A finding without a repair, and caches that are looked at after they were repaired."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    code, report = run_doctor()
    rows = {r["name"]: r for r in report["surroundings"]}
    assert code == 0 and [r["do"] for r in rows.values() if not r["right"] and not r["do"]] == []
    assert [name for name, r in rows.items() if not r["right"] and "cache" in name] == [
        "cache of fused kernels",
        "cache of numba kernels",
        "cache of JAX",
    ]
    assert "what to do" in roundscope("doctor")[1] and os.environ["XDG_CACHE_HOME"]


def test_doctor_names_the_packages_of_models_that_are_here():
    assert _found(("numpy", "no-such-package")).keys() == {"python", "numpy"}
