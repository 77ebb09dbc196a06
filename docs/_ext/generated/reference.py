"""What a page of autodoc's directives says, as text: calls, what they take and return, examples.

The built site makes these pages of the docstrings; a reader of the repository finds the same as
plain reStructuredText, and the directives in a comment at the end.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .names import called

REFERENCE = Path(__file__).parents[2] / "reference"
DIRECTIVE = re.compile(
    r"^ {3}\.\. (?:auto|py:)(function|class|module|data):: ([\w.]+)\n((?: {6}:[\w-]+:.*\n)*)"
    r"(?:\n {6}(\S.*(?:\n {6}.*)*))?",
    re.M,
)
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?|Note|Notes):$")
ITEM = re.compile(r"^ {4}(\*{0,2}[\w.]+)(?: \([^)]*\))?:\s*(.*)$")
TITLES = {"Args": "Takes", "Attributes": "Has", "Example": "Example", "Examples": "Examples"}
BARS = re.compile(r"\|(\w+)\|")
NAME = re.compile(r"(?<![`:\w])`([^`\n]+)`(?![`_])")


def reference(name: str) -> str:
    """Return the text of a page of the reference, such as "attention.rst"."""
    page = (REFERENCE / name).read_text(encoding="utf-8")
    title = "Calls, arguments and results"
    blocks = [f"{title}\n{'-' * len(title)}"]
    for found in DIRECTIVE.finditer(page):
        if found[1] == "data":
            blocks += [f"{found[2]}\n{'~' * len(found[2])}", _literal(inspect.cleandoc(found[4]))]
        else:
            blocks += _described(found[1], found[2], found[3])
    return "\n\n".join(blocks)


def _described(kind: str, path: str, options: str) -> Iterator[str]:
    """Yield the blocks of one directive."""
    thing = _found(path)
    if kind == "module":
        if ":members:" in options and ":no-members:" not in options:
            imported = ":imported-members:" in options
            for name, each in _members(thing, imported):
                yield from _one(f"{path}.{name}", each, members=False)
        return
    yield from _one(path, thing, members=":members:" in options)


def _one(path: str, thing: Any, *, members: bool) -> Iterator[str]:
    """Yield a heading, the call, and the docstring of a function or class."""
    yield f"{path}\n{'~' * len(path)}"
    call = called(path.rpartition(".")[2], thing)
    if call.endswith(")"):
        yield f"``{call}``"
    yield from _docstring(inspect.getdoc(thing) or "")
    for name, each in _methods(thing) if members else ():
        of = each.fget if isinstance(each, property) else each
        text = called(name, each.__func__ if isinstance(each, classmethod) else each)
        first = " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split())
        yield f"``{text.replace('(self, ', '(').replace('(self)', '()')}``\n    {_literal(first)}"


def _docstring(text: str) -> Iterator[str]:
    """Yield the blocks of a docstring in the style of Google as reStructuredText."""
    title, lines = "", []
    for line in [*text.splitlines(), "Note:"]:
        if found := SECTION.match(line):
            yield from _section(title, lines)
            title, lines = found[1], []
        else:
            lines.append(line)


def _section(title: str, lines: list[str]) -> Iterator[str]:
    body = "\n".join(lines).strip("\n")
    if not body.strip():
        return
    if not title:
        yield _literal(body)
        return
    yield f"**{TITLES.get(title, title)}**"
    if title not in ("Args", "Attributes", "Raises"):
        yield _literal(inspect.cleandoc(body))
        return
    items: list[list[str]] = []
    for line in body.splitlines():
        if found := ITEM.match(line):
            items.append([f"``{found[1]}``", f"    {found[2]}"])
        elif items and (line.strip() or items[-1][-1].strip()):
            items[-1].append(f"    {line.removeprefix(' ' * 8)}".rstrip())
    yield "\n".join(_literal("\n".join(item)) for item in items)


def _literal(text: str) -> str:
    """Return text in which names in single backquotes are literals, and other marks are none."""
    text = BARS.sub(r"\\|\1\\|", text.replace(" *, ", r" \*, "))
    text = re.sub(r":[a-z:]+:`~?([^`<]+?)(?: <[^`]*>)?`", r"``\1``", text)
    return NAME.sub(r"``\1``", text)


def _found(path: str) -> Any:
    """Return a module, or what a module has, by its dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(_found(module), name)


def _members(module: Any, imported: bool) -> list[tuple[str, Any]]:
    """Return the public functions and classes of a module, in the order of its source."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    found = [(n, getattr(module, n)) for n in names if callable(getattr(module, n))]
    own = bool(getattr(module, "__all__", None)) or imported
    return [(n, x) for n, x in found if own or x.__module__ == module.__name__]


def _methods(thing: Any) -> list[tuple[str, Any]]:
    """Return the public methods and properties of a class that have a docstring of their own."""
    kinds = (property, classmethod, staticmethod)
    return [
        (name, each)
        for name, each in vars(thing).items()
        if not name.startswith("_") and (inspect.isfunction(each) or isinstance(each, kinds))
    ]
