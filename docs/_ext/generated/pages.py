"""Pages with parts that are made from the code, between two comments that name the function."""

import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from . import commands, tables
from .names import names
from .reference import reference

DOCS = Path(__file__).parents[2]
PART = re.compile(
    r"^(?P<open><!--|\.\.) made from the code: (?P<name>[\w.]+)(?: -->)?\n.*?"
    r"^(?P=open) end of (?P=name)(?: -->)?$",
    re.M | re.S,
)
HIDDEN = re.compile(
    r"^\.\. what the built site has instead:\n(?P<directives>(?:\n| {3}.*\n?)*)", re.M
)


def parts() -> Iterator[tuple[Path, str]]:
    """Yield each page with the name of each part of it."""
    for page in sorted([*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]):
        for found in PART.finditer(page.read_text(encoding="utf-8")):
            yield page, found["name"]


def made(name: str) -> str:
    """Return the Markdown of the function of this name in `tables` or `commands`.

    The name of a package, such as `roundscope.emu`, stands for the table of its public names, and
    that of a page, such as attention.rst, for the text of its directives.
    """
    if name.endswith(".rst"):
        made = reference(name)
    elif name.startswith("roundscope"):
        made = names(name)
    else:
        make: Callable[[], str] = getattr(commands if hasattr(commands, name) else tables, name)
        made = make()
    return "\n".join(line.rstrip() for line in made.strip().splitlines())


def text(name: str) -> str:
    """Return a part with its two comments, as a page has it."""
    first, last = ("..", "") if name.endswith(".rst") else ("<!--", " -->")
    return (
        f"{first} made from the code: {name}{last}\n\n{made(name)}\n\n{first} end of {name}{last}"
    )


def renewed(page: str) -> str:
    """Return the text of a page with each part made anew."""
    return PART.sub(lambda found: text(found["name"]), page)


def without(page: str) -> str:
    """Return a page of the reference as the built site reads it: directives, which have their text.

    In the repository they are a comment at the end, which a code host leaves out.
    """
    return PART.sub("", HIDDEN.sub(lambda found: textwrap.dedent(found["directives"]), page))
