"""The question, the answer, and every arm with its seeds' numbers, for the report, its data and the terminal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.report.terminal import console
from roundscope.experiments.studies.proxy.studies import UNCHANGED, Study
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import Result, lone, of_arms, when

HEADS = ["arm", "changes", "diverged", "spikes", "final loss", "over FP32", "zeta", "cosine", "gamma\nlast", "gamma\ndistinct"]


def question(asked: Study) -> str:
    """What the study asks."""
    if asked.first is None:
        return "Does training in block-scaled formats diverge where FP32 on the same rows does not?"
    return f"What, changed at step {asked.first}, averts the divergence?"


def answer(asked: Study, results: Sequence[Result]) -> str:
    """One sentence or two, from the counts alone."""
    return _averted(asked, results) if asked.first is not None else _lone(results)


def _lone(results: Sequence[Result]) -> str:
    own, names = of_arms(results), lone(results)
    exact = f"FP32 diverged in {when(own.get(EXACT, []))}"
    if not names:
        highest = max((n for n in own if n != EXACT), key=lambda n: over(own[n], results), default=None)
        worst = "" if highest is None else f" The largest final loss over FP32's: {highest}, {over(own[highest], results):.2f} times."
        return f"No: at these settings no arm diverged with a seed with which FP32 did not; {exact}.{worst}"
    return f"Yes: {'; '.join(f'{name} in {when(own[name])}' for name in names)}. {exact}."


def _averted(asked: Study, results: Sequence[Result]) -> str:
    own = of_arms(results)
    base = {r.arm.seed for r in own.get(UNCHANGED, []) if r.diverged is not None and r.diverged >= (asked.first or 0)}
    if not base:
        return "Nothing to avert: without a change no run diverged after that step."
    count = {
        name: sum(r.diverged is None for r in runs if r.arm.seed in base) for name, runs in own.items() if name not in (EXACT, UNCHANGED)
    }
    all_of, none = [n for n, k in count.items() if k == len(base)], [n for n, k in count.items() if k == 0]
    some = [f"{n} ({k} of {len(base)})" for n, k in count.items() if 0 < k < len(base)]
    parts = [f"averted by {', '.join(all_of)}" if all_of else "averted by none of the changes in every run"]
    parts += [f"in some runs by {', '.join(some)}"] if some else []
    parts += [f"in none by {', '.join(none)}"] if none else []
    return f"{len(base)} of {len(asked.seeds)} runs diverge without a change: {'; '.join(parts)}."


def over(own: Sequence[Result], results: Sequence[Result]) -> float:
    """The geometric mean over seeds of the final loss over FP32's of the same seed and rate, infinite where one is not finite."""
    exact = {(r.arm.seed, r.arm.lr): r.loss for r in results if r.arm.name == EXACT}
    ratios = [r.loss / exact.get((r.arm.seed, r.arm.lr), math.nan) for r in own]
    return float(np.exp(np.mean(np.log(ratios)))) if all(map(math.isfinite, ratios)) else math.inf


def points(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row per arm, as data."""
    return [
        {
            "name": name, "lr": own[0].arm.lr, "changes": own[0].arm.changes, "runs": len(own), "seeds": [r.arm.seed for r in own],
            "diverged": [r.diverged for r in own], "spikes": [r.spikes for r in own], "losses": [r.loss for r in own],
            "over_fp32": over(own, results), "measures": {n: _middle(own, n) for n in measured(own)},
        }
        for name, own in of_arms(results).items()
    ]  # fmt: skip


def measured(results: Sequence[Result]) -> list[str]:
    """The names of what was measured, in their order."""
    return list(dict.fromkeys(name for r in results for _, found in r.measures for name in found))


def _middle(own: Sequence[Result], name: str) -> float:
    found = [x for x in (r.before(name) for r in own) if math.isfinite(x)]
    return float(np.median(found)) if found else math.nan


def rows(results: Sequence[Result]) -> list[list[str]]:
    """A row per arm, in words; the columns of HEADS."""
    show = lambda x, how: format(x, how) if math.isfinite(x) else ""  # noqa: E731
    found = []
    for name, own in of_arms(results).items():
        finite = [r.loss for r in own if math.isfinite(r.loss)]
        loss = f"{np.median(finite):.2e}" if len(finite) == len(own) else f"{len(own) - len(finite)} not finite"
        changes = "; ".join(f"{step}: {text}" if step else text for step, text in own[0].arm.changes)
        middle = [
            show(_middle(own, n), how) for n, how in (("zeta", ".3g"), ("cosine", ".4f"), ("gamma_last", ".1%"), ("gamma_distinct", ".1f"))
        ]
        found.append([name, changes, when(own), str(sum(r.spikes for r in own)), loss, show(over(own, results), ".3g"), *middle])
    return found


def show(data: dict[str, Any], results: Sequence[Result], page: Path) -> None:
    """The answer, every arm, and where the rest is."""
    from rich.table import Table

    screen = console()
    screen.print(data["answer"], markup=False)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    lines = rows(results)
    kept = [c for c in (0, 2, 3, 4, 5, 6, 7) if any(line[c] for line in lines)]
    for column in kept:
        made.add_column(HEADS[column].replace("\n", " "))
    for line in lines:
        made.add_row(*(line[c] for c in kept))
    screen.print(made)
    run = data["run"]
    screen.print(f"{run['ran']} of {run['runs']} runs computed now, {run['seconds']:.0f} s", markup=False)
    print(f"written: {page}, {page.with_suffix('.json')}, {page.parent / 'proxy.sqlite'}")
