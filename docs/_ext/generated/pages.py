"""Pages with parts that are made from the code, between two comments that name the function."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from . import commands, tables
from .names import names

DOCS = Path(__file__).parents[2]
PART = re.compile(r"^<!-- made from the code: ([\w.]+) -->\n.*?^<!-- end of \1 -->$", re.M | re.S)


def parts() -> Iterator[tuple[Path, str]]:
    """Yield each page with the name of each part of it."""
    for page in sorted(DOCS.rglob("*.md")):
        for found in PART.finditer(page.read_text(encoding="utf-8")):
            yield page, found[1]


def made(name: str) -> str:
    """Return the Markdown of the function of this name in `tables` or `commands`.

    The name of a package, such as `roundscope.emu`, stands for the table of its public names.
    """
    if name.startswith("roundscope"):
        made = names(name)
    else:
        make: Callable[[], str] = getattr(commands if hasattr(commands, name) else tables, name)
        made = make()
    return "\n".join(line.rstrip() for line in made.strip().splitlines())


def text(name: str) -> str:
    """Return a part with its two comments, as a page has it."""
    return f"<!-- made from the code: {name} -->\n\n{made(name)}\n\n<!-- end of {name} -->"


def renewed(page: str) -> str:
    """Return the text of a page with each part made anew."""
    return PART.sub(lambda found: text(found[1]), page)
