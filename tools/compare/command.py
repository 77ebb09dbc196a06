"""`roundscope compare`: run or read two runs of a model, compare them, and report.

It needs PyTorch, whose functions the operations are.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roundscope.tools.compare.options import CompareOptions
from roundscope.tools.compare.report import RECORD, report
from roundscope.tools.errors import UsageError, bad, shown
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.progress import telling
from roundscope.tools.results.folder import checked_folder


def run(options: CompareOptions) -> int:
    """Compare two runs, print the report and write the files. Return 1 if they differ, and else 0.

    Raises:
        ValueError: Two runs that cannot be compared, or a word that names none.
    """
    from roundscope.operations.models.replay import ReplayError
    from roundscope.operations.models.torch.comparing import compare

    if options.out is not None:
        checked_folder(options.out, RECORD)
    began = time.perf_counter()
    with telling("compare") as tell:
        asked = [
            (given(word, name), word, name)
            for word, name in zip((options.a, options.b), "AB", strict=True)
        ]
        a, b = (_tape(*each, tell) for each in asked)
        try:
            found = compare(a, b, tell=tell)
        except ReplayError as error:
            raise UsageError(str(error)) from None
    told = report(options, found, time.perf_counter() - began)
    deliver(told, options.out, RECORD, as_json=options.json)
    return 0 if found.equal else 1


def _tape(given: Any, word: str, argument: str, tell: Callable[[str], None]) -> Any:
    """Return the tape of a run, or of the file at a path.

    Raises:
        ValueError: The run raised an error, or returned what cannot be compared, or the file has
            no operations.
    """
    from roundscope.operations.models.tape_file import load_tape
    from roundscope.operations.models.torch.candidates import revived
    from roundscope.operations.models.torch.recording import record

    if isinstance(given, Path):
        tell(f"reading {given}")
        try:
            return revived(load_tape(given))
        except ValueError as error:
            raise bad(argument, word, str(error).removeprefix(f"{given}: ")) from None
    tell(f"running {type(given.model).__name__}")
    try:
        return record(given, f"{argument} {shown(word)}")
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def given(word: str, argument: str) -> Any:
    """Return the run that a word names: a path, or what a function returns.

    Raises:
        ValueError: There is no such file or function, or it returns no run.
    """
    from torch import nn

    from roundscope.attention.testing.foreign.user import function_named
    from roundscope.emu.testing.foreign import raised
    from roundscope.operations.models.torch.recording import Side

    path = Path(word)
    if path.is_file():
        return path
    if ":" not in word or path.exists():
        what = "" if path.exists() else "no such file; "
        raise bad(argument, word, f"{what}must be a safetensors file, or module:function")
    function = function_named(word, argument)
    if not callable(function):
        raise bad(argument, word, "is no function; name one that returns (model, inputs)")
    try:
        side = function()
    except Exception as error:  # whatever it raises
        raise bad(argument, word, f"raised {raised(error)}") from error
    if isinstance(side, tuple) and 2 <= len(side) <= 4:
        side = Side(*side)
    if not isinstance(side, Side) or not isinstance(side.model, nn.Module):
        raise bad(argument, word, "returned no (model, inputs)")
    return side
