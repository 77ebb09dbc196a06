"""Formats with 11 exponent bits, whose small numbers have ulps below binary64's normal numbers."""

import itertools
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import Format, format_named, rounding
from roundscope.emu.backends.fused.program import program
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.ops import Ops
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.judge import spacing as exact_spacing
from roundscope.emu.testing import assert_unbiased
from tests.emu.sums.folds import same
from tests.emu.test_stats import COUNTS, SUMS, on_numpy, on_xla, summed

LEAST = 2.0**-1074
NAMES = ("fp64", "e11m1", "e11m20", "e11m51", "e10m5", "e10m52", "bf16", "e4m3fn", "e8m0fnu")
DEEP = ("fp64", "e11m1", "e11m20", "e11m45")


def numbers() -> np.ndarray:
    """Return zeros, subnormal numbers, powers of two and their neighbors, and the largest."""
    powers = np.ldexp(1.0, np.r_[-1074:-960, -530:-490, -130:-120, -3:4, 1000:1024])
    x = np.concatenate([powers, np.nextafter(powers, 0.0), np.nextafter(powers, 1e308)])
    ends = [0.0, -0.0, 3 * LEAST, 1e-300, 1e-310, np.finfo(np.float64).max]
    return np.concatenate([x, -x, ends])


@pytest.mark.parametrize("name", NAMES)
def test_an_ulp_is_the_distance_of_two_neighbors(name: str) -> None:
    """-2^974 for the ulp of 0 in fp64, and 0 in e11m1: a shifted exponent field below 0."""
    f, x = format_named(name), numbers()
    want = [float(exact_spacing(Fraction(v), f)) for v in x.tolist()]
    assert np.asarray(emu.ulp_of(x, f)).tolist() == want
    with jax.enable_x64(True):
        assert np.asarray(emu.ulp_of(jnp.asarray(x), f)).tolist() == want

    def in_a_program(o: Ops, a: Any) -> Any:
        return spacing(o, a[0], f)

    run, form = program(in_a_program, ((x[None],),), ((False,),))
    assert form([y[0] for y in run(1, [x[None, None]])[0]])[0].tolist() == want


def test_an_ulp_of_what_is_not_finite_is_nan() -> None:
    assert np.isnan(emu.ulp_of([math.inf, -math.inf, math.nan], "fp64")).all()


@pytest.mark.parametrize("name", ["fp64", "e11m20"])
def test_errors_at_zero_are_biased(name: str) -> None:
    """1,000 errors of one ulp up, which passed because the ulp at 0 was -2^974."""
    least = format_named(name).min_positive
    with pytest.raises(AssertionError, match=r"biased up: z = \+31\.6"):
        assert_unbiased(np.full(1000, least), np.zeros(1000), name)


def test_errors_of_more_ulps_than_binary64_counts_are_biased() -> None:
    """An infinite z, which is beyond no limit."""
    with pytest.raises(AssertionError, match="biased up"):
        assert_unbiased(np.full(1000, 1.0), np.zeros(1000), "fp64")


# ------------------------------------------------------------------------------------- statistics


def tiny(f: Format, size: int = 400) -> np.ndarray:
    """Return numbers below 2^-950, multiples of a quarter of the least one, and two usual ones."""
    rng = np.random.default_rng(f.precision)
    sign = rng.choice([-1.0, 1.0], size)
    x = np.ldexp(sign * (1 + rng.random(size)), rng.integers(-1074, -950, size))
    low = max(f.emin - f.precision - 1, -1074)
    quarters = np.ldexp(rng.integers(0, 64, size) * 1.0, low)
    joined = np.concatenate([x, quarters, [0.0, -0.0, 2.0**-1022, LEAST, 1.0, 3.3, math.inf]])
    return np.concatenate([joined, np.zeros(-joined.size % 8)]).reshape(-1, 8)


@pytest.mark.parametrize("engine", ["numpy", "xla"])
@pytest.mark.parametrize("name", DEEP)
def test_statistics_of_tiny_numbers(name: str, engine: str) -> None:
    """Ties 0, ulps 0, peak 0, where 1 / ulp is beyond binary64; and other wrong numbers under XLA,
    which flushes subnormal numbers. In fp64, where nothing rounds, an event is injected.
    """
    f = format_named(name)
    x = tiny(f)
    y = np.asarray(emu.round_to(x, "e11m30" if name == "fp64" else f))
    valid = np.arange(x.size).reshape(x.shape) % 7 != 3
    counts, sums, peak, place, rows = summed(x, y, f, valid)
    got = (on_numpy if engine == "numpy" else on_xla)(x, y, f, valid)
    assert dict(zip(COUNTS, np.asarray(got[0]).tolist(), strict=True)) == {
        n: counts[n] for n in COUNTS
    }
    assert counts["inexact"] > 300 and (name == "fp64" or counts["ties"] > 20)
    for n in ("ulps", "abs_ulps", "sq_ulps"):
        assert math.isclose(float(got[1][SUMS.index(n)]), float(sums[n]), rel_tol=1e-12), n
    assert math.isclose(float(got[1][1]), float(sums["abs_error"]), rel_tol=1e-12)
    assert (float(got[2]), int(got[3])) == (peak, place)
    assert np.allclose(np.asarray(got[4]), [float(r) for r in rows], rtol=1e-12)


