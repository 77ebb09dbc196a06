"""Errors of the result of one call: their size, and whether the result is too long or too short."""

import numpy as np


def relative_error(own: np.ndarray, exact: np.ndarray) -> float:
    """Return |own - exact| / |exact|, of root mean squares."""
    return float(np.sqrt(np.square(own - exact).sum() / np.square(exact).sum()))


def gain(own: np.ndarray, exact: np.ndarray) -> float:
    """Return <own - exact, exact> / |exact|^2; below 0, the result is too short."""
    return float(((own - exact) * exact).sum() / np.square(exact).sum())
