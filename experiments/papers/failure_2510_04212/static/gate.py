"""How much of the released repair is its rounding, and how much its clamp: a sham without repair.

The first release has beta = 7 and a row sum of at least 1e-10, which switches tied rows off where
(beta - 1) r_m is above 23.03 (`static.clamp`). A row that is off leaks nothing, whatever rounds. So
four versions of the forward are compared, in rows with several maxima:

    none      no repair
    shift     the repair without the clamp: what rounding is spared
    released  the repair with the clamp
    sham      no repair, but rows that the clamp would switch off have P = 0 and an output of 0

Scores are BF16, P, P V and the output are rounded to BF16, one tile; sums, the maximum, the row sum
and the backward are binary64, so that what rows of dS sum to is the output's error (equation 1).
The leak of a head is |sum_t r[t] (PK)[t]| over its tied rows, r = rowsum(dS): what they add, in one
direction, to the gradient of the queries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from roundscope.emu.api import round_to
from roundscope.experiments.framework.estimates import Estimate, mean, positive
from roundscope.experiments.framework.verdicts import LARGER, Verdict, Word, interval, verdict_on
from roundscope.experiments.papers.failure_2510_04212.static.clamp import BETAS, CLAMP, GAP, LIMIT
from roundscope.tools.tensors.layers import read_layers, sample_path

NONE, SHIFT, RELEASED, SHAM = "none", "shift", "released", "sham"
FIGURE = "Alg. 1, code"
DRAWS, T, FEATURES = 8, 512, 64
TOPS = (12.5, 14.4)  # the score of both sinks, by row: what is left of the other keys is small
HALF = 0.5
ONE_SIGN, REAL = "two equal sinks, V of one sign", "MiniLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head's q, k, v and dO (T, H), with the scale of its scores and whether it is causal."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray
    scale: float
    causal: bool


def low(x: np.ndarray) -> np.ndarray:
    """Return numbers rounded to BF16, in binary64."""
    return np.asarray(round_to(np.asarray(x, np.float64), "bf16"), np.float64)


def leaks(head: Head, beta: float) -> Mapping[str, float]:
    """Return the leak of the tied rows under each version, and `off`, the share that is off.

    Without any tied row all are NaN.
    """
    q, k, v, do = map(low, (head.q, head.k, head.v, head.do))
    s = low(low(q @ k.T) * head.scale)
    if head.causal:
        s = np.where(np.tri(len(s), dtype=bool), s, -np.inf)
    r_m = s.max(1)
    tied = (s >= low(r_m - GAP)[:, None]).sum(1) > 1
    shift = np.where(tied, np.where(r_m > 0.0, (beta - 1.0) * r_m, -r_m), 0.0)
    off = tied & (shift > LIMIT)
    exact = np.exp(s - r_m[:, None])
    pk = exact @ k / exact.sum(1, keepdims=True)

    def leak(moved: bool, clamp: float, gate: bool) -> float:
        m = r_m + shift if moved else r_m
        p = np.exp(s - m[:, None])
        l = np.maximum(p.sum(1), clamp)
        out = low(low(low(p) @ v) / l[:, None])
        p = p / l[:, None]
        if gate:
            out, p = (np.where(off[:, None], 0.0, x) for x in (out, p))
        delta = (do * out).sum(1)
        r = (p * (do @ v.T - delta[:, None])).sum(1) * head.scale
        return float(np.linalg.norm(r[tied] @ pk[tied])) if tied.any() else float("nan")

    return {
        NONE: leak(False, 0.0, False),
        SHIFT: leak(True, 0.0, False),
        RELEASED: leak(True, CLAMP, False),
        SHAM: leak(False, 0.0, True),
        "off": float(off.sum() / tied.sum()) if tied.any() else float("nan"),
    }


def drawn(seed: int) -> Head:
    """Return a causal head in which keys 0 and 1 have one score, V one sign, and dO one sign.

    It is the paper's case: two P are 1, the others add less than half an ulp to P V.
    """
    rng = np.random.Generator(np.random.Philox(key=seed))
    q, k = 0.9 * rng.standard_normal((2, T, FEATURES))
    q[:, 0], k[:, 0] = 8.0 * rng.uniform(*TOPS, T), 0.0
    k[:2] = np.eye(1, FEATURES)
    v, do = 1.0 + rng.random((2, T, FEATURES))
    return Head(q=q, k=k, v=v, do=do, scale=0.125, causal=True)


def real() -> Iterator[Head]:
    """Yield the heads of the shipped tensors, of both layers, first sequence."""
    for x in read_layers(sample_path()):
        scale = x.scale or x.q.shape[3] ** -0.5
        if x.do is None:
            continue
        for head in range(x.q.shape[2]):
            q, k, v, do = (np.asarray(y[0, :, head], np.float64) for y in (x.q, x.k, x.v, x.do))
            yield Head(q=q, k=k, v=v, do=do, scale=scale, causal=False)


Found = Mapping[tuple[str, float], list[Mapping[str, float]]]  # (inputs, beta) -> heads


def measure() -> Found:
    """Return the leaks of every head by inputs and beta."""
    heads = {ONE_SIGN: [drawn(seed) for seed in range(DRAWS)], REAL: list(real())}
    return {
        (name, beta): [leaks(head, beta) for head in own]
        for name, own in heads.items()
        for beta in BETAS
    }


def left(found: list[Mapping[str, float]], version: str) -> Estimate:
    """Return the factor of the leak that a version leaves, over heads that leak without repair."""
    return positive({n: x[version] / x[NONE] for n, x in enumerate(found) if x[NONE] > 0.0})


def judged(found: Found) -> Iterator[Verdict]:
    """Yield a verdict for each input and beta: is it the rounding that repairs, or the gate?

    The repair, or the sham, does it where the interval of what it leaves is below one half.
    """
    for (name, beta), own in found.items():
        shift, both, sham = (left(own, version) for version in (SHIFT, RELEASED, SHAM))
        off = mean({n: x["off"] for n, x in enumerate(own)})
        does, spares, gates = (e.high < HALF for e in (both, shift, sham))
        word, note = Word.UNDECIDED, ""
        if not does and both.low > 1.0 / LARGER[0]:
            word, note = Word.CONTRADICTS, "it takes nothing away"
        elif does and spares != gates:
            word = Word.AGREES if spares else Word.CONTRADICTS
        elif does and spares:
            note = "either would do: a run that it saves does not say which"
        yield verdict_on(
            FIGURE,
            "the repair spares a biased rounding; it does not switch tied rows off",
            f"{name}, beta {beta:g}",
            word,
            f"of the leak of tied rows the released repair leaves {interval(both, 'x')}, without"
            f" its clamp {interval(shift, 'x')}, the sham {interval(sham, 'x')}; {interval(off)} of"
            f" these rows are off; {shift.seeds} heads",
            note=note,
        )
