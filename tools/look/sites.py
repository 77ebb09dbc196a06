"""The command `sites`: every rounding event, its formula and its place in the algorithm.

For one plan: the events that the plan has, and how it rounds them.
"""

from typing import Any

from roundscope.tools.errors import bad
from roundscope.tools.report import terminal
from roundscope.tools.report.model import Table

_OF_PLAN = ("stage", "formula", "rounding", "sum")


def rows(plan: str | None = None) -> list[dict[str, Any]]:
    """Return one record for each site, in the order of the algorithm.

    With the name of a plan these are the sites that it reaches, with their rounding and their sum.
    Raises UsageError if there is no plan of that name.
    """
    from roundscope.attention.sites import Site

    about = [
        {"name": s.value, "stage": s.stage, "axes": s.axes, "formula": s.formula} for s in Site
    ]
    return about if plan is None else _of_plan(plan, about)


def _of_plan(name: str, about: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from roundscope.attention.arguments import plan_given
    from roundscope.attention.grammar.roundings import accumulator_words, spelled
    from roundscope.attention.places import absent
    from roundscope.attention.sites import PRODUCTS, site_named

    try:
        plan = plan_given(name)
    except ValueError as error:
        raise bad("--plan", name, str(error).removeprefix("plan: ")) from None
    found = []
    for record in about:
        site = site_named(record["name"])
        if absent(plan, site) is None:
            sums = accumulator_words(plan.accumulator(site)) if site in PRODUCTS else ""
            found.append(record | {"rounding": spelled(plan.event(site)), "sum": sums})
    return found


def show(as_json: bool = False, plan: str | None = None) -> None:
    """Print the sites, or those of a plan if one is named, as a table or as JSON."""
    records = rows(plan)
    if as_json:
        terminal.print_json(records)
        return
    columns = ("stage", "axes", "formula") if plan is None else _OF_PLAN
    values = [[r[name] for name in ("name", *columns)] for r in records]
    lines = [[x if isinstance(x, str) else " ".join(map(str, x)) for x in row] for row in values]
    terminal.show([Table(("site", *columns), lines)])
