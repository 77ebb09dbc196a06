"""A copy of the committed tree in a temporary folder, and the environment of its tests.

**No stale kernels.** Numba keeps compiled kernels in a folder whose name contains a digest of all
source files of `emu` (`roundscope.emu.backends.threads`), and finds them by the path of their
source file. JAX keeps compiled programs by a digest of the program itself. Here both folders lie
beside the copy, so a copy with a fault neither reads nor writes those of the user. A fault in `emu`
has another digest and therefore an empty folder. A fault in `attention`, which has no kernels of
its own, uses the kernels of the unchanged `emu`. The copy always has the same path, so that they
are found. Python's compiled modules lie there too; it knows them by the time and size of the
source, and a file with a fault has another time.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
# as in the Makefile: programs that are optimized less and compile in half the time
PLAIN = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def committed(root: Path = ROOT) -> bytes:
    """Return the committed tree as a tar archive; symbolic links are kept."""
    done = subprocess.run(
        ["git", "-C", str(root), "archive", "--format=tar", "HEAD"],
        check=True,
        capture_output=True,
    )
    return done.stdout


def renewed(folder: Path, archive: bytes) -> Path:
    """Return the path of a fresh copy of the tree in `folder`; an older copy there is deleted.

    Its files have the time of the commit, so that every copy looks the same to Numba's cache.
    """
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tree, filter="data")
    return tree


def environment(folder: Path, tree: Path) -> dict[str, str]:
    """Return the environment variables for tests of the copy, whose caches lie in `folder`."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return os.environ | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "PYTHONPATH": str(tree),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "XLA_FLAGS": PLAIN,
        "COLUMNS": "100",
    }


def check_own_package(folder: Path, tree: Path) -> None:
    """Raise RuntimeError unless tests of the copy import the copy's own package."""
    asked = "import roundscope.emu.roundings.rule as module; print(module.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tree,
        env=environment(folder, tree),
        check=True,
        capture_output=True,
        text=True,
    )
    found = Path(done.stdout.strip()).resolve()
    if not found.is_relative_to(tree.resolve()):
        raise RuntimeError(f"the copy's tests would import {found}, which is outside the copy")
