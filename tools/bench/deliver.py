"""The results of a benchmark in the form that the user asked for: a table or JSON, and files.

With JSON nothing else is written to stdout.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roundscope.tools.bench.machine import machine, show
from roundscope.tools.report.terminal import print_json

Bar = tuple[str, str, float, bool]  # group, name, ratio of speeds, whether it is ours


class Drawing(NamedTuple):
    """The contents of a picture: its bars, the sentence above them and the label of their axis."""

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
    """Print the rows and the machine; with `out`, also write them and a picture to that folder.

    rows      records that become JSON
    threads   how many threads ours used; None where its library chooses
    """
    ran_on = machine(threads)
    results = {"machine": ran_on, "rows": rows}
    if as_json:
        print_json(results)
    else:
        show_table()
        show(ran_on)
    if out is not None:
        from roundscope.tools.bench.picture import write

        write(out, what, results, *drawing(), as_json=as_json)
