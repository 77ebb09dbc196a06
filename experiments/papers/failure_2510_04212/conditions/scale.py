"""What `roundscope reproduce qiu-yao` trains: --quick for two cores, full for a GPU."""

from dataclasses import dataclass

from roundscope.experiments.papers.failure_2510_04212.conditions.cases import (
    AMPLIFIED,
    NEAREST,
    Case,
    faster,
    fewer,
    isolated,
    other_delta,
    published,
)
from roundscope.experiments.train.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its failing cases, and how long and how often each row runs.

    rate          the rate after `config.warmup` steps, which is constant, so that a time to
                  divergence does not depend on the number of steps
    steps, seeds  the steps and seeds of rows
    short, few    those of rows of searches (layers, heads, the factorial)
    core          whether only the rows that the answer needs are run
    arms          the largest number of arms in a launch
    """

    name: str
    config: Config
    rate: float
    cases: tuple[Case, ...]
    steps: int
    short: int
    seeds: tuple[int, ...]
    few: tuple[int, ...]
    core: bool
    arms: int = 96


QUICK = Scale(
    name="quick",
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50),
    rate=6e-2,
    cases=(published(), isolated(AMPLIFIED, 3, "toward-zero"), fewer(6), other_delta()),
    steps=500,
    short=500,
    seeds=(0, 1, 2),
    few=(0, 1, 2),
    core=True,
)
FULL = Scale(
    name="full",
    config=Config(layers=4, heads=4, width=128, context=128, batch=16, warmup=100),
    rate=1e-2,
    cases=(
        published(),
        isolated(AMPLIFIED, 6, "toward-zero"),
        isolated(NEAREST, 3, "ties-to-even"),
        fewer(6),
        other_delta(),
        faster(3.0),
    ),
    steps=1500,
    short=1000,
    seeds=(0, 1, 2, 3, 4),
    few=(0, 1, 2),
    core=False,
)
