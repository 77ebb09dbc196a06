"""The table of every benchmark on the terminal: groups of rows, and notes below them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from roundscope.tools.report import terminal
from roundscope.tools.report.model import Table, Text


class Line(NamedTuple):
    """One contestant: its group, its name, its numbers as text, and a note about it or ""."""

    group: str
    name: str
    numbers: Sequence[str]
    note: str = ""


def show(heads: Sequence[str], lines: Sequence[Line], legend: str) -> None:
    """Print a table.

    A group without a name has no title. Notes stand below the table, each once.
    """
    rows: list[list[str]] = []
    for group in dict.fromkeys(line.group for line in lines):
        if group:
            rows.append([group, *("" for _ in heads)])
        rows += [
            [f"  {line.name}" if group else line.name, *line.numbers]
            for line in lines
            if line.group == group
        ]
    notes = [Text(f"{', '.join(names)}: {note}") for note, names in _notes(lines).items()]
    below = Text(" ".join(legend.split()), "note")
    terminal.show([Table(("", *heads), rows), *notes, below])


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
