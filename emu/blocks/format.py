"""Block-scaled formats as data: how a block of numbers becomes small numbers and one scale.

A block of k numbers V_i is stored as k elements P_i and a scale X, and stands for the numbers X
P_i:

    X = scale of max |V_i| by a rule,    P_i = V_i / X rounded once to the element format.

Sources: OCP Microscaling Formats (MX) 1.0, sections 5 and 6.3 (FLOOR; the MX formats); Mishra et
al. arXiv 2506.08027 (RCEIL); Su et al. arXiv 2506.20752 (BUMP); torchao (CEIL, EVEN); NVIDIA's
NVFP4, arXiv 2509.25149.

**What the specification leaves open, and what is done here.** A block with an infinity or a NaN
gets the scale NaN, so all its numbers are NaN. A scale beyond the scale format's range is its
largest or smallest positive number, never infinite and never zero. A block of zeros gets the
smallest scale. X P_i beyond binary32 is infinite in float32 arrays.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from roundscope.emu.formats.format import Format, format_named, unknown
from roundscope.emu.numbers import check_whole
from roundscope.emu.roundings.modes import E4M3, E5M2, Overflow, Rounding, RoundingMode, rounding


class ScaleRule(StrEnum):
    """How the scale of a block follows from its largest magnitude a.

    m is the element format's largest number and emax its exponent. The first four rules, and RCEIL
    with a scale format of one significand bit, give powers of two, from the exponent bits of a and
    one comparison.

    Attributes:
        FLOOR: 2^(floor(log2 a) - emax), OCP MX 1.0, 6.3; a / X may exceed m.
        CEIL: 2^(ceil(log2 a) - emax).
        EVEN: 2^(floor(log2 a') - emax), where a' is a rounded to the element's precision, ties
            away.
        BUMP: FLOOR, one exponent higher where a > 1.75 * 2^floor(log2 a); for elements with m =
            1.75 * 2^emax.
        RCEIL: a / m, rounded up to a number of the scale format.
        NEAREST: a / m, rounded to the nearest number of the scale format, ties to even.

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


def _rule_named(name: str | ScaleRule) -> ScaleRule:
    """Return the scale rule of that name; raise ValueError with the nearest name."""
    try:
        return ScaleRule(str(name).lower())
    except ValueError:
        raise ValueError(unknown("scale rule", name, ScaleRule)) from None


INT8 = Format(
    name="int8", precision=7, emin=0, max_finite=127 / 64, inf=False, nan=False, negative_zero=False
)
"""MXINT8's element format, OCP MX 1.0, 5.3.4: the numbers k / 64 with |k| <= 127.

Code -128, which stands for -2, is read and never written.
"""

E8M0 = format_named("e8m0fnu")
# the most significand bits, with which X P_i is exact in binary64
WIDEST_ELEMENT = 11
WIDEST_SCALE = 24
WIDEST_SCALE_UNDER_TENSOR = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """How blocks of numbers are stored: element format, block size, scale format and scale rule.

    `BLOCK_NAMED` has the known ones by name, and `block_format` changes them.

    Args:
        element: the `Rounding` of V / X: element format, mode, overflow and seed.
        size: the numbers of a block along the blocked axis. A last, shorter block stands for one
            that is padded with zeros.
        rows: the lines of a block along the axis after the blocked one (for the last axis, the one
            before). More than 1 makes a tile, such as 128 x 128.
        scale: the format of the scales: e8m0fnu (MX), e4m3fn (NVFP4), fp32, or any other with NaN.
        rule: the `ScaleRule`, which gets the scale from the block's largest magnitude.
        tensor: whether one binary32 scale T of the whole array stands above the blocks' scales
            (NVFP4). T = (largest finite magnitude) / (scale.max_finite * element.max_finite), or 1
            for an array of zeros.

    Raises:
        ValueError: for what cannot be computed exactly or has no meaning: an element format of more
            than 11 significand bits or beyond binary32, a scale format without NaN or of too many
            bits, a rule that does not fit the formats, or a block without numbers.
        TypeError: for an element that is no `Rounding`, a scale that is no `Format`, or a size that
            is no whole number.

    Example:
        >>> from roundscope import emu
        >>> f = emu.BlockFormat(element=emu.rounding("e2m1fn"), size=16)
        >>> str(f), f.bits, f.power_of_two
        ('e2m1fn[16]*e8m0fnu:floor', 4.5, True)
        >>> str(emu.BlockFormat(element=emu.rounding("e2m1fn"), size=32))
        'mxfp4'
    """

    element: Rounding
    size: int = 32
    rows: int = 1
    scale: Format = E8M0
    rule: ScaleRule = ScaleRule.FLOOR
    tensor: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.element, Rounding):
            raise TypeError(
                f"element={self.element!r}: give a Rounding, such as rounding('e4m3fn')"
            )
        if not isinstance(self.scale, Format):
            raise TypeError(f"scale={self.scale!r}: give a Format, such as format_named('e8m0fnu')")
        object.__setattr__(self, "rule", _rule_named(self.rule))
        for name in ("size", "rows"):
            check_whole(name, getattr(self, name), "a block holds at least one number each way")
        f, s = self.element.format, self.scale
        if self.size < 1 or self.rows < 1:
            raise ValueError(
                f"size={self.size}, rows={self.rows}: a block holds at least one number each way"
            )
        if f.precision > WIDEST_ELEMENT or not f.signed or not f.fits_binary32:
            raise ValueError(
                f"element={f.name}: an element is a signed format of up to {WIDEST_ELEMENT} bits"
                " inside binary32"
            )
        if not s.nan:
            raise ValueError(f"scale={s.name}: a scale has to say NaN; use e8m0fnu, e4m3fn or fp32")
        widest = WIDEST_SCALE_UNDER_TENSOR if self.tensor else WIDEST_SCALE
        if s.precision > widest or s.min_positive < 2.0**-149 or not 1.0 <= s.max_finite < 2.0**128:
            raise ValueError(
                f"scale={s.name}: must lie inside binary32 and reach 1, with up to {widest}"
                " significand bits"
            )
        if self.rule is ScaleRule.BUMP and math.ldexp(f.max_finite, -f.emax) != 1.75:
            raise ValueError(
                f"rule=bump: means elements up to 1.75 * 2^e, {f.name} ends at {f.max_finite:g};"
                " use rceil"
            )
        if self.tensor and self.power_of_two:
            raise ValueError(
                f"rule={self.rule}: a power of two under a tensor scale; use nearest or rceil and"
                " tensor=False, or scale e4m3fn"
            )

    def __str__(self) -> str:
        known = next((name for name, f in BLOCK_NAMED.items() if f == self), None)
        tile = f"{self.rows}x{self.size}" if self.rows > 1 else f"{self.size}"
        tensor = "*fp32" if self.tensor else ""
        return known or f"{self.element}[{tile}]*{self.scale.name}:{self.rule}{tensor}"

    @property
    def power_of_two(self) -> bool:
        """Whether every scale is a power of two."""
        to_scale_format = self.rule in (ScaleRule.RCEIL, ScaleRule.NEAREST)
        return not to_scale_format or (self.rule is ScaleRule.RCEIL and self.scale.precision == 1)

    @property
    def bits(self) -> float:
        """The stored bits of each number, where all blocks are whole."""
        return self.element.format.bits + self.scale.bits / (self.size * self.rows)


_NVFP4 = BlockFormat(
    element=rounding("e2m1fn"),
    size=16,
    scale=format_named("e4m3fn"),
    rule=ScaleRule.NEAREST,
    tensor=True,
)
_DEEPSEEK = BlockFormat(element=E4M3, size=128, scale=format_named("fp32"), rule=ScaleRule.NEAREST)

BLOCK_NAMED: dict[str, BlockFormat] = {
    "mxfp8_e4m3": BlockFormat(element=E4M3),
    "mxfp8_e5m2": BlockFormat(element=E5M2),
    "mxfp6_e3m2": BlockFormat(element=rounding("e3m2fn")),
    "mxfp6_e2m3": BlockFormat(element=rounding("e2m3fn")),
    "mxfp4": BlockFormat(element=rounding("e2m1fn")),
    "mxint8": BlockFormat(element=Rounding(format=INT8)),
    "nvfp4": _NVFP4,
    "fp8_1x128": _DEEPSEEK,  # DeepSeek-V3, arXiv 2412.19437, 3.3.2: activations
    "fp8_128x128": replace(_DEEPSEEK, rows=128),  # and weights
}


def block_format(
    format: str | BlockFormat,
    mode: str | RoundingMode | None = None,
    *,
    rule: str | ScaleRule | None = None,
    overflow: str | Overflow | None = None,
    seed: int | None = None,
) -> BlockFormat:
    """Return a `BlockFormat` by name, with changes.

    Args:
        format: one of `BLOCK_NAMED`, or a `BlockFormat`.
        mode: the `RoundingMode` of the elements or its name; that of the format by default.
        rule: the `ScaleRule` or its name; that of the format by default.
        overflow: what elements beyond the largest become, an `Overflow` or its name.
        seed: of the stochastic mode, a whole number from 0 to 2^32 - 1.

    Returns:
        The block format with these changes.

    Raises:
        ValueError: for an unknown name, and as `BlockFormat` does.
        TypeError: for a format that is neither a name nor a `BlockFormat`.

    Example:
        >>> from roundscope import emu
        >>> str(emu.block_format("mxfp8_e4m3", "stochastic", rule="rceil", seed=7))
        'e4m3fn:stochastic:saturate[32]*e8m0fnu:rceil'
    """
    if isinstance(format, str) and format not in BLOCK_NAMED:
        raise ValueError(unknown("block format", format, BLOCK_NAMED))
    if not isinstance(format, (str, BlockFormat)):
        raise TypeError(f"format={format!r}: give a name such as 'mxfp8_e4m3', or a BlockFormat")
    base = BLOCK_NAMED[format] if isinstance(format, str) else format
    element = rounding(base.element, mode, overflow=overflow, seed=seed)
    return replace(base, element=element, rule=base.rule if rule is None else _rule_named(rule))
