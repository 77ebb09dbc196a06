"""What came of the trainings of `in_torch` and `in_jax`: a line for each arm.

    python -m tests.checks.watching.outcomes FOLDER/runs.json

A loss has moved with the first 25 steps whose mean is 0.1 nats above the lowest such mean before.
Intervals are Clopper-Pearson's, 95 %.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.framework.counts import share

BLOCK, RISE = 25, 0.1


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
        line += f"; final loss {statistics.median(final):.3f}" if final else ""
        found.append(line)
    return found


def _of(k: int, n: int) -> str:
    low, high = share(k, n)
    return f"{k} of {n} [{low:.0%}, {high:.0%}]"


def main() -> None:
    """Print the lines of a file."""
    kept = json.loads(Path(sys.argv[1]).read_text())
    print(", ".join(f"{name} {value}" for name, value in kept["about"].items()))
    print(*lines(kept["runs"]), sep="\n")


if __name__ == "__main__":
    main()
