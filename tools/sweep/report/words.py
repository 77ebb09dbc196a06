"""The names and numbers of a sweep's pictures in words."""

import numpy as np

from roundscope.tools.report.terminal import console

METRIC_LABELS = {
    "rms": "rms of out − float64",
    "max_abs": "largest |out − float64|",
    "rel_rms": "rms / rms of float64",
    "mean_abs": "mean |out − float64|",
    "mean": "mean of out − float64",
    "gain": "gain of out (below 0: too short)",
    "mean_ulps": "mean error, ulps of OUT",
    "several_ones": "share of rows with several P = 1",
    "rescales": "rescales per row",
    "ratio_max": "largest error / unfused's",
    "delta_bias": "mean of delta − float64",
    "dq_rel_rms": "dq: rms / rms of float64",
    "dk_rel_rms": "dk: rms / rms of float64",
    "dv_rel_rms": "dv: rms / rms of float64",
}
AXES_LABELS = {
    "T": "T, queries and keys",
    "S": "S, keys",
    "tile": "tile, queries = keys per tile",
    "block_k": "block_k, keys per tile",
    "block_q": "block_q, queries per tile",
    "format": "format of all events, by precision",
    "N": "N, heads",
    "H": "H, features",
    "stabiliser": "stabilizer, beta",
}


def say(text: str) -> None:
    """Print a text on the terminal as it is; the terminal breaks its lines."""
    console().print(text, markup=False, soft_wrap=True)


def short(text: str, most: int) -> str:
    """Return a text of at most `most` characters, its middle left out."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def number(x: float, digits: int = 3) -> str:
    """Return x with so many digits, and with an exponent far from 1: 0.123, 4.56e-5."""
    if not np.isfinite(x) or x == 0.0 or 0.01 <= abs(x) < 1e4:
        return "-" if np.isnan(x) else f"{float(f'{x:.{digits}g}'):g}"
    mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def with_interval(mean: float, half: float) -> str:
    """Return "mean ± half"; the mean alone where there is no interval."""
    return number(mean) if np.isnan(half) else f"{number(mean)} ± {number(half, 2)}"


def in_ends(mean: float, low: float, high: float) -> str:
    """Return "mean [low, high]"; the mean alone where there is no interval."""
    ends = "" if np.isnan(low) else f" [{number(low, 2)}, {number(high, 2)}]"
    return f"{number(mean)}{ends}"


def percent(share: float) -> str:
    """Return a share as 99.8 %, 12 % or 0.03 %."""
    return f"{100 * share:.1f} %" if share > 0.99 else f"{100 * share:.2g} %"


def fold(ratio: float) -> str:
    """Return how many times as large, or by how many percent larger."""
    if ratio < 2:
        return f"{100 * (ratio - 1):.2g} % larger"
    if ratio < 100 or ratio >= 1e6:
        return f"{number(ratio, 2)} times"
    return f"{float(f'{ratio:.2g}'):,.0f} times".replace(",", " ")
