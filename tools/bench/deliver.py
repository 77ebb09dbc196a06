"""The results of a benchmark in the form that the user asked for: a table or JSON, and files.

With JSON nothing else is written to stdout.
"""

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roundscope.tools.bench.drawing import Drawing
from roundscope.tools.report import terminal
from roundscope.tools.report.model import Table, Text


class Bench(NamedTuple):
    """A benchmark with a picture.

    name      as the command line has it
    threads   how many threads ours used; None where its library chooses
    show      prints the table of its rows, records that become JSON;  draw: what is drawn of them
    """

    name: str
    threads: int | None
    show: Callable[[list[Any]], None]
    draw: Callable[[list[Any]], Drawing]


def deliver(bench: Bench, rows: list[Any], as_json: bool, out: Path | None) -> None:
    """Print the rows and the machine; with `out`, also write them and a picture to that folder."""
    ran_on = machine(bench.threads)
    results = {"machine": ran_on, "rows": rows}
    if as_json:
        terminal.print_json(results)
    else:
        bench.show(rows)
        threads = "" if bench.threads is None else f", {bench.threads} threads"
        gpu = f"; {ran_on['gpu']}" if ran_on["gpu"] else ""
        packages = ", ".join(f"{name} {version}" for name, version in ran_on["versions"].items())
        computer = f"{ran_on['processor']}, {ran_on['cores']} cores{threads}{gpu}"
        text = f"{computer}; {ran_on['platform']}; {packages}"
        terminal.console().print(text, style="dim", markup=False)
    if out is not None:
        from roundscope.tools.bench.picture import write

        write(out, bench.name, results, bench.draw(rows), as_json=as_json)


class Line(NamedTuple):
    """One contestant: its group, its name, its numbers as text, and a note about it or ""."""

    group: str
    name: str
    numbers: Sequence[str]
    note: str = ""


def show(heads: Sequence[str], lines: Sequence[Line], legend: str) -> None:
    """Print a table; a group without a name has no title, and notes stand below, each once."""
    rows: list[list[str]] = []
    for group in dict.fromkeys(line.group for line in lines):
        if group:
            rows.append([group, *("" for _ in heads)])
        rows += [
            [f"  {line.name}" if group else line.name, *line.numbers]
            for line in lines
            if line.group == group
        ]
    noted: dict[str, dict[str, None]] = {}  # every note -> the names that it is about
    for line in (line for line in lines if line.note):
        is_of_all = all(x.note == line.note for x in lines if x.name == line.name)
        name = line.name if is_of_all or not line.group else f"{line.name} ({line.group})"
        noted.setdefault(line.note, {})[name] = None
    notes = [Text(f"{', '.join(names)}: {note}") for note, names in noted.items()]
    below = Text(" ".join(legend.split()), "note")
    terminal.show([Table(("", *heads), rows), *notes, below])


RIVALS = ("gfloat", "pychop", "torch", "qtorch", "torchao", "mmasim")


def machine(threads: int | None) -> dict[str, Any]:
    """Return the machine and the versions as plain data; threads: those of ours, or None."""
    from roundscope.tools.results.machine import device
    from roundscope.tools.sweep.running.executors import cores

    return {
        "platform": platform.platform(),
        "processor": device("numpy").removeprefix("cpu "),
        "cores": cores(),
        "threads": threads,
        "gpu": _gpu(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of `doctor` and of installed rivals, none of which is imported."""
    from roundscope.tools.look import doctor
    from roundscope.tools.results.machine import installed

    found = doctor.versions() | installed(RIVALS, missing="")
    return {name: version for name, version in found.items() if version}


def _gpu() -> str | None:
    """Return the name of JAX's first GPU, on which the benchmarks run; None without one."""
    import jax

    try:
        return str(jax.devices("gpu")[0].device_kind)
    except RuntimeError:
        return None
