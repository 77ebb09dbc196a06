"""The numbers of a sweep's cells, many cells at a time: pure functions of arrays with the cells along the first axis.

Deviations are computed here, in NumPy's binary64 on the host, from results that are equal to the bit on both engines, and
every sum runs along one cell's own entries in memory order: so numpy and xla, and any grouping of cells, give identical
metrics. The sums of errors behind SITE_METRICS were added by the engines and agree to about 1e-12; their counts are equal.

A standard error takes rows, query x head, as independent. It is NaN for a single row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention.trace import Trace
from emu.formats import Format

Metrics = dict[str, np.ndarray]
GRADIENTS = ("dq", "dk", "dv")

METRICS: dict[str, str] = {
    "max_abs": "largest |out - golden|",
    "mean_abs": "mean |out - golden|",
    "rms": "root mean square of out - golden",
    "rel_rms": "rms over the root mean square of golden",
    "mean": "mean signed out - golden",
    "mean_se": "its standard error over rows",
    "mean_ulps": "mean over the mean ulp of OUT's format in the binades of golden (one entry near 0 would drown a mean of ratios)",
    "mean_ulps_se": "mean_se over the same",
    "not_finite": "entries of out that are NaN or infinite; deviations are over the others, NaN if there are none",
    "unfused_max_abs": "largest |unfused - golden|: the same formats, softmax first and P V over the whole row",
    "unfused_rms": "root mean square of unfused - golden",
    "ratio_max": "max_abs over unfused_max_abs: what tiling costs",
    "ratio_rms": "rms over unfused_rms",
    "ratio_mean_abs": "mean_abs over that of unfused",
    "vs_unfused_max": "largest |out - unfused| (arXiv 2405.02803, Fig. 3)",
    "several_ones": "share of rows in which two or more P of one key tile were 1",
    "rescales": "key tiles after the first whose ALPHA was not 1, mean over rows",
    "lse_max_abs": "largest |lse - golden|",
    **{
        f"{g}_{name}": f"{meaning} of {g} - golden"
        for g in GRADIENTS
        for name, meaning in {
            "max_abs": "largest magnitude", "rms": "root mean square", "mean": "signed mean",
            "rel_rms": "root mean square, relative to golden's,",
        }.items()
    },
    "delta_bias": "mean signed delta - golden, over rows",
    "delta_bias_se": "its standard error over rows",
    "delta_coherence": "|sum| over the root of the sum of squares of delta - golden: about 1 or less where signs are coins",
}  # fmt: skip

SITE_METRICS: dict[str, str] = {
    "n": "rounding events",
    "inexact": "share of events that changed the number",
    "ties": "share of events exactly half way between two numbers",
    "mean_ulps": "mean signed error in ulps: the bias",
    "se_ulps": "its standard error, errors of a row taken together (experiments.analysis.lean)",
    "mean_abs_ulps": "mean |error| in ulps",
    "rms_ulps": "root mean square error in ulps",
    "mean_error": "mean signed error in value",
    "rms_error": "root mean square error in value",
    "peak_ulps": "largest |error| in ulps",
    "coherence": "|sum| over the root of the sum of squares of errors in ulps",
    "carries": "events that went up into the next binade",
    "overflow": "finite numbers beyond the largest finite one",
    "underflow": "numbers that became zero",
    "subnormal": "results below the smallest normal number",
    "nan": "results that are NaN",
}


def deviations(x: np.ndarray, golden: np.ndarray) -> Metrics:
    """max_abs, mean_abs, rms, rel_rms, mean and mean_se of x - golden, (C, T, N, H) each, over the finite entries of x."""
    x, golden = _rows(x), _rows(golden)
    d, counts = _difference(x, golden)
    n = _none(counts.sum(-1))
    rms = np.sqrt((d * d).sum(-1).sum(-1) / n)
    g = np.sqrt((golden * golden).sum(-1).sum(-1) / golden[0].size)
    size = np.abs(d)
    return {
        "max_abs": np.where(np.isnan(n), np.nan, size.max((-1, -2))), "mean_abs": size.sum(-1).sum(-1) / n, "rms": rms,
        "rel_rms": _ratio(rms, g), **_mean("mean", d, counts),
    }  # fmt: skip


def forward(out: np.ndarray, golden: np.ndarray, formats: Sequence[Format]) -> Metrics:
    """`deviations` of out (C, T, N, H), in ulps of each cell's OUT format too, and entries that are not finite."""
    found = deviations(out, golden)
    ulp = _ulp(_rows(golden), formats).sum(-1).sum(-1) / golden[0].size
    lost = out[0].size - np.isfinite(_rows(out)).sum((-1, -2))
    in_ulps = {"mean_ulps": found["mean"] / ulp, "mean_ulps_se": found["mean_se"] / ulp}
    return {**found, **in_ulps, "not_finite": lost.astype(np.float64)}


def against_unfused(mine: Metrics, out: np.ndarray, unfused: np.ndarray, golden: np.ndarray) -> Metrics:
    """What tiling costs: `mine` (the `deviations` of out) against those of unfused; all (C, T, N, H)."""
    other = deviations(unfused, golden)
    ratios = {f"ratio_{short}": _ratio(mine[name], other[name]) for short, name in _RATIOS.items()}
    between = deviations(out, np.where(np.isfinite(unfused), unfused, np.nan))["max_abs"]
    return {"unfused_max_abs": other["max_abs"], "unfused_rms": other["rms"], "vs_unfused_max": between} | ratios


