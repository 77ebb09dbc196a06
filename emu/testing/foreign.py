"""Calls of functions that are not ours: whatever they do becomes a result or one error.

A kernel or a cast may raise, end the process, hang, print into our results, or leave the process
changed for everybody after it. `call_foreign` is the one place where such a function is called.
"""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.errors import Problem

SHOWN = 160  # characters of a foreign message that are shown
AGAIN = 1.0  # seconds after which a function that passed over the end of its time is told again
OURS = Path(__file__).resolve().parents[2]

Restore = Callable[[Any], object]


class ForeignError(Problem):
    """A function that is not ours gave no result, or did what no kernel or cast may do.

    Attributes:
        words: What it did, in words without a subject, such as "returned None".
        is_refusal: Whether it raised an ordinary error, as one does that does not take a call. All
            else is a fault.
    """

    def __init__(self, what: str, words: str, is_refusal: bool = False) -> None:
        super().__init__(what, None, words)
        self.words, self.is_refusal = words, is_refusal


class _TimeIsUp(BaseException):
    """The time of a call is over; no `except Exception` of the function passes over it."""


def is_refusal(error: Exception) -> bool:
    """Return whether an error of a call says that the call is not taken, and is no fault."""
    return not isinstance(error, ForeignError) or error.is_refusal


def raised(error: BaseException) -> str:
    """Return an error in words, with the line of the user's code that raised it.

    Example:
        >>> raised(ValueError("tokens: at least 16"))
        'ValueError: tokens: at least 16'
    """
    if isinstance(error, ForeignError):
        return error.words.removeprefix("raised ")
    installed = ("site-packages", "dist-packages", "<")
    ours = [OURS / part for part in ("emu", "attention", "operations", "experiments")]
    frames = [
        f
        for f in traceback.extract_tb((error.__cause__ or error).__traceback__)
        if not any(Path(f.filename).resolve().is_relative_to(folder) for folder in ours)
        and not any(i in f.filename for i in installed)
    ]
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    words = " ".join(str(error).split())[:SHOWN]
    return f"{type(error).__name__}{at}" + (f": {words}" if words else "")


def ends(error: SystemExit) -> str:
    """Return that a function ended the process, in words."""
    return f"ends the process (SystemExit, code {error.code})"


def call_foreign(function: Callable[..., Any], *given: Any, what: str = "kernel") -> Any:
    """Return what a function that is not ours returns; NumPy's warnings of numbers are left out.

    Args:
        function: The function.
        given: Its arguments.
        what: What it is called in an error message.

    Raises:
        ForeignError: It raised an error, ended the process, took longer than `limited` allows,
            wrote to stdout, or changed what is everybody's: NumPy's error state, the seeds of
            random numbers, the folder, PyTorch's or JAX's defaults. These are put back.
        KeyboardInterrupt: Somebody pressed Ctrl-C.

    Example:
        >>> call_foreign(lambda x: x + 1, 2)
        3
        >>> try:
        ...     call_foreign(lambda: exit(0))
        ... except ForeignError as error:
        ...     print(error)
        kernel: ends the process (SystemExit, code 0)
    """
    before = _random_state()
    result = _called(function, given, what)
    after = _random_state()
    if changed := [name for name, state in after.items() if before.get(name, state) != state]:
        _skip(changed)
        result = _called(function, given, what)
        again = _random_state()
        if seeded := [name for name in changed if again[name] == after[name]]:
            _put_back(before)
            raise ForeignError(
                what,
                f"sets the seed of {seeded[0]}, which is everybody's; use a generator of its own,"
                " as numpy.random.default_rng(seed)",
            )
    return result


def _called(function: Callable[..., Any], given: tuple[Any, ...], what: str) -> Any:
    """Return what a function returns; raise ForeignError for all but seeds."""
    printed = io.StringIO()
    # "call" is a state that nobody else chooses, so that any that a function sets is seen
    states = np.errstate(all="call", call=_ignored)
    with warnings.catch_warnings(), states, redirect_stdout(printed):
        warnings.simplefilter("ignore")
        before = {name: get() for name, (get, _) in _shared().items()}
        try:
            result = function(*given)
        except (KeyboardInterrupt, ForeignError):
            raise
        except SystemExit as error:
            raise ForeignError(what, ends(error)) from error
        except Exception as error:  # whatever a library raises
            raise ForeignError(what, f"raised {raised(error)}", is_refusal=True) from error
        except BaseException as error:  # what no `except Exception` catches
            raise ForeignError(what, f"raised {raised(error)}") from error
        finally:
            changed = [
                name
                for name, (get, put) in _shared().items()
                if name in before and get() != before[name] and (put(before[name]), True)
            ]
    if changed:
        raise ForeignError(what, f"changes {changed[0]}, which is everybody's; put it back")
    if text := printed.getvalue():
        shown = repr(text[:40]) + ("..." if len(text) > 40 else "")
        raise ForeignError(what, f"writes to stdout ({shown}), where results go; use stderr")
    return result


