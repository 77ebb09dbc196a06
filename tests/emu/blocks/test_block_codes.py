"""Every code of every OCP element and scale format; storage and back, as ml_dtypes arrays and as
bytes.
"""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import (
    BLOCK_NAMED,
    BlockFormat,
    Codes,
    blocked_of,
    codes_of,
    from_blocks,
    pack,
    rounding,
    to_blocks,
    unpack,
)
from roundscope.emu.formats.format import format_named
from tests.emu.blocks.test_block_round import bits

RNG = np.random.default_rng(14)
# OCP OFP8 1.0 and MX 1.0, section 5.3: exponent bits, fraction bits, bias; max normal, min normal,
# max subnormal, min subnormal
OCP = {
    "mxfp8_e5m2": (5, 2, 15, 57344.0, 2.0**-14, 0.75 * 2.0**-14, 2.0**-16),
    "mxfp8_e4m3": (4, 3, 7, 448.0, 2.0**-6, 0.875 * 2.0**-6, 2.0**-9),
    "mxfp6_e3m2": (3, 2, 3, 28.0, 0.25, 0.1875, 0.0625),
    "mxfp6_e2m3": (2, 3, 1, 7.5, 1.0, 0.875, 0.125),
    "mxfp4": (2, 1, 1, 6.0, 1.0, 0.5, 0.5),
}


def by_the_table(code: int, name: str) -> float:
    """The number of a code by the formulas of the specification, specials included."""
    x, m, bias = OCP[name][:3]
    sign, e, f = (-1.0) ** (code >> (x + m)), code >> m & ((1 << x) - 1), code & ((1 << m) - 1)
    if name == "mxfp8_e5m2" and e == 31:
        return math.nan if f else sign * math.inf
    if name == "mxfp8_e4m3" and (e, f) == (15, 7):
        return math.nan
    return (
        sign * math.ldexp(f, 1 - bias - m)
        if e == 0
        else sign * math.ldexp(1 + f / (1 << m), e - bias)
    )


def every_code(name: str, scales: np.ndarray) -> Codes:
    """A block for each scale code that holds every element code."""
    f = BLOCK_NAMED[name]
    count = 1 << f.element.format.bits
    codes = np.broadcast_to(np.arange(count, dtype=np.uint8), (scales.size, count)).copy()
    dtype = (
        np.int8
        if name == "mxint8"
        else codes_of(to_blocks(np.ones(2, np.float32), f)).elements.dtype
    )
    scale = codes_of(to_blocks(np.ones(2, np.float32), f)).scales.dtype
    wide = replace(f, size=count)
    return Codes(
        elements=codes.view(dtype),
        scales=scales[:, None].view(scale),
        tensor=np.float32(1),
        format=wide,
        axis=1,
    )


@pytest.mark.parametrize("name", [*OCP, "mxint8"])
def test_every_element_under_every_scale(name: str) -> None:
    """256 scales x all elements: X P by the specification's formulas, E8M0 with bias 127 and NaN
    0xFF (which makes all NaN).
    """
    scales = np.arange(256, dtype=np.uint8)
    got = from_blocks(blocked_of(every_code(name, scales)))
    count = got.shape[1]
    if name == "mxint8":
        elements = np.arange(256, dtype=np.uint8).view(np.int8) / 64.0
    else:
        elements = np.array([by_the_table(c, name) for c in range(count)])
    x = np.array([math.ldexp(1.0, int(s) - 127) for s in scales[:255]] + [math.nan])
    with np.errstate(over="ignore"):
        want = (x[:, None] * elements).astype(np.float32)
    np.testing.assert_array_equal(bits(got), bits(want))
    assert np.isnan(got[255]).all()


@pytest.mark.parametrize("name", OCP)
def test_limits_of_the_specification(name: str) -> None:
    """The table's four numbers: largest and smallest, normal and subnormal."""
    x, m, _, *limits = OCP[name]
    values = [by_the_table(c, name) for c in range(1 << (x + m))]
    finite = [v for v in values if math.isfinite(v)]
    normal, subnormal = finite[1 << m :], finite[1 : 1 << m]
    assert limits == [max(normal), min(normal), max(subnormal), min(subnormal)]
    f = BLOCK_NAMED[name].element.format
    assert (f.max_finite, f.min_normal, f.min_positive) == (limits[0], limits[1], limits[3])


