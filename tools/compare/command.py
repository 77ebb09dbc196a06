"""`roundscope compare`: run or read two runs of a model, compare them, and report.

A run is one of PyTorch or of JAX; nothing is imported of the library that no run is of.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from roundscope.operations.models.tape import Tape
from roundscope.tools.compare.options import CompareOptions
from roundscope.tools.compare.report import RECORD, report
from roundscope.tools.errors import UsageError, bad, shown
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.progress import telling
from roundscope.tools.results.folder import checked_folder

Library = Literal["PyTorch", "JAX"]
Tell = Callable[[str], None]


def run(options: CompareOptions) -> int:
    """Compare two runs, print the report and write the files. Return 1 if they differ, and else 0.

    Raises:
        ValueError: Two runs that cannot be compared, or a word that names none.
    """
    from roundscope.operations.models.replay import ReplayError

    if options.out is not None:
        checked_folder(options.out, RECORD)
    began = time.perf_counter()
    words = {"A": options.a, "B": options.b}
    with telling("compare") as tell:
        asked = {name: _read(word, name, tell) for name, word in words.items()}
        results = asked.pop("B") if isinstance(asked["B"], Path) else None
        libraries = {name: _library(x, words[name], name) for name, x in asked.items()}
        if len({*libraries.values()}) > 1:
            each = " and ".join(f"{name} {library}" for name, library in libraries.items())
            raise UsageError(f"runs of two libraries, {each}: compare runs of one")
        if results is not None and libraries["A"] == "JAX":
            raise bad("B", words["B"], "has results of another program; A must be one of PyTorch")
        comparing = _comparing(libraries["A"])
        try:
            tapes = [
                comparing.tape_of(x, f"{name} {shown(words[name])}", tell)
                for name, x in asked.items()
            ]
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error
        try:
            if results is None:
                found = comparing.compared(*tapes, tell)
            else:
                found = _with_results(tapes[0], results, words["B"], tell)
        except ReplayError as error:
            raise UsageError(str(error)) from None
    told = report(options, found, time.perf_counter() - began)
    deliver(told, options.out, RECORD, as_json=options.json)
    return 0 if found.equal else 1


def _with_results(a: Tape, path: Path, word: str, tell: Tell) -> Any:
    """Compare a run of PyTorch with results of another program.

    Raises:
        ValueError: They are of other tokens, or of no module of the run.
    """
    from roundscope.operations.models.torch.comparing.compare import compare

    tell(f"reading {path}")
    try:
        return compare(a, path, tell=tell)
    except ValueError as error:
        raise bad("B", word, str(error).removeprefix(f"{path}: ")) from None


def _comparing(library: Library) -> Any:
    """Return the module that compares runs of a library."""
    if library == "JAX":
        from roundscope.operations.models.jax import comparing as of_jax

        return of_jax
    from roundscope.operations.models.torch.comparing import compare as of_torch

    return of_torch


def _library(given: Any, word: str, argument: str) -> Library:
    """Return the library of a run: of the tape of a file, or of what a function returned.

    Raises:
        ValueError: It is no run of either.
    """
    if isinstance(given, Tape):
        return "JAX" if "jax" in given.about else "PyTorch"
    if torch := sys.modules.get("torch"):
        from roundscope.operations.models.torch.side import Side as TorchSide

        is_tuple = isinstance(given, tuple) and 2 <= len(given) <= 4
        side = TorchSide(*given) if is_tuple else given
        if isinstance(side, TorchSide) and isinstance(side.model, torch.nn.Module):
            return "PyTorch"
    if "jax" in sys.modules:
        from roundscope.operations.models.jax.comparing import side_of
        from roundscope.operations.models.jax.side import Side as JaxSide

        if isinstance(given, JaxSide) or (isinstance(given, tuple) and side_of(given)):
            return "JAX"
    raise bad(argument, word, "returned no (model, inputs)")


def _read(word: str, argument: str, tell: Tell) -> Any:
    """Return the tape of a file, what a function returns, or as B the path of other results.

    Raises:
        ValueError: There is no such file or function, or the file has no operations.
    """
    from roundscope.operations.models.tape_file import is_tape, load_tape

    found = _named(word, argument)
    if not isinstance(found, Path) or (argument == "B" and not is_tape(found)):
        return found
    tell(f"reading {found}")
    try:
        return load_tape(found)
    except ValueError as error:
        raise bad(argument, word, str(error).removeprefix(f"{found}: ")) from None


def given(word: str, argument: str) -> Any:
    """Return the run of PyTorch that a word names: a path, or what a function returns.

    Raises:
        ValueError: There is no such file or function, or it returns no run.
    """
    from torch import nn

    from roundscope.operations.models.torch.side import Side

    side = _named(word, argument)
    if isinstance(side, tuple) and 2 <= len(side) <= 4:
        side = Side(*side)
    is_run = isinstance(side, Side) and isinstance(side.model, nn.Module)
    if not is_run and not isinstance(side, Path):
        raise bad(argument, word, "returned no (model, inputs)")
    return side


def _named(word: str, argument: str) -> Any:
    """Return what a word names: a path, or what a function returns.

    Raises:
        ValueError: There is no such file or function, or it raised an error.
    """
    from roundscope.attention.testing.foreign.user import function_named
    from roundscope.emu.testing.foreign import raised

    path = Path(word)
    if path.is_file() or (path.is_dir() and argument == "B" and any(path.rglob("Pass*.pt"))):
        return path
    if ":" not in word or path.exists():
        what = "" if path.exists() else "no such file; "
        raise bad(argument, word, f"{what}must be a safetensors file, or module:function")
    function = function_named(word, argument)
    if not callable(function):
        raise bad(argument, word, "is no function; name one that returns (model, inputs)")
    try:
        return function()
    except Exception as error:  # whatever it raises
        raise bad(argument, word, f"raised {raised(error)}") from error
