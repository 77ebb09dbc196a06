"""Where blocks lie in an array, threads, outputs, the stochastic mode's stream, and what is
refused.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import (
    BLOCK_NAMED,
    BlockFormat,
    block_format,
    from_blocks,
    round_blocks,
    rounding,
    to_blocks,
)
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.random import event_bits
from tests.emu.blocks.test_block_round import bits

RNG = np.random.default_rng(6)
TILE = replace(BLOCK_NAMED["fp8_128x128"], size=8, rows=4)


def one_by_one(x: np.ndarray, f: BlockFormat, axis: int) -> np.ndarray:
    """Each block cut out of a matrix and rounded alone."""
    y = np.empty_like(x)
    high, wide = (f.rows, f.size) if axis % 2 else (f.size, f.rows)
    for i in range(0, x.shape[0], high):
        for j in range(0, x.shape[1], wide):
            part = x[i : i + high, j : j + wide]
            y[i : i + high, j : j + wide] = round_blocks(
                part.reshape(-1), replace(f, rows=1, size=part.size)
            ).reshape(part.shape)
    return y


def apart(x: object, f: BlockFormat, axis: int) -> tuple[object, ...]:
    b = to_blocks(x, f, axis)
    return round_blocks(x, f, axis), from_blocks(b), b.elements, b.scales


@pytest.mark.parametrize("on_xla", [False, True], ids=["numpy", "xla"])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("f", [BLOCK_NAMED["mxfp4"], TILE, BLOCK_NAMED["fp8_1x128"]], ids=str)
def test_blocks_lie_along_the_axis(f: BlockFormat, axis: int, on_xla: bool) -> None:
    """Blocks along the wrong axis, a tile turned, padding that is not zero or not taken off; scales
    out of place.
    """
    x = (RNG.standard_normal((21, 70)) * np.exp2(RNG.integers(-9, 9, (21, 70)))).astype(np.float32)
    want = one_by_one(x, f, axis)
    run = jax.jit(apart, static_argnums=(1, 2)) if on_xla else apart
    there, back, elements, scales = map(np.asarray, run(x, f, axis))
    np.testing.assert_array_equal(bits(there), bits(want))
    np.testing.assert_array_equal(bits(back), bits(want))
    high, wide = (f.rows, f.size) if axis % 2 else (f.size, f.rows)
    assert scales.shape == (-(-21 // high), -(-70 // wide))
    spread = np.repeat(np.repeat(scales, high, 0), wide, 1)[:21, :70]
    np.testing.assert_array_equal(bits(elements * spread), bits(want))


def test_more_axes_are_many_matrices() -> None:
    """Leading axes mixed up with blocks."""
    x = RNG.standard_normal((2, 3, 10, 70)).astype(np.float32)
    for axis, f in (
        (-1, BLOCK_NAMED["mxfp8_e4m3"]),
        (-2, BLOCK_NAMED["mxfp4"]),
        (-1, TILE),
        (-2, TILE),
    ):
        want = np.stack([[round_blocks(m, f, axis) for m in n] for n in x])
        np.testing.assert_array_equal(bits(round_blocks(x, f, axis)), bits(want))
    moved = np.moveaxis(round_blocks(np.moveaxis(x, 1, -1), "mxint8"), -1, 1)
    np.testing.assert_array_equal(bits(round_blocks(x, "mxint8", axis=1)), bits(moved))


def test_a_shorter_last_block_is_one_padded_with_zeros() -> None:
    x = RNG.standard_normal(70).astype(np.float32)
    padded = np.concatenate([x, np.zeros(26, np.float32)])
    np.testing.assert_array_equal(
        round_blocks(x, "mxfp6_e2m3"), round_blocks(padded, "mxfp6_e2m3")[:70]
    )


def test_threads_cut_between_blocks() -> None:
    """A block shared by two threads; a size that no thread count divides."""
    for f, size in (
        (BLOCK_NAMED["mxfp8_e4m3"], 32),
        (replace(BLOCK_NAMED["mxfp8_e4m3"], size=48), 48),
        (BLOCK_NAMED["fp8_1x128"], 128),
    ):
        x = RNG.standard_normal((7001, size)).astype(np.float32)
        pieces = np.concatenate([round_blocks(x[n : n + 500], f) for n in range(0, 7001, 500)])
        np.testing.assert_array_equal(round_blocks(x, f), pieces)


def test_out_takes_the_result() -> None:
    """An out that is x itself read after it was written; a strided out left untouched."""
    x = RNG.standard_normal((64, 64)).astype(np.float32)
    x[5], x[6] = (
        x[5] * np.float32(2.0**-140),
        x[6] * np.float32(2.0**-130),
    )  # which the fast path does a second time
    want = round_blocks(x, "mxfp8_e4m3")
    out = np.empty_like(x)
    strided = np.empty((64, 128), np.float32)[:, ::2]
    assert round_blocks(x, "mxfp8_e4m3", out=out) is out and np.array_equal(out, want)
    assert round_blocks(x, "mxfp8_e4m3", out=strided) is strided and np.array_equal(strided, want)
    for axis in (0, 1):
        z = x.copy()
        assert np.array_equal(round_blocks(z, "nvfp4", axis, out=z), round_blocks(x, "nvfp4", axis))
        assert np.array_equal(
            round_blocks(z := x.copy(), "mxfp4", axis, out=z), round_blocks(x, "mxfp4", axis)
        )


@pytest.mark.parametrize("name", BLOCK_NAMED)
def test_a_quantised_array_is_a_fixed_point(name: str) -> None:
    """A scale that moves when its own result is quantised again.

    Floor's saturated maxima, and rounded scales, may move.
    """
    f = block_format(name, rule=None if name in ("nvfp4", "fp8_1x128", "fp8_128x128") else "rceil")
    once = round_blocks(RNG.standard_normal((256, 128)).astype(np.float32), f)
    twice = round_blocks(once, f)
    if f.power_of_two:
        assert np.array_equal(once, twice)
    else:
        np.testing.assert_allclose(twice, once, atol=np.abs(once).max() * 0.3)


def test_stochastic_elements_are_unbiased_and_follow_their_index() -> None:
    """Random bits by a number's place in its block; the same bits for every block."""
    x = np.full((1000, 32), 1.03, np.float32)
    x[:, 0] = 1.75
    y = round_blocks(x, "mxfp8_e4m3", mode="stochastic", seed=1)
    assert abs(y[:, 1:].mean() - 1.03) < 4 * np.sqrt(0.24 * 0.76 / 31000) * 0.125
    assert len({row.tobytes() for row in y}) == 1000
    both = round_blocks(x, "mxfp8_e4m3", axis=0, mode="stochastic", seed=1)[:, 1:]
    lots = event_bits(np, 1, 0, 0, np.arange(x.size).reshape(x.shape))[:, 1:]
    assert np.array_equal(
        both, np.where(np.float32(1.03) / np.float32(0.125) % 1 * 2.0**31 > lots + 256, 1.125, both)
    )


