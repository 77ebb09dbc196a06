"""The sdist and the wheel that users get: built, compared, installed beside nothing else, and run.

    python -m tests.checks.package --out build/package
    python -m tests.checks.package --python /path/to/python3.13

Each file is installed without extras in a new virtual environment of each Python, with the newest
dependencies that pip finds, and is run there from an empty folder: its version, `roundscope
doctor`, and a trace of the shipped tensors. Prints sizes, seconds on the clock and seconds of
processors. Exit code 1 if the wheel that is built from the sdist is not the one built from the
tree, or if a command fails. The files that were checked lie in --out. Needs a network, or a folder
of wheels that pip knows of.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LAYERS = ("emu", "events", "attention", "operations", "tools", "experiments")
COMMUNITY = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md")
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", *COMMUNITY)
SOURCES += ("roundscope", "src", "tests", *LAYERS)
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
COMMANDS = ("--version", "doctor", "trace --sample --layer layer4")


class Measured(NamedTuple):
    """What a step took, on the clock and of processors, and what is to be seen of it."""

    what: str
    seconds: float
    processors: float
    seen: str


def succeed(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints. Raises RuntimeError, with that, if it fails."""
    words = [*map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def copy_sources(to: Path) -> None:
    """Copy what a build may read, so that it leaves no `build` folder here and finds no old one."""
    unwanted = shutil.ignore_patterns("__pycache__", ".*", "*~")
    for path in (ROOT / name for name in SOURCES):
        if path.is_dir():
            shutil.copytree(path, to / path.name, symlinks=True, ignore=unwanted)
        else:
            shutil.copy(path, to)


def build_sdist(sources: Path, to: Path) -> Path:
    """Build the sdist with the setuptools that is installed here, and return the file."""
    succeed(sys.executable, "-c", SDIST, to, cwd=sources)
    (sdist,) = to.glob("*.tar.gz")
    return sdist


def build_wheel(source: Path, to: Path) -> Path:
    """Build the wheel of a folder or of an sdist, with the same setuptools; return the file."""
    succeed(
        *(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", to),
        source,
    )
    (wheel,) = to.glob("*.whl")
    return wheel


def in_wheel(wheel: Path) -> dict[str, bytes]:
    """Return the contents of every file of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def in_sdist(sdist: Path) -> dict[str, bytes | None]:
    """Return the contents of every entry of an sdist that is no folder, by its name without the top
    folder; None for an entry that is no plain file, such as a link.
    """
    with tarfile.open(sdist) as archive:
        entries = [entry for entry in archive.getmembers() if not entry.isdir()]
        return {
            entry.name.partition("/")[2]: file.read()
            if entry.isreg() and (file := archive.extractfile(entry))
            else None
            for entry in entries
        }


def installed_and_run(package: Path, python: str, folder: Path) -> Iterator[Measured]:
    """Install a file in a new environment and run its commands from an empty folder."""
    environment, empty = folder / "environment", folder / "empty"
    empty.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    own = kept | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    succeed(python, "-m", "venv", environment)
    inside = environment / "bin" / "python"
    _, *times = timed(inside, *PIP, "install", "--no-cache-dir", package)
    yield Measured("pip install", *times, f"{megabytes(environment):.0f} MB")
    for words in COMMANDS:
        command = (environment / "bin" / "roundscope", *words.split())
        printed, *times = timed(*command, cwd=empty, env=own)
        yield Measured(f"roundscope {words}", *times, last_line(printed))


def timed(*command: object, **options: Any) -> tuple[str, float, float]:
    """Run a command; return what it prints, and its seconds on the clock and of processors."""
    start, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = succeed(*command, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return printed, perf_counter() - start, busy


def megabytes(folder: Path) -> float:
    """Return the size of the files of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def last_line(text: str) -> str:
    """Return the last line that has something on it, cut to fit the table."""
    return text.rstrip().rpartition("\n")[2].strip()[:100]


def built(folder: Path) -> tuple[Path, Path, bool]:
    """Build sdist and wheel in an empty folder; return them, and whether the tree gives the same
    wheel as the sdist.
    """
    sources, release, other = (folder / name for name in ("sources", "release", "other"))
    for place in (sources, release, other):
        place.mkdir()
    copy_sources(sources)
    sdist = build_sdist(sources, release)
    wheel = build_wheel(sdist, release)
    return sdist, wheel, in_wheel(wheel) == in_wheel(build_wheel(sources, other))


def checked(package: Path, python: str) -> bool:
    """Print what installing and running a file takes; return whether all of it went well."""
    print(f"\n{package.name} with {python}", flush=True)
    print(f"  {'':<44}{'clock':>10} {'processors':>10}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for m in installed_and_run(package, python, Path(folder)):
                times = f"{m.seconds:8.1f} s {m.processors:8.1f} s"
                print(f"  {m.what:<44}{times}   {m.seen}", flush=True)
    except RuntimeError as error:
        print(f"  FAILED  {error}")
        return False
    return True


def main() -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/package"))
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PYTHON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel, same = built(Path(folder))
        asked.out.mkdir(parents=True, exist_ok=True)
        packages = [Path(shutil.copy(path, asked.out)).resolve() for path in (sdist, wheel)]
    for package in packages:
        print(f"{package.name:<44}{package.stat().st_size / 1e6:8.2f} MB")
    print("The wheel from the sdist", "is" if same else "is NOT", "the wheel from the tree.")
    well = [checked(package, python) for python in asked.python for package in packages]
    return 0 if same and all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
