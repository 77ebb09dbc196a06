"""Operations in exact fractions, each result rounded by the judge; to judge equations by."""

import math
from fractions import Fraction

import numpy as np

from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import rounding


def to(x: Fraction | float, name: str) -> Fraction:
    """Return a number rounded once to a format."""
    return Fraction(judge(x, rounding(name)))


def total(terms: list[Fraction], name: str = "fp32") -> Fraction:
    """Return the sum one after the other from 0, each addition rounded."""
    found = Fraction(0)
    for x in terms:
        found = to(found + x, name)
    return found


def root(x: Fraction) -> Fraction:
    """Return the square root with 300 bits; an inexact one has a last bit of 1, as to odd."""
    scaled = (x.numerator << 600) // x.denominator
    found = math.isqrt(scaled)
    exact = found * found == scaled and scaled * x.denominator == x.numerator << 600
    return Fraction(found | (not exact), 1 << 300)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return numbers of a format, of mixed sizes."""
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, shape)
    return np.vectorize(lambda v: judge(v, rounding(name)))(x)
