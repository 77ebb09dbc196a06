"""Homes, users and disks of containers: `emu.round_to` and the trace of `make demo` in each.

    python -m tests.checks.container [--python /usr/bin/python3.11] [--all]

In every state both must end with the numbers of an ordinary home, without a traceback, with at most
one note, and leave nothing in the folder for temporary files. Other users, full disks and read-only
ones need root and the right to mount; what cannot be tried here is said, and is a fault with --all.
Some minutes, since most states compile everything anew.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNKNOWN = 54321  # a user without an entry in the password file
ROUND = (
    "-c",
    "import numpy as np; from roundscope import emu; "
    "print(emu.round_to(np.linspace(-3, 3, 1001), 'bf16').tobytes().hex())",
)
TRACE = ("-m", "roundscope", "trace", "--sample", "--layer", "layer4", "--out")


class CannotTry(Exception):
    """A state that this machine, or this user, cannot make."""


@dataclass
class Place:
    """Where a command runs.

    folder   an empty folder that every user may write
    env      the environment, without anything of this process's
    user     the number of the user, None for this one
    noted    whether a note is expected that nothing is kept; None for at most one
    """

    folder: Path
    env: dict[str, str]
    user: int | None = None
    noted: bool | None = True


@dataclass(frozen=True)
class Ran:
    """The outcome of one command: its exit code, its stderr, its numbers, the files it left."""

    code: int
    errors: str
    numbers: str
    left: list[str] = field(default_factory=list)


def ordinary(place: Place, until: ExitStack) -> None:
    """A home that can be written, empty."""
    place.noted = False
    (home := place.folder / "home").mkdir()
    place.env["HOME"] = str(home)


def no_folder(place: Place, until: ExitStack) -> None:
    """A home in which nobody can make a folder, as on a read-only image."""
    place.env["HOME"] = "/proc"


def is_root() -> bool:
    """Return whether this process may become another user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def as_root() -> None:
    """Raise CannotTry for anybody but root."""
    if not is_root():
        raise CannotTry("only root may become another user or mount")


def no_home(place: Place, until: ExitStack) -> None:
    """No HOME, and a user without an entry in the password file."""
    as_root()
    place.user = UNKNOWN


def read_only_home(place: Place, until: ExitStack) -> None:
    """An unknown user with the home of root, which it may read."""
    no_home(place, until)
    ordinary(place, until)
    place.noted = True
    (place.folder / "home").chmod(0o755)


def read_only_cache(place: Place, until: ExitStack) -> None:
    """An image whose caches root made, empty, and an unknown user."""
    read_only_home(place, until)
    (place.folder / "home/.cache/roundscope/jax").mkdir(parents=True)


def foreign_cache(place: Place, until: ExitStack) -> None:
    """A cache that belongs to another user, who may change the code in it."""
    no_home(place, until)
    ordinary(place, until)
    place.noted = True
    (cache := place.folder / "home/.cache/roundscope").mkdir(parents=True)
    os.chown(place.folder / "home", UNKNOWN, UNKNOWN)
    for one in cache.parent, cache:
        one.chmod(0o777)
        os.chown(one, UNKNOWN + 1, UNKNOWN + 1)


def _mounted(place: Place, until: ExitStack, options: str) -> Path:
    as_root()
    (disk := place.folder / "disk").mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "roundscope", str(disk)]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotTry(f"mount: {str(getattr(error, 'stderr', error)).strip()}") from error
    until.callback(subprocess.run, ["umount", str(disk)], check=True)
    place.env["XDG_CACHE_HOME"] = str(disk)
    place.env["HOME"] = str(place.folder)
    return disk


def tiny_disk(place: Place, until: ExitStack) -> None:
    """A disk of 64 kB for the caches, which is full after a few kernels."""
    _mounted(place, until, "size=64k")
    place.noted = None


def full_disk(place: Place, until: ExitStack) -> None:
    """A disk for the caches on which not a byte is left."""
    disk = _mounted(place, until, "size=64k")
    (disk / "roundscope").mkdir()
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def read_only_disk(place: Place, until: ExitStack) -> None:
    """A disk for the caches that is mounted to be read."""
    _mounted(place, until, "size=64k,ro")


