"""Every arm with its numbers, for the report, mxfp8.json and the terminal."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.report.terminal import console
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.estimates import mean
from roundscope.experiments.studies.framework.verdicts import Verdict, interval
from roundscope.experiments.studies.mxfp8.arms import BF16, FP32
from roundscope.experiments.studies.mxfp8.results import Own, Results, diverged, seed_of

HEADS = ["model", "lr", "arm", "diverged", "final loss", "above BF16, mnats", "above FP32, %", "zeta", "along g"]


def data(r: Results) -> list[dict[str, Any]]:
    """A record per model, rate and arm."""
    return [
        {"model": model, "lr": lr, "arm": name, "seeds": [seed_of(x) for x in own], "diverged": [x.diverged for x in own],
         "losses": [x.loss for x in own]}
        for model, lr, name, own in _arms(r)
    ]  # fmt: skip


def rows(r: Results) -> list[list[str]]:
    """The same in words; the columns of HEADS."""
    found = []
    for model, lr, name, own in _arms(r):
        losses = [x.loss for x in own if math.isfinite(x.loss)]
        is_gpt = model == "GPT"
        above = interval(mean({s: 1e3 * v for s, v in r.gaps(lr, name, BF16).items()})) if is_gpt and name != BF16 else ""
        over = interval(r.over(lr, name, FP32)) if not is_gpt and name != FP32 else ""
        seen = ["", ""] if is_gpt or name == FP32 else [interval(mean(r.seen(lr, name, m))) for m in ("zeta", "along")]
        loss = f"{np.median(losses):.4g}" if losses else "not finite"
        found.append([model, f"{lr:g}", name, f"{diverged(own)} of {len(own)}", loss, above, over, *seen])
    return found


def _arms(r: Results) -> Iterator[tuple[str, float, str, Own]]:
    for (lr, name), own in r.gpt.items():
        yield "GPT", lr, name, own
    for (lr, name), runs in r.proxy.items():
        yield "proxy", lr, name, runs


def show(verdicts: Sequence[Verdict], data: dict[str, Any], out: Path) -> None:
    """The answer, every verdict, and where the rest is."""
    screen = console()
    screen.print(data["answer"], markup=False)
    screen.print(verdict_table.screen(verdicts, {"source": 10, "claim": 26, "case": 14, "measured": 33, "verdict": 12}))
    run = data["run"]
    screen.print(f"{run['ran']} of {run['launches']} launches computed now, {run['seconds']:.0f} s ({data['scale']})", markup=False)
    print(f"written: {out / 'report.html'}, {out / 'mxfp8.json'}, {out / 'mxfp8.sqlite'}, {out / 'proxy.sqlite'}")
