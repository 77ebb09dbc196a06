"""Results that were never measured: rows with the numbers that a test wants."""

import numpy as np

from roundscope.experiments.papers.stability_2405_02803.measuring import (
    AXES,
    Scale,
    gathered,
    place_of,
)
from roundscope.experiments.papers.stability_2405_02803.trainings import NUMBERS, Apart, Training
from roundscope.experiments.train.config import Config

SPREAD = (0.98, 1.0, 1.02, 1.01)  # of seeds

TINY = Scale(
    name="tiny",
    lengths=(16, 32),
    entries=32,
    real=(16, 32),
    many=(32, 1),
    tiles=(8, 16, 32),
    production_tiles=(8, 16),
    swaps=((8, 16),),
    squares=(8, 16),
    bench=(32, 1),
    counts=(1, 2),
    seeds=2,
    fewer=2,
    plenty=32,
    tile=16,
    narrow=8,
    training=Training(
        config=Config(
            layers=1, heads=1, width=8, context=8, batch=2, warmup=2, steps=8, data="repeat"
        ),
        tile=4,
        seeds=2,
        looks=4,
        pairs=("flash", "weights", "precision", "bf16"),
    ),
)


def rows(point, seeds=4, sites=None, **metrics):
    """(cells, sites) of a condition: metrics times the spread of seeds; without spread for one
    seed.
    """
    spread = SPREAD[:seeds] if seeds > 1 else (1.0,)
    place, cells, events = dict(place_of(point)), [], []
    for seed, factor in enumerate(spread):
        key = f"{sorted(point.items(), key=str)}:{seed}"
        cells.append(
            {**dict.fromkeys(AXES), **place, "seed": seed, "status": "ok", "key": key}
            | {n: x * factor for n, x in metrics.items()}
        )
        events += [
            {"key": key, "site": site, **{n: x * factor for n, x in numbers.items()}}
            for site, numbers in (sites or {}).items()
        ]
    return cells, events


def results(*parts):
    """The results that hold all parts."""
    return gathered(
        [row for cells, _ in parts for row in cells], [row for _, events in parts for row in events]
    )


def straight(training, rates):
    """Drifts that grow by a rate per step from 0, by pair; seeds 1 % apart."""
    steps = np.array(training.steps, float)

    def own(rate, seed):
        return rate * (1 + 0.01 * seed) * steps

    return {
        pair: {
            seed: Apart(**{name: own(rate, seed) for name in NUMBERS})
            for seed in range(training.seeds)
        }
        for pair, rate in rates.items()
    }
