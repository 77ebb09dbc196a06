"""The wheel that users install: built here, installed in an empty folder, run away from sources.

The tests' own environment provides the dependencies; the folder with the wheel comes before it, so
an editable install there is not what Python finds. Nothing is downloaded.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

import pytest

import roundscope

ROOT = Path(__file__).parents[1]
LAYERS = ("emu", "attention", "experiments")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "roundscope", "tests", *LAYERS)
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

IMPORT = """
import sys
import roundscope

print(roundscope.__file__, *sorted({"jax", "numba"} & set(sys.modules)), sep="\\n")
"""
ATTEND = """
import numpy as np
import roundscope

x = np.eye(4, 8, dtype=np.float32).reshape(1, 4, 1, 8)
out = roundscope.attend(x, x, x, plan="fa2-bf16", is_causal=True)
assert out.shape == x.shape
assert (out[0, 0] == x[0, 0]).all(), "the first query sees the first key only"
"""


class Installed(NamedTuple):
    """A wheel and where it lies installed.

    wheel   the file
    target  the folder that pip installed it in
    cwd     an empty folder to run from, with the caches of what runs
    """

    wheel: Path
    target: Path
    cwd: Path

    def run(self, *command: str | Path) -> str:
        """What a command prints that finds Roundscope in `target` and nowhere else."""
        own = {"PYTHONPATH": str(self.target), "PYTHONSAFEPATH": "1"}
        caches = {"XDG_CACHE_HOME": str(self.cwd / "cache")}
        return _succeed(*command, cwd=self.cwd, env=os.environ | own | caches)

    def python(self, code: str) -> str:
        """What a program prints."""
        return self.run(sys.executable, "-c", code)

    def roundscope(self, *words: str) -> str:
        """What the installed command prints."""
        return self.run(sys.executable, self.target / "bin" / "roundscope", *words)


def _succeed(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _copy_sources(to):
    """What the build may read, so that it leaves no `build` folder here and finds no old one."""
    unwanted = shutil.ignore_patterns("__pycache__", ".*", "*~")
    for path in (ROOT / name for name in SOURCES):
        if path.is_dir():
            shutil.copytree(path, to / path.name, symlinks=True, ignore=unwanted)
        else:
            shutil.copy(path, to)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    _copy_sources(folder)
    return folder


@pytest.fixture(scope="module")
def installed(sources, tmp_path_factory):
    """The wheel, built by the tests' own setuptools and installed without its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    _succeed(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    _succeed(*PIP, "install", "--no-deps", "--no-index", "--no-compile", "--target", target, wheel)
    return Installed(wheel, target, tmp_path_factory.mktemp("elsewhere"))


def _packaged(sources):
    """The names that a wheel gives to the files of the layers and of the package."""
    top = sources / "roundscope"
    files = [*top.iterdir(), *(top / "testing").rglob("*")]
    own = {path.relative_to(top) for path in files if path.is_file()}
    inner = [path for layer in LAYERS for path in (sources / layer).rglob("*") if path.is_file()]
    return {f"roundscope/{p.as_posix()}" for p in own | {x.relative_to(sources) for x in inner}}


def test_wheel_has_every_file_of_the_package_and_no_other(installed, sources):
    """Catches a module, a data file or `py.typed` left out, and tests or old files taken in."""
    packaged = _packaged(sources)
    assert {"roundscope/py.typed", "roundscope/emu/__init__.py"} < packaged
    assert any(name.startswith("roundscope/experiments/data/") for name in packaged)
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == packaged


def test_pytest_finds_the_plugin_of_the_wheel(installed):
    """Catches an entry point that is lost, or a test module that pytest does not find."""
    words = ("-p", "no:cacheprovider", "--pyargs", "roundscope.testing.attention", "--help")
    assert "--kernel=MODULE:FUNCTION" in installed.run(sys.executable, "-m", "pytest", *words)


def test_metadata_of_the_wheel_say_what_it_is(installed):
    """Catches a version that differs from the package's, and a wheel for one platform only."""
    assert installed.wheel.name == f"roundscope-{roundscope.__version__}-py3-none-any.whl"
    inside = f"roundscope-{roundscope.__version__}.dist-info/METADATA"
    metadata = message_from_bytes(zipfile.ZipFile(installed.wheel).read(inside))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_installed_package_is_what_is_imported_and_light(installed):
    """Catches tests of the wheel that run the sources, and a wheel that loads compilers at once."""
    place, *heavy = installed.python(IMPORT).split("\n")[:-1]
    assert Path(place) == installed.target / "roundscope" / "__init__.py"
    assert heavy == []


def test_installed_package_attends(installed):
    """Catches an engine that needs a file which the wheel lacks."""
    installed.python(ATTEND)


def test_installed_command_says_its_version(installed):
    """Catches an entry point that does not start."""
    assert installed.roundscope("--version") == f"roundscope {roundscope.__version__}\n"


def test_installed_command_traces_the_shipped_tensors(installed):
    """Catches shipped tensors that the installed command cannot find."""
    words = "trace --sample --layer layer1 --plan fa2-bf16 --out report"
    installed.roundscope(*words.split())
    written = {path.name for path in (installed.cwd / "report").iterdir()}
    assert written >= {"report.html", "trace.json"}
