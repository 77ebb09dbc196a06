"""The verdict on one hostile case, the words of a message that is amiss, and a limit of time."""

import math
import signal
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

INTERNALS = (
    "Traceback",
    "Warning",
    "[Errno",
    "object has no attribute",
    "object is not",
    "object cannot be",
    "NoneType",
    "invalid literal",
    "not supported between",
    "unsupported operand",
    "could not broadcast",
    "positional argument",
    "keyword argument",
    "list index out of range",
    "index out of range",
    "max() ",
    "min() ",
    "must be real number",
    "could not convert",
    "cannot convert",
    "can't convert",
    "too large to convert",
    "int too big",
    "Exceeds the limit",
    "math domain",
    "math range",
    "ufunc",
    "numba",
    "TracerArrayConversion",
    "ConcretizationType",
    "jax.errors",
    "Storage",
    "as_strided",
    "embedded null",
    "codec can't",
    "<built-in",
    "object at 0x",
)


class Late(BaseException):
    """A case works too long."""


@contextmanager
def strictly(seconds: int) -> Iterator[None]:
    """Raise Late where what runs inside takes longer than this, and turn warnings into errors."""

    def late(number: int, frame: Any) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.alarm(0)


class Verdict(NamedTuple):
    """A case: what was tried, what is wrong with the answer ("" if nothing), and the answer."""

    case: str
    fault: str
    answer: str = ""


@dataclass(slots=True)
class Asked:
    """The cases that are asked: those whose name has a text, or an equal part of them.

    A name is in the part that its CRC-32 falls in, so that parts are the same on every machine.
    Where the clock (time.monotonic) has passed `until`, a case is no longer asked, but counted in
    `left`.
    """

    only: str = ""
    part: int = 0
    parts: int = 1
    until: float = math.inf
    left: int = 0

    def __contains__(self, case: object) -> bool:
        name = str(case)
        wanted = self.only in name and zlib.crc32(name.encode()) % self.parts == self.part
        is_late = wanted and time.monotonic() > self.until
        self.left += is_late
        return wanted and not is_late


ALL = Asked()


def fault_of_message(text: str, *names: str) -> str:
    """Return what is wrong with an error message, or nothing.

    names: the words of which the message has to say one: the argument, or its value.
    """
    if any(inner in text for inner in INTERNALS):
        return "internals"
    if any(not c.isprintable() and c != "\n" for c in text):
        return "control characters"
    if len(text) > 1500:
        return "too long"
    if names and not any(name.lower() in text.lower() for name in names if name):
        return "names neither argument nor value"
    return ""
