"""The default folder of a trace, named after file and plan, and never that of another request."""

import hashlib
import json
import re
from itertools import count
from pathlib import Path

from roundscope.experiments.trace.options import Request
from roundscope.experiments.trace.words import plan_changes


def digest(asked: Request, path: Path, layer: str | None = None, layout: str | None = None) -> str:
    """Return a digest of everything that decides what a trace writes.

    The version of the program and the contents of the file are not part of it.
    """
    whole = (str(path.resolve()), layer, layout, asked)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def folder_for(path: Path, asked: Request, request: str) -> Path:
    """Return the folder trace-<file>-<plan>, the plan with its changes of --set.

    It ends in -2, -3 and so on where the name without it holds another request. Characters that
    shells or file systems dislike become -. request: as `digest` gives it.
    """
    plan = "-".join([asked.plan.name.rstrip("*"), *plan_changes(asked.plan)])
    name = f"trace-{path.stem}-{re.sub(r'[^A-Za-z0-9_.=-]+', '-', plan)[:80]}"
    return free_folder(name, request, "trace.json")


def free_folder(name: str, request: str, record: str) -> Path:
    """Return the folder of that name, or name-2, name-3 and so on where it holds another request.

    record: the name of the JSON file in it that tells its request.
    """
    folders = (Path(name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(folder for folder in folders if _is_free(folder, request, record))


def _is_free(folder: Path, request: str, record: str) -> bool:
    """Return whether a folder does not exist, is empty, or holds the same request."""
    if not folder.is_dir():
        return not folder.exists()
    try:
        held = json.loads((folder / record).read_text(encoding="utf-8"))
        return bool(held.get("request") == request)
    except (OSError, ValueError, AttributeError):
        return not any(folder.iterdir())
