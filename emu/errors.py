"""Errors that a user can repair, and the name that somebody may have meant."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from roundscope.emu.shown import cut, shown, tidy

Function = TypeVar("Function", bound=Callable[..., Any])
MANY = 8  # names that a message suggests at most
LISTED = 24  # known names beyond which they are not listed where one may be meant


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


MEANT = {
    "fp4": ("e2m1fn",),
    "fp6": ("e3m2fn", "e2m3fn"),
    "fp8": ("e4m3fn", "e5m2"),
    "float8": ("e4m3fn", "e5m2"),
    "float16": ("fp16",),
    "half": ("fp16",),
    "float": ("fp32",),
    "single": ("fp32",),
    "double": ("fp64",),
    "trunc": ("toward-zero",),
    "truncate": ("toward-zero",),
    "rz": ("toward-zero",),
    "rtz": ("toward-zero",),
    "down": ("toward-negative",),
    "rd": ("toward-negative",),
    "up": ("toward-positive",),
    "ru": ("toward-positive",),
    "rn": ("ties-to-even",),
    "rne": ("ties-to-even",),
    "rna": ("ties-to-away",),
    "sr": ("stochastic",),
    "clip": ("saturate",),
    "clamp": ("saturate",),
}
"""Words of other libraries and of papers, and the names that they may stand for here."""


def unknown(
    what: str,
    name: str,
    known: Iterable[object],
    repair: str = "",
    also: Iterable[object] = (),
    elsewhere: str = "",
) -> str:
    """Return one line for an unknown name, with the known names and those that may be meant.

    These are the names that a word of another library stands for (`MEANT`), or those that the word
    is a part of, or the nearest one. also: names that may be meant but are not listed.
    elsewhere: what says the known names, in place of a list where a name may be meant. Without it
    a list of more than `LISTED` names is left out there.

    Example:
        >>> unknown("engine", "xxl", ("numpy", "xla"))
        "unknown engine 'xxl'; did you mean 'xla'? Known: numpy xla"
        >>> unknown("format", "fp8", ("fp64", "e5m2", "e4m3fn"))
        "unknown format 'fp8'; did you mean 'e4m3fn' or 'e5m2'? Known: fp64 e5m2 e4m3fn"
    """
    names, like = [str(k) for k in known], cut(name) if isinstance(name, str) else ""
    meant = [f"'{n}'" for n in _meant(like.lower(), [*names, *map(str, also)])]
    last = " or ".join(filter(None, (", ".join(meant[:-1]), *meant[-1:])))
    if meant and (elsewhere or len(names) > LISTED):
        return f"unknown {what} {shown(name)}; did you mean {last}? {elsewhere}".rstrip()
    hint = f"; did you mean {last}?" if meant else "."
    gap = " " if repair and repair[0] != ";" else ""
    return f"unknown {what} {shown(name)}{hint} Known: {' '.join(names)}{gap}{repair}"


def _meant(like: str, names: Sequence[str]) -> list[str]:
    """Return the names that a text in lower case may stand for, those that begin with it first."""
    if found := [n for n in MEANT.get(like, ()) if n in names]:
        return found
    if len(like) > 2 and (parts := [n for n in names if like in n.lower()]):
        return sorted(parts, key=lambda n: not n.lower().startswith(like))[:MANY]
    if turned := [
        n for n in names if sorted(n.lower()) == sorted(like)
    ]:  # letters in another order
        return turned[:1]
    near = difflib.get_close_matches(like, [n.lower() for n in names], n=1, cutoff=0.6)
    return [n for n in names if near and n.lower() == near[0]][:1]


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


def known_arguments(function: Function) -> Function:
    """Return a function that says which argument may be meant where it is given an unknown one.

    Example:
        >>> @known_arguments
        ... def call(*, is_causal=False): ...
        >>> call(causal=True)
        Traceback (most recent call last):
        TypeError: call: unknown argument 'causal'; did you mean 'is_causal'? Known: is_causal
    """
    code = inspect.unwrap(function).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names[code.co_posonlyargcount :])

    @functools.wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        if not known.issuperset(named):
            other = next(name for name in named if name not in known)
            raise TypeError(f"{function.__name__}: {unknown('argument', other, names)}")
        return function(*given, **named)

    return cast(Function, checked)
