"""emu.exp to the ends of binary64, and with random bits: against mpmath and the judge."""

import math
import sys
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.functions import BOUNDARY, WHOLE_RANGE, _reduced, significand_bits
from roundscope.emu.roundings.judge import judge

ENDS = [
    -746.5,
    -746.0,
    -745.2,
    -745.1,
    -745.0,
    -744.0,
    -720.3,
    -709.0,
    -708.5,
    -708.3,
    -500.0,
    -400.5,
    709.25,
    709.75,
    709.78,
    709.79,
    710.5,
    800.0,
]
MODES = [m for m in emu.RoundingMode if m is not emu.RoundingMode.STOCHASTIC]


def exact(x: float) -> Fraction:
    """e^x to 200 bits."""
    with mpmath.workprec(200):
        _, significand, exponent, _ = mpmath.exp(mpmath.mpf(x))._mpf_
    return int(significand) * Fraction(2) ** int(exponent)


@cache
def arguments() -> np.ndarray:
    """Binary32 numbers that exp64 clamps, the ends of binary64 among them; and -1e30, 1e30."""
    rng = np.random.default_rng(0)
    drawn = rng.uniform(-746, -400, 300), rng.uniform(709, 709.8, 40)
    x = np.concatenate([ENDS, *drawn, [-1e30, 1e30]])
    return x.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["e11m20", "e11m23", "e11m3", "e10m12", "fp32"])
def test_rounded_once_over_the_whole_range(name: str, mode: str) -> None:
    """e^-500 in e11m20 was e^-400; below 2^-1022 a second rounding shows in the directed modes."""
    r = emu.rounding(name, mode)
    top = Fraction(sys.float_info.max)  # beyond every one of these formats too
    want = [judge(min(exact(math.copysign(min(abs(x), 4000.0), x)), top), r) for x in arguments()]
    np.testing.assert_array_equal(emu.exp(arguments(), r), want)
    with jax.enable_x64(True):
        on_jax = np.asarray(emu.exp(jnp.asarray(arguments()), r))
    assert np.array_equal(on_jax.view(np.int64), np.array(want).view(np.int64))


def test_binary64_is_within_its_bounds() -> None:
    """Within 0.7 ulp, one more where subnormal; 0 and infinity beyond; the same on JAX."""
    y = emu.exp(arguments(), "fp64")
    with jax.enable_x64(True):
        on_jax = np.asarray(emu.exp(jnp.asarray(arguments()), "fp64"))
    assert np.array_equal(on_jax.view(np.int64), y.view(np.int64))
    for x, got in zip(arguments().tolist(), y.tolist(), strict=True):
        if x < -746 or x > 709.785:
            assert got == (0.0 if x < 0 else math.inf)
        else:
            bound = 0.7 if got >= 2.0**-1022 else 1.7
            assert abs(Fraction(got) - exact(x)) <= bound * Fraction(math.ulp(got))


def test_every_binary32_argument_beyond_exp64s_range_is_on_the_right_side() -> None:
    """All 7.4 million: what lies within two ulps of a boundary is settled with 200 bits."""

    def word(x):
        return int(np.float32(x).view(np.int32))

    parts = [(-400.0, WHOLE_RANGE[0]), (709.0, WHOLE_RANGE[1])]
    words = np.concatenate([np.arange(*map(word, part), dtype=np.int64) for part in parts])
    x = words.astype(np.int32).view(np.float32).astype(np.float64)
    k, high, low = _reduced(numpy_ops(), x, *WHOLE_RANGE)
    b = significand_bits(numpy_ops(), high, low)
    rest = (b + 2) & (BOUNDARY - 1)
    near = np.flatnonzero(rest <= 4)
    assert x.size > 7_000_000 and near.size < 10
    for i in near.tolist():
        boundary = Fraction(float((b[i] + 2 - rest[i]).view(np.float64)))
        truth = exact(x[i]) / Fraction(2) ** int(k[i])
        assert (truth > boundary) == (Fraction(float(b[i].view(np.float64))) > boundary)


def test_stochastic_exp_draws_as_round_to_does() -> None:
    """It had no seed and failed inside. Bits are by index, so pieces make the whole."""
    x = np.linspace(-20, 20, 1001, dtype=np.float32)
    wide = np.array([float(exact(v)) for v in x.tolist()])
    got = emu.exp(x, "bf16", "stochastic", seed=7)
    assert np.array_equal(got, emu.round_to(wide, "bf16", "stochastic", seed=7))
    assert np.array_equal(got, np.asarray(emu.exp(jnp.asarray(x), "bf16", "stochastic", seed=7)))
    assert np.array_equal(got[400:], emu.exp(x[400:], "bf16", "stochastic", seed=7, first=400))
    assert not np.array_equal(got, emu.exp(x, "bf16", "stochastic", seed=8))


def test_a_format_that_float32_cannot_hold_is_an_error() -> None:
    """e^-500 came back as float32's 0, called a number of e11m20."""
    for on in (np.asarray, jnp.asarray):
        with pytest.raises(ValueError, match="e11m20: does not fit a float32 array; pass float64"):
            emu.exp(on(np.array([-500.0], np.float32)), "e11m20")
