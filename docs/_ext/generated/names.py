"""Every public name of the package, with its arguments and the first sentence of its docstring."""

import enum
import importlib
import inspect
import re

from .cells import code, escaped, table

LONG = 90  # characters of a call beyond which its defaults are left out
SENTENCE = re.compile(r"(?<=[a-z0-9)\]`\"'][.:])\s+(?=[A-Z`])")


def names(package: str) -> str:
    """Return the table of the public names of a package, such as `roundscope.emu`."""
    module = importlib.import_module(package)
    rows = [
        [code(_call(name, thing)), escaped(_first(thing))]
        for name, thing in sorted(_public(module), key=lambda pair: pair[0].lower())
    ]
    return table((f"in `{package}`", "what it is"), rows)


def _public(module: object) -> list[tuple[str, object]]:
    return [
        (name, getattr(module, name))
        for name in module.__all__  # type: ignore[attr-defined]
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    ]


def called(name: str, thing: object) -> str:
    """Return a function or class as it is called, with every default; else the name alone."""
    return _call(name, thing, most=10_000)


def _call(name: str, thing: object, most: int = LONG) -> str:
    """Return a function or class as it is called; the name alone of what nobody calls."""
    if not callable(thing) or hasattr(thing, "__members__"):
        return name
    try:
        parameters = list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError):  # a type of functions
        return name
    whole = _joined(parameters, defaults=True)
    return f"{name}({whole if len(name + whole) <= most else _joined(parameters, defaults=False)})"


def _joined(parameters: list[inspect.Parameter], *, defaults: bool) -> str:
    words = []
    star = False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        words.append(stars + p.name + (_default(p.default) if defaults else ""))
    return ", ".join(words)


def _default(value: object) -> str:
    """Return a default as it is written; three dots for what is no number and no text."""
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, enum.Enum) and isinstance(value, str):
        return f"={value.value!r}"
    plain = value is None or isinstance(value, bool | int | float | str)
    return f"={value!r}" if plain else "=..."


def _first(thing: object) -> str:
    """Return the first sentence of a docstring; of a value, what it is an object of."""
    if not callable(thing):
        return f"A value, of type {type(thing).__name__}."
    paragraph = (inspect.getdoc(thing) or "A type.").split("\n\n")[0]
    return SENTENCE.split(" ".join(paragraph.split()), maxsplit=1)[0].replace("::", ".")
