"""The numbers of a sweep's cells: pure functions of arrays with the cells along the first axis.

Deviations come from the sums of `tools.sweep.measuring.sums`, equal to the bit on every
engine and in any grouping of cells; the few quotients and roots of a cell are taken here, by NumPy
on the host. The sums of errors behind SITE_METRICS were added by the engines and agree to about
1e-12; their counts are equal.

A standard error takes rows, query x head, as independent, and that of a gain takes heads. It is NaN
for a single one.

An error of a result of which an entry is lost (`roundscope.emu.stats.comparison`) is infinite, and
a signed mean is NaN: what is left says nothing of the whole.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np
from scipy.special import ndtri, stdtr

from roundscope.attention.trace.summary import Trace
from roundscope.emu.formats.format import Format
from roundscope.tools.sweep.measuring.sums import GRADIENTS, Sums

Metrics = dict[str, np.ndarray]
FEW = 16  # cells of a trace below which threads cost more than they bring

GAIN = {
    "gain": (
        "by how much it is too long (above 0) or too short, as a part of its length: <x - golden,"
        " golden> over |golden|^2, mean over heads"
    ),
    "gain_se": "standard error of the gain over heads",
    "gain_z": (
        "the gain in its standard errors, as a normal deviate that is as rare as Student's: beyond"
        " +-3 heads would scatter so in 3 of 1,000 unbiased cells"
    ),
}
SPREAD = "standard error over heads of the natural logarithm of a head's rms error over its size"
METRICS: dict[str, str] = {
    "max_abs": "largest |out - golden|",
    "mean_abs": "mean |out - golden|",
    "rms": "root mean square of out - golden",
    "rel_rms": "rms over the root mean square of golden",
    "log_rms_se": SPREAD,
    "mean": "mean signed out - golden",
    "mean_se": "its standard error over rows",
    "mean_ulps": (
        "mean over the mean ulp of OUT's format in the binades of golden (in a mean of ratios one"
        " entry near 0 would dominate)"
    ),
    "mean_ulps_se": "mean_se over the same",
    **{name: f"of out: {meaning}" for name, meaning in GAIN.items()},
    "not_finite": (
        "entries of out that are NaN or infinite where golden is not, or the other way round; if"
        " there is one, every deviation of out is infinite, and a signed mean NaN"
    ),
    "not_finite_row": "row of the first of them, (batch entry T + query) N + head; -1 for none",
    "unfused_max_abs": (
        "largest |unfused - golden|: the same formats, softmax first and P V over the whole row"
    ),
    "unfused_rms": "root mean square of unfused - golden",
    "ratio_max": "max_abs over unfused_max_abs: what tiling costs",
    "ratio_rms": "rms over unfused_rms",
    "ratio_mean_abs": "mean_abs over that of unfused",
    "vs_unfused_max": "largest |out - unfused| (arXiv 2405.02803, Fig. 3)",
    "several_ones": "share of rows in which two or more P of one key tile were 1",
    "rescales": "key tiles after the first whose ALPHA was not 1, mean over rows",
    "lse_max_abs": "largest |lse - golden|",
    "lse_not_finite": "not_finite of lse",
    "dq_not_finite_row": "row of the first entry of dq that is not finite, as of out",
    **{
        f"{g}_{name}": f"{meaning} of {g} - golden"
        for g in GRADIENTS
        for name, meaning in {
            "max_abs": "largest magnitude",
            "rms": "root mean square",
            "mean": "signed mean",
            "rel_rms": "root mean square, relative to golden's,",
            "not_finite": "not_finite, if there is one then the others are not,",
        }.items()
    },
    **{f"{g}_{name}": f"{name} of {g}" for g in GRADIENTS for name in GAIN},
    **{f"{g}_log_rms_se": f"log_rms_se of {g}" for g in GRADIENTS},
    "delta_bias": "mean signed delta - golden, over rows",
    "delta_bias_se": "its standard error over rows",
    "delta_coherence": (
        "|sum| over the root of the sum of squares of delta - golden: about 1 or less where signs"
        " are random"
    ),
    "delta_not_finite": "not_finite of delta",
}
NOT_FINITE = tuple(name for name in METRICS if name.endswith("not_finite"))
"""The counts of lost entries, one for each result."""

SITE_METRICS: dict[str, str] = {
    "n": "rounding events",
    "inexact": "share of events that gave another finite number: overflow to infinity is not one",
    "ties": "share of events exactly half way between two numbers",
    "mean_ulps": "mean signed error in ulps: the bias; an overflow to infinity counts as no error",
    "se_ulps": (
        "its standard error, with the errors of a row taken together"
        " (tools.trace.analysis.bias.mean_error)"
    ),
    "mean_abs_ulps": "mean |error| in ulps",
    "rms_ulps": "root mean square error in ulps",
    "mean_error": "mean signed error in value",
    "rms_error": "root mean square error in value",
    "peak_ulps": "largest |error| in ulps",
    "coherence": "|sum| over the root of the sum of squares of errors in ulps",
    "carries": "events that went up into the next binade",
    "overflow": "finite numbers beyond the largest finite one that ended over half an ulp away",
    "underflow": "numbers that became zero",
    "subnormal": "results below the smallest normal number",
    "nan": "results that are NaN",
    "hits": "entries that an injection hit",
}


def of_sums(sums: dict[str, Sums], formats: Sequence[Format]) -> Metrics:
    """Return METRICS of cells from `sums_of`, without `softmax_events`; formats: those of OUT."""
    found = forward(sums["out"], formats)
    found |= against_unfused(found, sums["unfused"], sums["between"]) | {
        "lse_max_abs": _peak(sums["lse"]),
        "lse_not_finite": _lost(sums["lse"]),
    }
    return found | (backward(sums) if "delta" in sums else {})


def deviations(s: Sums) -> Metrics:
    """Return max_abs, mean_abs and rms."""
    n = _none(s["n"])
    return {
        "max_abs": _peak(s),
        "mean_abs": _error(s, s["size"] / n),
        "rms": _error(s, np.sqrt(s["square"] / n)),
    }


def forward(s: Sums, formats: Sequence[Format]) -> Metrics:
    """Return the metrics of out: `deviations`, relative and signed, also in ulps, not_finite."""
    found = deviations(s) | _mean("mean", s)
    # 2^(e - p + 1) is an ulp in binade e
    ulp = np.ldexp(s["binades"] / s["entries"], [1 - f.precision for f in formats])
    return {
        **found,
        **gain(s),
        "log_rms_se": spread(s),
        "rel_rms": _relative(found["rms"], s),
        "mean_ulps": found["mean"] / ulp,
        "mean_ulps_se": found["mean_se"] / ulp,
        "not_finite": _lost(s),
        "not_finite_row": _first(s),
    }


def gain(s: Sums) -> Metrics:
    """Return GAIN: NaN where an entry is lost; heads whose golden result is 0 have no gain."""
    with np.errstate(all="ignore"):
        heads = s["along"] / np.where(s["length"] > 0.0, s["length"], np.nan)
        n = np.isfinite(heads).sum(-1)
        mean = np.where(np.isfinite(heads), heads, 0.0).sum(-1) / _none(n)
        spread = np.where(np.isfinite(heads), heads - mean[:, None], 0.0)
        se = np.sqrt((spread * spread).sum(-1) / (_none(n - 1) * _none(n)))
    found = {"gain": _plus(mean), "gain_se": se, "gain_z": deviate(mean, se, n)}
    return {name: _signed(s, x) for name, x in found.items()}


def spread(s: Sums) -> np.ndarray:
    """Return log_rms_se: NaN where an entry is lost, or fewer than two heads have an error."""
    with np.errstate(all="ignore"):
        logs = np.log(s["off"] / s["length"]) / 2.0
        known = np.isfinite(logs)
        n = known.sum(-1)
        mean = np.where(known, logs, 0.0).sum(-1) / _none(n)
        apart = np.where(known, logs - mean[:, None], 0.0)
        return _signed(s, np.sqrt((apart * apart).sum(-1) / (_none(n - 1) * _none(n))))


def deviate(mean: np.ndarray, se: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return mean / se as a normal deviate that is as rare as Student's of n numbers.

    It is 0 where the mean is 0, and NaN for fewer than two numbers.
    """
    with np.errstate(all="ignore"):
        t = np.where(mean == 0.0, 0.0, np.abs(mean) / se)
        z = -ndtri(stdtr(np.maximum(n, 2) - 1.0, -t))
    return np.where(n > 1, np.copysign(z, mean), np.nan) + 0.0


