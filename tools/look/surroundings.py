"""What `doctor` looks at outside the package: caches, folders and settings that change a run.

Whatever can be tried is tried, not guessed from names of variables.
"""

import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from roundscope.emu.backends.kept import cache_folder, notes, read_kept, writing_fails
from roundscope.emu.backends.threads import kept_folder
from roundscope.tools import compile_cache
from roundscope.tools.errors import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing outside the package.

    name    what was looked at
    seen    what was found, in words
    right   whether it is as it should be
    do      what to do if not; '' if nothing
    """

    name: str
    seen: str
    right: bool
    do: str = ""


def findings() -> Iterator[Finding]:
    """Yield what is found, the caches before anything is compiled and so repaired."""
    import llvmlite
    import numba

    def is_damaged(file: Path) -> bool:
        return read_kept(file.parent, file.name) is None

    for compiler, version in ("fused", llvmlite.__version__), ("numba", numba.__version__):
        yield cache(f"cache of {compiler} kernels", kept_folder(compiler, version), is_damaged)
    yield cache("cache of JAX", cache_folder("jax"), compile_cache.is_damaged)
    yield importing(Path.cwd())
    yield jax_platform()
    yield picture()


def cache(name: str, folder: Path | None, is_damaged: Callable[[Path], bool]) -> Finding:
    """Return whether the files of a folder are whole, and who may write there.

    folder: None if there is none; then the last note says why
    """
    if folder is None:
        seen, do = notes()[-1].rsplit("; ", 1)
        return Finding(name=name, seen=seen, right=False, do=do)
    files = [*folder.iterdir()]
    seen, remove = f"{folder}: {len(files)} files", f"rm -r '{folder}'"
    if why := writing_fails(folder):
        do = "make it writable, free some space, or set XDG_CACHE_HOME to another folder"
        return Finding(name=name, seen=f"{folder}: {why}", right=False, do=do)
    if folder.stat().st_mode & 0o022:
        do = f"{remove}, unless you trust who can: what lies there runs as you"
        return Finding(name=name, seen=f"{seen}; other users may write there", right=False, do=do)
    if damaged := sum(map(is_damaged, files)):
        do = f"{remove}; until then they are compiled anew"
        return Finding(name=name, seen=f"{seen}, {damaged} damaged", right=False, do=do)
    return Finding(name=name, seen=f"{seen}, all whole", right=True)


def importing(folder: Path) -> Finding:
    """Return what `import roundscope` finds in a Python that is started in this folder.

    Above a clone, the clone's folder hides an editable installation that is a finder and no folder
    on the path, as those of older versions are: as a package without content.
    """
    paths = [str(folder), *(p for p in sys.path if p)]
    spec = importlib.machinery.PathFinder.find_spec("roundscope", paths)
    own = Path(__file__).parents[2].resolve()
    name = "import roundscope"
    if spec is not None and spec.origin is None:
        where = folder / "roundscope"
        seen = f"in {folder} it is the folder {where}, which is no package: it has no attend"
        do = f"run  pip install --editable {where}  again, or start Python in another folder"
        return Finding(name=name, seen=seen, right=False, do=do)
    if spec is not None and (found := Path(str(spec.origin)).parent).resolve() != own:
        do = "start Python in another folder, or set PYTHONPATH, if you meant this one"
        return Finding(name=name, seen=f"{found}; this one is {own}", right=False, do=do)
    return Finding(name=name, seen="this package", right=True)


def jax_platform() -> Finding:
    """Return whether JAX starts on the platform that it was told, or that it found."""
    import jax

    asked = os.environ.get("JAX_PLATFORMS")
    said = "JAX_PLATFORMS is not set" if asked is None else f"JAX_PLATFORMS={asked}"
    try:
        platform = jax.devices()[0].platform
    except (RuntimeError, AssertionError) as error:  # the second for a plugin that is not installed
        seen = f"{said}: {one_line(error)}"
        do = "unset JAX_PLATFORMS or set it to cpu; only --engine numpy works until then"
        return Finding(name="JAX's platform", seen=seen, right=False, do=do)
    return Finding(name="JAX's platform", seen=f"{said}: it computes on {platform}", right=True)


def picture() -> Finding:
    """Return whether matplotlib draws with this user's settings."""
    do = "unset MPLBACKEND"
    try:
        import matplotlib

        settings = matplotlib.matplotlib_fname()
        do = f"unset MPLBACKEND; remove text.usetex and what the message names from {settings}"
        from roundscope.tools.report import pictures

        figure, axes = pictures.canvas(1.0)
        axes[0, 0].set_title("a title")
        pictures.png(figure)
    except Exception as error:  # whatever a setting, a backend or a program of TeX makes of it
        seen = one_line(error)[:200]
        return Finding(name="matplotlib's settings", seen=seen, right=False, do=do)
    seen = f"a picture was drawn with {settings}"
    return Finding(name="matplotlib's settings", seen=seen, right=True)
