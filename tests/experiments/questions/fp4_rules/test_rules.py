"""Published rules for FP4 on small matrices, against fractions and ml_dtypes."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from roundscope.experiments.questions.fp4_rules import rules as named
from roundscope.experiments.questions.fp4_rules.measuring import measured, of_product, of_tensor
from roundscope.experiments.questions.fp4_rules.rules import (
    EDEN_ROOM,
    EDEN_TOP,
    NAMED,
    Rounded,
    rounded,
    turned,
)

GRID = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
RNG = np.random.default_rng(3)


def nearest(x: Fraction) -> Fraction:
    """The nearest E2M1 number; no case here is a tie."""
    found = min(GRID, key=lambda p: abs(p - abs(x)))
    return found if x >= 0 else -found


def test_the_three_parts_of_an_error_in_fractions():
    """Parts that do not add up to the error; a dead zone of the rounded scale instead of amax / 6;
    a part that is divided by the wrong length.
    """
    v = [Fraction(n, 16) for n in (71, -60, 37, -20, 11, 9, 3, -2)] + [Fraction(0)] * 24
    s, ideal = Fraction(1), Fraction(71, 96)  # of RCEIL: 2^ceil(log2(71 / 96)), and amax / 6
    q, star = ([u * nearest(x / u) for x in v] for u in (s, ideal))
    parts = {
        "scale": [a - b for a, b in zip(q, star, strict=True)],
        "dead_zone": [b - x if not b else 0 for b, x in zip(star, v, strict=True)],
        "grid": [b - x if b else 0 for b, x in zip(star, v, strict=True)],
    }
    got = of_tensor(rounded(NAMED[named.RCEIL], np.array([v], np.float32), 0))
    size = sum(x * x for x in v)
    for name, part in parts.items():
        assert got[name] == pytest.approx(float(sum(x * x for x in part) / size) ** 0.5, rel=1e-12)
    along = sum((a - x) * x for a, x in zip(q, v, strict=True)) / size
    assert got["gain"] == pytest.approx(float(along), rel=1e-12)
    assert got["dead"] == sum(not a for a, x in zip(q, v, strict=True) if x) / 8
    cross = sum(a * b for a, b in zip(parts["scale"], parts["grid"], strict=True)) / size
    assert got["cross"] * got["scale"] * got["grid"] == pytest.approx(float(cross), rel=1e-9)


@pytest.mark.parametrize("name", NAMED)
def test_every_rule_splits_its_error_and_returns_numbers_of_its_format(name):
    """A rule whose Q are no multiples of its scales, or of another length than V after turning."""
    v, _ = turned(NAMED[name], (RNG.standard_normal((32, 64)), np.zeros((1, 64))), 5)
    x = rounded(NAMED[name], v, 5)
    got = of_tensor(x)
    squares = got["scale"] ** 2 + got["dead_zone"] ** 2 + got["grid"] ** 2
    squares += 2 * got["cross"] * got["scale"] * got["grid"]
    # only Q - Q* can be along the dead zone, where Q is not 0 but Q* is
    zone = (x.ideal == 0) & (x.q != 0)
    squares += 2 * float((x.q * -x.v)[zone].sum()) / float(np.square(x.v).sum())
    assert got["error"] ** 2 == pytest.approx(squares, rel=1e-9)
    f = NAMED[name].block
    blocks = np.abs(x.q.reshape(32, -1, f.size)) if f.rows == 1 else np.abs(x.q[None])
    assert all(
        len(np.unique(b)) <= 2 ** (f.element.format.bits - 1) for b in blocks.reshape(-1, f.size)
    )


@pytest.mark.parametrize(
    ("name", "biased"),
    [
        (named.FLOOR_SR, True),
        (named.SR, True),
        (named.TSENG_SR, False),
        (named.RCEIL_SR, False),
        (named.SR_ROOM, False),
    ],
)
def test_stochastic_rounding_is_unbiased_where_it_does_not_clip(name, biased):
    """Room of the wrong side or size; random bits that repeat by row. The block's largest is just
    below 8 times a power of two, where floor clips most, and its E4M3 scale rounds down.
    """
    top = 1.0 if name == named.FLOOR_SR else 431 / 448
    block = np.concatenate([[7.9 * top], RNG.uniform(0.3, 7.0, 31)]).astype(np.float32)
    v = np.repeat(block[None], 4000, axis=0)
    v[0, 0] = 7.9
    x = rounded(NAMED[name], v, 11)
    own = (x.q * x.v).sum(axis=1)[1:] / np.square(x.v).sum(axis=1)[1:] - 1
    deviation = own.mean() / (own.std() / own.size**0.5)
    assert deviation < -6 if biased else abs(deviation) < 4.5


def test_ms_eden_is_the_formula_of_its_code_with_scales_of_e4m3():
    """A correction of the wrong block, one that divides the wrong way, T of another largest scale,
    a scale that is not rounded to E4M3.
    """
    v = RNG.standard_normal((8, 64)).astype(np.float32)
    x = rounded(NAMED[named.EDEN], v, 2)
    m = 6 / EDEN_ROOM
    t = np.abs(x.v).max() / m / EDEN_TOP
    for row, q in zip(x.v, x.q, strict=True):
        for span in range(0, 64, 32):
            halves = row[span : span + 32].reshape(2, 16)
            own = np.abs(halves).max(axis=1) / m / t
            scales = own.astype(ml_dtypes.float8_e4m3fn).astype(float)[:, None]
            u = halves / (scales * t)
            p = np.clip(u, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(float)
            c = (u * u).sum() / (u * p).sum()
            got = q[span : span + 32].reshape(2, 16) / t
            for a, b, scale in zip(got, p, scales[:, 0] * c, strict=True):
                kept = np.unique(np.round(a[b != 0] / b[b != 0], 9))
                assert kept.size == 1 and (a[b == 0] == 0).all()
                near = np.float32(scale).astype(ml_dtypes.float8_e4m3fn)
                code = near.view(np.uint8).astype(int) + np.arange(-1, 2)
                around = code.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(float)
                low = around[around <= scale].max()
                assert kept[0] in (low, around[around > scale].min())


def test_a_scale_of_each_row_depends_on_no_other_row():
    """One scale for the whole array."""
    v = (RNG.standard_normal((6, 32)) * [[1], [1e3], [1e-4], [1], [1], [7]]).astype(np.float32)
    rule = NAMED["NVFP4, a scale a token"]
    whole = rounded(rule, v, 0).q
    assert all((whole[i] == rounded(rule, v[i : i + 1], 0).q[0]).all() for i in range(6))
    assert (rounded(NAMED[named.NVFP4], v, 0).q[2] != whole[2]).any()


def test_a_hadamard_matrix_leaves_the_product():
    """Other signs in the two factors; a matrix over the wrong axis."""
    a, b = RNG.standard_normal((5, 64)), RNG.standard_normal((7, 64))
    for name in (named.RHT, named.EDEN):
        u, w = turned(NAMED[name], (a, b), 9)
        np.testing.assert_allclose(u.astype(float) @ w.T.astype(float), a @ b.T, atol=1e-5)
        assert np.abs(u - a).max() > 0.1


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    """NaN in every number; a block of NaN that is counted as rounded well."""
    v = RNG.standard_normal((4, 64)).astype(np.float32)
    v[1, 3] = np.inf
    x = rounded(NAMED[named.FLOOR], v, 0)
    got = of_tensor(x)
    assert got["not_finite"] == 32 and np.isfinite(list(got.values())).all()
    ones = np.ones((3, 64))
    assert of_product(np.ones((4, 3)), x, Rounded(ones, ones, ones))["not_finite"] == 3


def test_rows_are_means_over_cases_and_draws():
    """A random rule that is drawn once, or a kind that is left out."""
    a, b = RNG.standard_normal((2, 16, 32)).astype(np.float32)
    rules = (NAMED[named.FLOOR], NAMED[named.SR])
    found = list(measured({"Y": [(("X", "W"), a, b)]}, 1, 3, rules))
    assert [(row["rule"], row["of"], row["cases"]) for row in found] == [
        (rule.name, of, n) for rule, n in zip(rules, (1, 3), strict=True) for of in ("Y", "X", "W")
    ]
