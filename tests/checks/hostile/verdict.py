"""What one hostile case came to."""

from typing import NamedTuple

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


class Verdict(NamedTuple):
    """A case: what was tried, what is wrong with the answer ("" if nothing), and the answer."""

    case: str
    fault: str
    answer: str = ""


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
