"""Bit-equality with microxcaling's and torchao's rules, and each class of difference with an
example.
"""

import numpy as np
import pytest

from roundscope.emu import BLOCK_NAMED, block_format, round_blocks, to_blocks
from tests.emu.blocks.block_public import (
    MICROXCALING,
    TORCHAO,
    microxcaling,
    torchao,
    torchao_018_rceil,
    torchao_nvfp4,
    torchao_scale,
)
from tests.emu.blocks.test_block_round import bits

RNG = np.random.default_rng(12)
F32 = np.float32
X_MODES = {"nearest": "ties-to-away", "even": "ties-to-even", "floor": "toward-zero"}


def blocks(n: int) -> np.ndarray:
    """Normal numbers, numbers on coarse grids (ties in every format), small ones, and specials."""
    normal = RNG.standard_normal((n, 32)) * np.exp2(RNG.integers(-110, 100, (n, 1)))
    grid = RNG.integers(-255, 256, (n, 32)) * np.exp2(RNG.integers(-20, 20, (n, 1)))
    spread = RNG.standard_normal((n, 32)) * np.exp2(RNG.integers(-24, 1, (n, 32)))
    x = np.concatenate([normal, grid, spread, np.zeros((4, 32))]).astype(F32)
    x[-3, 3], x[-2, 3], x[-1, 3] = np.nan, np.inf, -1.5
    return x


@pytest.mark.parametrize("mode", X_MODES)
@pytest.mark.parametrize("name", MICROXCALING)
def test_microxcaling(name: str, mode: str) -> None:
    """Equal in every bit but the sign of zero, the mode said in our words: its `nearest` is ties to
    away.
    """
    x = blocks(4000)
    with np.errstate(all="ignore"):
        theirs = microxcaling(x, name, mode)
    ours = round_blocks(x, name, mode=X_MODES[mode])
    np.testing.assert_array_equal(ours, theirs)  # NaN equals NaN, and 0 equals -0
    assert np.isnan(ours[[-3, -2]]).all()


def test_microxcaling_ties_go_away() -> None:
    """1.0625 is half way between 1 and 1.125: nearest even says 1, microxcaling's default 1.125."""
    x = np.array([[1.5, 1.0625, -1.0625, 1.1875]], F32)
    assert round_blocks(x, "mxfp8_e4m3").tolist() == [[1.5, 1.0, -1.0, 1.25]]
    assert microxcaling(x, "mxfp8_e4m3").tolist() == [[1.5, 1.125, -1.125, 1.25]]


def test_microxcaling_rounds_up_just_below_half() -> None:
    """floor(n + 0.5) in binary32 at n = 0.5 - 2^-25: the sum rounds to 1, so what is below half of
    the smallest becomes it.
    """
    x = np.array([[448.0, 2.0**-9 * (0.5 - 2.0**-25)]], F32)
    assert round_blocks(x, "mxfp8_e4m3", mode="ties-to-away").tolist() == [[448.0, 0.0]]
    assert microxcaling(x, "mxfp8_e4m3").tolist() == [[448.0, 2.0**-9]]


