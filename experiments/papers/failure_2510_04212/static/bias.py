"""Section 3.3 and Claim 3: the bias of a rounded sum, in the paper's example and in closed form.

The example, two unit weights and a residual, is computed in bits by emulation and with rational
numbers. In the closed form k unit weights and a small residual are summed and rounded once, in any
format. V are p-bit numbers drawn from [1, 2), u = ulp(V), and the residual r is drawn from
(0, u / 8). The sum of k of V is a whole number of u, and its ulp is 2^j u with j = log2 k. One in
2^j sums is a tie, all others cancel in pairs; r sends every tie away from zero, so

    mean error = u / 2 - mean r          whatever k and whatever the format (PAPERS 1.8)

Behind it is the output's sign where two keys share the maximum, so both P are 1, and a third has
P = e^-8 to e^-10 and a V of c x the mean of the first two; all V are negative:

    qiu-yao     rounds V1 + V2 + P3 V3: the residual has V's sign, and O is too low
    fa2-bf16    rounds (V1 + V2 + P3 V3) / (2 + P3): beside (V1 + V2) / 2 it lies by
                P3 (V3 - mean) / 2, so the sign of c - 1 decides
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope import emu
from roundscope.attention import Plan, attend
from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.figures.series import legend
from roundscope.experiments.framework.verdicts import (
    Verdict,
    Word,
    interval,
    judge,
    together,
    verdict_on,
)
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas

V, RESIDUAL = (-2.40625, -2.296875), -0.000865459442139  # PAPERS 1.4
SUM, ROUNDED, ERROR = -4.703990459442139, -4.71875, -0.014759540557861328  # as the paper prints
BITS = 8  # p of BF16


def nearest(x: Fraction, bits: int, *, even: bool = True) -> Fraction:
    """Return x rounded to so many bits, by definition; ties go to even or away from zero."""
    ulp = Fraction(1)
    while abs(x) >= ulp * 2**bits:
        ulp *= 2
    while abs(x) < ulp * 2 ** (bits - 1):
        ulp /= 2
    whole, rest = divmod(abs(x) / ulp, 1)
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and (not even or whole % 2 == 1))
    return (whole + up) * ulp * (1 if x > 0 else -1)


def example() -> Iterator[Verdict]:
    """Yield verdicts on both versions of the example, and on the tie rule."""
    verdict = partial(verdict_on, "3.3, bits", case="BF16", sizes="")
    total = float(emu.sum(np.array([[*V, RESIDUAL]]))[0])
    rounded = float(emu.round_to(total, "bf16"))
    by_fractions = nearest(Fraction(total), BITS)
    error = by_fractions - Fraction(total)
    found = (total, rounded, Fraction(rounded), error)
    yield verdict(
        claim="two tied terms and a small residual sum to -4.70399 in FP32 and round to -4.71875:"
        " error -0.0147595",
        holds=found == (SUM, ROUNDED, by_fractions, Fraction(ERROR)),
        measured=f"sum {total!r}, rounded {rounded!r}, error {float(error)!r}; the same in rational"
        " numbers",
    )
    tie = sum(map(Fraction, V), Fraction(0))
    even, away = nearest(tie, BITS), nearest(tie, BITS, even=False)
    assert float(emu.round_to(float(tie), "bf16")) == float(even)
    assert float(emu.round_to(float(tie), "bf16", "ties-to-away")) == float(away)
    yield verdict(
        claim="v1: without a residual the sum rounds to -4.71875 too",
        holds=even == Fraction(ROUNDED),
        measured=f"{float(tie)!r} is an exact tie: {float(even)!r} by ties to even, {float(away)!r}"
        " by ties away from zero",
        note="v2 of the paper added the residual (issue 1 of its repository)",
    )
    same, opposite = (nearest(tie + s * Fraction(RESIDUAL), BITS) - tie for s in (1, -1))
    yield verdict(
        claim="the residual's sign decides the tie (the sticky bit)",
        holds=same < 0 < opposite and -same == opposite == Fraction(1, 64),
        measured=f"same sign: {float(same):+g}, opposite sign: {float(opposite):+g}, half an ulp of"
        " the result each",
    )


FORMATS = ("bf16", "fp16", "e4m3fn", "e5m2")
TERMS, OTHERS = (2, 4), (3, 8)  # values of k
LARGEST = 1 / 8  # the largest r, in u
REST = LARGEST / 2  # the mean of r, in u
TINY = 2.0**-10  # the largest r in ulps of the result, for weights whose products fill the ulp
SEEDS, DRAWS = 8, 12_500
Error = Callable[[str, int, np.random.Generator], np.ndarray]


def units(f: str, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Return sums of k numbers of the format in [1, 2), residuals, and u."""
    p = format_named(f).precision
    u = 2.0 ** (1 - p)
    total = k + u * rng.integers(0, 2 ** (p - 1), (DRAWS, k)).sum(1)
    return total, rng.uniform(0.0, LARGEST * u, DRAWS), u


