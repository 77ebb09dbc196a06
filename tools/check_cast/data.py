"""The contents of check-cast.json."""

from dataclasses import dataclass
from typing import Any

from roundscope.emu.testing.casts.records import Agreement, CastReport, Row
from roundscope.tools.check_cast.words import example_data
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.folder import request_of
from roundscope.tools.results.provenance import command_line, versions

SCHEMA = "roundscope-check-cast-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user asked the command to check.

    Attributes:
        function: the function, as module:function.
        format: the format in words.
        library: the library whose arrays the function was given.
        seconds: how long the check took.
    """

    function: str
    format: str
    library: str
    seconds: float


def document(asked: Asked, report: CastReport) -> dict[str, Any]:
    """Return the contents of check-cast.json as data."""
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "versions": versions("jax" if asked.library == "jax" else "numpy"),
        "request": request_of(asked.function, asked.format, asked.library),
        "function": asked.function,
        "format": asked.format,
        "library": asked.library,
        "returned": report.returned,
        "passed": report.passed,
        "sentence": report.sentence,
        "behaves_as": report.behaves_as,
        "as_asked": plain(report.whole),
        "rows": [_row(row) for row in report.rows],
        "behaviors": _agreements(report.behaviors),
        "scale_rules": _agreements(report.scales),
        "exceptions": [example_data(example) for example in report.exceptions],
        "seconds": round(asked.seconds, 1),
    }


def _row(row: Row) -> dict[str, Any]:
    data: dict[str, Any] = plain(row)
    return data | {"examples": [example_data(example) for example in row.examples]}


def _agreements(found: tuple[Agreement, ...]) -> list[dict[str, Any]]:
    return [plain(agreement) for agreement in found]
