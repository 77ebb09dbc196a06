"""Errors that a user can repair, and the name that somebody may have meant."""

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from roundscope.emu.shown import cut, shown, tidy

Function = TypeVar("Function", bound=Callable[..., Any])


class Problem(ValueError):
    """A value that cannot be used, in parts, so that each layer names the argument as it is written
    there: `kernel=` in Python, KERNEL on the command line.

    Attributes:
        argument: What the value is given as; "" if it is told by itself.
        value: The value as the message shows it; None if it does not.
        repair: What is wrong with it, and what to give instead.

    Example:
        >>> str(Problem("kernel", "m:f", "takes no scale; add the keyword"))
        'kernel=m:f: takes no scale; add the keyword'
    """

    def __init__(self, argument: str, value: str | None, repair: str) -> None:
        self.argument, self.value, self.repair = argument, value, repair

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.argument}: {self.repair}"
        named = f"{self.argument}=" if self.argument else ""
        return f"{named}{self.value}: {self.repair}"


def unknown(what: str, name: str, known: Iterable[object], repair: str = "") -> str:
    """Return one line for an unknown name, with the known names and the nearest of them.

    Example:
        >>> unknown("engine", "xxl", ("numpy", "xla"))
        "unknown engine 'xxl'; did you mean 'xla'? Known: numpy xla"
    """
    names, like = [str(k) for k in known], cut(name) if isinstance(name, str) else ""
    near = difflib.get_close_matches(like.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    hint = next((f"; did you mean '{n}'?" for n in names if near and n.lower() == near[0]), "")
    return (
        f"unknown {what} {shown(name)}{hint or '.'} Known:"
        f" {' '.join(names)}{' ' + repair if repair else ''}"
    )


def tidy_errors(function: Function) -> Function:
    """Return a function that reads texts, whose messages show them tidily."""

    @functools.wraps(function)
    def reading(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except ValueError as error:
            if (plain := tidy(str(error))) == str(error):
                raise
            if isinstance(error, Problem):
                value = None if error.value is None else tidy(error.value)
                raise Problem(error.argument, value, tidy(error.repair)) from None
            raise ValueError(plain) from None

    return cast(Function, reading)
