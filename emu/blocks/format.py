"""Block-scaled formats as data: how a block of numbers becomes small numbers and one scale.

A block of k numbers V_i is stored as k elements P_i and one scale X, and represents the numbers
X P_i::

    X = the scale that a rule gives for max |V_i|,
    P_i = V_i / X, rounded once to the element format.

Sources: OCP Microscaling Formats (MX) 1.0, sections 5 and 6.3 (FLOOR; the MX formats); Mishra et
al. arXiv 2506.08027 (RCEIL); Su et al. arXiv 2506.20752 (BUMP); torchao (CEIL, EVEN); NVIDIA's
NVFP4, arXiv 2509.25149; Cook et al. arXiv 2512.02010 (4OVER6).

**Choices that the specification leaves open.** A block with an infinity or a NaN gets the scale
NaN, so all its numbers are NaN. A scale beyond the scale format's range becomes the largest or the
smallest positive number of that format; it never becomes infinite or zero. A block of zeros gets
the smallest scale. In float32 arrays X P_i is infinite where it is beyond binary32's range.
"""

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from roundscope.emu.blocks.names import BLOCKS, ScaleRule, is_of_blocks
from roundscope.emu.errors import known_arguments, tidy_errors, unknown
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.emu.numbers import check_count, check_real, check_truth
from roundscope.emu.roundings.modes import (
    Overflow,
    Rounding,
    RoundingMode,
    member,
    parted,
    rounding,
)
from roundscope.emu.shown import shown

INT8 = Format(
    name="int8", precision=7, emin=0, max_finite=127 / 64, inf=False, nan=False, negative_zero=False
)
"""MXINT8's element format, OCP MX 1.0, 5.3.4: the numbers k / 64 with |k| <= 127.

The code -128 stands for -2. It is decoded, but no rounding gives it.
"""

INT4 = Format(
    name="int4", precision=3, emin=0, max_finite=7 / 4, inf=False, nan=False, negative_zero=False
)
"""The numbers k / 4 with |k| <= 7: the elements of symmetric INT4, but for a factor of 4."""
INTEGERS = {f.name: f for f in (INT8, INT4)}