def rounded_once(sign: int, mode: RoundingMode = RoundingMode.TIES_TO_EVEN) -> Error:
    """Return the errors of one rounding of the sum plus sign x residual, in ulps of V."""

    def error(f: str, k: int, rng: np.random.Generator) -> np.ndarray:
        total, r, u = units(f, k, rng)
        x = total + sign * r
        return np.asarray(round_to(x, f, mode, seed=int(rng.integers(2**31))) - x) / u

    return error


def halves(f: str, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return the same with weights of 1/2, in ulps of the result: the numbers are u / 2 apart."""
    total, r, _ = units(f, k, rng)
    return _ulps(total / 2 + r, f)


def fractions(f: str, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return the errors with weights of the format, uniform in (0, 1); in ulps of the result."""
    p = format_named(f).precision
    u = 2.0 ** (1 - p)
    w = np.minimum(round_to(rng.uniform(2.0**-6, 1.0, (DRAWS, k)), f), 1.0 - u / 2)
    total = (w * (1.0 + u * rng.integers(0, 2 ** (p - 1), (DRAWS, k)))).sum(1)
    return _ulps(total + rng.uniform(0.0, TINY, DRAWS) * ulp_of(total, f), f)


def normalised(times: float) -> Error:
    """Return the errors of a sum divided, then rounded; the residual's V is `times` the mean."""

    def error(f: str, k: int, rng: np.random.Generator) -> np.ndarray:
        total, w, _ = units(f, k, rng)  # w: the residual's weight
        return _ulps((total + w * times * total / k) / (k + w), f)

    return error


def _ulps(x: np.ndarray, f: str) -> np.ndarray:
    return np.asarray((round_to(x, f) - x) / ulp_of(x, f))


FIGURE = "Claim 3"
NEAR = 0.03  # ulps: a mean within this of the formula counts as equal to it
Means = dict[tuple[str, int], Estimate]  # (format, k) -> the mean error, in ulps


@dataclass(frozen=True, slots=True)
class Line:
    """One case of PAPERS 1.8.

    claim    the claim on it, or that of several lines
    formula  the mean error that the closed form gives, in ulps
    terms    values of k
    claimed  the mean error that the paper claims; None where it is that of the formula
    """

    words: str
    claim: str
    error: Error
    formula: float
    terms: tuple[int, ...] = TERMS
    note: str = ""
    claimed: float | None = None

    @property
    def case(self) -> str:
        """The case and its values of k in words."""
        return f"{self.words}; k = {', '.join(map(str, self.terms))}"

    def measured(self) -> Means:
        """Return the mean error over draws, with seeds as repeats."""
        found = {}
        for i, f in enumerate(FORMATS):
            for k in self.terms:
                keys = ([seed, 100 * i + k] for seed in range(SEEDS))
                rngs = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
                means = [float(self.error(f, k, rng).mean()) for rng in rngs]
                found[f, k] = mean(dict(enumerate(means)))
        return found

    def judged(self, found: Means) -> list[Word]:
        """Return, by format and k, whether the mean is the formula's, or the claimed number."""
        wanted = self.formula if self.claimed is None else self.claimed
        return [judge(e, (wanted - NEAR, wanted + NEAR)) for e in found.values()]


LINES = (
    Line(
        "same-sign residual",
        "k unit weights and a same-sign residual: half an ulp of V, any format",
        rounded_once(1),
        0.5 - REST,
    ),
    Line(
        "same-sign residual, other k",
        "and any k",
        rounded_once(1),
        0.5 - REST,
        OTHERS,
        "where it fails the format is too short: the low bits of such sums of its numbers are not"
        " uniform",
    ),
    Line(
        "no residual",
        "without a residual no bias",
        rounded_once(0),
        0.0,
        note="E5M2 has 4 numbers in [1, 2): the low bits of a sum of 4 of them are not uniform, and"
        " ties to even see that",
    ),
    Line("opposite residual", "an opposite residual turns the sign", rounded_once(-1), REST - 0.5),
    Line(
        "stochastic rounding",
        "stochastic rounding has no bias",
        rounded_once(1, RoundingMode.STOCHASTIC),
        0.0,
    ),
    Line(
        "weights of 1/2",
        "Remark 1: weights below 1 have no bias (powers of two)",
        halves,
        0.25 - REST,
        (2,),
        "false for powers of two: their products have as many trailing zeros as V itself",
        0.0,
    ),
    Line(
        "random weights below 1",
        "Remark 1: weights below 1 have no bias (random)",
        fractions,
        0.0,
        note="products of p-bit numbers have 2p bits: in FP8 one sum in 8 to 16 is still a tie",
        claimed=0.0,
    ),
)
NORMALISED = tuple(
    Line(
        f"normalized first, residual V = {t:g} mean",
        "divided, then rounded: the sign is that of residual V minus main V",
        normalised(t),
        # the residual moves the quotient by w (times - 1) mean V / k: the mean of that in ulps
        float(np.sign(t - 1.0)) / 4 - REST * (t - 1.0) * 1.5 / 2,
        (2,),
    )
    for t in (1.0, 2.0, 0.25)
)


def measure() -> dict[Line, Means]:
    """Measure every case."""
    return {line: line.measured() for line in (*LINES, *NORMALISED)}


def judged(found: dict[Line, Means]) -> Iterator[Verdict]:
    """Yield one verdict for each case; the last three cases are one claim."""
    yield from (verdict(line, found[line]) for line in LINES)
    several = {line: found[line] for line in NORMALISED}
    shown = "; ".join(
        f"{line.words.split('= ')[1]} {interval(own['bf16', 2])}" for line, own in several.items()
    )
    formula = ", ".join(f"{line.formula:+.3f}" for line in several)
    yield verdict_on(
        FIGURE,
        NORMALISED[0].claim,
        "k = 2, all V > 0",
        together([w for line, own in several.items() for w in line.judged(own)]),
        f"ulp in BF16, residual V = {shown}; formula {formula}",
        found[NORMALISED[1]]["bf16", 2],
        "the bias survives the order of production kernels, the paper's sign rule does not",
        sizes=f"{SEEDS} x {DRAWS} draws",
    )


def verdict(line: Line, found: Means) -> Verdict:
    """Return the verdict on one case."""
    unit = "ulp" if "weights" in line.words else "ulp(V)"
    shown = ", ".join(
        f"{f} " + " ".join(f"{found[f, k].mean:+.3f}" for k in line.terms) for f in FORMATS
    )
    half = max(e.high - e.mean for e in found.values())
    said = "" if line.claimed is not None else f"; formula {line.formula:+.3f}"
    return verdict_on(
        FIGURE,
        line.claim,
        line.case,
        together(line.judged(found)),
        f"{unit}: {shown} (each +- {half:.3f} or less){said}",
        found["bf16", line.terms[0]],
        line.note,
        sizes=f"{SEEDS} x {DRAWS} draws",
    )


def picture(found: dict[Line, Means]) -> Figure:
    """Draw the formula and the measured means, by case and format."""
    figure, ((ax,),) = canvas(4.2)
    for y, (line, means) in enumerate(found.items()):
        x, label = [line.formula, line.formula], "formula" if y == 0 else None
        ax.plot(x, [y - 0.36, y + 0.36], color=INK, lw=1.6, label=label)
        for n, (f, colour, marker) in enumerate(zip(FORMATS, COLOURS, MARKERS, strict=False)):
            own = [e for (g, _), e in means.items() if g == f]
            x, place = [e.mean for e in own], [y - 0.24 + 0.16 * n] * len(own)
            look: dict[str, Any] = {"fmt": marker, "color": colour, "ms": 4.5, "capsize": 2}
            label = f if y == 0 else None
            ax.errorbar(x, place, xerr=bars(own), lw=1, label=label, **look)
    ax.axvline(0.0, color=INK, lw=0.6)
    ax.set_yticks(range(len(found)), [line.case for line in found])
    ax.invert_yaxis()
    ax.set_xlabel(
        "mean error, positive away from zero: ulps of V (first five), of the result (others)"
    )
    legend(figure, ax, 5)
    return figure


def bars(found: list[Estimate]) -> list[list[float]]:
    """Return how far the intervals reach below and above the means, for `errorbar`."""
    return [[e.mean - e.low for e in found], [e.high - e.mean for e in found]]


PLANS = {"qiu-yao": "rounded, then divided", "fa2-bf16": "divided, then rounded"}
TIMES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0)  # values of c
HEADS, ROWS, FEATURES = 32, 16, 64  # heads are the repeats; V is drawn for each
NEAREST, FARTHEST = 8.0, 10.0  # gaps of the third key below the other two
QUARTER = 0.25  # ulps: half of the sums are ties, and each of those moves by half an ulp


