"""The exp of fused kernels, its operations mirrored on a processor. All 2^32 arguments: `python -m tests.gpu_exp`."""

import re

import mpmath
import numpy as np
import pytest

from emu.gpu_exp import BFLOAT16, BINARY32, _text, powers
from tests.gpu_exp import differing, mirrored, numbers


@pytest.mark.parametrize(("q", "step"), [(BINARY32, 65_521), (BFLOAT16, 1 << 16)], ids=["binary32", "bfloat16"])
def test_it_is_exp64_rounded(q, step):
    """A coefficient, a part of ln 2, a power of two, the scaling, an end of the range: every bfloat16 argument, and as many binary32 ones."""
    assert differing(0, step, 1 << 16, numbers(q), np.array(powers())) == 0


@pytest.mark.parametrize("q", [BINARY32, BFLOAT16], ids=["binary32", "bfloat16"])
def test_it_is_e_to_the_x(q):
    """Against 40 digits, not against exp64, which it could share an error with; the result subnormal, too."""
    terms, table = numbers(q), np.array(powers())
    mpmath.mp.dps = 40
    for x in (-104.0, -103.0, -88.5, -17.25, -1.0, -(2.0**-20), 0.0, 2.0**-9, 0.34375, 3.0, 88.5):
        assert mirrored(np.float32(x), terms, table) == np.float32(float(mpmath.exp(x)))
    assert mirrored(np.float32(-np.inf), terms, table) == 0.0
    assert mirrored(np.float32(np.inf), terms, table) == np.inf
    assert np.isnan(mirrored(np.float32(np.nan), terms, table))


def test_the_text_has_the_mirror_s_operations():
    """A step that the instructions leave out, or do for some elements alone."""
    for q, count in ((BINARY32, 8), (BFLOAT16, 6)):
        for together in (1, 4):
            found = re.findall(r"(?:fma|sub|mul)\.rn\.f64", _text(q, together))
            assert len(found) == count * together
