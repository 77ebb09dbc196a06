"""The command `check-cast`: is a user's cast or quantizer what it is meant to be?"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from roundscope.attention.grammar.roundings import event_of
from roundscope.attention.testing.foreign.user import LIBRARIES, function_named, library_of
from roundscope.emu.testing.casts import examine_cast
from roundscope.emu.testing.casts.records import Function
from roundscope.emu.testing.foreign import ForeignError, check_timeout, limited
from roundscope.tools.check_cast.options import CheckCastOptions
from roundscope.tools.check_cast.report import report
from roundscope.tools.errors import bad
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.junit import failed
from roundscope.tools.results.folder import checked_folder

RECORD = "check-cast.json"


def run(options: CheckCastOptions) -> int:
    """Check a cast, print the report and write the files. Return 1 if a row fails, and else 0.

    Raises:
        ValueError: for a format or a function that is not known.
    """
    function, out = options.function, options.out
    if out is not None:
        checked_folder(out, RECORD)
    rounding = event_of(options.format)
    check_timeout(options.timeout)
    cast, chosen = cast_named(function, options.library)
    began = time.perf_counter()
    name = f"check-cast {function} {options.format}"
    try:
        found = examine_cast(partial(_in_time, cast, options.timeout), rounding)
    except ForeignError as error:
        if error.is_refusal:
            raise
        return failed(options.junit, name, function, error)
    seconds = time.perf_counter() - began
    told = report(replace(options, library=chosen), found, seconds)
    deliver(told, out, RECORD, as_json=options.json, junit_file=options.junit)
    return 0 if found.passed else 1


def _in_time(cast: Function, timeout: float | None, x: np.ndarray) -> Any:
    return limited(cast, timeout, x, what="function")


def cast_named(name: str, library: str | None) -> tuple[Callable[[np.ndarray], Any], str]:
    """Return the cast that a user's function is, and the library whose arrays it is given.

    Args:
        name: the function, as module:function; the current folder is searched first.
        library: one of `LIBRARIES`; None for the one that the function's module has imported.

    Raises:
        ValueError: the function does not exist, or the library is not known.
    """
    if library is not None and library not in LIBRARIES:
        raise bad("--library", library, f"must be one of {', '.join(LIBRARIES)}")
    found = function_named(name, "FUNCTION")
    if not callable(found):
        raise bad("FUNCTION", name, "is no function; name one that takes an array")
    chosen = library or library_of(found)
    given = {"numpy": found, "torch": partial(_of_torch, found), "jax": partial(_of_jax, found)}
    return given[chosen], chosen


def _of_torch(function: Callable[[Any], Any], x: np.ndarray) -> Any:
    import torch

    with torch.no_grad():
        return function(torch.from_numpy(x))


def _of_jax(function: Callable[[Any], Any], x: np.ndarray) -> Any:
    import jax.numpy as jnp

    return function(jnp.asarray(x))
