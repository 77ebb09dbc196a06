"""exp, log and tanh against mpmath, on both engines."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import mpmath
import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.formats.format import format_named
from roundscope.emu.functions import cos64, exp2_64, exp64, log64, sin64, tanh64
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding

# Every binary32 argument whose exp lies within 4.5 ulps of binary64 of a number of 24 bits or a
# midpoint of two: the cases "near a boundary" of tests/checks/exhaustive_exp.py. The nearest misses
# by 2.5e-6 ulp.
NEAR_A_BOUNDARY = """
    0x1.fffffep-24 0x1.fffffcp-23 0x1.fffff8p-22 0x1.fffff0p-21 0x1.7fffeep-20 0x1.ffffe0p-20
    0x1.7fffdcp-19 0x1.ffffc0p-19 0x1.3fffcep-18 0x1.7fffb8p-18 0x1.bfff9ep-18 0x1.ffff80p-18
    0x1.3fff9cp-17 0x1.7fff70p-17 0x1.bfff3cp-17 0x1.fdff02p-17 0x1.cd3982p-14 0x1.8d7cb6p-12
    0x1.627a9ep-10 0x1.3829c2p+9 -0x1p-25 -0x1.000002p-22 -0x1.000004p-21 -0x1.000008p-20
    -0x1.800012p-20 -0x1.000010p-19 -0x1.800024p-19 -0x1.000020p-18 -0x1.400032p-18 -0x1.800048p-18
    -0x1.c00062p-18 -0x1.000040p-17 -0x1.400064p-17 -0x1.800090p-17 -0x1.c1c4b8p-10 -0x1.659ec8p-9
    -0x1.e1dbe2p-8 -0x1.acff2ap-2 -0x1.d2259ap+3 -0x1.6d7b18p+5 -0x1.736e32p+7
