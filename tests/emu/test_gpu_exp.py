"""The exp of fused kernels, its operations mirrored on a processor. All 2^32 arguments: `python -m tests.gpu_exp`."""

import re

import mpmath
import numpy as np
import pytest

from emu.gpu_exp import BFLOAT16, BINARY32, _text
from tests.gpu_exp import constants, differing, mirrored


@pytest.mark.parametrize(("series", "step"), [(BINARY32, 65_521), (BFLOAT16, 1 << 16)], ids=["binary32", "bfloat16"])
def test_it_is_exp64_rounded(series, step):
    """A coefficient, a part of ln 2, the scaling, an end of the range: every bfloat16 argument, and as many binary32 ones."""
    assert differing(0, step, 1 << 16, *constants(series)) == 0


@pytest.mark.parametrize("series", [BINARY32, BFLOAT16], ids=["binary32", "bfloat16"])
def test_it_is_e_to_the_x(series):
    """Against 40 digits, not against exp64, which it could share an error with; the result subnormal, too."""
    ln2, terms = constants(series)
    mpmath.mp.dps = 40
    for x in (-104.0, -103.0, -88.5, -17.25, -1.0, -(2.0**-20), 0.0, 2.0**-9, 0.34375, 3.0, 88.5):
        assert mirrored(np.float32(x), ln2, terms) == np.float32(float(mpmath.exp(x)))
    assert mirrored(np.float32(-np.inf), ln2, terms) == 0.0
    assert mirrored(np.float32(np.inf), ln2, terms) == np.inf
    assert np.isnan(mirrored(np.float32(np.nan), ln2, terms))


def test_the_text_has_the_mirror_s_operations():
    """A step that the instructions leave out, or do for some elements alone."""
    for series, count in ((BINARY32, 14), (BFLOAT16, 10)):
        for together in (1, 4):
            found = re.findall(r"(?:fma|sub)\.rn\.f64", _text(series, together))
            assert len(found) == count * together
