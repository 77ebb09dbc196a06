"""The exp of fused kernels, its operations mirrored on a processor.

All 2^32 arguments: `python -m tests.checks.gpu_exp`.
"""

import re

import mpmath
import numpy as np
import pytest

from roundscope.emu.backends.kernels.exp import BFLOAT16, BINARY32, _text
from tests.checks.gpu_exp import constants, differing, mirrored

# codes of binary32 arguments whose e^x comes near to a rounding boundary, where other coefficients
# failed
NEAR = (
    0xB3000000,
    0xBAE0E25C,
    0xBDB393EB,
    0xBDF128EB,
    0xBE11F570,
    0xBE47BE83,
    0xBF81EADF,
    0xBFD4CB8E,
    0xC159FA1E,
    0xC16912CD,
    0x377EFF81,
    0x3CAFFE2E,
    0x3F5BC24C,
    0x3FE67199,
    0x4001B249,
    0x4034D02B,
    0x41CBF87B,
    0x4288942B,
)


@pytest.mark.parametrize(
    ("series", "step"), [(BINARY32, 65_521), (BFLOAT16, 1 << 16)], ids=["binary32", "bfloat16"]
)
def test_it_is_exp64_rounded(series, step):
    """A coefficient, ln 2, the scaling, an end of the range: every bfloat16 argument, and as many
    binary32 ones.
    """
    assert differing(0, step, 1 << 16, constants(series)) == 0


def test_near_a_boundary():
    """Digits of a coefficient that hardly any argument sees, against 60 digits.

    All 2^32: `python -m tests.checks.gpu_exp`.
    """
    mpmath.mp.dps = 60
    for x in np.array(NEAR, np.uint32).view(np.float32):
        exact = mpmath.exp(float(x))
        ours = mirrored(x, constants(BINARY32))
        for other in (np.nextafter(ours, np.float32(0)), np.nextafter(ours, np.float32(np.inf))):
            assert abs(float(ours) - exact) < abs(float(other) - exact)


@pytest.mark.parametrize("series", [BINARY32, BFLOAT16], ids=["binary32", "bfloat16"])
def test_it_is_e_to_the_x(series):
    """Against 40 digits, not against exp64, which it could share an error with; the result
    subnormal, too.
    """
    terms = constants(series)
    mpmath.mp.dps = 40
    for x in (-104.0, -103.0, -88.5, -17.25, -1.0, -(2.0**-20), 0.0, 2.0**-9, 0.34375, 3.0, 88.5):
        assert mirrored(np.float32(x), terms) == np.float32(float(mpmath.exp(x)))
    assert mirrored(np.float32(-np.inf), terms) == 0.0
    assert mirrored(np.float32(np.inf), terms) == np.inf
    assert np.isnan(mirrored(np.float32(np.nan), terms))


def test_the_text_has_the_mirror_s_operations():
    """A step that the instructions leave out, or do for some elements alone."""
    for series, count in ((BINARY32, 13), (BFLOAT16, 10)):
        for together in (1, 4):
            found = re.findall(r"(?:fma|sub)\.rn\.f64", _text(series, together))
            assert len(found) == count * together
