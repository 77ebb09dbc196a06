"""One question that a kernel was asked, and its answer."""

import time
from dataclasses import dataclass
from enum import StrEnum


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
    """

    test: str
    name: str
    answer: Answer
    sentence: str
    seconds: float = 0.0


def not_run(test: str, name: str, error: Exception, began: float) -> Case:
    """Return the case of a call that the kernel does not take; `began` is when it was made."""
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return Case(
        test=test,
        name=name,
        answer=Answer.NOT_RUN,
        sentence=f"The kernel does not take this call ({words}).",
        seconds=time.perf_counter() - began,
    )
