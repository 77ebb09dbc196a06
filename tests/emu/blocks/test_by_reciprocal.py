"""Blocks cast by Triton's division, against the cast of SageAttention 1.0.6 in plain float32
(quant_per_block.py), and block formats by element and shape.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu import BF16, block_format, round_to
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.blocks.by_reciprocal import divides_in_binary32, round_blocks_by_reciprocal
from roundscope.emu.blocks.format import INT4, INT8, in_words
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.instructions.approximate import rcp

F32 = np.float32
TILE = block_format("int8[4x8]", "ties-to-away")


def by_hand(x):
    """The integers and the scale of one block: max|x| / 127, x / scale, then half away and cut."""
    scale = np.abs(x).max() * F32(1 / 127)
    inverse = rcp(numpy_ops(), np.array([scale], np.float64)).astype(F32)
    quotient = x * inverse
    return np.trunc(quotient + np.where(quotient >= 0, F32(0.5), F32(-0.5))), scale


def blocks(seed, top=None):
    """4 x 8 BF16 numbers; of a block whose largest is 127 times a power of two many are ties."""
    x = round_to(np.random.default_rng(seed).standard_normal((4, 8)).astype(F32), BF16)
    if top is not None:
        x = np.round(x * 50.0) / 2.0
        x[1, 3] = top
    return x.astype(F32)


@pytest.mark.parametrize("top", [None, 127.0])
@pytest.mark.parametrize("scale", [1.0, 0.18033687, 2.0**-100])
def test_a_block_is_that_of_the_kernel(scale, top):
    """An exact quotient, ties to even, or a scale that is rounded another way."""
    for seed in range(40):
        x = (blocks(seed, top) * F32(scale)).astype(F32)
        want, unit = by_hand(x)
        y, units = round_blocks_by_reciprocal(numpy_ops(), x.astype(np.float64), TILE, 1, None)
        assert np.all(units * (1 / 64) == np.float64(unit))
        assert np.array_equal(y, want.astype(np.float64) * np.float64(unit))


def test_the_reciprocal_breaks_what_is_nearly_a_tie():
    """Blocks of which exact quotients have the same integers."""
    differ = 0
    for seed in range(8):
        x = (blocks(seed, 127.0) * F32(0.18033687)).astype(F32).astype(np.float64)
        exact = numpy_ops().round_blocks(x, TILE, 1, None)[0]
        differ += (exact != round_blocks_by_reciprocal(numpy_ops(), x, TILE, 1, None)[0]).sum()
    assert differ > 8


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 2.0**-149, 2.0**-130, 2.0**127])
def test_special_blocks(value):
    """A division by zero, or a block with an infinity that has numbers."""
    x = np.full((4, 8), value)
    y, units = round_blocks_by_reciprocal(numpy_ops(), x, TILE, 1, None)
    if not np.isfinite(value):
        assert np.isnan(y).all() and np.isnan(units).all()
    else:
        assert np.all(np.abs(y - x) <= 0.5 * units / 64) and np.all(units > 0.0)


def test_both_libraries_have_the_same_bits():
    for seed in range(4):
        x = blocks(seed).astype(np.float64)
        want = round_blocks_by_reciprocal(numpy_ops(), x, TILE, 1, None)
        with jax.enable_x64(True):
            ops = xla_ops(opaque_zero(jnp.asarray(x)))
            found = round_blocks_by_reciprocal(ops, jnp.asarray(x), TILE, 1, None)
            for a, b in zip(found, want, strict=True):
                assert np.array_equal(np.asarray(a), b)


def test_formats_by_element_and_shape():
    """A shape whose rows and columns are exchanged, or a format that its own words do not give."""
    f = block_format("int8[128x64]:ties-to-away")
    assert (f.element.format, f.rows, f.size, f.rule) == (INT8, 128, 64, ScaleRule.NEAREST)
    assert block_format("int4[32]").element.format is INT4 and block_format("int4[32]").rows == 1
    assert block_format("e4m3fn[128x128]") == block_format("fp8_128x128")
    assert block_format("e2m1fn[32]*e8m0fnu") == block_format("mxfp4")
    words = (
        "int8[128x64]:ties-to-away",
        "int4[16]*e4m3fn",
        "int8[16]*e8m0fnu:rceil:stochastic",
        "fp8_1x128",
        "mxfp4:even",
    )
    assert [in_words(block_format(text)) for text in words] == list(words)
    assert divides_in_binary32(f) and not divides_in_binary32(block_format("mxint8"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("int8[128x]", r"int8\[128x64\]"),
        ("int8[]", "ELEMENT"),
        ("int9[8]", "did you mean 'int8'"),
        ("int8[0]", "size=0"),
        ("int8[8]*fp33", "unknown format"),
        ("int8[8]*e2m1fn", "needs NaN"),
        ("int8[8]:floorr", "unknown"),
    ],
)
def test_shapes_that_are_none(text, told):
    with pytest.raises(ValueError, match=told):
        block_format(text)


def test_int4_has_fifteen_numbers():
    x = np.linspace(-3.0, 3.0, 4001)
    assert np.array_equal(np.unique(round_to(x, INT4)), np.arange(-7, 8) / 4)
