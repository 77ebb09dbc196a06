"""Judgment of a user's cast or quantizer, against the rounding that it is meant to do.

`examine_cast` calls a function on systematic inputs and returns a `CastReport`. The report has one
row for each question, such as what the function does with ties, and says which known rounding or
scale rule the function behaves as. Nothing here prints.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.emu.blocks.format import INTEGERS, BlockFormat, block_format
from roundscope.emu.blocks.names import is_of_blocks
from roundscope.emu.errors import unknown
from roundscope.emu.numbers import check_real
from roundscope.emu.roundings.modes import Overflow, Rounding, rounding
from roundscope.emu.testing.casts.blocks import examine_blocks
from roundscope.emu.testing.casts.elements import examine_elements
from roundscope.emu.testing.casts.hadamard import Fronted, Hadamard
from roundscope.emu.testing.casts.hadamard import hadamard as transform
from roundscope.emu.testing.casts.records import CastReport, Example, Function, Row, Status
from roundscope.emu.testing.casts.returned import in_words
from roundscope.emu.testing.casts.shared_scales import Scope, of_scope, parted

__all__ = ["CastReport", "Example", "Hadamard", "Row", "Status", "examine_cast"]


DIVIDED = ("exact", "float32")
WIDEST = 23  # significand bits of a format that float32 inputs can test


def examine_cast(
    function: Function,
    asked: str | Rounding | BlockFormat,
    *,
    tensor_scale: float | None = None,
    divided: str = "exact",
    hadamard: str | Hadamard | None = None,
    signs: Any = None,
) -> CastReport:
    """Return what a cast or quantizer does, compared with the rounding that it is meant to do.

    The function is called on systematic inputs: every number of the format, ties and the float32
    numbers beside them, subnormal numbers, numbers beyond the largest one, infinities, NaN, and
    random numbers; for a block format also on blocks whose largest magnitude lies near every
    threshold of the scale rules, at every exponent.

    Args:
        function: takes a float32 NumPy array. For an element format it takes an array of any shape
            and returns one of the same shape: numbers as floats of any type (of NumPy, ml_dtypes,
            JAX or PyTorch), or codes as whole numbers. For a block format it takes an array (rows,
            K) with blocks along the last axis. It returns the numbers that the blocks represent, or
            a tuple (elements, scales) or (elements, scales, tensor_scale) whose elements are
            numbers or codes and whose scales are numbers, codes, or an array of the type e8m0.
        asked: a `Rounding`, a `BlockFormat`, or the name of a format. "int8[tensor]",
            "int8[token]" and "int8[channel]" have one scale for an array, a row and a column; other
            elements, scales and rules as in "e4m3fn[token]*e8m0fnu:rceil".
        tensor_scale: a scale that is given, such as a calibrated one, which counts in binary32 as
            functions of float32 have it. Of a format of numbers, the
            function divides by it before it rounds, and returns codes, numbers of a narrow type, or
            float32 numbers times the scale; so too of "int8[tensor]", whose integers count as so
            many scales. Of NVFP4, it is the scale of the whole array in
            binary32, which the function need not return.
        divided: of a block format, how numbers are meant to be divided by their scales: "exact",
            with one rounding to the element, or "float32", with a rounding of the quotient before.
        hadamard: of a block format, the `Hadamard` transform that the function computes before it
            quantizes, or its words, such as "16" or "16:bf16". The results are those of the
            transformed numbers; they are not transformed back.
        signs: of a transform in words, 1 or -1 for each of its numbers, by which it multiplies them
            before.

    Returns:
        A `CastReport`: a row for each question, and what the function behaves as.

    Raises:
        ValueError: for a tensor scale of another block format than NVFP4, or one that is not finite
            and above 0; for a transform of another kind of format or with other words; for an
            unknown name or a format that float32 numbers cannot test, and for a function that
            raises an error or returns something that is no array of numbers or codes.

    Example:
        >>> import ml_dtypes
        >>> from roundscope.emu.testing.casts import examine_cast
        >>> report = examine_cast(lambda x: x.astype(ml_dtypes.float8_e4m3fn), "e4m3fn")
        >>> report.behaves_as
        'e4m3fn:ties-to-even:nan'
        >>> [row.name for row in report.failed]
        ['overflow', 'infinities']
    """
    scope = None
    if isinstance(asked, str):
        asked, scope = parted(asked)
    if isinstance(asked, str) and is_of_blocks(asked.partition(":")[0]):
        asked = block_format(asked)
    if divided not in DIVIDED:
        raise ValueError(unknown("divided", divided, DIVIDED))
    if divided != "exact" and not isinstance(asked, BlockFormat):
        raise ValueError(f"divided='{divided}': is for a block format; leave it out")
    front = None if hadamard is None else transform(hadamard, signs)
    if front is None and signs is not None:
        raise ValueError("signs: are those of a transform; give hadamard= too, such as '16'")
    if front is not None:
        _check_front(front, asked, scope)
    if tensor_scale is not None:
        check_real("tensor_scale", tensor_scale, 0.0, math.inf, "it must be finite and above 0")
        tensor_scale = float(np.float32(tensor_scale)) or tensor_scale
        if isinstance(asked, BlockFormat) and scope is Scope.TENSOR:
            with np.errstate(all="ignore"):
                return _static(function, asked, tensor_scale, is_narrow=divided == "float32")
        if isinstance(asked, BlockFormat):
            if not asked.tensor:
                raise ValueError(
                    f"tensor_scale={tensor_scale:g}: is for NVFP4, a format of numbers such as"
                    f" e4m3fn, or int8[tensor]; the scales of {asked} are those of the largest"
                    " magnitudes"
                )
            asked = replace(asked, tensor_scale=tensor_scale)
    with np.errstate(all="ignore"):
        if isinstance(asked, BlockFormat):
            called = of_scope(function, scope) if scope else function
            called = called if front is None else Fronted(called, front)
            return examine_blocks(called, asked, scope, is_narrow=divided == "float32")
        r = rounding(asked)
        f = r.format
        if f.precision > WIDEST or not f.fits_binary32 or not f.signed:
            raise ValueError(
                f"format={f.name}: must be signed, lie inside float32 and have fewer significand"
                " bits than 24, such as bf16"
            )
        return examine_elements(function, r, tensor_scale or 1.0)


def _static(function: Function, asked: BlockFormat, scale: float, *, is_narrow: bool) -> CastReport:
    """Return the judgment of a quantizer whose one scale is given, as a calibrated one of INT8.

    Integers k that it returns count as k times the scale.
    """
    element = asked.element
    is_integer = element.format in INTEGERS.values()
    unit = 2.0 ** (element.format.precision - 1) if is_integer else 1.0

    returned: list[Any] = []

    def multiplied(x: np.ndarray) -> Any:
        found = function(x)
        returned[:] = [found]
        kind = str(getattr(found, "dtype", "")).removeprefix("torch.")
        if not (is_integer and kind.startswith("int")):
            return found
        return np.asarray(found).astype(np.float32) * np.float32(scale)

    r = replace(element, overflow=Overflow.SATURATE)
    found = examine_elements(multiplied, r, scale * unit, is_narrow=is_narrow)
    [example] = returned
    if found.otherwise is not None:
        own = repr(float(found.otherwise.value) / unit)
        found = replace(found, otherwise=replace(found.otherwise, value=own))
    title = f"{element.format.name}[{Scope.TENSOR}] with the scale {scale:.9g}"
    return replace(found, title=title, returned=in_words(example, element.format))


def _check_front(front: Hadamard, asked: str | Rounding | BlockFormat, scope: Scope | None) -> None:
    """Raise ValueError for a transform in front of what has no blocks along its rows."""
    if not isinstance(asked, BlockFormat):
        raise ValueError(
            f"hadamard={front.size}: is for a block format, such as nvfp4; test a cast alone"
        )
    if asked.rows > 1 or scope is Scope.CHANNEL:
        raise ValueError(
            f"hadamard={front.size}: transforms rows, and these blocks are no parts of a row; use"
            " blocks along rows, such as nvfp4 or int8[token]"
        )
