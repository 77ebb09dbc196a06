"""Blocked arrays in stored form: bit codes of elements and scales, or bytes without gaps.

Codes are arrays of ml_dtypes' or NumPy's types. Element codes are those of `emu.formats.codes`,
except for MXINT8, which is two's complement (OCP MX 1.0, 5.3.4). In packed bytes the first code has
the lowest bits, and each code's own bits run from low to high: two FP4 codes fill a byte, and four
FP6 codes fill three bytes.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Ops
from roundscope.emu.blocks.blocked import Blocked, check_blocked
from roundscope.emu.blocks.format import INT8, BlockFormat
from roundscope.emu.blocks.layout import layout_of
from roundscope.emu.errors import known_arguments
from roundscope.emu.formats.codes import decode, encode
from roundscope.emu.formats.format import Format
from roundscope.emu.numbers import as_float, check_real, is_whole
from roundscope.emu.shown import shown

DTYPES = {
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e3m2fn": "float6_e3m2fn",
    "e2m3fn": "float6_e2m3fn",
    "e2m1fn": "float4_e2m1fn",
    "e8m0fnu": "float8_e8m0fnu",
    "e4m3": "float8_e4m3",
    "e3m4": "float8_e3m4",
    "bf16": "bfloat16",
}
NUMPY = {"fp16": np.float16, "fp32": np.float32, "int8": np.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """A blocked array as bit codes: NumPy arrays that hold the code of every element and scale.

    `codes_of` makes them, `blocked_of` decodes them, and `pack` writes them without gaps.

    Attributes:
        elements: the codes of the elements, an array of the blocked array's shape. Its dtype is
            that of ml_dtypes or NumPy for the element format if there is one, int8 for MXINT8, and
            otherwise an unsigned integer.
        scales: the codes of the scales, one for each block, with a dtype chosen in the same way.
        tensor: the scale of the whole array, a float32 number; 1 where the format has none.
        format: the `BlockFormat`.
        axis: the axis along which the blocks run, counted from 0.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> c = emu.codes_of(emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4"))
        >>> str(c.elements.dtype), str(c.scales.dtype)
        ('float4_e2m1fn', 'float8_e8m0fnu')
    """

    elements: np.ndarray
    scales: np.ndarray
    tensor: np.float32
    format: BlockFormat
    axis: int


def dtype_of(f: Format) -> np.dtype:
    """Return the dtype of one, two or four bytes that stores the codes of a format."""
    if f.name in NUMPY:
        return np.dtype(NUMPY[f.name])
    if f.name in DTYPES:
        import ml_dtypes

        stored: type[Any] = getattr(ml_dtypes, DTYPES[f.name])
        return np.dtype(stored)
    return np.dtype(f"u{1 if f.bits <= 8 else 2 if f.bits <= 16 else 4}")


@known_arguments
def codes_of(b: Blocked) -> Codes:
    """Return the bit codes of a blocked array's elements and scales.

    Arrays on a device are copied to the host.

    Args:
        b: a `Blocked` array.

    Returns:
        The `Codes` of b. `blocked_of` converts them back to the same array, bit for bit.

    Raises:
        TypeError: for anything but a `Blocked` array.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> b = emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4")
        >>> c = emu.codes_of(b)
        >>> c.elements.view(np.uint8).tolist(), c.scales.view(np.uint8).tolist()
        ([0, 4, 7, 0], [131])
    """
    check_blocked(b)
    f = b.format
    return Codes(
        elements=_encoded(np.asarray(b.elements), f.element.format),
        scales=_encoded(np.asarray(b.scales), f.scale),
        tensor=np.float32(b.tensor),
        format=f,
        axis=b.axis,
    )


@known_arguments
def blocked_of(c: Codes) -> Blocked:
    """Return the blocked array that codes represent.

    If an element is infinite or NaN, so is the number that it represents (OCP MX 1.0, 5.1).

    Args:
        c: the `Codes` of a blocked array.

    Returns:
        A `Blocked` array of NumPy arrays.

    Raises:
        TypeError: for anything but `Codes`.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> b = emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4")
        >>> emu.blocked_of(emu.codes_of(b)).elements.tolist() == b.elements.tolist()
        True
    """
    _check_codes(c)
    f = c.format
    elements, scales = _decoded(c.elements, f.element.format), _decoded(c.scales, f.scale)
    return Blocked(
        elements=elements, scales=scales, tensor=np.float32(c.tensor), format=f, axis=c.axis
    )


def _check_codes(c: Any) -> None:
    if not isinstance(c, Codes):
        raise TypeError(
            f"c: {shown(c)}, must be Codes; codes_of(to_blocks(x, 'mxfp8_e4m3')) makes them"
        )


def _encoded(x: np.ndarray, f: Format) -> np.ndarray:
    if f == INT8:
        return np.rint(x * 64.0).astype(np.int8)
    dtype = dtype_of(f)
    codes: np.ndarray = encode(_ops(), x.astype(np.float64), f)
    return codes.astype(f"u{dtype.itemsize}").view(dtype)


def _decoded(codes: np.ndarray, f: Format) -> np.ndarray:
    if f == INT8:
        return codes.view(np.int8).astype(np.float32) / np.float32(64.0)
    numbers: np.ndarray = decode(_ops(), _integers(codes).astype(np.int64), f)
    return numbers.astype(np.float32)


def _ops() -> Ops:
    from roundscope.emu.backends.numba.ops import numpy_ops

    return numpy_ops()


def _integers(codes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(codes).view(f"u{codes.dtype.itemsize}").reshape(codes.shape)


@known_arguments
def pack(c: Codes) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of elements and of scales as bytes without gaps.

    Args:
        c: the `Codes` of a blocked array.

    Returns:
        Two flat uint8 arrays, one with the elements' codes and one with the scales' codes. The
        codes are in the order of the flattened arrays, and unused bits of the last byte are 0.

    Raises:
        TypeError: for anything but `Codes`.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> c = emu.codes_of(emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4"))
        >>> elements, scales = emu.pack(c)
        >>> elements.tolist(), scales.tolist()  # codes 0, 4, 7, 0 of four bits
        ([64, 7], [131])
    """
    _check_codes(c)
    return _packed(c.elements, c.format.element.format.bits), _packed(c.scales, c.format.scale.bits)


@known_arguments
def unpack(
    elements: np.ndarray,
    scales: np.ndarray,
    tensor: float,
    format: BlockFormat,
    shape: tuple[int, ...],
    axis: int = -1,
) -> Codes:
    """Return the codes that `pack` has written as bytes.

    Args:
        elements: the elements' bytes, a flat uint8 array.
        scales: the scales' bytes, a flat uint8 array.
        tensor: the scale of the whole array; 1 where the format has none.
        format: the `BlockFormat`.
        shape: the shape of the array of elements.
        axis: the axis along which the blocks run.

    Returns:
        The `Codes` of the array.

    Raises:
        ValueError: for a number of bytes that does not match the shape, or an axis that the shape
            lacks.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> b = emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4")
        >>> elements, scales = emu.pack(emu.codes_of(b))
        >>> c = emu.unpack(elements, scales, 1.0, b.format, (4,))
        >>> emu.from_blocks(emu.blocked_of(c)).tolist()
        [0.0, 32.0, 96.0, 0.0]
    """
    if not isinstance(format, BlockFormat):
        raise TypeError(f"format={shown(format)}: give a BlockFormat, as block_format('mxfp4')")
    if not isinstance(shape, tuple | list) or not all(
        is_whole(n) and 0 <= n < 2**31 for n in shape
    ):
        raise TypeError(f"shape={shown(shape)}: give the shape of the array, such as (4, 32)")
    check_real("tensor", tensor, 0.0, 2.0**128, "it is the scale of the whole array, 1.0 without")
    for name, stored in (("elements", elements), ("scales", scales)):
        if not isinstance(stored, np.ndarray) or stored.dtype != np.uint8:
            raise TypeError(f"{name}: {shown(stored)}, must be an array of bytes, as pack returned")
    at = layout_of(tuple(shape), format, axis)
    e, s = format.element.format, format.scale
    return Codes(
        elements=_unpacked("elements", elements, e, shape),
        scales=_unpacked("scales", scales, s, at.scales),
        tensor=np.float32(as_float(tensor)),
        format=format,
        axis=at.axis,
    )


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes, each of `bits` bits, as bytes, one code after the other, low bits first."""
    planes = (
        _integers(codes).reshape(-1, 1).astype(np.uint32) >> np.arange(bits, dtype=np.uint32)
    ) & 1
    return np.packbits(planes.astype(np.uint8).reshape(-1), bitorder="little")


def _unpacked(name: str, packed: np.ndarray, f: Format, shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    if packed.size != -(-count * f.bits // 8):
        raise ValueError(
            f"{name}: {packed.size} bytes, must be {-(-count * f.bits // 8)} for {count} codes of"
            f" {f.bits} bits"
        )
    planes = (
        np.unpackbits(packed, count=count * f.bits, bitorder="little")
        .reshape(count, f.bits)
        .astype(np.uint32)
    )
    codes: np.ndarray = (planes << np.arange(f.bits, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    dtype = dtype_of(f)
    return codes.astype(f"u{dtype.itemsize}").view(dtype).reshape(shape)
