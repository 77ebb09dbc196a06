"""`emu.nearest`: the two-addition rounding of sums under XLA has the rule's own bits."""

import jax
import numpy as np
import pytest

from emu.formats import NAMED
from emu.nearest import nearest_even, takes_nearest_even
from emu.rounding import Rounding, rounding
from emu.xla import round_wide

COVERED = [r for n in (*NAMED, "e5m10", "e6m9", "e4m3") for o in (None, "saturate") if takes_nearest_even(r := rounding(n, overflow=o))]


def arguments(r: Rounding) -> np.ndarray:
    """Wide random numbers, ties and their neighbours at every exponent of the format, zeros, specials."""
    rng, f = np.random.default_rng(0), r.format
    wide = np.ldexp(rng.standard_normal(1 << 16), rng.integers(-170, 135, 1 << 16))
    odd = np.ldexp(rng.integers(-(2**12), 2**12, 1 << 15).astype(float), rng.integers(f.emin - f.precision - 14, f.emax, 1 << 15))
    ties = np.concatenate([odd, np.nextafter(odd, np.inf), np.nextafter(odd, -np.inf)])
    edge = f.max_finite * np.array([1.0, 1.0 + 2.0**-53, 1 + 2.0 ** -(f.precision + 1), 1.5, 2.0])
    special = np.array([0.0, np.inf, np.nan, 1e-300, 1e300, f.min_positive / 2, f.min_positive])
    return np.concatenate([wide, ties, edge, -edge, special, -special])


@pytest.mark.parametrize("r", COVERED, ids=str)
def test_two_additions_are_the_rule(r: Rounding) -> None:
    """A wrong sign of zero, overflow threshold, subnormal spacing, or a folded (x + c) - c."""
    with jax.enable_x64(True):
        x = arguments(r)
        fast = np.asarray(jax.jit(lambda x: nearest_even(x, r))(x))
        rule = np.asarray(jax.jit(lambda x: round_wide(x, r))(x))
    same = (fast.view(np.int64) == rule.view(np.int64)) | (np.isnan(fast) & np.isnan(rule))
    assert same.all(), x[~same][:4]


def test_other_roundings_are_left_to_the_rule() -> None:
    others = rounding("bf16", "toward-zero"), rounding("fp64"), rounding("e4m3fnuz"), rounding("e8m0fnu")
    assert not any(takes_nearest_even(r) for r in others)
