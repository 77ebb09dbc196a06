"""The tables of the page: what every event costs, which conditions were run, and on what."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from roundscope.experiments.framework.estimates import Estimate, factor, ratio
from roundscope.experiments.framework.study import Table
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.papers.stability_2405_02803.conditions import EVENTS, GROUPS, narrow
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import Scale
from roundscope.tools.sweep.conditions.cell import Cell

EXACT = 1e-12  # a relative error below this is due to binary64
Cells = Mapping[str, Sequence[Cell]]  # study -> its cells


def tables(scale: Scale, cells: Cells) -> tuple[Table[Results], ...]:
    """Return all tables; `cells`: what is run, as `conditions.cells` gives it."""
    events = partial(_events, scale=scale)
    return (
        Table(
            name="events",
            title="Every event alone, and left out",
            heads=(
                "event",
                "input",
                "alone: tiled,\nrms / rms of output",
                "alone:\ntiled / unfused",
                "left out:\nrms / rms with all",
            ),
            rows=lambda r: [_line(**event) for event in events(r)],
            records=events,
        ),
        Table(
            name="conditions",
            title="Conditions",
            heads=("conditions", "cells", "T", "N", "keys per tile", "seeds"),
            rows=lambda r: [[str(value) for value in row.values()] for row in _conditions(cells)],
            records=lambda r: _conditions(cells),
        ),
        Table(
            name="machines",
            title="Machines",
            heads=("what", "how many", "device", "versions"),
            rows=lambda r: [[str(value) for value in row.values()] for row in _machines(r)],
            records=_machines,
        ),
    )


def _events(r: Results, scale: Scale) -> list[dict[str, Any]]:
    """Return what every event costs, which tells why tiled and unfused attention differ.

    alone     rms deviation over that of the output, where the event alone is in BF16
    left_out  rms where it alone is exact, over that of all in BF16
    """
    found = []
    for family in ("gaussian", "sink"):
        base = r.values(narrow(scale, family), "rms")
        for site in (*EVENTS, *GROUPS):
            only, but = narrow(scale, family, only=site), narrow(scale, family, but=site)
            event = {
                "event": site,
                "input": family,
                "alone": factor(r.values(only, "rel_rms")),
                "tiled_over_unfused": ratio(r.values(only, "rms"), r.values(only, "unfused_rms")),
                "left_out": ratio(r.values(but, "rms"), base),
            }
            found.append(event)
    return found


def _line(
    event: str, input: str, alone: Estimate, tiled_over_unfused: Estimate, left_out: Estimate
) -> list[str]:
    """Return an event as text."""
    is_exact = not alone.mean > EXACT
    costs = "tiled only" if tiled_over_unfused.mean > 1e6 else interval(tiled_over_unfused, "x")
    first = ["exact", "-"] if is_exact else [f"{alone.mean:.2e}", costs]
    return [event, input, *first, interval(left_out)]


def _conditions(cells: Cells) -> list[dict[str, Any]]:
    return [
        {
            "conditions": name,
            "cells": len(own),
            **{axis: _span(own, axis) for axis in ("T", "N", "block_k")},
            "seeds": len({cell["seed"] for cell in own}),
        }
        for name, own in cells.items()
    ]


def _span(cells: Sequence[Cell], axis: str) -> str:
    values = sorted({int(cell[axis]) for cell in cells})
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _machines(r: Results) -> list[dict[str, Any]]:
    """Return where cells were measured, with which packages, and where models were trained."""
    measured = [row for by_seed in r.cells.values() for row in by_seed.values()]
    places = Counter((row["device"], _versions(row["versions"])) for row in measured)
    trained = sum(len(by_seed) for by_seed in r.drifts.values())
    cells = [_machine("cells", count, *place) for place, count in sorted(places.items())]
    return [*cells, *(_machine("pairs of trainings", trained, device) for device in r.trained_on)]


def _machine(what: str, count: int, device: str, versions: str = "") -> dict[str, Any]:
    return {"what": what, "how many": count, "device": device, "versions": versions}


def _versions(packages: Mapping[str, str]) -> str:
    return " ".join(f"{name} {version}" for name, version in packages.items())
