"""The closed form of the bias, and where it ends.

k unit weights and a small residual are summed and rounded once, in any format. V are p-bit numbers
drawn from [1, 2), u = ulp(V), and the residual r is drawn from (0, u / 8). The sum of k of V is a
whole number of u, and its ulp is 2^j u with j = log2 k. One in 2^j sums is a tie, all others cancel
in pairs; r sends every tie away from zero, so

    mean error = u / 2 - mean r          whatever k and whatever the format (PAPERS 1.8)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.estimates import Estimate, mean

FORMATS = ("bf16", "fp16", "e4m3fn", "e5m2")
TERMS, OTHERS = (2, 4), (3, 8)  # values of k
LARGEST = 1 / 8  # the largest r, in u
REST = LARGEST / 2  # the mean of r, in u
TINY = 2.0**-10  # the largest r in ulps of the result, for weights whose products fill the ulp
SEEDS, DRAWS = 8, 12_500
Error = Callable[[str, int, np.random.Generator], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One case: its words, the formula's value in ulps and the measurement, by (format, k)."""

    words: str
    formula: dict[tuple[str, int], float]
    found: dict[tuple[str, int], Estimate]


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
    v = 1.0 + u * rng.integers(0, 2 ** (p - 1), (DRAWS, k))
    total = (w * v).sum(1)
    return _ulps(total + rng.uniform(0.0, TINY, DRAWS) * ulp_of(total, f), f)


def normalised(times: float) -> Error:
    """Return the errors in the order of production kernels: divided by the row sum, then rounded.

    The residual's V is `times` the mean of the others.
    """

    def error(f: str, k: int, rng: np.random.Generator) -> np.ndarray:
        total, w, _ = units(f, k, rng)  # w: the residual's weight
        return _ulps((total + w * times * total / k) / (k + w), f)

    return error


def _ulps(x: np.ndarray, f: str) -> np.ndarray:
    return np.asarray((round_to(x, f) - x) / ulp_of(x, f))


def measured(
    words: str, error: Error, formula: Callable[[int], float], terms: tuple[int, ...] = TERMS
) -> Line:
    """Return the mean error over draws, with seeds as repeats."""
    found = {}
    for i, f in enumerate(FORMATS):
        for k in terms:
            rngs = [
                np.random.Generator(np.random.Philox(key=[seed, 100 * i + k]))
                for seed in range(SEEDS)
            ]
            found[f, k] = mean(
                {seed: float(error(f, k, rng).mean()) for seed, rng in enumerate(rngs)}
            )
    return Line(
        words=words, formula={(f, k): formula(k) for f in FORMATS for k in terms}, found=found
    )


def lines() -> list[Line]:
    """Return every case of PAPERS 1.8.

    The residual moves the quotient by w (times - 1) mean V / k; `shift` is the mean of that in
    ulps.
    """

    def shift(times: float) -> float:
        return REST * (times - 1.0) * 1.5 / 2

    def normalised_form(times: float) -> Callable[[int], float]:
        return lambda k: float(np.sign(times - 1.0)) / 4 - shift(times)

    return [
        measured("same-sign residual", rounded_once(1), lambda k: 0.5 - REST),
        measured("same-sign residual, other k", rounded_once(1), lambda k: 0.5 - REST, OTHERS),
        measured("no residual", rounded_once(0), lambda k: 0.0),
        measured("opposite residual", rounded_once(-1), lambda k: REST - 0.5),
        measured("stochastic rounding", rounded_once(1, RoundingMode.STOCHASTIC), lambda k: 0.0),
        measured("weights of 1/2", halves, lambda k: 0.25 - REST, (2,)),
        measured("random weights below 1", fractions, lambda k: 0.0),
        *(
            measured(
                f"normalized first, residual V = {t:g} mean",
                normalised(t),
                normalised_form(t),
                (2,),
            )
            for t in (1.0, 2.0, 0.25)
        ),
    ]
