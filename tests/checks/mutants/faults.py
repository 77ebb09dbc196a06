"""`Fault`: one planted bug, as a text replacement in one file."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planted bug.

    Attributes:
        name: a short name in lower case, with hyphens; `--only` takes it.
        kind: the class of the bug, such as "overflow" or "random bits".
        imitates: one sentence that says which real bug this is like.
        file: the file that is changed, relative to the root of the repository.
        old: the text that is replaced. It must occur in the file exactly once.
        new: the text that takes its place.
        tests: the test files that should notice the fault, the nearest one first.
    """

    name: str
    kind: str
    imitates: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def planted(fault: Fault, root: Path) -> str:
    """Return the text of the fault's file in the tree at `root`, with the fault in it.

    Raises:
        ValueError: where the file does not contain the old text exactly once, where the old and the
            new text are equal, or where a test file does not exist.
    """
    text = (root / fault.file).read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(
            f"fault {fault.name}: its old text occurs {count} times in {fault.file}; it must occur"
            " once, so quote more or other lines"
        )
    if fault.old == fault.new:
        raise ValueError(f"fault {fault.name}: its old and its new text are equal")
    if missing := [path for path in fault.tests if not (root / path).exists()]:
        raise ValueError(f"fault {fault.name}: no test file {missing[0]}; name files that exist")
    return text.replace(fault.old, fault.new)


def place_of(fault: Fault, root: Path) -> str:
    """Return where the fault is, as file:line, in the tree at `root`.

    The line is the first one that the fault changes.
    """
    before = (root / fault.file).read_text().splitlines()
    after = planted(fault, root).splitlines()
    pairs = enumerate(zip(before, after, strict=False), 1)
    line = next((n for n, (x, y) in pairs if x != y), len(after))
    return f"{fault.file}:{line}"
