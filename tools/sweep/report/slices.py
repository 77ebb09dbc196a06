"""The part of a frame that one picture shows: axes across, of lines and of rows; what is fixed."""

from dataclasses import dataclass

import numpy as np

from roundscope.tools.sweep.report.effects import scaled, shares
from roundscope.tools.sweep.storage.frames import Axis, Frame

LINES, ROWS, ACROSS = 8, 3, 24  # the most that one picture shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The cells of a frame that one picture shows.

    across, lines, rows   axes; lines and rows are None where nothing else varies
    shown                 which codes of each of these axes are shown
    held                  axes that the picture does not show -> the value that all its cells have
    cells                 (cells,) bool
    """

    across: Axis
    lines: Axis | None
    rows: Axis | None
    shown: dict[str, list[int]]
    held: dict[str, str]
    cells: np.ndarray

    def of(self, axis: Axis | None) -> list[int | None]:
        """Return the codes of an axis that are shown; [None] for no axis."""
        return [None] if axis is None else list(self.shown[axis.name])


def slice_of(
    frame: Frame, across: Axis, metric: str = "rms", lines: Axis | None = None, flat: bool = False
) -> Slice:
    """Return the cells that a picture of `metric` along `across` shows.

    Lines are the axis that explains most of the metric, rows the next if it matters (none where
    `flat`). Every other axis is held where the most conditions are and, among such places, rms is
    largest.
    """
    effects = shares(frame, metric).effects
    others = [e.axis for e in effects if e.axis not in (across, lines)]
    order = others if lines is None else [lines, *others]
    second = order[0] if order else None
    third = None
    if len(order) > 1 and not flat:
        own = next(e for e in effects if e.axis == order[1])
        # it explains 5 % of what the strongest one leaves, and more than the seeds would
        matters = own.share > 0.05 * (1.0 - effects[0].share) and not own.share <= own.limit
        third = order[1] if matters else None
    free = [axis for axis in (across, second, third) if axis is not None]
    cells, held = _held(frame, free, metric)
    shown: dict[str, list[int]] = {}
    for axis, most in ((across, ACROSS), (second, LINES), (third, ROWS)):
        if axis is not None:
            shown[axis.name] = chosen(frame, axis, cells, most)
            cells = cells & np.isin(frame.code(axis), shown[axis.name])
    return Slice(across=across, lines=second, rows=third, shown=shown, held=held, cells=cells)


def chosen(frame: Frame, axis: Axis, cells: np.ndarray, most: int) -> list[int]:
    """Return at most so many codes of an axis: numbers evenly, words of the largest rms."""
    code = frame.code(axis)
    there = [int(c) for c in np.unique(code[cells])]
    if len(there) <= most:
        return there
    if axis.numeric:
        return [
            there[i] for i in np.unique(np.linspace(0, len(there) - 1, most).round().astype(int))
        ]
    y = _ranked(frame)
    return sorted(sorted(there, key=lambda c: -_mean(y[cells & (code == c)]))[:most])


def _held(frame: Frame, free: list[Axis], metric: str) -> tuple[np.ndarray, dict[str, str]]:
    """Return the cells at one place of all axes that are not free, and that place in words."""
    axes = [(i, axis) for i, axis in enumerate(frame.axes) if axis not in free]
    if not axes:
        return np.ones(len(frame.rows), bool), {}
    y = _ranked(frame)
    places, number = np.unique(frame.codes[:, [i for i, _ in axes]], axis=0, return_inverse=True)
    number = number.reshape(-1)
    finite = np.isfinite(scaled(metric, frame.metric(metric)))
    pairs = np.unique(np.stack([number, frame.condition], 1)[finite], axis=0)
    size = np.bincount(pairs[:, 0], minlength=len(places))
    best = max(np.flatnonzero(size == size.max()), key=lambda p: _mean(y[number == p]))
    return number == best, {
        axis.label: axis.word(int(c)) for (_, axis), c in zip(axes, places[best], strict=True)
    }


def _ranked(frame: Frame) -> np.ndarray:
    """Return the logarithm of rms, infinite where rms is: such cells are shown first."""
    rms = frame.metric("rms")
    return np.where(np.isinf(rms), np.inf, scaled("rms", rms))


def _mean(y: np.ndarray) -> float:
    y = y[~np.isnan(y)]
    return float(y.mean()) if y.size else -np.inf