def test_what_makes_no_sense_is_refused() -> None:
    """Each message names the argument and the repair."""
    x = np.ones((4, 4), np.float32)
    for call, word in (
        (lambda: round_blocks(x, "mxfp9"), "did you mean"),
        (lambda: round_blocks(x, "mxfp8_e4m3", rule="flor"), "floor"),
        (lambda: round_blocks(x, "mxfp4", axis=2), "axis=2"),
        (lambda: round_blocks(x, "mxfp4", rule="bump"), "rceil"),
        (lambda: round_blocks(x[0], "fp8_128x128"), "rows=128"),
        (lambda: round_blocks(x, "mxfp4", out=x[:2]), "out"),
        (lambda: round_blocks(x, "nvfp4", rule="floor"), "tensor"),
        (lambda: BlockFormat(element=emu.E4M3, scale=format_named("e2m1fn")), "NaN"),
        (lambda: BlockFormat(element=rounding("fp32")), "element=fp32"),
        (lambda: BlockFormat(element=emu.E4M3, size=0), "size=0"),
        (lambda: to_blocks(x[:0], "mxfp4"), "no numbers"),
    ):
        with pytest.raises(ValueError, match=word):
            call()
    with pytest.raises(TypeError):
        round_blocks(np.ones(3, int), "mxfp4")
