"""The words of a report on a cast: its rows, and its examples in decimal, hexadecimal and bits."""

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.testing.casts.records import Example, Row
from roundscope.emu.testing.differences import bits_of
from roundscope.tools.report.terminal import plain

OF_SCALES = ("scales", "smallest blocks", "tensor scale")  # rows whose results are scales
Line = tuple[str, str, str, str]  # a label, a number in decimal and hexadecimal, its bits


def share(row: Row) -> str:
    """Return "252 of 252" of a row, or nothing for a skipped one."""
    return f"{row.agree:,} of {row.of:,}" if row.of else ""


def format_of(row: Row, asked: Rounding | BlockFormat) -> Format:
    """Return the format of the results of a row."""
    if row.name == "tensor scale":
        return format_named("fp32")
    if isinstance(asked, Rounding):
        return asked.format
    return asked.scale if row.name in OF_SCALES else asked.element.format


def lines_of(example: Example, f: Format, of_scales: bool) -> list[Line]:
    """Return the lines that show an example: what was given, got and expected.

    Args:
        example: the example.
        f: the format of its results.
        of_scales: whether the results are scales.
    """
    scale = 1.0 if of_scales else example.scale
    given = "largest magnitude" if of_scales else "input"
    lines = [_line(given, example.given, example.given, format_named("fp32"))]
    if scale != 1.0:
        lines.append(("scale", f"{scale:.9g}", hexed(scale), ""))
    for label, value in (("got", example.got), ("expected", example.expected)):
        lines.append(_line(label, value, value / scale, f))
    return lines


def _line(label: str, value: float, stored: float, f: Format) -> Line:
    return label, f"{value:.9g}", hexed(value), f"{f.name} {bits_of(stored, f)}"


def hexed(x: float) -> str:
    """Return a number as a hexadecimal float without trailing zeros, such as 0x1.8p-3."""
    fraction, p, exponent = x.hex().partition("p")
    return f"{fraction.rstrip('0').rstrip('.')}{p}{exponent}" if x else x.hex()


def failure(row: Row, asked: Rounding | BlockFormat) -> str:
    """Return the message of a failed row: counts, the note and the worst example."""
    text = [f"{row.name}: {share(row)} as asked. {row.question}"]
    if row.note:
        text.append(row.note)
    if row.examples:
        f = format_of(row, asked)
        text += ["  ".join(line) for line in lines_of(row.examples[0], f, row.name in OF_SCALES)]
    return "\n".join(text)


def example_data(example: Example) -> dict[str, object]:
    """Return an example as plain data, with its numbers in hexadecimal too."""
    data: dict[str, object] = plain(example)
    numbers = ("given", "got", "expected", "scale")
    return data | {f"{name}_hex": hexed(float(getattr(example, name))) for name in numbers}