_RATIOS = {"max": "max_abs", "rms": "rms", "mean_abs": "mean_abs"}


def softmax_events(trace: Trace) -> Metrics:
    """several_ones and rescales, from a trace that counted the ones of P and ALPHA."""
    ones, same = trace.ones["P"], trace.ones["ALPHA"]
    cells, rows = ones.shape[0], ones[0, :, 0].size
    moved = trace.stats["ALPHA"].n.reshape(cells, -1).sum(-1) - same.reshape(cells, -1).sum(-1)
    return {"several_ones": (ones >= 2).any(2).reshape(cells, -1).mean(-1), "rescales": moved / rows}


def lse_deviation(lse: np.ndarray, golden: np.ndarray) -> Metrics:
    """lse_max_abs of (C, T, N) arrays."""
    return {"lse_max_abs": deviations(lse[..., None], golden[..., None])["max_abs"]}


def backward(results: dict[str, np.ndarray], golden: dict[str, np.ndarray]) -> Metrics:
    """The metrics of dq, dk, dv (C, T or S, N, H) and of delta (C, T, N)."""
    found: Metrics = {}
    for g in GRADIENTS:
        seen = deviations(results[g], golden[g])
        found |= {f"{g}_{name}": seen[name] for name in ("max_abs", "rms", "mean", "rel_rms")}
    d, counts = _difference(_rows(results["delta"][..., None]), _rows(golden["delta"][..., None]))
    coherence = _ratio(np.abs(d[..., 0].sum(-1)), np.sqrt((d * d)[..., 0].sum(-1)))
    bias = _mean("delta_bias", d, counts)
    return found | bias | {"delta_coherence": np.where(np.isnan(bias["delta_bias"]), np.nan, coherence)}


def sites(trace: Trace) -> list[dict[str, dict[str, float]]]:
    """SITE_METRICS of every site that has events, for each batch entry of a trace."""
    count = next(iter(trace.stats.values())).n.shape[0]
    found: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    for name in trace.stats:
        values = _site(trace, name)
        for cell in np.flatnonzero(values["n"]):
            found[cell][name] = {metric: float(v[cell]) for metric, v in values.items()}
    return found


def _site(trace: Trace, name: str) -> Metrics:
    stats = trace.stats[name]
    total = {f: np.asarray(getattr(stats, f)).sum(-1) for f in stats.__dataclass_fields__}
    n, groups = np.maximum(total["n"], 1), np.ascontiguousarray(trace.rows[name]).reshape(len(stats.n), -1)
    sums, squares = groups.sum(-1), (groups * groups).sum(-1)
    centred = np.maximum.reduce([squares - sums**2 / groups.shape[1], total["sq_ulps"] - sums**2 / n, np.zeros(len(n))])
    root = np.sqrt(total["sq_ulps"])
    return {
        "n": total["n"], "inexact": total["inexact"] / n, "ties": total["ties"] / n, "mean_ulps": total["ulps"] / n,
        "se_ulps": np.sqrt(centred) / n, "mean_abs_ulps": total["abs_ulps"] / n, "rms_ulps": np.sqrt(total["sq_ulps"] / n),
        "mean_error": total["error"] / n, "rms_error": np.sqrt(total["sq_error"] / n),
        "peak_ulps": np.asarray(stats.peak).max(-1), "coherence": np.abs(total["ulps"]) / np.where(root > 0.0, root, np.inf),
        **{f: total[f] for f in ("carries", "overflow", "underflow", "subnormal", "nan")},
    }  # fmt: skip


def _rows(x: Any) -> np.ndarray:
    """(C, T, N, H) as (C, T N, H) in memory order, so that no sum depends on the layout an engine returned."""
    return np.ascontiguousarray(x, dtype=np.float64).reshape(x.shape[0], -1, x.shape[-1])


def _difference(x: np.ndarray, golden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x - golden where both are finite, else 0, (C, rows, H), and the number of such entries by row."""
    with np.errstate(invalid="ignore"):
        d = x - golden
    finite = np.isfinite(d)
    return np.where(finite, d, 0.0), finite.sum(-1)


def _mean(name: str, d: np.ndarray, counts: np.ndarray) -> Metrics:
    """The mean over the entries counted, and the standard error of the mean of row means, rows without entries left out."""
    sums, rows = d.sum(-1), (counts > 0).sum(-1)
    means = sums / np.maximum(counts, 1)
    centre = means.sum(-1) / _none(rows)
    spread = np.where(counts > 0, means - centre[:, None], 0.0)
    variance = (spread * spread).sum(-1) / _none(rows - 1)
    return {name: sums.sum(-1) / _none(counts.sum(-1)), f"{name}_se": np.sqrt(variance / _none(rows))}


def _ulp(golden: np.ndarray, formats: Sequence[Format]) -> np.ndarray:
    """The distance of neighbours of each cell's format in the binade of golden (C, rows, H)."""
    precision, emin = (np.array([[[getattr(f, name)]] for f in formats]) for name in ("precision", "emin"))
    exponent = np.where(golden == 0.0, emin, np.frexp(golden)[1] - 1)
    return np.ldexp(1.0, np.maximum(exponent, emin) - (precision - 1))


def _none(n: np.ndarray) -> np.ndarray:
    """Counts as divisors: NaN where there is nothing to divide by."""
    return np.where(n > 0, n, np.nan)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b; NaN for 0 / 0, infinite for a / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(a) / np.asarray(b)
