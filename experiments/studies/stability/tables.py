"""The tables of the page: what every event costs, which conditions were run, and on what."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from roundscope.experiments.studies.framework.estimates import Estimate, factor, ratio
from roundscope.experiments.studies.framework.study import Table
from roundscope.experiments.studies.framework.verdicts import interval
from roundscope.experiments.studies.stability.conditions import EVENTS, GROUPS, narrow
from roundscope.experiments.studies.stability.results import Results
from roundscope.experiments.studies.stability.scale import Scale
from roundscope.experiments.sweep.conditions.cell import Cell

EXACT = 1e-12  # relative: below it is what binary64 leaves
Cells = Mapping[str, Sequence[Cell]]  # by the name of their part


def tables(scale: Scale, cells: Cells) -> tuple[Table[Results], ...]:
    """All of them; `cells`: what is run, as `conditions.cells` gives it."""
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
            rows=lambda r: [event.line for event in events(r)],
            records=lambda r: [event.record for event in events(r)],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What an event (or several) costs in an input.

    alone    rms deviation over that of the output, where it alone is in BF16
    costs    of that, tiled over unfused
    left     rms where it alone is exact, over that of all in BF16
    """

    event: str
    input: str
    alone: Estimate
    costs: Estimate
    left: Estimate

    @property
    def line(self) -> list[str]:
        """As text."""
        is_exact = not self.alone.mean > EXACT
        alone = "exact" if is_exact else f"{self.alone.mean:.2e}"
        costs = "tiled only" if self.costs.mean > 1e6 else interval(self.costs, "x")
        return [self.event, self.input, alone, "-" if is_exact else costs, interval(self.left)]

    @property
    def record(self) -> dict[str, Any]:
        """As data."""
        return {
            "event": self.event,
            "input": self.input,
            "alone": self.alone,
            "tiled_over_unfused": self.costs,
            "left_out": self.left,
        }


def _events(r: Results, scale: Scale) -> list[Event]:
    """Which event makes the difference between tiled and unfused attention."""
    found = []
    for family in ("gaussian", "sink"):
        base = r.values(narrow(scale, family), "rms")
        for site in (*EVENTS, *GROUPS):
            only, but = narrow(scale, family, only=site), narrow(scale, family, but=site)
            costs = ratio(r.values(only, "rms"), r.values(only, "unfused_rms"))
            alone, left = factor(r.values(only, "rel_rms")), ratio(r.values(but, "rms"), base)
            found.append(Event(event=site, input=family, alone=alone, costs=costs, left=left))
    return found


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
    """Where cells were measured, with which packages, and where models were trained."""
    measured = [row for by_seed in r.cells.values() for row in by_seed.values()]
    places = Counter((row["device"], _versions(row["versions"])) for row in measured)
    trained = sum(len(by_seed) for by_seed in r.drifts.values())
    cells = [_machine("cells", count, *place) for place, count in sorted(places.items())]
    return [*cells, *(_machine("pairs of trainings", trained, device) for device in r.trained_on)]


def _machine(what: str, count: int, device: str, versions: str = "") -> dict[str, Any]:
    return {"what": what, "how many": count, "device": device, "versions": versions}


def _versions(packages: Mapping[str, str]) -> str:
    return " ".join(f"{name} {version}" for name, version in packages.items())
