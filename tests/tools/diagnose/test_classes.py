"""Rounding classes against exact fractions, and the bit example of arXiv 2510.04212."""

from fractions import Fraction

import numpy as np
import pytest

from roundscope.emu.api import round_to
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.judge import exponent, neighbours, spacing
from roundscope.tools.diagnose.tensors.origin import (
    ABOVE,
    BELOW,
    CARRY,
    CLASSES,
    EXACT,
    LEFT_OUT,
    STICKY,
    TIE,
    classify,
)

A, B, RESIDUAL = -2.40625, -2.296875, -0.000865459442139


def expected(before: float, after: float, f) -> str:
    """The class in words, by the definitions, in rational arithmetic."""
    x = abs(Fraction(before))
    if after == before:
        return "exact"
    if x and exponent(abs(Fraction(after)) or x) > max(exponent(x), f.emin):
        return "carry"
    lower, _ = neighbours(x, f)
    part = (x - lower) / spacing(x, f)
    if part == Fraction(1, 2):
        return "tie"
    if abs(part - Fraction(1, 2)) < Fraction(1, 32):
        return "tie broken by sticky"
    return "above half" if part > Fraction(1, 2) else "below half"


def test_the_papers_example_is_a_tie_that_sticky_bits_break():
    """Catches a classifier that calls the paper's event an ordinary one, or misses that without the
    residual it is a plain tie.
    """
    f = format_named("bf16")
    before = np.array([A + B + RESIDUAL, A + B])
    after = np.asarray(round_to(before, "bf16"))
    assert after.tolist() == [-4.71875, -4.6875]
    assert after[0] - before[0] == pytest.approx(-0.014759540557861, abs=1e-12)
    assert classify(before, after, f).tolist() == [STICKY, TIE]
    assert classify(before, after, f, np.full(2, A + B)).tolist() == [STICKY, TIE]


@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3fn", "e5m2"])
def test_classes_agree_with_exact_fractions(name):
    """Catches a wrong ulp (subnormals, binade edges), a wrong side of half, and carries counted as
    something else.
    """
    f, rng = format_named(name), np.random.default_rng(1)
    last = -f.precision - 1
    x = np.concatenate(
        [
            rng.standard_normal(300),
            np.ldexp(rng.standard_normal(200), f.emin - 1),
            np.ldexp(np.round(rng.standard_normal(300) * 2.0**-last), last),
            2.0 - np.ldexp(rng.random(50), last + 1),
        ]
    )
    x = np.concatenate(
        [
            x,
            np.ldexp(np.rint(x * 64) + 0.5, -6)
            + np.ldexp(rng.choice([-1.0, 0.0, 1.0], x.size), -20),
            [0.0, 1.0],
        ]
    )
    after = np.asarray(round_to(x, name))
    found = [CLASSES[i] for i in classify(x, after, f)]
    assert found == [expected(float(a), float(b), f) for a, b in zip(x, after, strict=True)]
    assert set(found) == set(CLASSES)


def test_the_main_part_decides_where_it_is_known():
    """Catches a classifier that looks at closeness to a tie although the sum's own parts say
    otherwise.
    """
    f = format_named("bf16")
    tie, near = 1.0 + 2.0**-8, 1.0 + 2.0**-8 + 2.0**-10  # a tie; a quarter of half an ulp beyond it
    before = np.array([near, near, tie + 2.0**-7, 1.0])
    after = np.asarray(round_to(before, "bf16"))
    main = np.array(
        [tie, near - 2.0**-20, tie, 1.0]
    )  # ties; does not; a rest of a whole ulp; exact
    assert classify(before, after, f, main).tolist()[:2] == [STICKY, ABOVE]
    assert classify(before, after, f, main)[2:].tolist() == [TIE, EXACT]


def test_carries_and_what_is_not_finite_are_told_apart():
    """Catches a carry seen as above half, and infinities counted as exact."""
    f = format_named("bf16")
    before = np.array([2.0 - 2.0**-9, 1.0 + 2.0**-9, np.inf, np.nan, 3.4e38 * 1.2])
    after = np.array([2.0, 1.0, np.inf, np.nan, np.inf])
    assert classify(before, after, f).tolist() == [CARRY, BELOW, LEFT_OUT, LEFT_OUT, LEFT_OUT]