def against_unfused(mine: Metrics, unfused: Sums, between: Sums) -> Metrics:
    """Return what tiling costs: the deviations of out relative to those of unfused attention.

    mine: the `deviations` of out; between: the sums of out - unfused.
    """
    other = deviations(unfused)
    ratios = {f"ratio_{short}": _ratio(mine[name], other[name]) for short, name in _RATIOS.items()}
    return {
        "unfused_max_abs": other["max_abs"],
        "unfused_rms": other["rms"],
        "vs_unfused_max": _peak(between),
    } | ratios


_RATIOS = {"max": "max_abs", "rms": "rms", "mean_abs": "mean_abs"}


def softmax_events(trace: Trace) -> Metrics:
    """Return several_ones and rescales, from a trace that counted the ones of P and ALPHA."""
    ones, same = trace.ones["P"], trace.ones["ALPHA"]
    cells, rows = ones.shape[0], ones[0, :, 0].size
    moved = trace.stats["ALPHA"].n.reshape(cells, -1).sum(-1) - same.reshape(cells, -1).sum(-1)
    return {
        "several_ones": (ones >= 2).any(2).reshape(cells, -1).mean(-1),
        "rescales": moved / rows,
    }


def backward(sums: dict[str, Sums]) -> Metrics:
    """Return the metrics of dq, dk, dv and of delta."""
    found: Metrics = {}
    for g in GRADIENTS:
        s, n = sums[g], _none(sums[g]["n"])
        rms = _error(s, np.sqrt(s["square"] / n))
        seen = {
            "max_abs": _peak(s),
            "rms": rms,
            "mean": _signed(s, _plus(s["sum"]) / n),
            "rel_rms": _relative(rms, s),
            "not_finite": _lost(s),
            **gain(s),
            "log_rms_se": spread(s),
        }
        found |= {f"{g}_{name}": value for name, value in seen.items()}
    found["dq_not_finite_row"] = _first(sums["dq"])
    s = sums["delta"]
    coherence = np.where(s["n"] > 0, _ratio(np.abs(s["sum"]), np.sqrt(s["square"])), np.nan)
    more = {"delta_coherence": _signed(s, coherence), "delta_not_finite": _lost(s)}
    return found | _mean("delta_bias", s) | more


