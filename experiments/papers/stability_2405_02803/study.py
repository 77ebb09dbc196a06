"""`roundscope reproduce golden`: the claims of arXiv 2405.02803 as a `Study`, answer and tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from roundscope.experiments.catalogue import GOLDEN
from roundscope.experiments.framework.estimates import Estimate, factor, ratio
from roundscope.experiments.framework.study import Study, Table
from roundscope.experiments.framework.verdicts import (
    TENFOLD,
    Verdict,
    Word,
    interval,
    judge,
    number,
)
from roundscope.experiments.papers.stability_2405_02803 import claims, controls, drift
from roundscope.experiments.papers.stability_2405_02803.claims import candidates, excess
from roundscope.experiments.papers.stability_2405_02803.conditions import (
    EMULATIONS,
    EVENTS,
    EXACT,
    FULL,
    GROUPS,
    INPUTS,
    QUICK,
    Scale,
    at,
    cells,
    narrow,
)
from roundscope.experiments.papers.stability_2405_02803.figures import figures
from roundscope.experiments.papers.stability_2405_02803.measuring import FILE, Results, measured
from roundscope.tools.errors import bad
from roundscope.tools.sweep.conditions.axes import ENGINES
from roundscope.tools.sweep.conditions.cell import Cell

CAUTION = (
    "The paper's implementation, sizes, tiles and draws are unpublished: 'contradicts' says that"
    " the claim fails in our emulation at these sizes, not that the paper measured wrongly."
)
RULES = (
    "A verdict compares a 95 % t interval over seeds with what the claim says: 'agrees' if the"
    " whole interval is there, 'contradicts' if none of it is, 'undecided' otherwise, 'depends' if"
    " the claim holds under some conditions that the paper does not state and fails under others."
    " 'About 10 times' is 5 to 20; 'larger' and 'smaller' are by 5 % or more; 'grows' and 'falls'"
    " are exponents beyond 0.05. Ratios pair seeds, and their means are geometric. Intervals are"
    " not widened for the number of claims."
)


def asked(quick: bool, engine: str, jobs: int | None) -> Study[Results]:
    """Return the study at the scale of --quick, or in full.

    Raises UsageError for an engine or a number of jobs that cannot be used.
    """
    if engine not in ENGINES:
        raise bad("--engine", engine, f"use {' or '.join(ENGINES)}")
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    return study(QUICK if quick else FULL, engine, jobs)


def study(scale: Scale, engine: str, jobs: int | None = None) -> Study[Results]:
    """Return the study at a scale; jobs: worker processes, None for as many as cores."""
    parts, t = cells(scale, engine), scale.training
    unique = {cell.key: cell for own in parts.values() for cell in own}
    emulations = "; ".join(f"{name}: {words}" for name, words in EMULATIONS.items())
    return Study(
        name="verdicts",
        file=FILE,
        question=GOLDEN.question,
        paper=GOLDEN.paper,
        measure=partial(measured, cells=list(unique.values()), training=t, jobs=jobs),
        unit="cells and trainings",
        answer=partial(answer, scale=scale),
        claims=partial(judged, scale=scale),
        source="figure",
        figures=figures(scale),
        tables=tables(scale, parts),
        caution=CAUTION,
        rules=(RULES, f"Emulations: {emulations}."),
        about={
            "deviations": "from unfused attention in binary64, the golden value",
            "trainings": f"{'; '.join(t.versions)}: each with {t.seeds} seeds",
        },
        config={"engine": engine},
        scale=scale.name,
    )


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return verdicts on every claim of arXiv 2405.02803, in the order of its figures.

    Some are on arXiv 2510.04212, where the two papers seem to disagree.
    """
    untestable = Verdict(
        figure="3-6",
        claim="the values on the axes",
        case="-",
        sizes="",
        word=Word.NOT_TESTABLE,
        measured="N, d, draws and tiles are not published",
        note="so only directions and the factor of 10 are compared",
    )
    return [
        *claims.figures_3_and_4(r, scale),
        *claims.figure_5(r, scale),
        *claims.figure_6(r, scale),
        *controls.cause(r, scale),
        *drift.judged(r, scale),
        untestable,
        *controls.bias(r, scale),
    ]


def answer(r: Results, scale: Scale) -> str:
    """Return the answer to the paper's question in one sentence."""
    t, tile = scale.bench[0], scale.tile
    found = {
        name: number(excess(r, at(name, scale.bench, tile)).mean)
        for name in ("ops:bf16", "sums:bf16", "fa2-bf16")
    }
    return (
        f"In BF16 the largest deviation of tiled attention from binary64 is {found['ops:bf16']}"
        " times that of unfused attention when every operation rounds and sums are FP32,"
        f" {found['sums:bf16']} times when sums round too and {found['fa2-bf16']} times in"
        f" production kernels (T {t}, tiles of {tile}, Gaussian); {tenfold(r, scale)}."
    )


def tenfold(r: Results, scale: Scale) -> str:
    """Return where a factor of about 10 appears."""
    found = [label for label, e, _ in candidates(r, scale) if judge(e, TENFOLD) is Word.AGREES]
    if not found:
        return "about 10 times appear in no condition that was run"
    own = [label for label in found if label.endswith("to its own unfused")]
    sums = [label for label in found if label.startswith("sums") and label not in own]
    where = []
    if own:
        fewest = min(int(label.split(" key tiles")[0].split()[-1]) for label in own)
        inputs = list(dict.fromkeys(label.split(" key tiles, ")[1].split(",")[0] for label in own))
        where.append(
            f"with running sums kept in BF16 over {fewest} key tiles or more"
            f" ({', '.join(INPUTS[i] for i in inputs)})"
        )
    if sums:
        where.append("with BF16 sums measured against PyTorch's FP32 sums")
    return f"about 10 times appear {' and '.join(where) or 'against PyTorch alone'}"


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
    is_exact = not alone.mean > EXACT
    costs = "tiled only" if tiled_over_unfused.mean > 1e6 else interval(tiled_over_unfused, "x")
    first = ["exact", "-"] if is_exact else [f"{alone.mean:.2e}", costs]
    return [event, input, *first, interval(left_out)]


def _conditions(cells: Cells) -> list[dict[str, Any]]:
    def span(own: Sequence[Cell], axis: str) -> str:
        values = sorted({int(cell[axis]) for cell in own})
        return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"

    return [
        {
            "conditions": name,
            "cells": len(own),
            **{axis: span(own, axis) for axis in ("T", "N", "block_k")},
            "seeds": len({cell["seed"] for cell in own}),
        }
        for name, own in cells.items()
    ]


def _machines(r: Results) -> list[dict[str, Any]]:
    """Return where cells were measured, with which packages, and where models were trained."""
    measured = [row for by_seed in r.cells.values() for row in by_seed.values()]
    places = Counter(
        (row["device"], " ".join(f"{name} {v}" for name, v in row["versions"].items()))
        for row in measured
    )
    pairs = sum(len(by_seed) for by_seed in r.drifts.values())
    found = [("cells", count, *place) for place, count in sorted(places.items())]
    found += [("pairs of trainings", pairs, device, "") for device in r.trained_on]
    heads = ("what", "how many", "device", "versions")
    return [dict(zip(heads, each, strict=True)) for each in found]
