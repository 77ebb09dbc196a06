"""`roundscope bench mx`: every contestant that can run computes the same numbers; the rows say who
could not.
"""

import numpy as np
import pytest

from roundscope.emu import BLOCK_NAMED, round_blocks
from roundscope.tools.bench.mx import BLOCKS, ml_dtypes_and_numpy
from roundscope.tools.bench.round import bench


def test_all_that_run_agree() -> None:
    """A rival measured on another job than ours: another rule, other blocks, a part of the
    array.
    """
    shares: list[float] = []
    rows = bench(BLOCKS, 1 << 16, repeat=1, formats=("mxfp8_e4m3", "nvfp4"), progress=shares.append)
    assert sum(shares) == pytest.approx(1.0)
    assert {r.format for r in rows} == {"mxfp8_e4m3", "nvfp4"}
    ran = [r for r in rows if r.differing is not None]
    assert {(r.format, r.name) for r in ran} >= {
        ("mxfp8_e4m3", "ml_dtypes + NumPy"),
        ("mxfp8_e4m3", "ours, XLA on CPU"),
    }
    for r in ran:
        if r.name in ("ml_dtypes + NumPy", "ours, XLA on CPU"):
            assert (r.differing, r.values) == (0, 1 << 16)
    assert all(r.gbps is not None or r.note for r in rows)


@pytest.mark.parametrize("name", BLOCK_NAMED)
def test_ml_dtypes_and_numpy_writes_the_format(name: str) -> None:
    """Clamped scales, NaN blocks, zeros: the yardstick has to do the whole job."""
    function = ml_dtypes_and_numpy(name)
    if function is None:
        return
    x = np.ldexp(
        np.random.default_rng(3).standard_normal((64, 32)),
        np.linspace(-149, 120, 64).astype(int)[:, None],
    ).astype(np.float32)
    x[3], x[5, 5], x[6, 6] = 0, np.nan, np.inf
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(function(x.reshape(-1)), round_blocks(x, name).reshape(-1))


def test_sizes_that_cut_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="65536"):
        bench(BLOCKS, 1000)
