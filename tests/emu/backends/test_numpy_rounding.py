"""Roundings by NumPy's functions give the bits of Numba's kernels, which the judge checks."""

import numpy as np
import pytest

from roundscope.emu import RoundingMode, rounding
from roundscope.emu.backends import numpy_rounding
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.numba.rounding import round_array
from roundscope.emu.roundings.modes import BINARY32

RNG = np.random.default_rng(5)
MODES = [mode for mode in RoundingMode if mode is not RoundingMode.STOCHASTIC]


def _numbers() -> np.ndarray:
    """Return numbers of all bits, binary32 numbers and their middles, and every kind of NaN."""
    any_bits = RNG.integers(0, 2**64, 20_000, np.uint64).view(np.float64)
    with np.errstate(invalid="ignore"):  # signaling NaN
        held = RNG.integers(0, 2**32, 20_000, np.uint32).view(np.float32).astype(np.float64)
    middles = (held.view(np.int64) | 1 << 28).view(np.float64)
    beside = (middles.view(np.int64) + RNG.integers(-1, 2, held.size)).view(np.float64)
    nans = (RNG.integers(1, 2**52, 500) | 0x7FF << 52).view(np.float64)
    special = [0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 2.0**-150, 1.7e308, 3.5e38]
    return np.concatenate([any_bits, held, middles, beside, nans, -nans, special])


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.int64), b.view(np.int64))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["fp32", "bf16", "fp16", "e4m3fn", "e5m2fnuz", "e2m1fn", "e8m0fnu"]
)
def test_bits_are_those_of_kernels(name: str, mode: RoundingMode) -> None:
    x, r = _numbers(), rounding(name, mode)
    assert _same(numpy_rounding.rounded(x, r), round_array(x, r))


def test_many_numbers_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, r = _numbers(), rounding("bf16")
    here = numpy_rounding.rounded(x, r)
    monkeypatch.setattr(numpy_rounding, "_MANY", 10)
    assert _same(numpy_rounding.rounded(x, r), here)


def test_the_result_is_in_the_usual_order() -> None:
    """A sum over a result whose axes lie in another order in memory, which adds up differently."""
    x = RNG.normal(size=(5, 7, 3)).transpose(1, 0, 2)
    y = numpy_ops().round(x, BINARY32, None)
    assert y.flags.c_contiguous and _same(y, round_array(x, BINARY32))
    assert numpy_rounding.rounded(x, rounding("bf16")).flags.c_contiguous
