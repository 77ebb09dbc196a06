"""What the clamp of the released repair does, in the cases of PAPERS 1.7-A.

They are computed with the clamp, with a smaller one, without any, and with our stabilizer. A tied
row's maximum moves by shift = (beta - 1) r_m (by -r_m where r_m < 0), so its row sum is about 2
e^-shift. Where that is below 1e-10, from a shift of 23.03 on, the clamp is the row sum: the row's
output, and P in its backward, are scaled toward 0.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from roundscope.attention import Plan, Stabilizer, attend
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.papers.failure_2510_04212.static.released import (
    CLAMP,
    GAP,
    released,
    softmax,
)

FIGURE = "Alg. 1, code"
T, FEATURES, VALUES = 1024, 64, 32
WRONG = 1e-3  # the |error| of an output entry from which its row counts as wrong
LIMIT = -math.log(CLAMP)  # 23.03
CLAMPS = (CLAMP, 1e-30, 0.0)
TIED = ((5.0, 2.0), (5.0, 7.0), (12.0, 7.0), (20.0, 2.0), (30.0, 2.0))  # (r_m, beta)
LOW = -30.0  # the mean of all scores where nothing is planted
# how many rows are wrong, PAPERS 1.7-A
TABLE = {
    (5.0, 2.0): 0,
    (5.0, 7.0): 1023,
    (12.0, 7.0): 1023,
    (20.0, 2.0): 1023,
    (30.0, 2.0): 1023,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case.

    wrong    wrong rows by (clamp, whether masked tiles are skipped)
    ours     wrong rows with our stabilizer
    left     median over tied rows of |out| / |softmax| in the clamped run: 1 is untouched, 0 is
             gated out
    to_gate  rms distance of the clamped output to that with the tied rows' P set to 0, over its
             distance to softmax
    """

    top: float
    beta: float
    wrong: dict[tuple[float, bool], int]
    ours: int
    left: float
    to_gate: float


