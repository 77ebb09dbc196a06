"""Axes that changed nothing.

Between any two of their values, all else equal, every metric is the same to the bit.
"""

from collections.abc import Sequence

from roundscope.tools.sweep.measuring.metrics import METRICS
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.storage.frames import Frame
from roundscope.tools.sweep.storage.grouping import bits, numbered, together


def idle(frame: Frame) -> list[str]:
    """Return the labels of the axes that changed no bit of a metric.

    That is so in every pair of cells that differ in this axis alone. Cells with NaN or infinite
    results take no part: two infinite errors are equal, and say nothing.
    """
    kept = ~lost(frame).cells
    if not frame.axes or not kept.any():
        return []
    results = together([bits(frame.metric(name)[kept]) for name in METRICS])
    seeds, codes = numbered(frame.seeds()[kept]), [frame.code(axis)[kept] for axis in frame.axes]
    found = []
    for i, axis in enumerate(frame.axes):
        place = together([*codes[:i], *codes[i + 1 :], seeds])
        places, outcomes = (int(x.max()) + 1 for x in (place, together([place, results])))
        if places == outcomes and places < len(place):
            found.append(axis.label)
    return found


def sentences(frame: Frame) -> list[str]:
    """Return one sentence for each such axis."""
    return said(idle(frame), bool(lost(frame).cells.any()))


def said(labels: Sequence[str], are_some_lost: bool) -> list[str]:
    """Return one sentence for each axis; are_some_lost: whether cells had to be left out."""
    of = " where results are finite" if are_some_lost else ""
    return [f"{label} changed nothing: all metrics are equal, to the bit{of}" for label in labels]
