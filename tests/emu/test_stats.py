"""`Stats` against a classification of single events in fractions, on both engines."""

import math
from collections import Counter
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundscope.emu import round_to, round_with_stats
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.numba.stats import stats
from roundscope.emu.backends.xla.ops import judged_stats, opaque_zero, xla_ops
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.judge import exponent, spacing
from roundscope.emu.roundings.modes import BF16, Rounding, RoundingMode, rounding
from roundscope.emu.stats.classify import COUNTS, SUMS, judged
from roundscope.emu.stats.summary import Stats

ROUNDINGS = tuple(
    rounding(f, mode, overflow=overflow)
    for f, mode, overflow in (
        ("bf16", "ties-to-even", None),
        ("bf16", "ties-to-away", None),
        ("bf16", "toward-zero", None),
        ("bf16", "stochastic", None),
        ("fp16", "ties-to-even", None),
        ("fp16", "toward-positive", None),
        ("fp16", "ties-to-even", "saturate"),
        ("e4m3fn", "ties-to-even", "nan"),
        ("e4m3fn", "ties-to-even", "saturate"),
        ("e4m3fn", "to-odd", "nan"),
        ("bf16", "away-from-zero", None),
        ("e5m2", "ties-to-even", "saturate"),
        ("e5m2", "toward-negative", "inf"),
        ("e4m3fnuz", "ties-to-even", None),
        ("e2m1fn", "ties-to-even", None),
        ("e3m2fn", "ties-to-away", None),
        ("fp32", "ties-to-even", None),
    )
)
ON_XLA = tuple(
    r for r in ROUNDINGS if str(r) in ("bf16", "fp16:saturate", "e4m3fn:saturate", "e2m1fn")
)


