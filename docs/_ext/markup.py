"""A small Sphinx extension: the names of code blocks that are not a programming language, and what
is no markup in our docstrings.
"""

import re

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

# code blocks of the page of the grammar, which a test reads by these names
GRAMMAR_BLOCKS = ("change", "place", "linear", "injection")
BARS = re.compile(r"\|(\w+)\|")


def escape(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape what is no markup in our docstrings: the star in (q, k, *, scale), the bars of |x|."""
    lines[:] = [BARS.sub(r"\\|\1\\|", line.replace(" *, ", r" \*, ")) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what the pages use."""
    app.connect("autodoc-process-docstring", escape)
    for name in GRAMMAR_BLOCKS:
        app.add_lexer(name, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
