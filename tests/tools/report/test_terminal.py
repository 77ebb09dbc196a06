"""Tests of the console: control characters in names are printed as escapes, so that a name from a
file cannot move the cursor or set the title of the terminal.
"""

from rich.table import Table
from rich.text import Text

from roundscope.tools.report.terminal import console


def test_control_characters_are_printed_as_escapes(capsys):
    """An escape code in a name of a run, a layer or a cell that the terminal obeys."""
    name = "a\x1b]0;title\x07b"
    table = Table("name")
    table.add_row(name)
    for renderable in (name, Text(name), table):
        console().print(renderable, markup=False)
    out = capsys.readouterr().out
    assert out.count(r"a\x1b]0;ti") == 3
    assert all(line.isprintable() for line in out.splitlines())


def test_lines_and_colors_stay(capsys):
    console().print("one\n\ntwo", style="red")
    assert capsys.readouterr().out == "one\n\ntwo\n"
