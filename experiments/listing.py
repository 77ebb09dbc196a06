"""The command `studies`: the catalogue of studies as a table."""

from dataclasses import asdict
from typing import Any

from roundscope.experiments.catalogue import STUDIES, Entry
from roundscope.tools.report.model import Table, Text
from roundscope.tools.report.terminal import print_json
from roundscope.tools.report.terminal import show as show_parts

CAPTION = (
    "Seconds as measured: --quick on two cores of a CPU, in full on an H200; -: not measured. Each "
    "writes a page, its data and its results into --out, and goes on where it stopped."
)


def records() -> list[dict[str, Any]]:
    """Return every study as plain data."""
    return [
        asdict(entry)
        | {
            "command": f"roundscope {entry.command}",
            "seeds": dict(zip(("quick", "full"), entry.seeds, strict=True)),
        }
        for entry in STUDIES
    ]


def show(*, as_json: bool) -> None:
    """Print every study, as a table or as JSON."""
    if as_json:
        print_json(records())
        return
    heads = ("roundscope", "asks", "--quick,\n2 cores", "full,\nH200", "seeds,\nboth")
    notes = [Text(f"{entry.name}: {entry.note}") for entry in STUDIES if entry.note]
    show_parts([Table(heads, [_line(entry) for entry in STUDIES]), *notes, Text(CAPTION)])


def _line(entry: Entry) -> list[str]:
    asks = f"{entry.question} ({entry.number})" if entry.paper else entry.question
    quick, full = (f"{x} s" if x is not None else "-" for x in (entry.quick, entry.full))
    few, many = entry.seeds
    return [entry.command, asks, quick, full, f"{few}, {many}"]
