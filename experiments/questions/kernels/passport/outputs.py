"""Files that `writer` wrote, in whatever environment: what a kernel returned, and where."""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.plain_data import misfit, parsed
from roundscope.emu.whole_files import read_whole
from roundscope.experiments.questions.kernels.passport.writer import calls
from roundscope.experiments.questions.kernels.passport.writer.write import FORMAT
from roundscope.tools.errors import UsageError, bad, one_line, printable

_TEXTS = ("format", "kernel", "library", "version", "operation", "type", "device", "failed")
SHAPE = dict.fromkeys(_TEXTS, str) | {
    "versions": {str: str},
    "seed": int,
    "inputs": {str: str},
    "settings": {str: float},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one kernel returned for one type of numbers.

    about    what the writer says: kernel, library, versions, device, seed, digests of the inputs
    results  float32 arrays by name; none of a kernel that failed
    """

    about: dict[str, Any]
    results: dict[str, np.ndarray]


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder and of those in it. Raises UsageError where there is none."""
    found = sorted(folder.rglob("*.npz")) if folder.is_dir() else []
    if not found:
        repair = "has no .npz file; give the folder that `python -m writer FOLDER` wrote"
        raise bad("--written", str(folder), repair)
    return found


def read(path: Path) -> Written:
    """Return the contents of a file.

    Raises:
        UsageError: It is not what the writer writes, was written by another one, or its kernel had
            other inputs than the calls have here.
    """
    try:
        with np.load(io.BytesIO(read_whole(path)), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = parsed(str(arrays.pop("about")))
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise bad("--written", str(path), f"is no file of the writer ({one_line(error)})") from None
    if isinstance(about, dict) and about.get("format") not in (None, FORMAT):
        told = f"has the format {printable(str(about['format']))}, and this release reads {FORMAT}"
        raise bad("--written", str(path), f"{told}; take the writer of this release")
    if amiss := misfit(about, SHAPE):
        raise bad("--written", str(path), f"is no file of the writer ({amiss})")
    _check(path, about, arrays)
    return Written(about=about, results=arrays)


def _check(path: Path, about: dict[str, Any], results: dict[str, np.ndarray]) -> None:
    """Raise UsageError for other inputs than ours, and for results of other shapes."""
    operation = about["operation"]
    if operation not in calls.SEEDS or about["type"] not in calls.TYPES:
        told = f"{printable(operation)} in {printable(about['type'])}"
        raise bad("--written", str(path), f"is of {told}, which this release has no call of")
    own = {name: calls.digest(x) for name, x in calls.inputs(operation).items()}
    if about["inputs"] != own:
        repair = "was written for other inputs than those of this release; write it again"
        raise bad("--written", str(path), repair)
    if about["failed"]:
        return
    if "out" not in results:
        raise bad("--written", str(path), "has no result named out")
    shape = calls.inputs(operation)[_first(operation)].shape
    for name, x in results.items():
        if x.shape != shape or x.dtype != np.float32:
            told = f"its {printable(name)} is {x.dtype} {x.shape}, must be float32 {shape}"
            raise UsageError(f"--written={path}: {told}")


def _first(operation: str) -> str:
    return {"attention": "q", "silu_mul": "gate"}.get(operation, "x")
