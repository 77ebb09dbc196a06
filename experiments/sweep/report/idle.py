"""Axes that changed nothing.

Between any two of their values, all else equal, every metric is the same to the bit.
"""

from roundscope.experiments.sweep.measuring.metrics import METRICS
from roundscope.experiments.sweep.storage.frames import Frame
from roundscope.experiments.sweep.storage.grouping import bits, numbered, together


def idle(frame: Frame) -> list[str]:
    """Return the labels of the axes that changed no bit of a metric.

    That is so in every pair of cells that differ in this axis alone.
    """
    if not frame.axes:
        return []
    results = together([bits(frame.metric(name)) for name in METRICS])
    seeds, codes = numbered(frame.seeds()), [frame.code(axis) for axis in frame.axes]
    found = []
    for i, axis in enumerate(frame.axes):
        place = together([*codes[:i], *codes[i + 1 :], seeds])
        places, outcomes = (int(x.max()) + 1 for x in (place, together([place, results])))
        if places == outcomes and places < len(place):
            found.append(axis.label)
    return found


def sentences(frame: Frame) -> list[str]:
    """Return one sentence for each such axis."""
    return [f"{label} changed nothing: all metrics are equal, to the bit" for label in idle(frame)]
