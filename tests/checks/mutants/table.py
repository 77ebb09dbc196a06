"""Results of planted faults as a file of JSON and as a table in Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.checks.mutants.faults import Fault
from tests.checks.mutants.running import Result

HEAD = """# Planted faults

Does our own test suite notice plausible bugs? `make mutants` plants these faults in a copy of the
tree, one at a time, and runs tests until one fails. Each fault is one replacement of text, listed
in `tests/checks/mutants/`. The last columns name the test that failed first, and the seconds that
it took to find out on a busy machine with two cores; most of them are compilation. The tests
nearest to a fault run first. A fault that is not caught is a gap in the suite.

This file is written by `python -m tests.checks.mutants --table docs/notes/mutants.md`.

"""


def load(path: Path) -> dict[str, Result]:
    """Return the results in a file, by the name of the fault; none if there is no such file."""
    if not path.exists():
        return {}
    return {entry["name"]: Result(**entry) for entry in json.loads(path.read_text())}


def save(path: Path, results: Mapping[str, Result]) -> None:
    """Write results to a file of JSON."""
    path.write_text(json.dumps([asdict(result) for result in results.values()], indent=1) + "\n")


def markdown(faults: Sequence[Fault], results: Mapping[str, Result]) -> str:
    """Return the page with the table, in the order of the faults.

    The page begins with how many faults there are and how many were caught. Faults without
    a result are left out.
    """
    found = [results[fault.name] for fault in faults if fault.name in results]
    caught = sum(result.caught for result in found)
    lines = [
        f"{len(found)} faults, {caught} caught, {len(found) - caught} not caught.",
        "",
        "| fault | what it imitates | where | caught by | seconds |",
        "|---|---|---|---|---|",
        *map(_line, found),
    ]
    return HEAD + "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    """Return a fault's line of the table."""
    test = f"`{result.test.removeprefix('tests/')}`" if result.caught else "**nothing**"
    cells = (
        f"{result.name} ({result.kind})",
        result.imitates,
        f"`{result.where}`",
        test,
        f"{result.seconds:.0f}",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
