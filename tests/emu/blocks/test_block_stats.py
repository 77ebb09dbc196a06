"""`BlockStats`: counts by hand, sums by numbers known from elsewhere, and merging."""

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu import BLOCK_NAMED, block_stats, distinct_elements, to_blocks

RNG = np.random.default_rng(16)


def test_a_block_counted_by_hand() -> None:
    """X = 1 under floor. 448: exact; 460 clipped, not saturated; 470 saturated; 2^-11 vanishes; 3
    2^-9 is subnormal.
    """
    x = np.zeros((3, 8), np.float32)
    x[0, :6] = 448, -460, 470, 2.0**-11, 3 * 2.0**-9, 1.03
    x[1, 2] = np.nan
    s = block_stats(x, replace(BLOCK_NAMED["mxfp8_e4m3"], size=8))
    assert (s.numbers, s.blocks, s.nan_blocks, s.zero_blocks) == (24, 3, 1, 1)
    assert (s.clipped, s.saturated, s.clipped_blocks, s.underflow, s.subnormal, s.inexact) == (
        2,
        1,
        1,
        1,
        1,
        4,
    )
    errors = np.array([0, 12, -22, -(2.0**-11), 0, 1 - float(np.float32(1.03))])
    assert s.error == pytest.approx(errors.sum(), rel=1e-12) and s.absolute == pytest.approx(
        np.abs(errors).sum(), rel=1e-12
    )
    assert s.squared == pytest.approx((errors**2).sum(), rel=1e-12)
    assert s.shrink == pytest.approx(errors.sum() - 2 * 12, rel=1e-12)
    # under RCEIL X = 2: 448, -448 (tie of 224 and 240 to even: 230 -> 224), 480; 2^-11 and 3 2^-9
    # -> 4 2^-9 (tie to even), 1.03 -> 1
    theirs = np.array([0, 12, 10, 2.0**-11, 2.0**-9, 1 - float(np.float32(1.03))])
    assert s.excess == pytest.approx((np.abs(errors) - np.abs(theirs)).sum(), rel=1e-9)
    assert s.distinct == 5 + 1 + 1  # 448, -448, 0, 3 2^-9, 1; the NaN block's zeros; zeros


@pytest.mark.parametrize(
    ("name", "rule", "shrink"),
    [("mxfp8_e4m3", "floor", -1.95e-3), ("mxfp8_e4m3", "rceil", -0.69e-3)],
)
def test_shrink_of_normal_numbers(name: str, rule: str, shrink: float) -> None:
    """Blocks of 32 N(0, 1): floor's clamp shrinks three times as much as RCEIL's rounding."""
    s = block_stats(RNG.standard_normal((100_000, 32)).astype(np.float32), name, rule=rule)
    assert s.relative_shrink == pytest.approx(shrink, rel=0.06)


@pytest.mark.parametrize(
    ("mean", "name", "rule", "rms", "shrink"),
    [
        (0.95, "mxfp8_e4m3", "floor", 0.0796, -0.079),
        (0.95, "mxfp8_e4m3", "rceil", 0.016, -0.011),
        (0.90, "mxfp8_e4m3", "floor", 0.030, None),
        (0.90, "mxfp8_e4m3", "rceil", 0.025, None),
        (0.90, "mxfp8_e5m2", "floor", 0.030, -0.028),
        (0.90, "mxfp8_e5m2", "rceil", 0.030, -0.028),
    ],
)
def test_clustered_weights(
    mean: float, name: str, rule: str, rms: float, shrink: float | None
) -> None:
    """N(mean, 0.01), as trained LayerNorm weights are: what the clamp costs at 0.95, and the grid
    at 0.90.
    """
    s = block_stats(RNG.normal(mean, 0.01, (4000, 32)).astype(np.float32), name, rule=rule)
    assert s.relative_rms == pytest.approx(rms, rel=0.05)
    assert shrink is None or s.relative_shrink == pytest.approx(shrink, rel=0.05)
    assert s.codes_per_block < 5


def test_excess_is_zero_under_rceil_and_sees_the_clamp() -> None:
    """Clip counts say all of 0.9037's block is hurt; its excess over RCEIL is none.

    At 0.9375 all of the error is excess.
    """
    for rule in ("rceil", "floor"):
        s = block_stats(
            np.array([0.8974, 0.8963, 0.8836, 0.8847, 0.9037], np.float32), "mxfp8_e4m3", rule=rule
        )
        assert s.excess == s.excess_squared == 0
        assert s.clipped == (5 if rule == "floor" else 0)
    s = block_stats(np.full(32, 0.9375, np.float32), "mxfp8_e4m3")
    assert s.relative_excess == 1 and s.excess == 32 * 0.0625 and s.excess_squared == 32 * 0.0625**2


def test_stats_merge() -> None:
    """The sum over parts is that of the whole: counts exactly, sums but for their order."""
    x = RNG.standard_normal((64, 96)).astype(np.float32)
    whole = block_stats(x, "mxfp6_e2m3")
    parts = block_stats(x[:20], "mxfp6_e2m3") + block_stats(jnp.asarray(x[20:]), "mxfp6_e2m3")
    for f in fields(whole):
        a, b = getattr(whole, f.name), getattr(parts, f.name)
        assert a == b if isinstance(a, int) else a == pytest.approx(b, rel=1e-9, abs=1e-9)
    assert set(whole.as_dict()) == {f.name for f in fields(whole)}
    assert (
        block_stats(x, "nvfp4", axis=0).numbers == x.size
        and block_stats(x, "fp8_128x128").blocks == 1
    )


def test_distinct_elements_of_every_block() -> None:
    """Padding counted as an element; -0 told from 0; the scales' shape turned."""
    x = np.array(
        [[1, 1, 1, 1, 1], [1, 2, -2, 0.0, -0.0], [0, 0, 0, 0, 0], [1, np.nan, 3, 4, 6]], np.float32
    )
    f = replace(BLOCK_NAMED["mxfp4"], size=3)
    assert distinct_elements(to_blocks(x, f)).tolist() == [[1, 1], [3, 1], [1, 1], [1, 2]]
    assert distinct_elements(to_blocks(x, f, axis=0)).shape == (2, 5)


def test_float64_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        block_stats(np.ones(4), "mxfp4")
