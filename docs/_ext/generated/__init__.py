"""A small Sphinx extension: the directive `generated`, which puts a table made from the code on a
page, and the names of code blocks that are not a programming language.
"""

import re

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import commands, tables

# code blocks of the page of the grammar, which a test reads by these names
GRAMMAR_BLOCKS = ("change", "place", "linear", "injection")
BARS = re.compile(r"\|(\w+)\|")


class Generated(SphinxDirective):
    """Return the Markdown of the function of this name in `tables` or `commands`, parsed."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Call the function and parse what it returns."""
        module = commands if hasattr(commands, self.arguments[0]) else tables
        self.env.note_dependency(module.__file__)
        text = getattr(module, self.arguments[0])()
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def escape(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape what is no markup in our docstrings: the star in (q, k, *, scale), the bars of |x|."""
    lines[:] = [BARS.sub(r"\\|\1\\|", line.replace(" *, ", r" \*, ")) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what the pages use."""
    app.add_directive("generated", Generated)
    app.connect("autodoc-process-docstring", escape)
    for name in GRAMMAR_BLOCKS:
        app.add_lexer(name, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