def inputs(top: float, *, planted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k (T, FEATURES) and v, with scores about N(0, 0.81^2) at scale 1 / 8.

    Keys 0 and 1 have the score `top` for all queries if planted, else all scores are near `top`.
    """
    rng = np.random.Generator(np.random.Philox(key=17))
    q, k = 0.9 * rng.standard_normal((2, T, FEATURES))
    v = rng.standard_normal((T, VALUES))
    q[:, 0], k[:, 0] = 8.0 * top, 0.0 if planted else 1.0
    if planted:
        k[:2] = np.eye(1, FEATURES)
    return q, k, v


def outcome(top: float, beta: float, *, planted: bool = True) -> Outcome:
    """Return everything that is measured of one case."""
    q, k, v = inputs(top, planted=planted)
    s = q @ k.T / 8.0
    exact = softmax(s, v)
    runs = {
        (c, skip): released(s, v, beta=beta, clamp=c, skip_masked=skip)
        for c in CLAMPS
        for skip in (False, True)
    }
    wrong = {at: int((np.abs(run.out - exact).max(1) > WRONG).sum()) for at, run in runs.items()}
    plan = replace(Plan.preset("exact"), stabiliser=Stabilizer(beta=beta, window=GAP))
    own = attend(
        *(x[None, :, None] for x in (q, k, v)), plan=plan, block_q=512, block_k=512, is_causal=True
    )[0, :, 0]
    clamped = runs[CLAMP, False]
    sham = np.where(clamped.tied[:, None], 0.0, exact)

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sqrt(((a - b) ** 2).mean()))

    size = np.linalg.norm(clamped.out, axis=1) / np.linalg.norm(exact, axis=1)
    return Outcome(
        top=top,
        beta=beta,
        wrong=wrong,
        ours=int((np.abs(own - exact).max(1) > WRONG).sum()),
        left=float(np.median(size[clamped.tied])),
        to_gate=distance(clamped.out, sham)
        / max(distance(clamped.out, exact), np.finfo(float).tiny),
    )


def outcomes() -> list[Outcome]:
    """Return the table of 1.7-A: tied rows, then scores near -30 with both values of beta."""
    return [
        *(outcome(top, beta) for top, beta in TIED),
        *(outcome(LOW, beta, planted=False) for beta in (2.0, 7.0)),
    ]


def left_of(shift: np.ndarray, clamp: float = CLAMP) -> np.ndarray:
    """Return what is left of a row of two tied scores in the first of two tiles.

    It is 2 e^-shift over the clamped row sum.
    """
    row: np.ndarray = 2.0 * np.exp(-shift)
    left: np.ndarray = row / (np.maximum(row, clamp) + clamp)
    return left


def judged(found: list[Outcome]) -> list[Verdict]:
    """Return verdicts on the table, on its cause, and on what it amounts to."""
    planted, low = found[: len(TIED)], found[len(TIED) :]
    return [_table(planted), _low(low), _without(found), _ours(found), _gate(planted)]


def _table(planted: list[Outcome]) -> Verdict:
    same = all(o.wrong[CLAMP, False] == TABLE[o.top, o.beta] for o in planted)
    shown = "; ".join(
        f"r_m {o.top:g}, beta {o.beta:g}: {o.wrong[CLAMP, False]} wrong, {o.left:.2g} of |out| left"
        for o in planted
    )
    return _verdict(
        "ours: past (beta - 1) r_m = 23.03 the clamp of 1e-10 switches tied rows off",
        "tied in keys 0 and 1",
        same,
        shown,
    )


def _low(low: list[Outcome]) -> Verdict:
    skipped = max(o.wrong[CLAMP, True] for o in low)
    wrong = [o.wrong[CLAMP, False] for o in low]
    shown = (
        f"{wrong[0]} rows wrong at beta 2 and {wrong[1]} at 7, {skipped} if masked tiles are"
        " skipped"
    )
    agrees = all(512 <= w <= 520 for w in wrong) and skipped < 10
    return _verdict(
        "ours: a fully masked tile does so to all of the first 512 rows, tied or not",
        "all scores near -30",
        agrees,
        shown,
        "masked scores are numbers to the code: they tie, below 0, and set the maximum to 0",
    )


def _without(found: list[Outcome]) -> Verdict:
    none, small = (
        sum(o.wrong[c, skip] for o in found for skip in (False, True)) for c in (0.0, 1e-30)
    )
    which = "; ".join(
        f"r_m {o.top:g}, beta {o.beta:g}: shift above 69" for o in found if o.wrong[1e-30, False]
    )
    return _verdict(
        "ours: the clamp alone is to blame: without it no row is wrong",
        "clamp 0 and 1e-30, all cases",
        none == 0,
        f"rows wrong: clamp 0: {none}; 1e-30: {small}" + (f" ({which})" if which else ""),
    )


def _ours(found: list[Outcome]) -> Verdict:
    wrong = sum(o.ours for o in found)
    return _verdict(
        "ours: the stabilizer without a clamp is softmax",
        "plan exact, all cases",
        wrong == 0,
        f"{wrong} rows wrong",
    )


def _gate(planted: list[Outcome]) -> Verdict:
    past = [o for o in planted if (o.beta - 1.0) * o.top > LIMIT]
    ratios = ", ".join(f"{o.to_gate:.2g}" for o in past)
    shown = (
        f"distance to the sham over that to softmax: {ratios}; at r_m 20, beta 2"
        f" {planted[3].to_gate:.2g}"
    )
    return _verdict(
        "ours: past it, the repaired run is a run with the tied rows' P set to 0",
        "gate-out sham",
        all(o.to_gate < 0.01 for o in past),
        shown,
    )


def _verdict(claim: str, case: str, agrees: bool, measured: str, note: str = "") -> Verdict:
    word = Word.AGREES if agrees else Word.CONTRADICTS
    return Verdict(
        figure=FIGURE,
        claim=claim,
        case=case,
        sizes=f"T {T}, tiles of 512, binary64",
        word=word,
        measured=measured,
        note=note,
    )