def damaged(place: Place, until: ExitStack) -> None:
    """Caches in which every file has been cut, after a run that filled them."""
    ordinary(place, until)
    for words in ROUND, (*TRACE, str(place.folder / "first")):
        if (ran := run(place, words)).code:
            raise CannotTry(ran.errors[-200:])
    shutil.rmtree(place.folder / "first")
    for file in (place.folder / "home/.cache/roundscope").rglob("*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)


STATES: tuple[Callable[[Place, ExitStack], None], ...] = (
    no_folder,
    no_home,
    read_only_home,
    read_only_cache,
    foreign_cache,
    tiny_disk,
    full_disk,
    read_only_disk,
    damaged,
)
COMMANDS = {"round": ROUND, "trace": TRACE}


@contextmanager
def made(state: Callable[[Place, ExitStack], None]) -> Iterator[Place]:
    """Yield a place in a state, and remove it. Raises CannotTry."""
    with tempfile.TemporaryDirectory(prefix="roundscope-check-") as name, ExitStack() as until:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o777)
        path = f"{sysconfig.get_path('purelib')}:{sysconfig.get_path('platlib')}:{ROOT}"
        env = {"PATH": os.defpath, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        place = Place(folder, env | {"TMPDIR": str(folder / "tmp")})
        state(place, until)
        yield place


def run(place: Place, words: tuple[str, ...], python: str = sys.executable) -> Ran:
    """Run Python with these words there; a trace's numbers are those of its trace.json."""
    user = (
        {} if place.user is None else {"user": place.user, "group": place.user, "extra_groups": []}
    )
    try:
        done = subprocess.run(
            [python, *words],
            cwd=place.folder,
            env=place.env,
            capture_output=True,
            text=True,
            timeout=900,
            **user,  # type: ignore[call-overload]
        )
    except PermissionError as error:
        raise CannotTry(
            f"user {place.user} may not run {python}; name another by --python"
        ) from error
    numbers = done.stdout
    if words[:-1] == TRACE and (record := Path(words[-1]) / "trace.json").is_file():
        layers = json.loads(record.read_text())["layers"]
        numbers = json.dumps(layers, sort_keys=True)
    left = sorted(os.listdir(place.env["TMPDIR"]))
    return Ran(done.returncode, done.stderr, hashlib.sha256(numbers.encode()).hexdigest(), left)


def faults(ran: Ran, numbers: str, noted: bool | None) -> list[str]:
    """Return what is wrong with a run, in words.

    Args:
        ran: the run.
        numbers: those of an ordinary home.
        noted: whether it has to say that nothing is kept; None if it may, once.
    """
    count = ran.errors.count("nothing is kept on disk")
    wrong = {
        f"exit code {ran.code}": ran.code != 0,
        "a traceback": "Traceback" in ran.errors,
        "other numbers": ran.numbers != numbers,
        f"{count} notes in place of {noted}": count > 1 if noted is None else count != noted,
        f"left {ran.left}": bool(ran.left),
    }
    return [words for words, is_so in wrong.items() if is_so]


def check(
    states: tuple[Callable[[Place, ExitStack], None], ...],
    commands: tuple[str, ...] = tuple(COMMANDS),
    python: str = sys.executable,
) -> dict[str, int]:
    """Print a line for every state and command; return how many were clean, faulty, not tried."""
    counts = {"clean": 0, "faulty": 0, "not tried": 0}
    wanted: dict[str, str] = {}
    for state in (ordinary, *states):
        for command in commands:
            try:
                with made(state) as place:
                    out = (str(place.folder / "out"),) if command == "trace" else ()
                    ran = run(place, (*COMMANDS[command], *out), python)
                    found = faults(ran, wanted.setdefault(command, ran.numbers), place.noted)
            except CannotTry as error:
                counts["not tried"] += 1
                print(f"not tried  {command:6} {state.__name__}: {error}")
                continue
            counts["faulty" if found else "clean"] += 1
            words = "; ".join(found) + f": {ran.errors[-300:].strip()}" if found else ""
            print(
                f"{'FAULTY' if found else 'clean':10} {command:6} {state.__doc__} {words}".rstrip()
            )
    print(", ".join(f"{number} {name}" for name, number in counts.items()))
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable, help="an interpreter all may run")
    parser.add_argument("--all", action="store_true", help="what cannot be tried is a fault")
    asked = parser.parse_args()
    found = check(STATES, python=asked.python)
    sys.exit(bool(found["faulty"] or (asked.all and found["not tried"])))
