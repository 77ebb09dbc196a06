"""Phrases that the reports of several verbs share."""

from collections.abc import Mapping, Sequence
from typing import Any


def listed(names: Sequence[str]) -> str:
    """Return the names as a list in words: "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def many(count: int, what: str) -> str:
    """Return a count with its noun: "1 cell", "2 cells"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def factor(x: float) -> str:
    """Return how many times something is as large: two digits, from 10 on a whole number.

    Example:
        >>> factor(1.25), factor(130.4), factor(5321.0)
        ('1.2', '130', '5,321')
    """
    return f"{x:,.0f}" if 9.95 <= x < 1e6 else f"{x:.2g}"


def launched(run: Mapping[str, Any]) -> str:
    """Return how many launches a page is of, and how many of them the last command ran."""
    if "there" in run:
        return (
            f"{run['there']} of {run['launches']}; the last command was interrupted after"
            f" {run['seconds']} s"
        )
    return f"{run['launches']}, {run['ran']} of them run by the last command in {run['seconds']} s"
