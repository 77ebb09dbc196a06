"""The command `studies`: the catalogue of studies as a table."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from roundscope.experiments.catalogue import STUDIES, Entry
from roundscope.tools.report.terminal import console, print_json

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
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("roundscope", min_width=16, max_width=23, overflow="fold")
    table.add_column("asks", overflow="fold")
    for head in ("--quick,\n2 cores", "full,\nH200", "seeds,\nboth"):
        table.add_column(head, justify="right", no_wrap=True)
    for entry in STUDIES:
        table.add_row(*_line(entry))
    screen = console()
    screen.print(table)
    for entry in STUDIES:
        if entry.note:
            screen.print(f"{entry.name}: {entry.note}", markup=False)
    screen.print(CAPTION, markup=False)


def _line(entry: Entry) -> list[str]:
    asks = f"{entry.question} ({entry.number})" if entry.paper else entry.question
    quick, full = (f"{x} s" if x is not None else "-" for x in (entry.quick, entry.full))
    few, many = entry.seeds
    return [entry.command, asks, quick, full, f"{few}, {many}"]
