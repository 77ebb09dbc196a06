"""Row 8 of the paper: heads chosen by ||W_Q,h|| of the failing run of the same seed.

As many heads chosen at random are compared with them.
"""

import random
from collections.abc import Sequence

from roundscope.experiments.papers.failure_2510_04212.conditions.cases import PATH, Case
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import Row
from roundscope.experiments.papers.failure_2510_04212.conditions.scale import Scale
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import Entry, Trial, of_row
from roundscope.tools.results.run import Run

LARGEST, SMALLEST, RANDOM = "8 largest", "8 smallest", "8 random"
SETS = 4  # the number of random sets of heads for each seed
Head = tuple[int, int]  # layer, head


def chosen(scale: Scale, case: Case, failing: Sequence[Run[Trial]]) -> list[Entry]:
    """Return the entries with O in FP32 in half of all heads.

    The paper has it so in 6 of the 12 heads of a layer. For every failing run these are the heads
    with the largest ||W_Q,h||, those with the smallest, and random halves.
    """
    found: list[Entry] = []
    for run in failing:
        seed, order = run.seed, ranked(run)
        half = len(order) // 2
        draw = random.Random(seed)
        sets = {LARGEST: order[:half], SMALLEST: order[half:]}
        sets |= {f"{RANDOM} {i}": draw.sample(order, half) for i in range(SETS)}
        for name, heads in sets.items():
            row = Row(
                name=name,
                words=f"O path FP32 in {half} of {len(order)} heads",
                changes=tuple(exact(h) for h in sorted(heads)),
            )
            found += of_row(scale, case, row, [seed])
    return found


def ranked(run: Run[Trial]) -> list[Head]:
    """Return all heads, those with the largest ||W_Q,h|| before divergence first."""
    norms = {
        (layer, head): norm
        for layer, row in enumerate(run.extra["heads"])
        for head, norm in enumerate(row)
    }
    return sorted(norms, key=lambda at: -norms[at])


def exact(head: Head) -> str:
    """Return the change that makes the O path of a head FP32."""
    return f"layer={head[0]} head={head[1]} site={PATH} -> fp32"
