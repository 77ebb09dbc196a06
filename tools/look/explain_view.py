"""Prints one rounding, or one sum, drawn in bits, to a terminal of 100 columns."""

from roundscope.emu.explanation.addition import Addition
from roundscope.emu.explanation.drawing import lines
from roundscope.emu.explanation.one_rounding import Explanation
from roundscope.tools.report.terminal import console


def show(e: Explanation, addition: Addition | None = None) -> None:
    """Print the drawing to stdout."""
    out = console()
    for line in lines(e, addition):
        out.print(line)
