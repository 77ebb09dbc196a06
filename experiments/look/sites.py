"""The table of sites: every rounding event, its formula and where it stands."""

from typing import Any

from roundscope.experiments.report.terminal import console, print_json


def rows() -> list[dict[str, Any]]:
    """One record per site, in the order of the algorithm."""
    from roundscope.attention.sites import Site

    return [{"name": s.value, "stage": s.stage, "axes": s.axes, "formula": s.formula} for s in Site]


def show(as_json: bool = False) -> None:
    """Print the sites."""
    if as_json:
        print_json(rows())
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("site", style="bold", no_wrap=True)
    for name in ("stage", "axes", "formula"):
        table.add_column(name)
    stage = None
    for r in rows():
        if stage not in (None, r["stage"]):
            table.add_section()
        stage = r["stage"]
        table.add_row(*(Text(s) for s in (r["name"], stage, _words(r["axes"]), str(r["formula"]))))
    console().print(table)


def _words(axes: Any) -> str:
    return axes if isinstance(axes, str) else " ".join(map(str, axes))