def test_microxcaling_takes_a_rounded_logarithm() -> None:
    """log2 of the number below 2^11 rounds to 11 in binary32: the scale is twice what floor(log2)
    says.
    """
    x = np.array([[np.nextafter(F32(2048), F32(0)), 1.0625]], F32)
    ours, theirs = (
        f(x, "mxfp6_e2m3") for f in (lambda *a: round_blocks(*a, mode="ties-to-away"), microxcaling)
    )
    assert float(to_blocks(x, "mxfp6_e2m3").scales[0, 0]) == 2.0**8
    assert (ours[0, 0], theirs[0, 0]) == (1920.0, 2048.0)


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", TORCHAO)
def test_torchao(name: str, rule: str) -> None:
    """Equal in every bit, signs of zero and whole NaN blocks included."""
    x = blocks(4000)
    with np.errstate(all="ignore"):
        theirs = torchao(x, name, rule)
    np.testing.assert_array_equal(bits(round_blocks(x, name, rule=rule)), bits(theirs))


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", TORCHAO)
def test_torchao_scales_of_every_significand(name: str, rule: str) -> None:
    """Maxima of a binade: every 61st, and all 2^17 around the element's largest number.

    RCEIL of the main branch differs in none (nor in any of all 2^23): a / m by a rounded 1 / m,
    rounded, keeps to its side of 1.
    """
    largest = int(F32(BLOCK_NAMED[name].element.format.max_finite).view(np.int32)) & 0x7FFFFF
    near = np.arange(max(largest - (1 << 16), 0), min(largest + (1 << 16), 1 << 23), dtype=np.int32)
    tops = (np.concatenate([np.arange(0, 1 << 23, 61, dtype=np.int32), near]) + (127 << 23)).view(
        F32
    )
    ours = np.asarray(to_blocks(tops[:, None], block_format(name, rule=rule)).scales)[:, 0]
    theirs = np.exp2(torchao_scale(tops, name, rule) - 127.0)
    differ = np.flatnonzero(ours != theirs)
    assert [float(t).hex() for t in tops[differ]] == []


@pytest.mark.parametrize("name", TORCHAO)
def test_torchao_018_takes_a_rounded_logarithm(name: str) -> None:
    """RCEIL of 0.18.0: log2 of what is just above 1 rounds to a whole number, so X is half of the
    exact rule's.
    """
    largest = F32(TORCHAO[name][1])
    first = np.nextafter(largest, F32(np.inf))
    for exponent in (-30, -8, 1, 2, 40):
        above = (first.view(np.int32) + np.arange(1 << 12, dtype=np.int32)).view(F32)
        tops = np.ldexp(above, exponent).astype(F32)
        ours = np.log2(
            np.asarray(to_blocks(tops[:, None], block_format(name, rule="rceil")).scales)[:, 0]
        )
        theirs = torchao_018_rceil(tops, name)
        short = np.flatnonzero(ours != theirs)
        assert (ours == exponent + 1).all() and (theirs[short] == exponent).all()
        assert np.array_equal(short, np.arange(short.size)) and short.size < 1 << 7
    assert (
        short.size > 0
    )  # where the exponent has six bits, few are left for the fraction of the logarithm


def test_torchao_even_overflows_to_nan() -> None:
    """A maximum that rounds up beyond binary32 makes the block NaN on the main branch, its scale
    2^(128 - emax) here.
    """
    x = np.array([[np.finfo(F32).max, 1.0]], F32)
    with np.errstate(all="ignore"):
        assert np.isnan(torchao(x, "mxfp8_e4m3", "even")).all()
    assert float(to_blocks(x, "mxfp8_e4m3", rule="even").scales[0, 0]) == 2.0**120


def test_torchao_nvfp4() -> None:
    """Equal but for two classes: scales that theirs keeps above 2^-6, and quotients that binary32
    rounds onto a tie.
    """
    x = (RNG.standard_normal((20000, 16)) * np.exp2(RNG.integers(-20, 1, (20000, 1)))).astype(F32)
    b = to_blocks(x, BLOCK_NAMED["nvfp4"])
    elements, scales, tensor = torchao_nvfp4(x)
    assert tensor == b.tensor
    other = np.asarray(b.scales) != scales
    assert (scales[other] == 2.0**-6).all() and (np.asarray(b.scales)[other] < 2.0**-6).all()
    assert other.any()
    same = ~other[:, 0]
    wrong = np.argwhere((b.elements != elements) & same[:, None])
    quotient = x.astype(np.float64) / (b.scales.astype(np.float64) * float(b.tensor))
    boundaries = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    for i, j in wrong:
        assert np.min(np.abs(abs(quotient[i, j]) / boundaries - 1)) < 2.0**-22
    assert len(wrong) < 10