def events(r: Rounding, size: int = 1200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(before, after) of random numbers of every size of the format, and of its boundaries,
    shuffled.
    """
    f, rng = r.format, np.random.default_rng([seed, r.format.precision, r.mode.code])
    low, high = max(f.emin - f.precision - 2, -900), f.emax + 1
    x = (
        rng.choice([-1.0, 1.0], size)
        * (1 + rng.random(size))
        * 2.0 ** rng.integers(low, high + 1, size)
    )
    kept = np.array(
        [math.ldexp(k, e) for k in range(8, 17) for e in range(f.emin - f.precision, f.emin + 4)]
    )
    powers = 2.0 ** np.arange(f.emin, f.emax + 1, max(1, (f.emax - f.emin) // 12))
    ties = np.concatenate(
        [(2 - 2.0**-f.precision * k) * powers for k in (1, 3)]
        + [(1 + 2.0**-f.precision * k) * powers for k in (1, 3)]
    )
    top = f.max_finite * np.array([1, 1 - 2.0**-12, 1 + 2.0**-40, 1.02, 1.3, 1.9, 3.0])
    special = np.array(
        [
            0.0,
            -0.0,
            math.inf,
            -math.inf,
            math.nan,
            f.min_positive / 2,
            f.min_positive * 0.75,
            f.min_positive / 4,
        ]
    )
    x = np.concatenate([x, kept, ties, -ties, top, -top, special])
    x = x[rng.permutation(x.size)]
    x = np.concatenate([x, np.zeros(-x.size % 40)]).reshape(-1, 40)
    random = (
        rng.integers(0, 2**31, x.shape, dtype=np.int32)
        if r.mode is RoundingMode.STOCHASTIC
        else None
    )
    return x, numpy_ops().round(x, r, random)


# ------------------------------------------------------------------------------------- the
# reference


def classified(x: float, y: float, f: Format) -> tuple[dict[str, bool], Fraction, Fraction]:
    """(flags, error, error in ulps) of one event, from the definitions in `Stats`.

    An overflow is a finite number beyond the largest that ends more than half an ulp away, or not
    finite.
    """
    flags = dict.fromkeys(COUNTS, False) | {"n": True, "nan": math.isnan(y)}
    flags["subnormal"] = math.isfinite(y) and 0 < abs(y) < f.min_normal
    error = ulps = Fraction(0)
    if math.isfinite(x) and math.isfinite(y):
        before, after = Fraction(x), Fraction(y)
        error = after - before
        ulps = error / spacing(before, f)
        away, toward = abs(after) > abs(before), abs(after) < abs(before)
        flags |= {"inexact": error != 0, "away": away, "toward": toward}
        flags |= {
            "ties": abs(ulps) == Fraction(1, 2),
            "ties_away": away and abs(ulps) == Fraction(1, 2),
        }
        flags["carries"] = away and exponent(after) > max(
            exponent(before) if before else f.emin, f.emin
        )
        flags["underflow"] = before != 0 and after == 0
    flags["overflow"] = (
        math.isfinite(x)
        and abs(x) > f.max_finite
        and (not math.isfinite(y) or abs(ulps) > Fraction(1, 2))
    )
    return flags, error, ulps


Summed = tuple[Counter[str], dict[str, Fraction], float, int, list[Fraction]]


def summed(x: np.ndarray, y: np.ndarray, f: Format, valid: np.ndarray) -> Summed:
    """Counts, sums, peak, place and signed ulps of the rows, in exact arithmetic."""
    counts: Counter[str] = Counter()
    sums = dict.fromkeys(SUMS, Fraction(0))
    peak, place = Fraction(-1), -1
    rows = [Fraction(0)] * x.shape[0]
    for at in np.flatnonzero(valid).tolist():
        flags, error, ulps = classified(float(x.flat[at]), float(y.flat[at]), f)
        counts.update(name for name, flag in flags.items() if flag)
        for name, v in zip(
            SUMS, (error, abs(error), error**2, ulps, abs(ulps), ulps**2), strict=True
        ):
            sums[name] += v
        rows[at // x.shape[1]] += ulps
        if abs(ulps) > peak:
            peak, place = abs(ulps), at
    return counts, sums, float(max(peak, 0)), place, rows


def on_numpy(x: np.ndarray, y: np.ndarray, f: Format, valid: np.ndarray) -> tuple[Any, ...]:
    return numpy_ops().stats([(x, y, f, valid)])[0]


def on_xla(x: np.ndarray, y: np.ndarray, f: Format, valid: np.ndarray) -> tuple[Any, ...]:
    with jax.enable_x64(True):
        return tuple(np.asarray(v) for v in compiled(f)(x, y, valid))


@cache
def compiled(f: Format) -> Any:
    return jax.jit(lambda x, y, valid: xla_ops(opaque_zero(x)).stats([(x, y, f, valid)])[0])


def test_events_together_are_events_alone():
    """Catches an event summarised by another's format, place or shape."""
    rng = np.random.default_rng(3)
    events = []
    for n, (name, shape) in enumerate(
        [("bf16", (4, 6)), ("e4m3fn", (4, 6)), ("bf16", (4, 1)), ("fp16", (4, 6)), ("fp32", (4, 1))]
    ):
        x = rng.standard_normal(shape) * 2.0**n
        events.append(
            (
                x,
                numpy_ops().round(x, rounding(name), None),
                rounding(name).format,
                rng.random(shape) < 0.8,
            )
        )
    with jax.enable_x64(True):
        formats = [f for *_, f, _ in events]
        summarise = jax.jit(
            lambda arrays: xla_ops(np.int64(0)).stats(
                [(x, y, f, v) for f, (x, y, v) in zip(formats, arrays, strict=True)]
            )
        )
        together = summarise([(x, y, v) for x, y, _, v in events])
    for event, found in zip(events, together, strict=True):
        for mine, theirs in zip(on_numpy(*event), found, strict=True):
            np.testing.assert_allclose(np.asarray(theirs), mine, rtol=1e-14)


def assert_summed(got: tuple[Any, ...], want: Summed, events: int) -> None:
    """Counts, peak and place equal, sums to 1e-12 of the sum of the magnitudes."""
    counts, sums, peak, place, rows = got
    assert dict(zip(COUNTS, np.asarray(counts).tolist(), strict=True)) == {
        name: want[0][name] for name in COUNTS
    }
    exact = want[1]
    for i, (name, scale) in enumerate(
        zip(
            SUMS,
            ("abs_error", "abs_error", "sq_error", "abs_ulps", "abs_ulps", "sq_ulps"),
            strict=True,
        )
    ):
        assert abs(Fraction(float(sums[i])) - exact[name]) <= Fraction(1, 10**12) * exact[scale], (
            name
        )
    assert (float(peak), int(place)) == want[2:4]
    allowed = Fraction(1, 10**12) * exact["abs_ulps"]
    assert all(abs(Fraction(float(r)) - w) <= allowed for r, w in zip(rows, want[4], strict=True))
    assert 0 < counts[0] <= events


def masks(shape: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    row = np.broadcast_to((rng.random(shape[0]) < 0.5)[:, None], shape)
    return [np.ones(shape, bool), rng.random(shape) < 0.6, row]


@pytest.mark.parametrize("r", ROUNDINGS, ids=str)
def test_numpy_classifies_as_the_definitions(r: Rounding) -> None:
    """Random and boundary numbers, three masks.

    Every kind of event that the rounding can have occurs.
    """
    x, y = events(r)
    for valid in masks(x.shape):
        want = summed(x, y, r.format, valid)
        assert_summed(on_numpy(x, y, r.format, valid), want, x.size)
    counts = summed(x, y, r.format, np.ones(x.shape, bool))[0]
    impossible = {
        "ties_away": r.mode is RoundingMode.TOWARD_ZERO,
        "away": r.mode is RoundingMode.TOWARD_ZERO,
        "toward": r.mode is RoundingMode.AWAY_FROM_ZERO,
        "carries": r.mode in (RoundingMode.TOWARD_ZERO, RoundingMode.TO_ODD),
        "underflow": r.mode in (RoundingMode.TO_ODD, RoundingMode.AWAY_FROM_ZERO),
    }
    assert {name for name in COUNTS if not counts[name]} == {
        name for name, never in impossible.items() if never
    }


@pytest.mark.parametrize("r", ON_XLA, ids=str)
def test_xla_classifies_as_numpy(r: Rounding) -> None:
    x, y = events(r)
    for valid in masks(x.shape):
        assert_summed(on_xla(x, y, r.format, valid), summed(x, y, r.format, valid), x.size)
        ours, theirs = on_numpy(x, y, r.format, valid), on_xla(x, y, r.format, valid)
        assert np.array_equal(ours[0], theirs[0])
        assert (ours[2], ours[3]) == (float(theirs[2]), int(theirs[3]))
        for mine, other in ((ours[1], theirs[1]), (ours[4], theirs[4])):
            np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-12 * float(ours[1][4]))


@pytest.mark.parametrize("shape", [(1, 1), (64, 1), (1, 2500), (3, 1025), (7, 13), (0, 5)])
def test_tiles_of_every_shape(shape: tuple[int, int]) -> None:
    """Single columns, long rows, empty tiles; strided arrays; nothing valid: 0 events at place
    -1.
    """
    f = rounding("bf16").format
    rng = np.random.default_rng(shape)
    x = np.asfortranarray(rng.normal(size=shape))
    y = numpy_ops().round(x, rounding("bf16"), None)
    if x.size:
        assert_summed(
            on_numpy(x, y, f, np.ones(shape, bool)), summed(x, y, f, np.ones(shape, bool)), x.size
        )
    counts, sums, peak, place, rows = on_numpy(x, y, f, np.zeros(shape, bool))
    assert (counts.sum(), np.abs(sums).sum(), peak, place, np.abs(rows).sum()) == (0, 0, 0, -1, 0)
    assert rows.shape == shape[:1]


def test_known_events() -> None:
    """A few by hand, in bf16: ulp 2^-7 at 1."""
    f = rounding("bf16").format
    known = {
        (1 + 2.0**-8, 1.0): ({"inexact", "ties", "toward"}, -0.5),
        (1 + 3 * 2.0**-8, 1 + 2.0**-6): ({"inexact", "ties", "ties_away", "away"}, 0.5),
        (2 - 2.0**-8, 2.0): ({"inexact", "ties", "ties_away", "away", "carries"}, 0.5),
        (1e39, math.inf): ({"overflow"}, 0.0),
        (2.0**-140, 0.0): ({"inexact", "toward", "underflow"}, -(2.0**-7)),
        (2.0**-130, 2.0**-130): ({"subnormal"}, 0.0),
        (math.nan, math.nan): ({"nan"}, 0.0),
        (-1.0, -1.0): (set(), 0.0),
    }
    for (x, y), (flags, ulps) in known.items():
        counts, sums, *_ = on_numpy(np.array([[x]]), np.array([[y]]), f, np.ones((1, 1), bool))
        assert {name for name, c in zip(COUNTS, counts, strict=True) if c} == flags | {"n"}, x
        assert sums[3] == ulps


@pytest.mark.parametrize("engine", [on_numpy, on_xla])
def test_a_rounded_difference_is_no_tie(engine: Any) -> None:
    """(1/2 - 2^-54) ulp taken to one ulp: the difference rounds to half of one."""
    f, nearly = rounding("e4m3fn").format, (0.5 - 2.0**-54) * 2.0**-9
    x = np.array([[nearly, 2.0**-10, 1.0625, 1.0 - 2.0**-5, -nearly]])
    y = np.array([[2.0**-9, 2.0**-9, 1.125, 1.0, -(2.0**-9)]])
    found = engine(x, y, f, np.ones(x.shape, bool))[0]
    counts = dict(zip(COUNTS, np.asarray(found).tolist(), strict=True))
    assert (counts["ties"], counts["ties_away"], counts["away"]) == (3, 3, 5)


# ------------------------------------------------------------------------------------- merging


def stats_of(x: np.ndarray, y: np.ndarray, f: Format) -> Stats:
    return Stats.of(*on_numpy(x, y, f, np.ones(x.shape, bool))[:4])


@cache
def merging_events() -> tuple[np.ndarray, np.ndarray]:
    return events(rounding("e4m3fn", overflow="saturate"), 400, seed=1)


def assert_merged(total: Stats, whole: Stats) -> None:
    for name in COUNTS:
        assert int(getattr(total, name)) == int(getattr(whole, name)), name
    for name, scale in zip(
        SUMS, ("abs_error", "abs_error", "sq_error", "abs_ulps", "abs_ulps", "sq_ulps"), strict=True
    ):
        assert abs(getattr(total, name) - getattr(whole, name)) <= 1e-12 * getattr(whole, scale), (
            name
        )
    assert float(total.peak) == float(whole.peak)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_chunking_and_order_change_nothing(data: st.DataObject) -> None:
    """Any cuts between rows, merged in any order and any tree: counts and peak exactly, sums to
    rounding.
    """
    x, y = merging_events()
    f = rounding("e4m3fn").format
    cuts = sorted(data.draw(st.lists(st.integers(0, x.shape[0]), max_size=6)))
    parts = [
        stats_of(x[lo:hi], y[lo:hi], f)
        for lo, hi in zip([0, *cuts], [*cuts, x.shape[0]], strict=True)
    ]
    parts = data.draw(st.permutations(parts))
    while len(parts) > 1:
        at = data.draw(st.integers(0, len(parts) - 2))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    assert_merged(parts[0], stats_of(x, y, f))


def test_total_is_the_merge_of_the_leading_shape() -> None:
    """A Stats of many entries (batch and heads) sums to one."""
    x, y = merging_events()
    f = rounding("e4m3fn").format
    single = [
        on_numpy(x[i : i + 1], y[i : i + 1], f, np.ones((1, x.shape[1]), bool))[:4]
        for i in range(x.shape[0])
    ]
    many = Stats.of(*(np.array([s[n] for s in single]) for n in range(4)))
    assert many.n.shape == (x.shape[0],)
    assert_merged(many.total(), stats_of(x, y, f))
    worst = int(np.argmax(many.peak))
    assert int(many.total().place) == int(many.place[worst])
    numbers = many.total().as_dict()
    assert all(type(v) in (int, float) for v in numbers.values())
    assert numbers["n"] == x.size


# ------------------------------------------------------------------------------------- laws of the
# summaries


def uniform(mode: str, batches: int = 300, size: int = 1024) -> Stats:
    """Uniform numbers of one binade, where errors in ulps are uniform too; one entry per batch."""
    x = np.random.default_rng(2).uniform(1, 2, (batches, size))
    y = numpy_ops().round(x, rounding("bf16", mode), None)
    single = [
        on_numpy(x[i : i + 1], y[i : i + 1], rounding("bf16").format, np.ones((1, size), bool))
        for i in range(batches)
    ]
    return Stats.of(*(np.array([s[n] for s in single]) for n in range(4)))


def test_coherence_of_random_signs_is_a_half_normal() -> None:
    """E |N| = sqrt(2 / pi), 95 % below 1.96; all samples 5 standard errors wide."""
    coherence = uniform("ties-to-even").coherence
    assert abs(coherence.mean() - math.sqrt(2 / math.pi)) < 5 * 0.603 / math.sqrt(300)
    assert abs((coherence < 1.96).mean() - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 300)


def test_coherence_of_one_sign_grows_with_the_root() -> None:
    """Toward zero: sum -n/2, squares n/3, so sqrt(3 n) / 2."""
    s = uniform("toward-zero")
    np.testing.assert_allclose(s.coherence, math.sqrt(3 * 1024) / 2, rtol=0.05)
    np.testing.assert_allclose(s.mean_ulps, -0.5, atol=0.06)
    np.testing.assert_allclose(s.mean_abs_ulps, -s.mean_ulps)


def test_standard_error_is_that_of_the_mean() -> None:
    """A uniform error has variance 1/12; the means of the batches scatter by their standard
    error.
    """
    s = uniform("ties-to-even")
    np.testing.assert_allclose(s.standard_error, math.sqrt(1 / 12 / 1024), rtol=0.1)
    assert 0.8 < s.mean_ulps.std() / s.standard_error.mean() < 1.2


def test_a_summary_of_nothing() -> None:
    """No event: no mean, no coherence, no warning."""
    empty = Stats.of(np.zeros(11, np.int64), np.zeros(6), 0.0, -1)
    assert (
        float(empty.mean_ulps),
        float(empty.coherence),
        float(empty.standard_error),
        int(empty.place),
    ) == (0.0, 0.0, 0.0, -1)


@pytest.mark.parametrize("columns", [7, 8])
def test_counts_that_share_an_integer(monkeypatch, columns):
    """A count that grows into another's bits: rows of 7 events fit into three bits, rows of 8 do
    not.
    """
    monkeypatch.setattr("roundscope.emu.backends.xla.ops.BITS", 3)
    x = np.full((3, columns), 1.0 + 2.0**-8)  # ties, inexact and toward zero, all of them
    x[1], x[2] = np.nan, 2.0**-140
    y, there = round_to(x, BF16), np.ones(x.shape, bool)
    judged_stats.clear_cache()
    try:
        with jax.enable_x64(True):
            counts, *_ = judged_stats(
                *map(jnp.asarray, (x, y)), judged(BF16.format), jnp.asarray(there)
            )
    finally:
        judged_stats.clear_cache()
    assert np.array_equal(counts, stats(x, y, BF16.format, there)[0])
    assert {0, columns, 3 * columns} <= set(counts.tolist())


def test_a_merged_summary_has_the_place_of_the_larger_error():
    """The place of the other summary's error, or always that of the first."""
    small = round_with_stats(np.array([1.0, 1.0, 1.0, 1.0 + 2.0**-9], np.float32), "bf16")[1]
    large = round_with_stats(np.array([1.0, 1.0 + 2.0**-8, 1.0], np.float32), "bf16")[1]
    for merged in (small + large, large + small):
        assert (float(merged.peak), int(merged.place)) == (0.5, 1)


# ------------------------------------------------------------------------------------- rounding
# with statistics: sixteen numbers at once


def in_order(x: np.ndarray, y: np.ndarray, f: Format) -> tuple[dict[str, float], np.ndarray]:
    """The sums of `round_with_stats` in their order, which is part of their bits, and the ulps.

    Eight sums, number by number, over 2^15 numbers; the signed ulps in four sums over 1024.
    """
    a, b = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    e = np.subtract(b, a, out=np.zeros(a.shape), where=finite)
    binade = np.maximum(np.frexp(np.where(finite, a, 1.0))[1] - 1, f.emin)
    u = np.ldexp(e, f.precision - 1 - binade)
    terms = np.stack([e, abs(e), e * e, abs(u), u * u])
    total = dict.fromkeys(SUMS, 0.0)
    for lo in range(0, x.size, 1 << 15):
        piece = terms[:, lo : lo + (1 << 15)]
        piece = np.pad(piece, ((0, 0), (0, -piece.shape[1] % 8))).reshape(5, -1, 8)
        lanes = np.add.accumulate(piece, axis=1)[:, -1]
        for name, eight in zip([s for s in SUMS if s != "ulps"], lanes, strict=True):
            total[name] += np.add.accumulate(eight)[-1]
        signed = 0.0
        for row in range(lo, min(lo + (1 << 15), x.size), 1024):
            part = u[row : min(row + 1024, x.size)]
            whole = part.size // 4 * 4
            four = np.zeros(4)
            for group in part[:whole].reshape(-1, 4):
                four += group
            for one in part[whole:]:
                four[0] += one
            signed += (four[0] + four[1]) + (four[2] + four[3])
        total["ulps"] += signed
    return total, u


def format_of(precision: int, emin: int, largest: float) -> Format:
    return Format(
        name=f"p{precision}e{emin}",
        precision=precision,
        emin=emin,
        max_finite=largest,
        inf=True,
        nan=True,
    )


@pytest.mark.parametrize(
    "f",
    [
        "bf16",
        "fp16",
        "e4m3fn",
        "fp32",
        "e5m2fnuz",
        format_of(1, -10, 2.0**127),  # 1 / ulp is subnormal in binary32
        format_of(4, 100, 1.5 * 2.0**120),  # 1 / ulp is tiny
        format_of(2, -126, 1.5 * 2.0**127),
        format_of(4, -3, 1.1),  # no number of the format or of binary32
    ],
    ids=lambda f: getattr(f, "name", f),
)
@pytest.mark.parametrize("mode", ["ties-to-even", "away-from-zero", "toward-zero", "stochastic"])
def test_sixteen_at_once_are_judged_as_one_is(f: str | Format, mode: str) -> None:
    """A rounded error or square, sums in another order, a flag that is not counted, a peak's place
    in another vector.
    """
    r, rng = rounding(f, mode, seed=1), np.random.default_rng(3)
    size = (1 << 15) + 5 * 1024 + 13  # one thread, two pieces, an end of eight and of five
    x = rng.standard_normal(size).astype(np.float32)
    x[: size // 2] *= np.exp2(rng.integers(-40, 40, size // 2)).astype(np.float32)
    x[::97] = rng.integers(0, 2**32, x[::97].size, dtype=np.uint32).view(np.float32)
    edges = np.array([r.format.min_positive, r.format.min_normal, r.format.max_finite], np.float32)
    near = edges.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)
    near = np.concatenate([near.reshape(-1).view(np.float32), edges / 2, edges * 0])
    x[5::89] = np.resize(near, x[5::89].size)
    x[4096:5120] = 0.0
    with np.errstate(all="ignore"):
        y, found = round_with_stats(x, r)
        alone = stats_of(x.astype(np.float64)[None], y.astype(np.float64)[None], r.format)
        sums, u = in_order(x, y, r.format)
    assert all(int(getattr(found, name)) == int(getattr(alone, name)) for name in COUNTS)
    assert {name: float(getattr(found, name)).hex() for name in SUMS} == {
        name: float(value).hex() for name, value in sums.items()
    }
    assert float(found.peak) == abs(u).max()
    assert int(found.place) == int(np.argmax(abs(u)))


def test_ulps_that_binary32_lacks():
    """Errors of tiny numbers in ulps of a format of huge ones."""
    x = np.random.default_rng(4).standard_normal(2048).astype(np.float32) * np.float32(2.0**-100)
    y, found = round_with_stats(x, format_of(4, 100, 1.5 * 2.0**120))
    assert not y.any()
    assert float(found.peak) == 2.0**-97 * float(abs(x).max())
    assert int(found.underflow) == x.size
