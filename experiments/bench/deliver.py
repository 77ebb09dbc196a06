"""What a benchmark found, as a user asked for it: a table or JSON, and into a folder.

With JSON nothing else goes to stdout.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roundscope.experiments.bench.machine import machine, show
from roundscope.experiments.report.terminal import print_json

Bar = tuple[str, str, float, bool]  # group, name, ratio of speeds, whether it is ours


class Drawing(NamedTuple):
    """What a picture says: its bars, the sentence above them and what they measure."""

    bars: Sequence[Bar]
    title: str
    axis: str


def deliver(
    what: str,
    rows: Sequence[Any],
    threads: int | None,
    as_json: bool,
    out: Path | None,
    *,
    show_table: Callable[[], None],
    drawing: Callable[[], Drawing],
) -> None:
    """The rows, records that become JSON, with the machine they were measured on; threads: of ours,
    None where its library chooses.
    """
    ran_on = machine(threads)
    found = {"machine": ran_on, "rows": rows}
    if as_json:
        print_json(found)
    else:
        show_table()
        show(ran_on)
    if out is not None:
        from roundscope.experiments.bench.picture import write

        write(out, what, found, *drawing(), as_json=as_json)
