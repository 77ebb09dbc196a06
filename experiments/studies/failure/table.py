"""Every row of every case with its numbers, for the report, qiu-yao.json and the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.report.terminal import console
from roundscope.experiments.report.wording import launched
from roundscope.experiments.studies.failure.results import Results, diverged, middle, times
from roundscope.experiments.studies.failure.scale import Scale
from roundscope.experiments.studies.failure.trials import chosen_rows
from roundscope.experiments.studies.failure.words import missing
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.verdicts import Verdict, interval, number

HEADS = ["case", "row", "what is different", "diverged", "loss above FP32, nats", "largest\n||W_Q||", "rest of dS:\nshare", "steady"]


def data(r: Results, scale: Scale) -> list[dict[str, Any]]:
    """A record per case and row."""
    words = _words(scale)
    found = []
    for (case, row), own in r.by.items():
        found.append({
            "case": case, "row": row, "words": words.get((case, row), "O path FP32 in half of all heads"),
            "changes": list(own[0].trial.changes), "tiles": own[0].trial.tiles, "steps": own[0].trial.steps, "runs": len(own),
            "diverged": diverged(own), "times": [run.diverged for run in own], "seeds": [run.trial.seed for run in own],
            "losses": [run.loss for run in own], "norms": [run.norm for run in own], "shares": [run.share for run in own],
            "steadies": [run.steady for run in own],
        })  # fmt: skip
    return found


def rows(r: Results, scale: Scale) -> list[list[str]]:
    """A line per case and row, in words; the columns of HEADS."""
    words, found = _words(scale), []
    for (case, row), own in r.by.items():
        excess = r.excess(case, own)
        shown = [number(middle([getattr(run, name) for run in own])) for name in ("norm", "share", "steady")]
        left = interval(excess) if excess.seeds else "-"
        found.append([case, row, words.get((case, row), "O path FP32 in half of all heads"), times(own), left, *shown])
    return found


def _words(scale: Scale) -> dict[tuple[str, str], str]:
    return {(case.name, row.name): row.words for case in scale.cases for row in chosen_rows(scale, case)}


def show(verdicts: Sequence[Verdict], data: dict[str, Any], out: Path) -> None:
    """The answer, every verdict, and where the rest is."""
    screen = console()
    say = lambda text: screen.print(text, markup=False)  # noqa: E731
    say(data["answer"])
    screen.print(verdict_table.screen(verdicts, {"row": 9, "claim": 29, "case": 9, "measured": 37, "verdict": 12}))
    if missing(data["run"]):
        say(missing(data["run"]))
    say(f"launches: {launched(data['run'])} ({data['scale']})")
    print(f"written: {out / 'report.html'}, {out / 'qiu-yao.json'}, {out / 'qiu-yao.sqlite'}")
