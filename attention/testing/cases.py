"""One question that a kernel was asked, and its answer."""

import time
import traceback
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Answer(StrEnum):
    """The kinds of answers; only FAIL is a failure."""

    PASS = "pass"
    NOTE = "note"
    FAIL = "fail"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question and its answer.

    Attributes:
        test: The test that it belongs to, such as "edges".
        name: The question in a few words.
        answer: The answer.
        sentence: What was found, in a sentence.
        seconds: How long it took.
        is_lost: Whether numbers were lost: infinite or NaN where the plan's are finite.
        is_strict: Whether a note is a failure where somebody asked to be strict.
    """

    test: str
    name: str
    answer: Answer
    sentence: str
    seconds: float = 0.0
    is_lost: bool = False
    is_strict: bool = False


class Verdict(NamedTuple):
    """The answer to a question, before it is a case: see `Case`."""

    answer: Answer
    sentence: str
    is_lost: bool = False
    is_strict: bool = False


class KernelExit(RuntimeError):
    """A kernel, or the module that it is in, ended the process instead of returning a result."""


def strict(case: Case) -> Case:
    """Return a case as it counts if one is strict: some notes are failures."""
    return replace(case, answer=Answer.FAIL) if _is_noted(case) else case


def _is_noted(case: Case) -> bool:
    return case.is_strict and case.answer is Answer.NOTE


def raised(error: Exception) -> str:
    """Return an error in words, with the line of the user's code that raised it.

    Example:
        >>> raised(ValueError("tokens: at least 16"))
        'ValueError: tokens: at least 16'
    """
    own, installed = Path(__file__).parent, ("site-packages", "dist-packages", "<")
    frames = [
        f
        for f in traceback.extract_tb((error.__cause__ or error).__traceback__)
        if Path(f.filename).parent != own and not any(i in f.filename for i in installed)
    ]
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    words = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}{at}" + (f": {words}" if words else "")


def not_run(test: str, name: str, error: Exception, began: float) -> Case:
    """Return the case of a call that raised an error; `began` is when it was made.

    A kernel that ends the process fails; any other error says that it does not take this call.
    """
    is_exit = isinstance(error, KernelExit)
    return Case(
        test=test,
        name=name,
        answer=Answer.FAIL if is_exit else Answer.NOT_RUN,
        sentence=f"The kernel does not take this call ({raised(error)}).",
        seconds=time.perf_counter() - began,
    )
