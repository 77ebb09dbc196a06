"""What came of the trainings of `in_torch` and `in_jax`: a line for each arm, and other thresholds.

    python -m tests.checks.watching.outcomes FOLDER/runs.json ...

A loss has moved with the first 25 steps whose mean is 0.1 nats above the lowest such mean before.
Intervals are Clopper-Pearson's, 95 %.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.attention.models.alarm import LOOKS
from roundscope.experiments.framework.counts import share

BLOCK, RISE = 25, 0.1
THRESHOLDS = (0.05, 0.1, 0.2, 0.5)


def means(losses: Sequence[float]) -> list[float]:
    """Return the means of whole blocks of 25 losses."""
    ends = range(BLOCK, len(losses) + 1, BLOCK)
    return [round(statistics.fmean(losses[n - BLOCK : n]), 5) for n in ends]


def moved(blocks: Sequence[float]) -> int | None:
    """Return the first step of the block in which a loss has moved, None if it has not."""
    lowest = float("inf")
    for n, loss in enumerate(blocks):
        if not loss <= lowest + RISE:
            return n * BLOCK
        lowest = min(lowest, loss)
    return None


def lines(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each arm."""
    found = []
    for arm in dict.fromkeys(run["arm"] for run in runs):
        own = [run for run in runs if run["arm"] == arm]
        lost = [run for run in own if run["diverged"] is not None]
        warned = [run for run in own if run["alarm"] is not None]
        leads = sorted(
            (moved(run["means"]) or run["diverged"]) - run["alarm"]
            for run in lost
            if run["alarm"] is not None and run["means"]
        )
        steps = sorted(run["diverged"] for run in lost)
        final = [run["means"][-1] for run in own if run["means"] and run not in lost]
        line = f"{arm}: diverged {_of(len(lost), len(own))}"
        line += f", steps {steps[0]} to {steps[-1]}" if steps else ""
        line += f"; alarms {_of(len(warned), len(own))}"
        if leads:
            line += f", {leads[0]} to {leads[-1]} steps before the loss moved"
        shares = [max(x for _, x in run["shares"]) for run in own if run["shares"]]
        line += f"; largest share {min(shares):.3f} to {max(shares):.3f}" if shares else ""
        line += f"; final loss {statistics.median(final):.3f}" if final else ""
        found.append(line)
    return found


def of_threshold(runs: Sequence[dict[str, Any]], threshold: float) -> str:
    """Return how often an alarm at a threshold would have been right; runs without cures."""
    begun = [_first(run, threshold) for run in runs]
    lost = [(run, a) for run, a in zip(runs, begun, strict=True) if run["diverged"] is not None]
    early = sum(a is not None and a < (moved(r["means"]) or r["diverged"]) for r, a in lost)
    by_50 = sum(a is not None and a + 50 <= r["diverged"] for r, a in lost)
    kept = [(run, a) for run, a in zip(runs, begun, strict=True) if run["diverged"] is None]
    false = sum(a is not None for _, a in kept)
    healthy = [a for run, a in kept if run["arm"] == "healthy"]
    return (
        f"threshold {threshold:g}: warned before the loss moved {_of(early, len(lost))}, 50 steps"
        f" before the divergence {_of(by_50, len(lost))}; alarms of runs that did not diverge"
        f" {_of(false, len(kept))}, healthy ones"
        f" {_of(sum(a is not None for a in healthy), len(healthy))}"
    )


def _first(run: dict[str, Any], threshold: float) -> int | None:
    """Return the step of the first look that raises an alarm."""
    return next((step for step, share in run["shares"][LOOKS - 1 :] if share > threshold), None)


def _of(k: int, n: int) -> str:
    low, high = share(k, n)
    return f"{k} of {n} [{low:.0%}, {high:.0%}]"


def main() -> None:
    """Print the lines of each file, and what thresholds do to the runs of all."""
    runs = []
    for path in sys.argv[1:]:
        kept = json.loads(Path(path).read_text())
        print(", ".join(f"{name} {value}" for name, value in kept["about"].items()))
        print(*lines(kept["runs"]), sep="\n")
        runs += [run for run in kept["runs"] if run["arm"] not in ("cured", "corrected", "sham")]
    print(*(of_threshold(runs, threshold) for threshold in THRESHOLDS), sep="\n")


if __name__ == "__main__":
    main()