def _ignored(kind: str, flag: int) -> None:
    """Let numbers overflow, underflow and be NaN."""


def _shared() -> dict[str, tuple[Callable[[], Any], Restore]]:
    """Return what a process has one of, by name: how to read it, and how to put it back.

    Libraries that are not imported have nothing. PyTorch's number of threads is left out: Numba's
    OpenMP sets it too, when a function of Numba first runs.
    """
    found: dict[str, tuple[Callable[[], Any], Restore]] = {
        "NumPy's error state (numpy.seterr)": (np.geterr, lambda x: np.seterr(**x)),
        "NumPy's print options": (np.get_printoptions, lambda x: np.set_printoptions(**x)),
        "the current folder (os.chdir)": (_folder, os.chdir),
    }
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "compile"):  # it is whole, and not being imported
        found |= {
            "PyTorch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
            "PyTorch's default device": (torch.get_default_device, torch.set_default_device),
            "PyTorch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
            "PyTorch's precision of float32 products": (
                torch.get_float32_matmul_precision,
                torch.set_float32_matmul_precision,
            ),
            "PyTorch's choice of deterministic algorithms": (
                torch.are_deterministic_algorithms_enabled,
                torch.use_deterministic_algorithms,
            ),
            "PyTorch's flushing of subnormal numbers": (_flushes, torch.set_flush_denormal),
        }
    jax: Any = sys.modules.get("jax")
    if hasattr(jax, "jit"):
        for option in ("jax_enable_x64", "jax_default_matmul_precision"):
            found[f"JAX's {option}"] = (
                partial(getattr, jax.config, option),
                partial(jax.config.update, option),
            )
    return found


def _flushes() -> bool:
    """Return whether this thread flushes subnormal numbers to 0, of which PyTorch has no getter."""
    return bool(np.multiply(np.float32(2.0**-126), np.float32(0.5)) == 0.0)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _random_state() -> dict[str, Any]:
    """Return the states of the generators that a process shares, by name."""
    name, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "numpy.random": (name, np.asarray(keys).tobytes(), *rest),
        "random": random.getstate(),
    }
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "compile"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _skip(names: list[str]) -> None:
    """Draw one number of each named generator, so that a second call finds another state."""
    if "numpy.random" in names:
        np.random.random()
    if "random" in names:
        random.random()
    if "torch" in names:
        sys.modules["torch"].rand(1)


def _put_back(states: dict[str, Any]) -> None:
    name, keys, *rest = states["numpy.random"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
    random.setstate(states["random"])
    if "torch" in states:
        torch: Any = sys.modules["torch"]
        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))


def check_timeout(seconds: float | None) -> None:
    """Raise ValueError for a time that cannot be kept here."""
    if seconds is None:
        return
    if not 0.0 < seconds < 1e8:
        raise ValueError(f"timeout={seconds}: give seconds above 0, or leave it out for no limit")
    if not hasattr(signal, "setitimer"):
        raise ValueError(f"timeout={seconds}: needs a POSIX system; leave it out")
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(f"timeout={seconds}: works in the main thread alone; leave it out")


def limited(
    function: Callable[..., Any], seconds: float | None, *given: Any, what: str = "kernel"
) -> Any:
    """Return what a function returns, or raise ForeignError after so many seconds; None: no limit.

    A signal ends the call. It cannot end a call of C, of a GPU or of a compiled program before that
    returns to Python, nor a loop that catches BaseException each time around.

    Example:
        >>> try:
        ...     limited(lambda: sum(1 for _ in iter(int, 1)), 0.1)
        ... except ForeignError as error:
        ...     print(error)
        kernel: runs longer than 0.1 seconds, its --timeout
    """
    if seconds is None:
        return function(*given)
    check_timeout(seconds)
    with _alarm(seconds):
        try:
            return function(*given)
        except (_TimeIsUp, ForeignError) as error:
            if isinstance(error, ForeignError) and not isinstance(error.__cause__, _TimeIsUp):
                raise
    raise ForeignError(what, f"runs longer than {seconds:g} seconds, its --timeout")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in the main thread after so many seconds, and then each second again."""

    def end(number: int, frame: Any) -> None:
        raise _TimeIsUp

    handler = signal.signal(signal.SIGALRM, end)
    rest, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if rest:  # somebody else's alarm, such as a test runner's
            signal.setitimer(signal.ITIMER_REAL, max(rest - seconds, 0.01), interval)