"""
HARD = [float.fromhex(h) for h in NEAR_A_BOUNDARY.split()]
MODES = (
    "ties-to-even",
    "ties-to-away",
    "toward-zero",
    "toward-positive",
    "toward-negative",
    "away-from-zero",
    "to-odd",
)
ROUNDINGS = tuple(rounding(f, m) for f in ("fp32", "bf16", "fp16") for m in MODES[:1] + MODES[2:5])


def on_numpy(function: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    return function(numpy_ops(), x)


def on_xla(function: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda x: function(xla_ops(opaque_zero(x)), x))(x))


ENGINES = {"numpy": on_numpy, "xla": on_xla}
engines = pytest.mark.parametrize("engine", ENGINES)


def exact(function: Callable[..., Any], x: float) -> Fraction:
    """exp or log to 120 bits."""
    with mpmath.workprec(120):
        sign, significand, exponent, _ = function(mpmath.mpf(x))._mpf_
    return (-1) ** sign * int(significand) * Fraction(2) ** int(exponent)


def rounded(x: np.ndarray, r: Rounding) -> list[float]:
    return numpy_ops().round(x, r, None).tolist()


@cache
def arguments() -> np.ndarray:
    """Binary32 numbers of every size: [-110, 90], small ones by exponent, and those where k
    changes.
    """
    rng = np.random.default_rng(3)
    edges = (np.arange(-155, 130) + 0.5) * math.log(2.0)
    by_exponent = rng.choice([-1.0, 1.0], 900) * 2.0 ** rng.uniform(-60, 6, 900)
    parts = [
        rng.uniform(-110, 90, 1500),
        by_exponent,
        edges,
        np.nextafter(edges.astype(np.float32), np.float32(0)),
    ]
    return np.concatenate(parts).astype(np.float32).astype(np.float64)


@cache
def expected() -> list[Fraction]:
    return [exact(mpmath.exp, v) for v in arguments().tolist()]


@pytest.mark.parametrize("r", ROUNDINGS, ids=str)
def test_exp_rounds_correctly(r: Rounding) -> None:
    """exp64, rounded once, is e^x rounded once."""
    got = rounded(on_numpy(exp64, arguments()), r)
    want = [judge(v, r) for v in expected()]  # type: ignore[arg-type]
    assert got == want


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fp32", "e11m23", "bf16"])
@engines
def test_hard_cases(engine: str, name: str, mode: str) -> None:
    """Arguments whose exp all but hits a boundary; e11m23 has 24 bits at every exponent."""
    r = rounding(name, mode)
    y = hard_results()[engine]
    assert rounded(y, r) == [judge(exact(mpmath.exp, v), r) for v in HARD]  # type: ignore[arg-type]


@cache
def hard_results() -> dict[str, np.ndarray]:
    return {name: run(exp64, np.array(HARD)) for name, run in ENGINES.items()}


def test_every_bf16_argument() -> None:
    """e^x of all 65,536, rounded to binary32 and to bf16."""
    with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
        x = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    y = on_numpy(exp64, x)
    assert np.array_equal(y.view(np.int64), on_xla(exp64, x).view(np.int64))
    inside = np.flatnonzero((np.abs(x) >= 2.0**-30) & (np.abs(x) <= 150.0))
    assert inside.size > 9000
    for r in (rounding("fp32"), rounding("bf16")):
        got = np.array(rounded(y, r))
        want = [judge(exact(mpmath.exp, v), r) for v in x[inside].tolist()]  # type: ignore[arg-type]
        assert got[inside].tolist() == want
        assert (got[np.abs(x) < 2.0**-30] == 1.0).all()
        assert (got[x > 150.0] == math.inf).all()
        assert (got[x < -150.0] == 0.0).all()
        assert np.isnan(got[np.isnan(x)]).all()


@engines
def test_exp_of_special_arguments(engine: str) -> None:
    """Zeros and infinities are exact, NaN stays; what is not exact is never taken for it."""
    tiny = 2.0**-149
    x = np.array(
        [0.0, -0.0, math.inf, -math.inf, math.nan, tiny, -tiny, 1e30, -1e30, 710.0, -401.0]
    )
    y = ENGINES[engine](exp64, x)
    assert y[:4].tolist() == [1.0, 1.0, math.inf, 0.0]
    assert not np.signbit(y[:4]).any()
    assert math.isnan(y[4])
    assert y[5:7].tolist() == [1.0 + 2.0**-52, 1.0 - 2.0**-53]
    f = format_named("fp32")
    outward = {
        "ties-to-even": [1.0, 1.0, math.inf, 0.0, math.inf, 0.0],
        "toward-zero": [1.0, 1.0 - 2.0**-24, f.max_finite, 0.0, f.max_finite, 0.0],
        "toward-positive": [1.0 + 2.0**-23, 1.0, math.inf, tiny, math.inf, tiny],
        "toward-negative": [1.0, 1.0 - 2.0**-24, f.max_finite, 0.0, f.max_finite, 0.0],
    }
    for mode, want in outward.items():
        assert rounded(y[5:], rounding("fp32", mode)) == want, mode


def ulps_off(function: Callable[..., Any], x: np.ndarray, y: np.ndarray) -> float:
    """The largest error in ulps of binary64 at the exact value."""
    worst = Fraction(0)
    for v, w in zip(x.tolist(), y.tolist(), strict=True):
        true = exact(function, v)
        if true:
            size = abs(true)
            e = size.numerator.bit_length() - size.denominator.bit_length()
            e -= size < Fraction(2) ** e
            worst = max(worst, abs(Fraction(w) - true) / Fraction(2) ** (e - 52))
        else:
            assert w == 0.0
    return float(worst)


def test_exp_is_within_its_bound() -> None:
    narrow = arguments()[np.abs(arguments()) > 2.0**-29]
    assert ulps_off(mpmath.exp, narrow, on_numpy(exp64, narrow)) < 0.7
    rng = np.random.default_rng(4)
    wide = np.concatenate([rng.uniform(-400, 709, 2000), rng.uniform(-0.4, 0.4, 4000)])
    assert ulps_off(mpmath.exp, wide, on_numpy(exp64, wide)) < 1.1


@cache
def log_arguments() -> np.ndarray:
    """Row sums: from 1 up, near 1 on both sides, where k changes, and every exponent of
    binary32.
    """
    rng = np.random.default_rng(5)
    near = 1.0 + rng.choice([-1, 1], 1500) * 2.0 ** rng.uniform(-52, -1.5, 1500)
    edges = math.sqrt(0.5) * 2.0 ** np.arange(-126, 128) * (1 + rng.normal(0, 1e-15, 254))
    return np.concatenate(
        [rng.uniform(1, 4096, 1500), near, edges, 2.0 ** rng.uniform(-126, 128, 1500), [1.0, 2.0]]
    )


def test_log_is_within_its_bound() -> None:
    x = log_arguments()
    assert ulps_off(mpmath.log, x, on_numpy(log64, x)) < 0.9
    assert on_numpy(log64, np.array([1.0])).tolist() == [0.0]


@engines
def test_log_of_special_arguments(engine: str) -> None:
    y = ENGINES[engine](log64, np.array([1.0, 0.0, -0.0, math.inf, -1.0, math.nan, -math.inf]))
    assert y[:4].tolist() == [0.0, -math.inf, -math.inf, math.inf]
    assert np.isnan(y[4:]).all()


@pytest.mark.parametrize("function", [exp64, log64])
def test_engines_agree_in_every_bit(function: Callable[..., Any]) -> None:
    """2^18 arguments, binary32 and binary64."""
    rng = np.random.default_rng(6)
    if function is exp64:
        x = np.concatenate(
            [
                arguments(),
                HARD,
                rng.uniform(-450, 720, 1 << 17),
                rng.normal(size=1 << 17).astype(np.float32),
            ]
        )
    else:
        x = np.concatenate(
            [log_arguments(), 2.0 ** rng.uniform(-500, 500, 1 << 17), rng.uniform(0.5, 2, 1 << 17)]
        )
    assert np.array_equal(on_numpy(function, x).view(np.int64), on_xla(function, x).view(np.int64))


def test_exp_takes_every_shape() -> None:
    """0-d, empty and matrices; the argument stays as it was."""
    x = np.zeros((2, 3))
    for shape in ((), (0,), (2, 3)):
        assert on_numpy(exp64, np.zeros(shape)).shape == shape
    assert np.array_equal(on_numpy(exp64, x), np.ones((2, 3)))
    assert not x.any()
    assert len(RoundingMode) == len(MODES) + 1  # a new mode belongs in the hard cases


@engines
def test_exp2_is_within_its_bound(engine):
    """A wrong constant or range reduction; a whole power of two that is not exact."""
    rng = np.random.default_rng(4)
    x = np.concatenate(
        [rng.uniform(-1, 1, 300), rng.uniform(-500, 500, 300), np.arange(-570.0, 570.0)]
    )
    y = ENGINES[engine](exp2_64, x)
    with mpmath.workprec(120):
        true = [mpmath.power(2, mpmath.mpf(float(n))) for n in x]
        ulps = [
            abs(float((mpmath.mpf(float(a)) - t) / mpmath.mpf(float(np.spacing(float(t))))))
            for a, t in zip(y, true, strict=True)
        ]
    assert max(ulps) <= 1.4
    whole = x == np.floor(x)
    assert np.array_equal(y[whole], np.ldexp(1.0, x[whole].astype(int)))


@engines
def test_exp2_of_specials(engine):
    """NaN that gets lost, an infinity that turns into a number."""
    y = ENGINES[engine](exp2_64, np.array([-np.inf, np.inf, np.nan, 0.0, -0.0]))
    assert np.array_equal(y, [0.0, np.inf, np.nan, 1.0, 1.0], equal_nan=True)


def test_a_nan_changes_no_other_number():
    """A zero hidden from the compiler that is no zero where the maximum of an array is lost beside
    a NaN: then products are an ulp off.
    """
    x = np.linspace(-1.0, 0.0, 2 * 56 * 64).reshape(2, 56, 64)
    x[0, 0, 0], x[1, 0, 0] = 1.0, np.nan
    assert np.array_equal(on_xla(exp64, x), on_numpy(exp64, x), equal_nan=True)


TANH_ARGUMENTS = np.concatenate(
    [
        np.random.default_rng(8).uniform(-1.0, 1.0, 300)
        * np.repeat([1e-3, 0.3, 1.0, 3.0, 25.0], 60),
        np.ldexp(1.0, np.arange(-1000, 10, 37)),
        np.nextafter(0.3, [0.0, 1.0]),
        [0.3, 0.0, -0.0, 19.0, 19.1, 1e300, np.inf, -np.inf, np.nan],
    ]
)


@engines
def test_tanh_is_within_4_ulps(engine):
    """A series that ends too early, or cancellation where it meets the quotient."""
    got = ENGINES[engine](tanh64, TANH_ARGUMENTS)
    with mpmath.workdps(60):
        for x, y in zip(TANH_ARGUMENTS, got, strict=True):
            if np.isfinite(x):
                error = abs(mpmath.mpf(float(y)) - mpmath.tanh(mpmath.mpf(float(x))))
                assert error <= 4.0 * np.spacing(abs(float(mpmath.tanh(mpmath.mpf(float(x)))))), (
                    x,
                    y,
                )
    assert np.array_equal(got[-3:], [1.0, -1.0, np.nan], equal_nan=True)
    assert np.array_equal(np.signbit(got[:-1]), np.signbit(TANH_ARGUMENTS[:-1]))
    assert np.array_equal(got, on_numpy(tanh64, TANH_ARGUMENTS), equal_nan=True)


@engines
@pytest.mark.parametrize(("f", "exact"), [(cos64, mpmath.cos), (sin64, mpmath.sin)])
def test_cos_and_sin_are_within_1_ulp(engine, f, exact):
    """A part of pi that is left out, near a multiple of pi / 2 or for a large angle."""
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [
            rng.normal(size=200),
            1.5e6 * rng.random(200) * rng.choice([-1, 1], 200),
            np.float32(np.arange(1, 200) * math.pi / 2).astype(float),
            np.arange(1, 200) * (math.pi / 2),
            [1e-9, -1e-200],
        ]
    )
    got = ENGINES[engine](f, x)
    with mpmath.workdps(60):
        wanted = [exact(mpmath.mpf(v)) for v in x]
        ulps = [mpmath.mpf(np.spacing(abs(float(w)))) for w in wanted]
        errors = [abs(mpmath.mpf(y) - w) / u for y, w, u in zip(got, wanted, ulps, strict=True)]
    assert max(errors) < 1
    assert np.array_equal(got, on_numpy(f, x))
    special = on_numpy(f, np.array([0.0, -0.0, np.inf, np.nan, 1.6e6]))
    zeros = [1.0, 1.0] if f is cos64 else [0.0, -0.0]
    assert np.array_equal(special, [*zeros, np.nan, np.nan, np.nan], equal_nan=True)
    assert f is cos64 or np.signbit(special[1])