def sites(trace: Trace) -> list[dict[str, dict[str, float]]]:
    """Return SITE_METRICS of every site that has events, for each batch entry of a trace."""
    count = next(iter(trace.stats.values())).n.shape[0]
    found: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    with ThreadPoolExecutor(cpu_count() if count > FEW else 1) as pool:
        values = pool.map(lambda name: _site(trace, name), trace.stats)
    for name, value in zip(trace.stats, values, strict=True):
        lines = zip(*(v.astype(np.float64).tolist() for v in value.values()), strict=True)
        for cell, line in enumerate(lines):
            if line[0]:
                found[cell][name] = dict(zip(value, line, strict=True))
    return found


def _site(trace: Trace, name: str) -> Metrics:
    stats = trace.stats[name]
    total = {f: np.asarray(getattr(stats, f)).sum(-1) for f in stats.__dataclass_fields__}
    n = np.maximum(total["n"], 1)
    groups = np.ascontiguousarray(trace.rows[name]).reshape(len(stats.n), -1)
    hits = trace.hits.get(name)
    sums, squares = groups.sum(-1), (groups * groups).sum(-1)
    centered = np.maximum.reduce(
        [squares - sums**2 / groups.shape[1], total["sq_ulps"] - sums**2 / n, np.zeros(len(n))]
    )
    root = np.sqrt(total["sq_ulps"])
    return {
        "n": total["n"],
        "inexact": total["inexact"] / n,
        "ties": total["ties"] / n,
        "mean_ulps": total["ulps"] / n,
        "se_ulps": np.sqrt(centered) / n,
        "mean_abs_ulps": total["abs_ulps"] / n,
        "rms_ulps": np.sqrt(total["sq_ulps"] / n),
        "mean_error": total["error"] / n,
        "rms_error": np.sqrt(total["sq_error"] / n),
        "peak_ulps": np.asarray(stats.peak).max(-1),
        "coherence": np.abs(total["ulps"]) / np.where(root > 0.0, root, np.inf),
        **{f: total[f] for f in ("carries", "overflow", "underflow", "subnormal", "nan")},
        "hits": np.zeros(len(n)) if hits is None else hits.reshape(len(n), -1).sum(-1),
    }


def _lost(s: Sums) -> np.ndarray:
    return np.asarray(s["lost"]).astype(np.float64)


def _first(s: Sums) -> np.ndarray:
    """Return the row of the first lost entry; -1 if there is none."""
    return np.where(s["lost"] > 0, s["first"], -1.0)


def _error(s: Sums, x: np.ndarray) -> np.ndarray:
    """Return a magnitude of deviations: infinite where an entry is lost."""
    return np.where(s["lost"] > 0, np.inf, x)


def _signed(s: Sums, x: np.ndarray) -> np.ndarray:
    """Return what has a sign: NaN where an entry is lost."""
    return np.where(s["lost"] > 0, np.nan, x)


def _peak(s: Sums) -> np.ndarray:
    return _error(s, np.where(s["n"] > 0, s["peak"], np.nan))


def _mean(name: str, s: Sums) -> Metrics:
    """Return the mean of the entries, and the standard error of that of the rows that have some."""
    variance = s["spread"] / _none(s["filled"] - 1)
    return {
        name: _signed(s, _plus(s["sum"]) / _none(s["n"])),
        f"{name}_se": _signed(s, np.sqrt(variance / _none(s["filled"]))),
    }


def _relative(rms: np.ndarray, s: Sums) -> np.ndarray:
    return _error(s, _ratio(rms, np.sqrt(s["golden"] / _none(s["n"]))))


def _plus(x: np.ndarray) -> np.ndarray:
    """Return x without any -0, whose sign depends only on how a sum begins."""
    return x + 0.0


def _none(n: np.ndarray) -> np.ndarray:
    """Return counts as divisors: NaN where there is nothing to divide by."""
    return np.where(n > 0, n, np.nan)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b; NaN for 0 / 0, infinite for a / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.asarray(a) / np.asarray(b))
