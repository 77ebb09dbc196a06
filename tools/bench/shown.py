"""The table of every benchmark on the terminal: groups of rows, and notes below them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

NARROW = 98  # columns of a terminal


class Line(NamedTuple):
    """One contestant: its group, its name, its numbers as text, and a note about it or ""."""

    group: str
    name: str
    numbers: Sequence[str]
    note: str = ""


def show(heads: Sequence[str], lines: Sequence[Line], legend: str) -> None:
    """Print a table; on a narrow terminal, heads break into lines where they have spaces.

    A group without a name has no title. Notes stand below the table, each once.
    """
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from roundscope.tools.report import terminal

    out = terminal.console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for i, head in enumerate(heads):
        head = head.replace(" ", "\n") if out.width < NARROW else head
        widest = max((len(line.numbers[i]) for line in lines), default=0)
        table.add_column(head, justify="right", overflow="fold", min_width=widest)
    for group in dict.fromkeys(line.group for line in lines):
        if group:
            table.add_section()
            table.add_row(Text(group, style="bold"))
        for line in (x for x in lines if x.group == group):
            name = Text(line.name)
            table.add_row(Padding(name, (0, 0, 0, 2)) if group else name, *line.numbers)
    out.print(table)
    for note, names in _notes(lines).items():
        out.print(f"{', '.join(names)}: {note}", markup=False)
    out.print(" ".join(legend.split()), style="dim")


def _notes(lines: Sequence[Line]) -> Mapping[str, Sequence[str]]:
    """Return every note with the names that it is about, and their groups where some lack it."""
    notes: dict[str, list[str]] = {}
    for line in lines:
        if line.note:
            own = [x for x in lines if x.name == line.name]
            is_of_all = all(x.note == line.note for x in own)
            name = line.name if is_of_all or not line.group else f"{line.name} ({line.group})"
            names = notes.setdefault(line.note, [])
            if name not in names:
                names.append(name)
    return notes
