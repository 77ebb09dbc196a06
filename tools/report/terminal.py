"""Output to the terminal: data go to stdout, progress to stderr, in color on a terminal only."""

import json
import math
import os
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from roundscope.tools.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table

WIDTH = 100


def console(stderr: bool = False) -> "Console":
    """Return a rich console of at most 100 columns that reads no environment variable.

    Control characters, as a name in a file may have them, are printed as escapes.
    """
    from rich.console import Console

    class Safe(Console):
        def render(self, *given: Any, **named: Any) -> "Iterator[Segment]":
            for segment in super().render(*given, **named):
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
