"""The default folder of a trace, named after file and plan, and never that of another request."""

import hashlib
from pathlib import Path

from roundscope.tools.results.folder import as_word, free_folder
from roundscope.tools.tensors.overrides import AS_THE_FILE, Overrides
from roundscope.tools.trace.options import Request
from roundscope.tools.trace.report.words import plan_changes

RECORD, RECORDS = "trace.json", "records.npz"


def digest(
    asked: Request,
    path: Path,
    layer: str | None = None,
    layout: str | None = None,
    overrides: Overrides = AS_THE_FILE,
) -> str:
    """Return a digest of everything that decides what a trace writes.

    The version of the program and the contents of the file are not part of it.
    """
    whole = (str(path.resolve()), layer, layout, overrides, asked)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def folder_for(path: Path, asked: Request, request: str) -> Path:
    """Return the folder trace-<file>-<plan>, the plan with its changes of --set.

    It ends in -2, -3 and so on where the name without it holds another request. Records alone are
    what a trace left that was killed. Characters that shells or file systems dislike become -.
    request: as `digest` gives it.
    """
    plan = "-".join([asked.plan.name.rstrip("*"), *plan_changes(asked.plan)])
    name = f"trace-{path.stem}-{as_word(plan)[:80]}"
    return free_folder(name, request, RECORD, RECORDS)
