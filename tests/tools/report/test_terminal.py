"""Tests of the console: control characters in names are printed as escapes, so that a name from a
file cannot move the cursor or set the title of the terminal.
"""

from rich.table import Table
from rich.text import Text

from roundscope.tools.report.model import Points
from roundscope.tools.report.model import Text as Sentence
from roundscope.tools.report.terminal import console, show
from roundscope.tools.report.wording import factor


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


def test_a_line_never_ends_between_a_number_and_its_percent_sign(capsys):
    """17 at the end of a line, and % at the beginning of the next."""
    for width in range(40, 140):
        text = "x" * (width - 40) + " word" * 7 + " 17 % less"
        show([Sentence(text), Points([text])])
    out = capsys.readouterr().out
    assert (
        out.count("17 %") == 200 and "\n%" not in out and all(map(str.isprintable, out.split("\n")))
    )


def test_a_factor_has_no_exponent():
    """1.3e+02 times in a sentence, where the next says 130."""
    assert [factor(x) for x in (1.04, 9.96, 130.4, 105.0, 12345.0)] == [
        "1", "10", "130", "105", "12,345"
    ]  # fmt: skip
