"""Where a trace goes when nobody says: a folder named after file and plan, never over the results
of another request.
"""

import hashlib
import json
import re
from itertools import count
from pathlib import Path

from roundscope.experiments.trace.options import Request
from roundscope.experiments.trace.words import plan_changes


def digest(asked: Request, path: Path, layer: str | None = None, layout: str | None = None) -> str:
    """Of everything that decides what a trace writes, but the version of the program and the
    contents of the file.
    """
    whole = (str(path.resolve()), layer, layout, asked)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def folder_for(path: Path, asked: Request, request: str) -> Path:
    """trace-<file>-<plan>, with the changes of --set; -2, -3 ... behind it where that holds another
    request.

    request  as `digest` gives it. Signs that shells or file systems dislike become -.
    """
    plan = "-".join([asked.plan.name.rstrip("*"), *plan_changes(asked.plan)])
    name = f"trace-{path.stem}-{re.sub(r'[^A-Za-z0-9_.=-]+', '-', plan)[:80]}"
    return free_folder(name, request, "trace.json")


def free_folder(name: str, request: str, record: str) -> Path:
    """The folder of that name; with -2, -3 ... behind it where that holds another request, by its
    file `record`.
    """
    folders = (Path(name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(folder for folder in folders if _is_free(folder, request, record))


def _is_free(folder: Path, request: str, record: str) -> bool:
    """Whether a folder is not there, is empty, or holds the same request."""
    if not folder.is_dir():
        return not folder.exists()
    try:
        return bool(
            json.loads((folder / record).read_text(encoding="utf-8")).get("request") == request
        )
    except (OSError, ValueError, AttributeError):
        return not any(folder.iterdir())