def test_limits_of_mxint8() -> None:
    """1 63/64, the symmetric largest; 1/64; code -128 reads -2."""
    assert (emu.INT8.max_finite, emu.INT8.min_positive, emu.INT8.bits) == (1 + 63 / 64, 1 / 64, 8)
    c = codes_of(
        to_blocks(
            np.array([-2.0, 1.999, 2.0**-6, -(2.0**-6)], np.float32) / 2, "mxint8", rule="rceil"
        )
    )
    assert c.elements.dtype == np.int8
    assert (
        from_blocks(
            blocked_of(replace(c, elements=np.array([-128, 127, 1, -1], np.int8), scales=c.scales))
        )[0]
        == -2.0 * 2.0**-0
    )


@pytest.mark.parametrize("name", BLOCK_NAMED)
def test_stored_and_back(name: str) -> None:
    """Codes and bytes lose nothing: zeros' signs, NaN blocks, odd lengths, both axes, JAX arrays
    too.
    """
    x = (RNG.standard_normal((37, 75)) * np.exp2(RNG.integers(-30, 3, (37, 75)))).astype(np.float32)
    x[3, 5], x[20, 7], x[8], x[9] = np.nan, -np.inf, 0.0, -0.0
    for axis in (0, 1):
        b = to_blocks(x, name, axis)
        c = codes_of(b)
        assert c.elements.itemsize == 1
        back = blocked_of(c)
        np.testing.assert_array_equal(bits(back.elements), bits(b.elements))
        np.testing.assert_array_equal(bits(back.scales), bits(b.scales))
        elements, scales = pack(c)
        assert elements.nbytes == math.ceil(x.size * b.format.element.format.bits / 8)
        again = unpack(elements, scales, c.tensor, b.format, x.shape, axis)
        assert again.elements.dtype == c.elements.dtype and again.scales.dtype == c.scales.dtype
        assert (
            again.elements.tobytes() == c.elements.tobytes()
            and again.scales.tobytes() == c.scales.tobytes()
        )
    device = codes_of(to_blocks(jnp.asarray(x), name, 1)) if name in ("mxfp8_e4m3", "nvfp4") else c
    assert (
        device.elements.tobytes() == c.elements.tobytes()
        and device.scales.tobytes() == c.scales.tobytes()
    )


def test_numbers_of_the_dtype_are_the_elements() -> None:
    """ml_dtypes reads our codes as our numbers."""
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    for name in BLOCK_NAMED:
        b = to_blocks(x, name)
        c = codes_of(b)
        unit = np.float32(64 if name == "mxint8" else 1)
        np.testing.assert_array_equal(c.elements.astype(np.float32) / unit, b.elements)
        np.testing.assert_array_equal(c.scales.astype(np.float32), b.scales)


def test_bytes_of_fp4_and_fp6() -> None:
    """The first code in the low bits: 1.0, -6.0 are codes 2, 15; FP6 E2M3 1.0, 7.5, -1.0, 0 are 8,
    31, 40, 0.
    """
    four = codes_of(to_blocks(np.array([1.0, -6.0], np.float32), "mxfp4"))
    assert pack(four)[0].tolist() == [0xF2]
    six = codes_of(to_blocks(np.array([1.0, 7.5, -1.0, 0.0], np.float32), "mxfp6_e2m3"))
    assert pack(six)[0].tolist() == [(8 | 31 << 6) & 0xFF, (31 >> 2) | (40 << 4) & 0xFF, 40 >> 4]
    assert pack(four)[1].tolist() == [127]
    with pytest.raises(ValueError, match="bytes"):
        unpack(pack(four)[0], pack(four)[1], 1.0, four.format, (3,))


def test_formats_without_a_dtype_are_stored_as_integers() -> None:
    f = BlockFormat(
        element=rounding("e3m5", overflow="saturate"),
        scale=format_named("e6m9"),
        rule=emu.ScaleRule.NEAREST,
    )
    b = to_blocks(RNG.standard_normal(64).astype(np.float32), f)
    c = codes_of(b)
    assert (c.elements.dtype, c.scales.dtype) == (np.uint16, np.uint16)
    np.testing.assert_array_equal(blocked_of(unpack(*pack(c), 1.0, f, (64,))).elements, b.elements)
