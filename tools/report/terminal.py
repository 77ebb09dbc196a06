"""Output to the terminal: data go to stdout, progress to stderr, in color on a terminal only."""

import json
import math
import os
import re
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from roundscope.tools.errors import printable
from roundscope.tools.report.model import Code, Folded, Points, Section, Text, text_of
from roundscope.tools.report.model import Table as TableModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table

    from roundscope.tools.report.model import Cell, Part

WIDTH = 100
SHORT = 24  # characters of a cell that is not broken into lines
LONG, LINE = 40, 32  # characters of a cell that is a sentence, and of the lines that it needs
WORD = 24  # characters of a word beyond which it may break behind a dot, a line or a colon
STYLES = {
    "": "",
    "good": "bold green",
    "bad": "bold red",
    "warn": "yellow",
    "note": "dim",
    "strong": "bold",
}
_PART = re.compile(r".+?(?:[._/:](?=\w)|$)")  # of a long word, such as a path of a module
_BOUND = "\ue000"  # a space at which no line breaks; rich breaks at U+00A0
_PERCENT = re.compile(r"(?<=\d) (?=%)")
# what stands alone in a cell of a column of numbers
_NUMBER = re.compile(r"[-+±]?(\d.*|inf|nan)?|[▲▼·]")


def console(stderr: bool = False) -> "Console":
    """Return a rich console of at most 100 columns that reads no environment variable.

    Control characters, as a name in a file may have them, are printed as escapes.
    """
    from rich.console import Console

    class Safe(Console):
        def render(self, *given: Any, **named: Any) -> "Iterator[Segment]":
            for segment in super().render(*given, **named):
                segment = segment._replace(text=segment.text.replace(_BOUND, " "))
                lines = segment.text.split("\n")
                if segment.control or all(map(str.isprintable, lines)):
                    yield segment
                else:
                    yield segment._replace(text="\n".join(map(printable, lines)))

    stream = sys.stderr if stderr else sys.stdout
    columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    width = min(WIDTH, columns or WIDTH)  # some terminals report 0 columns
    return Safe(file=stream, width=width, highlight=False, emoji=False, _environ={})


def print_json(data: Any) -> None:
    """Print one JSON document; numbers that JSON lacks become the texts "inf", "-inf" and "nan"."""
    json.dump(plain(data), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def plain(data: Any) -> Any:
    """Return data with records, enums, tuples and non-finite numbers replaced by types of JSON."""
    if is_dataclass(data) and not isinstance(data, type):
        return {f.name: plain(getattr(data, f.name)) for f in fields(data)}
    if isinstance(data, dict):
        return {str(k): plain(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(v) for v in data]
    if isinstance(data, Enum):
        return data.value
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def table(title: str) -> "Table":
    """Return a rich table without lines, its title bold on the left; without a title for ""."""
    from rich.table import Table

    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="bold",
    )


def show(parts: "Sequence[Part]", screen: "Console | None" = None) -> None:
    """Print parts of a report on stdout or a screen, pictures left out and commands unbroken."""
    from rich.text import Text as Words

    screen = screen or console()
    for part in parts:
        match part:
            case Text():
                words = " ".join(filter(None, (part.lead, part.text, part.command)))
                words = words if part.command else _PERCENT.sub(_BOUND, words)
                screen.print(Words(words, STYLES[part.mood]), soft_wrap=bool(part.command))
            case Points():
                for point in part.points:
                    words = point if isinstance(point, str) else " ".join(point)
                    screen.print(Words(f"- {_PERCENT.sub(_BOUND, words)}"))
            case Code():
                screen.print(Words(part.text, STYLES[part.mood]), soft_wrap=True)
            case TableModel():
                screen.print(_grid(part, screen.width))
            case Section() | Folded():
                screen.print(Words(part.title, style="bold"))
                show(part.parts, screen)


def _grid(part: TableModel, room: int) -> "Table":
    """Return a table of rich that fits into `room` characters.

    Where that is too narrow its columns stand closer; then it has no optional columns, then heads
    break into lines, and at last texts. Numbers and the first column never do.
    """
    from rich.text import Text as Words

    texts = [[text_of(row[n]) for row in part.rows] for n in range(len(part.heads))]
    numbers = [any(column) and all(map(_NUMBER.fullmatch, column)) for column in texts]
    cells = [_longest(column) for column in texts]
    whole = [max(n, _longest(h.split("\n"))) for n, h in zip(cells, part.heads, strict=True)]
    words = [
        _longest(_pieces(" ".join([head, *column])))
        for head, column in zip(part.heads, texts, strict=True)
    ]
    heads = [_longest(head.split()) for head in part.heads]
    lines = [max(w, LINE) if n > LONG else w for n, w in zip(cells, words, strict=True)]
    short = [max(n, h) if n <= SHORT else w for n, h, w in zip(cells, heads, lines, strict=True)]
    least = [
        max(n, h) if is_number or (not column and n <= SHORT) else w
        for column, (n, h, w, is_number) in enumerate(
            zip(cells, heads, words, numbers, strict=True)
        )
    ]
    every = list(range(len(part.heads)))
    needed = [n for n in every if n not in part.optional]
    for shown, gap, low in (
        (every, 2, whole),
        (every, 1, whole),
        (needed, 1, whole),
        (needed, 1, short),
        (needed, 1, least),
    ):
        left = room - gap * (len(shown) - 1) - sum(low[n] for n in shown)
        if left >= 0:
            break
    grid = table(part.title)
    grid.padding = (0, gap, 0, 0)
    widths = dict(zip(every, low, strict=True))
    for n in sorted(shown, key=lambda n: cells[n] <= LONG):  # sentences first
        more = min(max(left, 0), whole[n] - low[n])
        left -= more
        widths[n] += more
    for n in shown:
        width = widths[n] if left >= 0 else None
        justify: Any = "right" if numbers[n] else "left"
        grid.add_column(part.heads[n], justify=justify, width=width, overflow="fold")
    for number, row in enumerate(part.rows):
        styled = [Words(_parted(text_of(row[n]), widths[n]), _style(row[n])) for n in shown]
        is_marked = bool(part.marked) and part.marked[number]
        grid.add_row(*styled, style="bold red" if is_marked else None)
    return grid


def _style(cell: "str | Cell") -> str:
    return "" if isinstance(cell, str) else STYLES[cell.mood]


def _pieces(text: str) -> list[str]:
    """Return the words of a text, long ones in parts that end with a dot, a line or a colon."""
    return [
        part
        for word in text.split()
        for part in (_PART.findall(word) if len(word) > WORD else [word])
    ]


def _parted(text: str, width: int) -> str:
    """Return a text whose words that are longer than a line break behind such a part.

    Example:
        >>> print(_parted("by torch.nn.functional.scaled_dot_product_attention", 24))
        by torch.nn.functional.
        scaled_dot_product_
        attention
    """
    if _longest(text.split()) <= width:
        return text
    lines = [""]
    for word in text.split(" "):
        joint = " " if lines[-1] else ""
        for part in _PART.findall(word) if len(word) > width else [word]:
            if len(lines[-1]) + len(joint) + len(part) > width:
                lines.append(part)
            else:
                lines[-1] += joint + part
            joint = ""
    return "\n".join(lines)


def _longest(texts: "Iterable[str]") -> int:
    return max(map(len, texts), default=0)
