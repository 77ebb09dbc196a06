"""Markdown from plain text: escaped sentences, tables."""

import re
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\*_<>\[\]$|~#])")
OPTION = re.compile(r"(?<![\w`])(--[a-z][a-z-]*)")


def escaped(text: str) -> str:
    """Return plain text as Markdown that shows it as it is.

    What stands in backquotes and the name of an option are code.
    """
    parts = OPTION.sub(r"`\1`", " ".join(text.split())).split("`")
    odd = len(parts) % 2 == 0  # a backquote without its other
    return "".join(
        part if odd else f"`{part}`" if i % 2 else SPECIAL.sub(r"\\\1", part)
        for i, part in enumerate(parts)
    ).replace("`|", "`\\|")


def code(text: str) -> str:
    """Return text as code, in a form that a cell of a table takes; nothing for no text."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def codes(names: Iterable[str]) -> str:
    """Return names as code, separated by blanks."""
    return " ".join(map(code, names))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def paragraphs(docstring: str | None) -> str:
    """Return a docstring's paragraphs as Markdown."""
    return "\n\n".join(escaped(text) for text in (docstring or "").split("\n\n"))
