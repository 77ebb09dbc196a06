"""Block formats as data against `round_blocks`, whose own tests have oracles of their own."""

from functools import partial

import jax
import numpy as np
import pytest

from roundscope.emu.api import round_to
from roundscope.emu.blocks.api import round_blocks
from roundscope.emu.blocks.format import BlockFormat, block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.blocks.xla import ends_row, is_even, round_even, round_row, row_of
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import RoundingMode, rounding

ROUND = jax.jit(round_row, static_argnames=("size", "axis", "drawn"))
EVEN = jax.jit(round_even, static_argnames=("size", "axis"))
OTHERS = (ScaleRule.BUMP, ScaleRule.NEAREST, ScaleRule.FOUR_OVER_SIX)
POWERS = [rule for rule in ScaleRule if rule not in OTHERS]


def numbers(shape=(64, 96)):
    """Of every size, subnormal ones too, with a block of zeros, an infinity and a NaN."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-140, 120, shape))).astype(np.float32)
    x[:32, :32], x[33, 5], x[40, 70] = 0.0, np.inf, np.nan
    return x


def same(a, b):
    return np.array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_rule_and_mode_has_the_bits_of_round_blocks(name, axis):
    """A rule's limit cut wrongly to 23 bits, a mode or an axis mixed up, blocks of zeros,
    infinities, subnormal numbers.
    """
    x, y = numbers(), np.random.default_rng(4).standard_normal((64, 96)).astype(np.float32)
    for rule in POWERS:
        for mode in RoundingMode:
            f = block_format(name, mode, rule=rule, seed=7)
            run = partial(ROUND, size=32, axis=axis, drawn=mode is RoundingMode.STOCHASTIC)
            assert all(same(run(v, row_of(f)), round_blocks(v, f, axis=axis)) for v in (x, y)), (
                rule,
                mode,
            )


@pytest.mark.parametrize("axis", [0, 1])
def test_the_two_additions_have_the_same_bits_but_for_subnormal_numbers(axis):
    """A tie that goes the wrong way, a missing clamp, a binade's spacing off by two, a tiny or huge
    block whose scale leaves binary32.
    """
    x = numbers()
    x[np.abs(x) < 1e-30] = 0.0
    grid = (np.arange(64 * 96).reshape(64, 96) % 1024 / 64.0).astype(
        np.float32
    )  # every tie of every format
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8"):
        for rule in POWERS:
            f = block_format(name, rule=rule)
            assert is_even(f)
            assert all(
                same(EVEN(v, row_of(f), size=32, axis=axis), round_blocks(v, f, axis=axis))
                for v in (x, grid, -grid)
            ), (name, rule)
    for r in (rounding("bf16"), rounding("fp32"), rounding("e8m3")):
        assert is_even(r) and same(
            EVEN(numbers(), row_of(r), size=32, axis=axis), round_to(numbers(), r)
        )


def test_a_block_far_beyond_its_scale_saturates():
    """A scale format that ends at 2^15: where the constant of the two additions left binary32, a
    block was NaN.
    """
    narrow = Format(name="e5m0", precision=1, emin=-15, max_finite=2.0**15, inf=False, nan=True)
    x = (
        np.array([1.0, -1.25, 1.5, -1.75], np.float32)
        * np.exp2(np.arange(60, 127, dtype=np.float32))[:, None]
    )
    for name, largest in (("e4m3fn", 448.0), ("e2m1fn", 6.0), ("e5m2", 57344.0)):
        f = BlockFormat(element=rounding(name, overflow="saturate"), size=4, scale=narrow)
        assert same(EVEN(x, row_of(f), size=4, axis=1), np.sign(x) * np.float32(largest * 2.0**15))


def test_formats_without_blocks_round_number_by_number():
    """A block's scale that leaks into BF16, FP32 that is no identity."""
    for name in ("bf16", "fp16", "fp32"):
        assert same(
            ROUND(numbers(), row_of(rounding(name)), size=32, axis=1),
            round_to(numbers(), rounding(name)),
        )


def test_what_one_executable_cannot_do_is_said():
    """A format that is silently another: scales that are no powers of two, tiles, modes that two
    additions cannot do.
    """
    for name in ("nvfp4", "fp8_128x128"):
        with pytest.raises(ValueError, match="powers of two"):
            row_of(block_format(name))
    assert (
        not is_even(block_format("mxfp4", "stochastic"))
        and not is_even(rounding("fp16"))
        and not is_even(rounding("bf16", "toward-zero"))
    )


def test_shares_of_clipped_and_last_numbers():
    """By hand, E4M3 under FLOOR: the block's largest is 480, so X = 1, 480 and 449 are beyond 448,
    and 440 rounds to 448 too.
    """
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = 480.0, 449.0, 440.0, 400.0
    clipped, last = jax.jit(lambda v: ends_row(v, row_of(block_format("mxfp8_e4m3")), 32, 1))(x)
    assert (float(clipped) * 32, float(last) * 32) == (2.0, 3.0)
    clipped, last = jax.jit(
        lambda v: ends_row(v, row_of(block_format("mxfp8_e4m3", rule="rceil")), 32, 1)
    )(x)
    assert (float(clipped), float(last)) == (0.0, 0.0)