# the mean of OUT - exact output in ulps of BF16, by plan and c; all V are negative, so below 0 is
# away from zero
Order = dict[tuple[str, float], Estimate]


def inputs(times: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k, v (1, T, N, H) of BF16 numbers, with scores of 0, 0 and -gap (scale 1)."""
    rng = np.random.Generator(np.random.Philox(key=5))
    q = np.zeros((1, ROWS, HEADS, FEATURES))
    q[..., 0] = -round_to(rng.uniform(NEAREST, FARTHEST, (1, ROWS, HEADS)), "bf16")
    k = np.zeros((1, 3, HEADS, FEATURES))
    k[:, 2, :, 0] = 1.0
    v = np.empty((1, 3, HEADS, FEATURES))
    v[:, :2] = -1.0 - rng.integers(0, 128, (1, 2, HEADS, FEATURES)) / 128.0
    v[:, 2] = round_to(times * v[:, :2].mean(1), "bf16")
    return q, k, v


def measure_order() -> Order:
    """Measure every plan and c; the exact output is computed from the same numbers."""
    found: Order = {}
    for times in TIMES:
        qkv = inputs(times)
        exact = attend(*qkv, plan="exact", scale=1.0)
        for name in PLANS:
            error = (attend(*qkv, plan=Plan.preset(name), scale=1.0) - exact) / np.asarray(
                ulp_of(exact, "bf16")
            )
            found[name, times] = mean(dict(enumerate(error.mean((0, 1, 3)).tolist())))
    return found


def judged_order(o: Order) -> Iterator[Verdict]:
    """Yield verdicts on the paper's argument under both orders, and on what replaces it."""
    sizes = f"{HEADS} heads x {FEATURES} features x {ROWS} rows"
    signs = {at: 1 if e.low > 0.0 else -1 if e.high < 0.0 else 0 for at, e in o.items()}
    shown = {
        plan: "ulp: "
        + ", ".join(f"c = {t:g}: {interval(o[plan, t])}" for t in TIMES if t in (0.25, 1.0, 2.0))
        for plan in PLANS
    }
    for plan, words in PLANS.items():
        found = {signs[plan, t] for t in TIMES if t > 0.0}  # a residual of 0 is none
        agrees = found == {-1}
        note = "on residual V against main V: the argument holds for round-before-normalize only"
        yield verdict_on(
            FIGURE,
            "V < 0 makes the output's error negative",
            f"{plan}: {words}",
            Word.AGREES if agrees else Word.DEPENDS if -1 in found else Word.CONTRADICTS,
            shown[plan],
            o[plan, 2.0],
            "" if agrees else note,
            sizes=sizes,
        )
    yield verdict_on(
        FIGURE,
        "ours: in production order the sign is that of residual V minus main V",
        "fa2-bf16",
        all(signs["fa2-bf16", t] == -np.sign(t - 1.0) for t in TIMES),
        shown["fa2-bf16"],
        o["fa2-bf16", 0.25],
        "its size, a quarter of an ulp where half of the sums are ties, is the same: production"
        " kernels are not safe by their order",
        sizes=sizes,
    )


def picture_order(o: Order) -> Figure:
    """Draw the bias against c, for both orders."""
    figure, ((ax,),) = canvas(3.2)
    for (name, words), colour, marker in zip(PLANS.items(), COLOURS, MARKERS, strict=False):
        own = [o[name, t] for t in TIMES]
        x, label = range(len(TIMES)), f"{name}: {words}"
        look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "capsize": 2.5}
        ax.errorbar(x, [e.mean for e in own], bars(own), lw=1.4, label=label, **look)
    for y in (-QUARTER, QUARTER):
        ax.axhline(y, color=INK, lw=0.7, ls=":")
    ax.axhline(0.0, color=INK, lw=0.7)
    ax.set_xticks(range(len(TIMES)), [f"{t:g}" for t in TIMES])
    ax.set_xlabel("V of the small term over the mean V of the two terms with P = 1 (all V < 0)")
    ax.set_ylabel("mean error of the output, ulps")
    ax.set_ylim(-0.32, 0.44)
    ax.legend(fontsize=9, frameon=False, loc="upper right")
    return figure