E8M0 = format_named("e8m0fnu")
# the largest numbers of significand bits; with them X P_i is exact in binary64
WIDEST_ELEMENT = 11
WIDEST_SCALE = 24
WIDEST_SCALE_UNDER_TENSOR = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """A block format: element format, block size, scale format and scale rule.

    A block is stored as one scale and one element for each number; scale * element is near the
    number. A block with an infinity or a NaN has the scale NaN, so all its numbers are NaN, and the
    `NanPolicy` of the elements is never asked. `BLOCK_NAMED` has the known formats by name, and
    `block_format` returns altered copies of them.

    Args:
        element: the `Rounding` of an element, which is number / scale. It has the element format,
            the mode, the overflow policy and the seed.
        size: how many numbers a block has along the blocked axis. If the last block of an array is
            shorter, it is treated as if it were padded with zeros.
        rows: how many numbers a block has along a second axis. That is the axis after the blocked
            one or, if the blocked axis is the last, the axis before it. With more than 1 the block
            is a tile, such as 128 x 128.
        scale: the format of the scales: e8m0fnu (MX), e4m3fn (NVFP4), fp32, or any other with NaN.
        rule: the `ScaleRule`, which computes the scale from the block's largest magnitude.
        tensor: whether the array also has one binary32 scale, which multiplies the scales of all
            blocks (NVFP4). It is (largest finite magnitude of the array) / (scale.max_finite *
            element.max_finite), or 1 for an array of zeros. Under the rule 4OVER6 256 stands in
            place of scale.max_finite, so that a scale of a / 4 exists.
        tensor_scale: the scale of the array where it is given, as by a calibration, in place of the
            one that `tensor` describes. It is stored in binary32, to which another number is
            rounded. None takes the one that `tensor` describes.

    Raises:
        ValueError: for a tensor scale in a format without one, or one that is not finite and above
            0 in binary32; for an element format that is unsigned, has more than 11 significand bits
            or does not fit binary32; for a scale format without NaN, outside binary32, with a
            largest number below 1, or with more than 24 significand bits (11 if `tensor` is True);
            for a rule that does not fit the formats; and for a size or a number of rows below 1.
        TypeError: for an element that is not a `Rounding`, a scale that is not a `Format`, or a
            size or a number of rows that is not a whole number.

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
    tensor_scale: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.element, Rounding):
            raise TypeError(
                f"element={shown(self.element)}: give a Rounding, such as rounding('e4m3fn')"
            )
        if not isinstance(self.scale, Format):
            raise TypeError(
                f"scale={shown(self.scale)}: give a Format, such as format_named('e8m0fnu')"
            )
        object.__setattr__(self, "rule", member(ScaleRule, "scale rule", self.rule))
        for name in ("size", "rows"):
            check_count(name, getattr(self, name), 1, "a block holds at least one number each way")
        check_truth("tensor", self.tensor)
        f, s = self.element.format, self.scale
        if f.precision > WIDEST_ELEMENT or not f.signed or not f.fits_binary32:
            raise ValueError(
                f"element={f.name}: an element is a signed format of up to {WIDEST_ELEMENT} bits"
                " inside binary32"
            )
        if not s.nan:
            raise ValueError(
                f"scale={s.name}: a scale format needs NaN; use e8m0fnu, e4m3fn or fp32"
            )
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
        if self.rule is ScaleRule.FOUR_OVER_SIX and (f.max_finite, s.max_finite) != (6.0, 448.0):
            raise ValueError(
                f"rule=4over6: is for elements up to 6 with scales e4m3fn, not {f.name} with"
                f" {s.name}; use nvfp4"
            )
        if self.tensor and self.power_of_two:
            raise ValueError(
                f"rule={self.rule}: a power of two under a tensor scale; use nearest or rceil and"
                " tensor=False, or scale e4m3fn"
            )
        if self.tensor_scale is not None:
            if not self.tensor:
                raise ValueError(
                    f"tensor_scale={shown(self.tensor_scale)}: only NVFP4 has a scale of the whole"
                    " array; leave it out"
                )
            object.__setattr__(self, "tensor_scale", _in_binary32(self.tensor_scale))

    def __str__(self) -> str:
        known = next((name for name, f in BLOCK_NAMED.items() if f == self), None)
        tile = f"{self.rows}x{self.size}" if self.rows > 1 else f"{self.size}"
        tensor = "*fp32" if self.tensor else ""
        if self.tensor_scale is not None:
            return f"{replace(self, tensor_scale=None)} under {self.tensor_scale:.9g}"
        return known or f"{self.element}[{tile}]*{self.scale.name}:{self.rule}{tensor}"

    @property
    def power_of_two(self) -> bool:
        """Return whether every scale is a power of two."""
        to_scales = self.rule in (ScaleRule.RCEIL, ScaleRule.NEAREST, ScaleRule.FOUR_OVER_SIX)
        return not to_scales or (self.rule is ScaleRule.RCEIL and self.scale.precision == 1)

    @property
    def tensor_top(self) -> float:
        """The magnitude that the scale of the whole array brings its largest number to."""
        of_scales = 256.0 if self.rule is ScaleRule.FOUR_OVER_SIX else self.scale.max_finite
        return of_scales * self.element.format.max_finite

    @property
    def bits(self) -> float:
        """The number of stored bits per number, in an array whose blocks are all full."""
        return self.element.format.bits + self.scale.bits / (self.size * self.rows)


def _in_binary32(scale: float) -> float:
    """Return a given scale of a whole array in binary32, where it must be finite and above 0."""
    repair = "the scale of an array is finite and above 0 in binary32"
    check_real("tensor_scale", scale, 2.0**-150, (2.0 - 2.0**-24) * 2.0**127, repair)
    return float(np.float32(scale))


_SHAPE = re.compile(r"(\w+)\[(?:([0-9]+)x)?([0-9]+)\](?:\*(\w+?)(\*fp32)?)?")


def _shaped(name: str) -> BlockFormat:
    """Return the block format of ELEMENT[SIZE] or ELEMENT[ROWSxSIZE], with *SCALE or fp32 scales.

    *SCALE*fp32 is for a scale of the whole array, too. The rule is NEAREST, or with scales e8m0fnu
    FLOOR.
    """
    parts = _SHAPE.fullmatch(name)
    if parts is None:
        raise ValueError(
            f"block format={shown(name)}: write ELEMENT[SIZE] or ELEMENT[ROWSxSIZE], and *SCALE for"
            " scales other than fp32, as int8[128x64] or e2m1fn[16]*e4m3fn, and *fp32 once more for"
            " a scale of the whole array, as e2m1fn[16x16]*e4m3fn*fp32"
        )
    element, rows, size, scale, tensor = parts.groups(default="")
    f = _element(element)
    scales = format_named(scale or "fp32")
    rule = ScaleRule.FLOOR if scales == E8M0 else ScaleRule.NEAREST
    return BlockFormat(
        element=Rounding(format=f),
        size=int(size),
        rows=int(rows or 1),
        scale=scales,
        rule=rule,
        tensor=bool(tensor),
    )


def _element(name: str) -> Format:
    """Return the format of elements; the error for an unknown one lists the integers too."""
    if name in INTEGERS:
        return INTEGERS[name]
    try:
        return format_named(name)
    except ValueError as error:
        if name in BLOCKS or not str(error).startswith("unknown format"):
            raise
        known = [*INTEGERS, *NAMED]
        raise ValueError(unknown("format", name, known, "or any e<x>m<y>, such as e5m10")) from None


BLOCK_NAMED: dict[str, BlockFormat] = {name: _shaped(words) for name, words in BLOCKS.items()}


def in_words(f: BlockFormat) -> str:
    """Return a block format in words that `block_format` reads, without its seed.

    Known formats have their names. One with a given scale of the whole array has no words, and the
    result is then its text.

    Example:
        >>> from roundscope.emu.blocks.format import block_format, in_words
        >>> in_words(block_format("int8[128x64]", "ties-to-away"))
        'int8[128x64]:ties-to-away'
    """
    if f.tensor_scale is not None:
        return str(f)
    known = next((name for name, other in BLOCK_NAMED.items() if _shape(f) == _shape(other)), None)
    tile = f"{f.rows}x{f.size}" if f.rows > 1 else f"{f.size}"
    scale = "" if f.scale == format_named("fp32") and not f.tensor else f"*{f.scale.name}"
    scale += "*fp32" if f.tensor else ""
    name = known or f"{f.element.format.name}[{tile}]{scale}"
    base = block_format(name)
    rule = "" if f.rule is base.rule else f":{f.rule}"
    mode = "" if f.element.mode is base.element.mode else f":{f.element.mode}"
    kept = f.element.overflow is base.element.overflow
    return f"{name}{rule}{mode}{'' if kept else f':{f.element.overflow}'}"


def _shape(f: BlockFormat) -> tuple[object, ...]:
    """Return what only the name of a block format decides, without what further words set."""
    return f.element.format, f.element.overflow, f.size, f.rows, f.scale, f.tensor, f.tensor_scale


@known_arguments
@tidy_errors
def block_format(
    format: str | BlockFormat,
    mode: str | RoundingMode | None = None,
    *,
    rule: str | ScaleRule | None = None,
    overflow: str | Overflow | None = None,
    seed: int | None = None,
    tensor_scale: float | None = None,
) -> BlockFormat:
    """Return a `BlockFormat` by name, with changes.

    Args:
        format: one of the names in `BLOCK_NAMED`; an element and a block, ELEMENT[SIZE] or
            ELEMENT[ROWSxSIZE], such as "int8[128x64]" (see below); a `BlockFormat`; or a block
            format in words, FORMAT[:RULE][:MODE][:OVERFLOW], such as
            "mxfp8_e4m3:rceil:stochastic". The other arguments replace its words.
        mode: the `RoundingMode` of the elements or its name; that of the format by default.
        rule: the `ScaleRule` or its name; that of the format by default.
        overflow: what elements beyond the largest one become, an `Overflow` or its name; that of
            the format by default.
        seed: the seed of the stochastic mode, a whole number from 0 to 2^32 - 1; that of the format
            by default.
        tensor_scale: the given scale of the whole array, as of `BlockFormat`; that of the format by
            default.

    Returns:
        The block format with these changes.

    The element of ELEMENT[SIZE] is a format of numbers, or int8 or int4, whose numbers are k / 64
    and k / 4 (the scale has the other factor, a power of two). Scales are fp32, to nearest; with
    `*SCALE` they are of another format, as in "e2m1fn[16]*e4m3fn", and with `*SCALE*fp32` the
    array has a scale of its own, as in "e2m1fn[16x16]*e4m3fn*fp32", NVFP4 in squares.

    Raises:
        ValueError: for an unknown name, and as `BlockFormat` does.
        TypeError: for a format that is neither a name nor a `BlockFormat`.

    Example:
        >>> from roundscope import emu
        >>> str(emu.block_format("mxfp8_e4m3", "stochastic", rule="rceil", seed=7))
        'e4m3fn:stochastic:saturate[32]*e8m0fnu:rceil'
    """
    if isinstance(format, str) and ":" in format:
        name, words = parted(format)
        named = block_format(
            name, words.get("mode"), rule=words.get("rule"), overflow=words.get("overflow")
        )
        return block_format(
            named, mode, rule=rule, overflow=overflow, seed=seed, tensor_scale=tensor_scale
        )
    if isinstance(format, str) and not is_of_blocks(format):
        raise ValueError(unknown("block format", format, BLOCK_NAMED))
    if not isinstance(format, (str, BlockFormat)):
        raise TypeError(
            f"format={shown(format)}: give a name such as 'mxfp8_e4m3', or a BlockFormat"
        )
    base = format
    if isinstance(format, str):
        base = BLOCK_NAMED[format] if format in BLOCK_NAMED else _shaped(format)
    assert isinstance(base, BlockFormat)
    element = rounding(base.element, mode, overflow=overflow, seed=seed)
    rule = base.rule if rule is None else member(ScaleRule, "scale rule", rule)
    given = base.tensor_scale if tensor_scale is None else tensor_scale
    return replace(base, element=element, rule=rule, tensor_scale=given)
