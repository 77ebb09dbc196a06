"""The sdist and the wheel that users install: built here, installed in an empty folder, run away
from sources.

The tests' own environment provides the dependencies; the folder with the wheel comes before it, so
an editable install there is not what Python finds. Nothing is downloaded; `make package` installs
the dependencies too.
"""

import os
import re
import sys
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

import pytest

import roundscope
from tests.checks.package import (
    COMMUNITY,
    LAYERS,
    PIP,
    build_sdist,
    build_wheel,
    copy_sources,
    in_sdist,
    in_wheel,
    succeed,
)

ROOT = Path(__file__).parents[1]

IMPORT = """
import sys
import roundscope

print(roundscope.__file__, *sorted({"jax", "numba"} & set(sys.modules)), sep="\\n")
"""
EDITABLE = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
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
        return succeed(*command, cwd=self.cwd, env=os.environ | own | caches)

    def python(self, code: str) -> str:
        """What a program prints."""
        return self.run(sys.executable, "-c", code)

    def roundscope(self, *words: str) -> str:
        """What the installed command prints."""
        return self.run(sys.executable, self.target / "bin" / "roundscope", *words)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    copy_sources(folder)
    return folder


@pytest.fixture(scope="module")
def sdist(sources, tmp_path_factory):
    """The sdist, built by the tests' own setuptools."""
    return build_sdist(sources, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def installed(sdist, tmp_path_factory):
    """The wheel of the sdist, built by the same setuptools, installed without dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(sdist, folder)
    target = folder / "installed"
    alone = ("install", "--no-deps", "--no-index", "--no-compile", "--target", target)
    succeed(sys.executable, *PIP, *alone, wheel)
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
    names = in_wheel(installed.wheel)
    assert {name for name in names if ".dist-info/" not in name} == packaged


def test_sdist_has_files_where_the_tree_has_links(sdist, sources):
    """Catches a link to a folder that the sdist lacks, files left out, and tests taken in."""
    contents = in_sdist(sdist)
    assert None not in contents.values(), "a link"
    assert {*contents} >= {f"src/{name}" for name in _packaged(sources)}
    assert {*COMMUNITY, "LICENSE", "README.md", "pyproject.toml"} < contents.keys()
    assert not [name for name in contents if name.startswith(("tests/", *LAYERS))]
    assert contents["src/roundscope/py.typed"] == b""


def test_an_editable_installation_is_found_above_its_clone(tmp_path):
    """A clone's folder `roundscope` that Python takes for an empty package, before it asks the
    finder of an editable installation.
    """
    clone, wheels = tmp_path / "roundscope", tmp_path / "wheels"
    clone.mkdir()
    wheels.mkdir()
    copy_sources(clone)
    succeed(sys.executable, "-c", EDITABLE, wheels, cwd=clone)
    (wheel,) = wheels.glob("*.whl")
    names = in_wheel(wheel)
    (pth,) = [name for name in names if name.endswith(".pth")]
    folder = names[pth].decode().strip()
    assert folder == str(clone / "src")
    assert [path.name for path in Path(folder).iterdir() if path.is_dir()][:1] == ["roundscope"]
    own = {**os.environ, "PYTHONPATH": folder, "PYTHONSAFEPATH": ""}
    told = succeed(sys.executable, "-c", IMPORT, cwd=tmp_path, env=own)
    assert told.split()[0] == str(clone / "src/roundscope/__init__.py")


def test_wheel_of_the_sdist_is_the_wheel_of_the_tree(installed, sources, tmp_path):
    """Catches what a build needs and the sdist lacks, and metadata that depend on the folder."""
    assert in_wheel(installed.wheel) == in_wheel(build_wheel(sources, tmp_path))


def test_pytest_finds_the_plugin_of_the_wheel(installed):
    """Catches an entry point that is lost, or a test module that pytest does not find."""
    words = ("-p", "no:cacheprovider", "--pyargs", "roundscope.testing.attention", "--help")
    assert "--kernel=KERNEL" in installed.run(sys.executable, "-m", "pytest", *words)


def test_metadata_of_the_wheel_say_what_it_is(installed):
    """Catches a version that differs from the package's, and a wheel for one platform only."""
    assert installed.wheel.name == f"roundscope-{roundscope.__version__}-py3-none-any.whl"
    contents, inside = in_wheel(installed.wheel), f"roundscope-{roundscope.__version__}.dist-info"
    metadata = message_from_bytes(contents[f"{inside}/METADATA"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert contents[f"{inside}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CHANGELOG.md", r"^## (\S+) - (\S+)$"),
        ("CITATION.cff", r"^version: (\S+)\ndate-rel\S+ (\S+)$"),
    ],
)
def test_files_name_the_version_and_its_date(file, pattern):
    """Catches a release whose changelog or citation still has the one before."""
    version, date = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)[0]
    assert version == roundscope.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date.strip("'\""))


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
