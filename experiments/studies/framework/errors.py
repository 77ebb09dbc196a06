"""How far a result is from the exact one, and whether it is too long or too short: of one call."""

import numpy as np


def relative_error(own: np.ndarray, exact: np.ndarray) -> float:
    """Return |own - exact| / |exact|, of root mean squares."""
    return float(np.sqrt(np.square(own - exact).sum() / np.square(exact).sum()))


def gain(own: np.ndarray, exact: np.ndarray) -> float:
    """Return <own - exact, exact> / |exact|^2: below 0, the result is too short."""
    return float(((own - exact) * exact).sum() / np.square(exact).sum())
