"""Results that were never measured: rows with the numbers that a test wants."""

from experiments.golden.results import AXES, gathered, place_of
from experiments.golden.scale import Scale

SPREAD = (0.98, 1.0, 1.02, 1.01)  # of seeds

TINY = Scale(
    name="tiny", lengths=(16, 32), entries=32, real=(16, 32), many=(32, 1), tiles=(8, 16, 32), production_tiles=(8, 16), swaps=((8, 16),),
    squares=(8, 16), bench=(32, 1), counts=(1, 2), seeds=2, fewer=2, plenty=32, tile=16, narrow=8,
)  # fmt: skip


def rows(point, seeds=4, sites=None, **metrics):
    """(cells, sites) of a condition: metrics times the spread of seeds; without spread for one seed."""
    spread = SPREAD[:seeds] if seeds > 1 else (1.0,)
    place, cells, events = dict(place_of(point)), [], []
    for seed, factor in enumerate(spread):
        key = f"{sorted(point.items(), key=str)}:{seed}"
        cells.append(
            {**dict.fromkeys(AXES), **place, "seed": seed, "status": "ok", "key": key} | {n: x * factor for n, x in metrics.items()}
        )
        events += [{"key": key, "site": site, **{n: x * factor for n, x in numbers.items()}} for site, numbers in (sites or {}).items()]
    return cells, events


def results(*parts):
    """The results that hold all parts."""
    return gathered([row for cells, _ in parts for row in cells], [row for _, events in parts for row in events])
