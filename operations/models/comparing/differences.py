"""How far the numbers of two runs are apart, and which decisions that changes."""

from collections.abc import Sequence
from math import inf

import numpy as np

from roundscope.operations.models.comparing.comparison import Flip
from roundscope.operations.models.replay import Replay, log_softmax, wide
from roundscope.operations.models.tape import refs

TOP = 8  # the most probable tokens that are compared as a set


def gap_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return b - a, and 0 where both are infinite or NaN alike."""
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        found: np.ndarray = np.where(alike, 0.0, b - a)
    return found


def differences(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray], dtype: np.dtype | None = None
) -> tuple[float, float]:
    """Return the share of numbers that differ, and the largest difference in ulps of a type, by
    default the coarser one.
    """
    count = total = 0
    largest = 0.0
    for one, two in zip(x, y, strict=True):
        narrow = dtype or min((one.dtype, two.dtype), key=lambda dtype: dtype.itemsize)
        u, v = wide(one), wide(two)
        unequal = (u != v) & ~(np.isnan(u) & np.isnan(v))
        count, total = count + int(unequal.sum()), total + u.size
        if (unequal & ~(np.isfinite(u) & np.isfinite(v))).any():
            largest = inf
        finite = unequal & np.isfinite(u) & np.isfinite(v)
        if finite.any():
            top = np.maximum(np.abs(u[finite]), np.abs(v[finite]))
            apart = np.abs(u[finite] - v[finite]) / _ulp(top, narrow)
            largest = max(largest, float(apart.max()))
    return (count / total if total else 0.0), largest


def _ulp(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the unit of the last place of normal numbers in a type."""
    digits = {"bfloat16": 8, "float16": 11, "float32": 24, "float8_e4m3fn": 4, "float8_e5m2": 3}
    exponent = np.frexp(x)[1]
    ulp: np.ndarray = np.ldexp(1.0, exponent - digits.get(dtype.name, 53))
    return ulp


def kl_of(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean over tokens of KL(a || b) of logits, in nats."""
    p, q = log_softmax(a), log_softmax(b)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def flips_of(a: np.ndarray, b: np.ndarray) -> list[Flip]:
    """Return the decisions that logits (tokens, vocabulary) make differently."""
    found = []
    for what, k in (("argmax", 1), (f"top-{TOP}", TOP)):
        if k >= a.shape[-1]:
            continue
        best = [np.sort(np.argpartition(-x, k - 1)[:, :k]) for x in (a, b)]
        for t in np.flatnonzero((best[0] != best[1]).any(-1)):
            one, two = set(best[0][t].tolist()), set(best[1][t].tolist())
            sorted_a = np.sort(a[t])[::-1]
            margin = float(sorted_a[k - 1] - sorted_a[k])
            found.append(
                Flip(int(t), what, tuple(sorted(one - two)), tuple(sorted(two - one)), margin)
            )
    return found


def routes_of(replay: Replay) -> list[Flip]:
    """Return the tokens that go to other experts: functions `topk` of tables of as many rows."""
    chosen = [
        [e for e in tape.entries if e.function.rpartition(".")[2] == "topk"]
        for tape in (replay.alignment.a, replay.alignment.b)
    ]
    found = []
    for one, two in zip(*chosen, strict=False):
        tables = []
        for tape, entry in zip((replay.alignment.a, replay.alignment.b), (one, two), strict=True):
            if len(entry.outputs) != 2 or tape.values[entry.outputs[1]].array is None:
                return []
            tables.append(tape.numpy(entry.outputs[1]))
        x, y = tables
        if one.module != two.module or x.shape != y.shape or x.ndim != 2:
            continue
        differ = np.flatnonzero((np.sort(x, -1) != np.sort(y, -1)).any(-1))
        if not differ.size:
            continue
        ranked = -np.sort(-wide(replay.alignment.a.numpy(refs(one.arguments)[0])), -1)
        for t in differ:
            a, b = set(x[t].tolist()), set(y[t].tolist())
            k = x.shape[-1]
            margin = float(ranked[t, k - 1] - ranked[t, k]) if k < ranked.shape[-1] else 0.0
            what = f"experts {one.module}"
            found.append(Flip(int(t), what, tuple(sorted(a - b)), tuple(sorted(b - a)), margin))
    return found
