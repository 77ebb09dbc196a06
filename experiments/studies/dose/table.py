"""Every point with its seeds' numbers, for the report, dose.json and the terminal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.report.terminal import console
from roundscope.experiments.studies.dose.results import Results, time_of
from roundscope.experiments.studies.dose.words import mode_words
from roundscope.experiments.studies.framework.estimates import mean
from roundscope.experiments.studies.framework.verdict_table import ON_TERMINAL
from roundscope.experiments.studies.framework.verdicts import Verdict, interval

HEADS = ["event", "mode", "p", "lr", "diverged", "final loss, nats", "above exact", "log2 growth of\n||W_Q|| over exact"]


def points(r: Results) -> list[dict[str, Any]]:
    """A row per point, as data."""
    found = []
    for (site, mode, bits, rate), own in sorted(r.points.items(), key=lambda item: _order(item[0])):
        time = time_of(own)
        found.append({
            "site": None if site is None else str(site), "mode": str(mode), "p": bits, "lr": rate, "steps": time.steps,
            "runs": time.runs, "diverged": time.diverged, "times": [run.diverged for run in own], "seeds": [run.dose.seed for run in own],
            "losses": [run.loss for run in own], "growth": [run.growth for run in own], "words": time.words,
        })  # fmt: skip
    return found


def rows(r: Results) -> list[list[str]]:
    """A row per point, in words; the columns of HEADS."""
    found = []
    for (site, mode, bits, rate), own in sorted(r.points.items(), key=lambda item: _order(item[0])):
        loss = mean({run.dose.seed: run.loss for run in own})
        name = ["exact", "", ""] if site is None else [str(site), mode_words(mode), str(bits)]
        against = ["", ""] if site is None else [interval(r.excess(own)), interval(r.growth(own))]
        found.append([*name, f"{rate:g}", time_of(own).words, interval(loss) + _lost(own), *against])
    return found


def _lost(own: Sequence[Any]) -> str:
    lost = sum(not math.isfinite(run.loss) for run in own)
    return f", {lost} not finite" if lost else ""


def _order(point: Any) -> tuple[Any, ...]:
    site, mode, bits, rate = point
    return (rate, site is not None, str(site), str(mode), bits)


def show(verdicts: Sequence[Verdict], data: dict[str, Any], out: Path) -> None:
    """The answer, points, verdicts, and where the rest is."""
    from rich.table import Table

    screen = console()
    screen.print(data["answer"], markup=False)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("event", "mode", "p", "lr", "diverged, steps"):
        made.add_column(head)
    for point in data["points"]:
        made.add_row(point["site"] or "exact", point["mode"], str(point["p"]), f"{point['lr']:g}", point["words"])
    screen.print(made)
    for v in verdicts:
        screen.print(f"{v.word.value}: {v.claim} ({v.case}): {v.measured}", style=ON_TERMINAL.get(v.word, ""), markup=False)
    if verdicts and verdicts[0].sizes:
        screen.print(f"{verdicts[0].sizes}: a verdict here is about this model", markup=False)
    run = data["run"]
    screen.print(f"{run['ran']} of {run['launches']} launches run now, {run['seconds']:.0f} s ({data['scale']})", markup=False)
    print(f"written: {out / 'report.html'}, {out / 'dose.json'}, {out / 'dose.sqlite'}")
