"""Axes that changed nothing.

Between any two of their values, all else equal, every metric is the same to the bit.
"""

import numpy as np

from roundscope.experiments.sweep.measuring.metrics import METRICS
from roundscope.experiments.sweep.storage.frames import Frame


def idle(frame: Frame) -> list[str]:
    """Return the labels of the axes that changed no bit of a metric.

    That is so in every pair of cells that differ in this axis alone.
    """
    if not frame.axes:
        return []
    results, seeds = _numbered(np.stack([frame.metric(name) for name in METRICS], 1)), frame.seeds()
    found = []
    for axis in frame.axes:
        others = [frame.code(other) for other in frame.axes if other is not axis]
        place = _numbered(np.stack([*others, seeds], 1).astype(np.float64))
        places, outcomes = (
            np.unique(np.stack(x, 1), axis=0).shape[0] for x in ([place], [place, results])
        )
        if places == outcomes and places < len(place):
            found.append(axis.label)
    return found


def sentences(frame: Frame) -> list[str]:
    """Return one sentence for each such axis."""
    return [f"{label} changed nothing: all metrics are equal, to the bit" for label in idle(frame)]


def _numbered(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row of a table of float64, the same for rows of the same bits.

    All NaN count as equal.
    """
    bits = np.ascontiguousarray(np.where(np.isnan(rows), np.nan, rows)).view(np.int64)
    return np.unique(bits, axis=0, return_inverse=True)[1].reshape(-1)
