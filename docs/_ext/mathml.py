"""Equations as MathML, which browsers draw themselves: pages need no script and no network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(self, node: nodes.math) -> None:
    """Write an equation inside a line."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(self, node: nodes.math_block) -> None:
    """Write an equation on a line of its own."""
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
