"""One question that a kernel was asked, and its answer."""

import time
import unittest
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from roundscope.emu.testing.foreign import ForeignError, raised


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


def strict(case: Case) -> Case:
    """Return a case as it counts if one is strict: some notes are failures."""
    is_noted = case.is_strict and case.answer is Answer.NOTE
    return replace(case, answer=Answer.FAIL) if is_noted else case


def not_run(test: str, name: str, error: Exception, began: float) -> Case:
    """Return the case of a call that raised an error; `began` is when it was made.

    An ordinary error says that the kernel does not take this call; all else is a failure. A test
    that pytest skips (`Unavailable`) is no answer of the kernel: the error goes on.
    """
    if isinstance(error, unittest.SkipTest):
        raise error
    if isinstance(error, ForeignError) and not error.is_refusal:
        answer, sentence = Answer.FAIL, f"The kernel {error.words}."
    else:
        answer, sentence = Answer.NOT_RUN, f"The kernel does not take this call ({raised(error)})."
    seconds = time.perf_counter() - began
    return Case(test=test, name=name, answer=answer, sentence=sentence, seconds=seconds)
