"""The words of block formats: their names, and those of the rules that compute a scale.

Whoever reads a format from a text asks here; the formats themselves are in `emu.blocks.format`.
"""

from enum import StrEnum

# each named format as ELEMENT[SIZE] or ELEMENT[ROWSxSIZE], *SCALE for scales other than fp32, and
# *fp32 once more for a scale of the whole array
BLOCKS = {
    "mxfp8_e4m3": "e4m3fn[32]*e8m0fnu",
    "mxfp8_e5m2": "e5m2[32]*e8m0fnu",
    "mxfp6_e3m2": "e3m2fn[32]*e8m0fnu",
    "mxfp6_e2m3": "e2m3fn[32]*e8m0fnu",
    "mxfp4": "e2m1fn[32]*e8m0fnu",
    "mxint8": "int8[32]*e8m0fnu",
    "nvfp4": "e2m1fn[16]*e4m3fn*fp32",
    "fp8_1x128": "e4m3fn[128]",  # activations in DeepSeek-V3, arXiv 2412.19437, 3.3.2
    "fp8_128x128": "e4m3fn[128x128]",  # weights in DeepSeek-V3
}


def is_of_blocks(name: str) -> bool:
    """Return whether a text names a block format, by a name or by element and block, as int8[64].

    The text may still be wrong behind the bracket; `block_format` says then what is.
    """
    return name in BLOCKS or "[" in name


class ScaleRule(StrEnum):
    """The rule that computes the scale of a block from its largest magnitude.

    In the formulas a is the largest magnitude of the block, m is the largest number of the element
    format, and emax is the exponent of m. The rules FLOOR, CEIL, EVEN and BUMP give powers of two,
    and so does RCEIL if the scale format has one significand bit. Such a scale is computed from the
    exponent bits of a and one comparison.

    Attributes:
        FLOOR: the scale is 2^(floor(log2 a) - emax), as in OCP MX 1.0, 6.3. The quotient of a and
            the scale may exceed m.
        CEIL: the scale is 2^(ceil(log2 a) - emax).
        EVEN: the scale is 2^(floor(log2 b) - emax), where b is a rounded to the precision of the
            element format, to nearest with ties away from zero.
        BUMP: the scale is that of FLOOR, or twice that where a > 1.75 * 2^floor(log2 a). It is for
            element formats with m = 1.75 * 2^emax.
        RCEIL: the scale is a / m, rounded up to a number of the scale format.
        NEAREST: the scale is a / m, rounded to the nearest number of the scale format, with ties to
            even.
        FOUR_OVER_SIX: "4over6", the scale is that of NEAREST with m = 6 or with m = 4, whichever
            leaves the smaller sum of squared errors in the block, and that of 6 if both are equal
            (arXiv 2512.02010). It is for elements e2m1fn with scales e4m3fn, as NVFP4 has them; a
            scale of the whole array leaves room for a / 4.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([500.0], np.float32)  # e4m3fn ends at 448
        >>> [emu.to_blocks(x, "mxfp8_e4m3", rule=rule).scales.item() for rule in ("floor", "rceil")]
        [1.0, 2.0]
    """

    FLOOR = "floor"
    CEIL = "ceil"
    EVEN = "even"
    BUMP = "bump"
    RCEIL = "rceil"
    NEAREST = "nearest"
    FOUR_OVER_SIX = "4over6"
