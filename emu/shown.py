"""Values of a user as an error message shows them: one short line that prints."""

import re
import sys
from typing import Any

LONG = re.compile(r"\S{300,}")  # no path or word that somebody meant to be read

MOST = 80  # characters
DIGITS = 40  # of a whole number that is written out


def shown(x: Any) -> str:
    """Return any value as a message shows it; it never raises an error.

    Example:
        >>> shown("P"), shown(0.5), shown(10**5000), shown(len)
        ("'P'", '0.5', 'a whole number of 16610 bits', 'a builtin_function_or_method')
    """
    if isinstance(x, str) and type(x).__module__ == "numpy":
        x = str(x)
    if isinstance(x, int) and x.bit_length() > 3 * DIGITS:
        return f"a whole number of {x.bit_length()} bits"
    if described := _of_array(x):
        return described
    try:
        text = repr(x)
    except Exception:
        return f"a {type(x).__name__}"
    if text.startswith("<") and not isinstance(x, str):
        return f"the type {x.__name__}" if isinstance(x, type) else f"a {type(x).__name__}"
    text = "".join(c if c.isprintable() else " " if c == "\n" else ascii(c)[1:-1] for c in text)
    return cut(text)


def cut(text: str, most: int = MOST) -> str:
    """Return a text as an error shows it: of a long one the beginning, and how long it is.

    Example:
        >>> cut("x" * 100_000, 4)
        'xxxx... (100,000 characters)'
    """
    return text if len(text) <= 2 * most else f"{text[:most]}... ({len(text):,} characters)"


def _of_array(x: Any) -> str:
    """Return an array or tensor with axes in words, since its numbers may be many or none."""
    numpy: Any = sys.modules.get("numpy")
    of_torch = type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "layout")
    of_jax = "jax" in sys.modules and isinstance(x, sys.modules["jax"].Array)
    of_numpy = numpy is not None and isinstance(x, numpy.ndarray)
    if not (of_torch or of_jax or (of_numpy and x.ndim)):
        return ""
    whose = "a PyTorch tensor" if of_torch else "a JAX array" if of_jax else "an array"
    try:
        return f"{whose} of shape {tuple(x.shape)}"
    except Exception:  # a nested tensor has no shape
        return whose


def tidy(text: str) -> str:
    r"""Return a message without control characters, its longest words cut.

    Example:
        >>> tidy("layers.0\x1b[2J\n")
        'layers.0\\x1b[2J\\n'
    """
    short = LONG.sub(lambda found: f"{found[0][:MOST]}... ({len(found[0]):,} characters)", text)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)