@pytest.mark.parametrize("name", DEEP)
def test_statistics_of_tiny_numbers_in_a_program(name: str) -> None:
    """The classification that a program traces, which takes normal numbers apart from others."""
    f = format_named(name)
    x = tiny(f)
    normal = np.where(np.abs(x) < 2.0**-1022, 2.0**-1000, x)
    for before in (x, np.where(np.isfinite(normal), normal, 1.0)):
        after = np.asarray(emu.round_to(before, "e11m30" if name == "fp64" else f))

        def seen(o: Ops, a: Any) -> Any:
            (found,) = o.stats([(a[0], a[1], f, o.xp.ones(x.shape, bool))])
            return found

        run, form = program(seen, ((before, after),), ((False, False),))
        found = form([part[0] for part in run(1, [before[None], after[None]])[0]])
        for mine, want in zip(
            found, on_numpy(before, after, f, np.ones(x.shape, bool)), strict=True
        ):
            np.testing.assert_array_equal(mine, want)


def test_the_tie_of_the_report() -> None:
    _, stats = emu.round_with_stats(np.array([1.5 * 2.0**-1042]), "e11m20")
    assert (int(stats.ties), float(stats.ulps), float(stats.peak)) == (1, 0.5, 0.5)


# ------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("name", "overflow"),
    [*itertools.product(("fp64", "e11m20"), ("inf", "nan", "saturate")), ("e2m1fn", "saturate")],
)
def test_binary64_obeys_the_policies_on_every_executor(name: str, overflow: str) -> None:
    """XLA took fp64 for the identity, whatever becomes of infinities; NaN kept its payload."""
    payload = np.array([0x7FF0_0000_0000_0001, -0x000F_0000_0000_1234], np.int64).view(np.float64)
    x = np.array([math.inf, -math.inf, 1.7976931348623157e308, -1.5, 0.0, -0.0, LEAST])
    x = np.concatenate([x, payload])
    for mode, nan in itertools.product(("ties-to-even", "toward-zero"), ("keep", "zero")):
        r = rounding(name, mode, overflow=overflow, nan=nan)
        ours = emu.round_to(x, r)
        with jax.enable_x64(True):
            theirs = np.asarray(emu.round_to(jnp.asarray(x), r))
        with np.errstate(invalid="ignore"):  # a signaling NaN
            want = [judge(v, r) for v in x.tolist()]
            inside = np.asarray(numpy_ops().round(x, r, None)).tolist()
        assert ours.view(np.int64).tolist() == theirs.view(np.int64).tolist()
        assert all(same(a, b) for a, b in zip(ours.tolist(), want, strict=True))
        assert all(same(a, b) for a, b in zip(inside, want, strict=True))


def test_exp_in_binary64_that_saturates_is_that_of_binary64() -> None:
    """A subnormal result rounded to odd for a rounding that drops no bit."""
    x = np.array([-740.3, -720.0, -708.5, 0.3, 800.0])
    saturated = emu.exp(x, rounding("fp64", overflow="saturate"))
    assert np.array_equal(saturated[:4], emu.exp(x, "fp64")[:4])
    assert saturated[4] == np.finfo(np.float64).max


def test_a_format_below_binary64_is_refused() -> None:
    """A normal number that binary64 holds as a subnormal one: 375 of 400 numbers rounded wrong."""
    with pytest.raises(ValueError, match="emin=-1060: binary64's own smallest normal"):
        Format(name="low", precision=5, emin=-1060, max_finite=1.0, inf=False, nan=False)


# ------------------------------------------------------------------------------------- injections


@pytest.mark.parametrize(
    ("plan", "inject", "site"),
    [
        ("exact", "OUT:ulps=1", "OUT"),
        ("exact", "V:ulps=3", "V"),
        ("exact", "O:noise=1", "O"),
        ("qiu-yao-compiled", "AO:ulps=1", "AO"),
    ],
)
def test_an_ulp_is_injected_where_a_binary64_event_is_zero(
    plan: str, inject: str, site: str
) -> None:
    """-1.6e293 in place of 2^-1074, and so infinite results."""
    from roundscope import Record, examine

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 16, 1, 16)) for _ in range(3))
    v[..., 3] = 0.0
    found, plain = (
        examine(
            q,
            k,
            v,
            v if plan != "exact" else None,
            plan=plan,
            block_q=8,
            block_k=8,
            engine="numpy",
            inject=what,
            record=Record(events=(site,)),
        )
        for what in (inject, ())
    )
    for name in ("out", "dq", "dk", "dv"):
        a, b = getattr(found, name), getattr(plain, name)
        assert a is None or (np.isfinite(a).all() and np.allclose(a, b, rtol=1e-6, atol=1e-300))
    if inject == "OUT:ulps=1":
        assert (np.asarray(found.out)[..., 3] == LEAST).all()
        changed = np.asarray(found.out)[..., :3] - np.asarray(plain.out)[..., :3]
        want = [
            float(exact_spacing(Fraction(x), format_named("fp64")))
            for x in np.asarray(plain.out)[..., :3].ravel().tolist()
        ]
        assert changed.ravel().tolist() == want
