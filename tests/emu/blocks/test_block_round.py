"""Block formats on both executors against exact rational arithmetic, bit for bit; layouts; the fast
paths.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import jax
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import (
    BLOCK_NAMED,
    BlockFormat,
    ScaleRule,
    block_format,
    from_blocks,
    round_blocks,
    rounding,
    to_blocks,
)
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.emu.roundings.random import event_bits
from tests.emu.blocks.block_judge import block, tensor_scale

RNG = np.random.default_rng(5)
E5M0 = Format(name="e5m0", precision=1, emin=-15, max_finite=2.0**15, inf=False, nan=True)
OTHERS = {
    "bf16 elements": BlockFormat(element=rounding("bf16", overflow="saturate"), size=8),
    "fp32 scale, floor": BlockFormat(element=emu.E4M3, size=8, scale=format_named("fp32")),
    "fp32 scale, rceil": BlockFormat(
        element=emu.E4M3, size=8, scale=format_named("fp32"), rule=ScaleRule.RCEIL
    ),
    "e8m0 scale, nearest": BlockFormat(element=emu.E4M3, size=8, rule=ScaleRule.NEAREST),
    "bf16 scale": BlockFormat(
        element=rounding("e3m4", overflow="saturate"),
        size=5,
        scale=format_named("bf16"),
        rule=ScaleRule.NEAREST,
    ),
    "five-bit scale": BlockFormat(
        element=rounding("e2m1fn"), size=16, scale=E5M0, rule=ScaleRule.RCEIL
    ),
    "e5m2 to infinity": BlockFormat(element=rounding("e5m2", overflow="inf"), size=8),
    "e4m3 to NaN": BlockFormat(element=rounding("e4m3fn", overflow="nan"), size=8),
    "nvfp4, a given tensor scale": replace(BLOCK_NAMED["nvfp4"], tensor_scale=0.0037),
    "nvfp4, 4 over 6": block_format("nvfp4", rule="4over6"),
}
FORMATS = {
    **{
        n: replace(f, size=min(f.size, 32), rows=1)
        for n, f in BLOCK_NAMED.items()
        if n != "fp8_128x128"
    },
    **OTHERS,
}
formats = pytest.mark.parametrize("name", FORMATS)
LONG = "nvfp4, 4 over 6"  # which has two programs of each of these
LATER = [pytest.param(n, marks=[pytest.mark.thorough] if n == LONG else []) for n in FORMATS]
most = pytest.mark.parametrize("name", LATER)
MODES = ("ties-to-even", "toward-negative", "stochastic")
# every format under XLA, and every mode with a third of the formats; `make thorough`: all pairs
COMPILED = [
    pytest.param(n, m, marks=[] if (i + j) % 3 == 0 else pytest.mark.thorough)
    for i, n in enumerate(FORMATS)
    for j, m in enumerate(MODES)
]


def bits(x: object) -> np.ndarray:
    """The bits of a float array, with every NaN made one."""
    x = np.asarray(x)
    word = np.int32 if x.dtype == np.float32 else np.int64
    return np.where(np.isnan(x), -1, np.ascontiguousarray(x).view(word))


def cases(f: BlockFormat) -> np.ndarray:
    """Blocks (n, size) of float32: normal numbers at many exponents, ties and their neighbours,
    subnormals, specials.
    """
    k = f.size
    with np.errstate(over="ignore"):
        plain = [
            np.ldexp(RNG.standard_normal(k), e)
            for e in (-149, -140, -133, -127, -126, -118, -60, -1, 0, 7, 100, 118, 126)
        ]
        wide = [np.ldexp(RNG.standard_normal(k), RNG.integers(-40, 1, k)) for _ in range(2)]
        x = np.array([*plain, *wide]).astype(np.float32)
    unit = math.ldexp(
        1.0, f.element.format.emax - f.element.format.precision
    )  # half an ulp at the top
    top = np.array([f.element.format.max_finite - n * unit for n in range(k)])
    exact = np.concatenate([np.ldexp(top, e)[None] for e in (0, -100)]).astype(np.float32)
    around = [exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))]
    halves = np.ldexp(np.arange(k) + 0.5, -3 - f.element.format.precision).astype(
        np.float32
    )  # ties among subnormal elements
    halves[0] = f.element.format.max_finite
    special = np.zeros((6, k), np.float32)
    special[0, 1] = -0.0
    special[1, :2], special[2, :2], special[3, :2] = (np.nan, 1), (np.inf, 1), (-np.inf, 1)
    special[4, 0], special[5, 0] = 2.0**-149, -np.finfo(np.float32).max
    x = np.concatenate(
        [x[np.isfinite(x).all(axis=1)], *around, halves[None], -halves[None], special]
    )
    return (
        x if not f.tensor else x[np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max(axis=1) < 2.0**20]
    )


def judged(x: np.ndarray, f: BlockFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Elements, scales and numbers of blocks, exactly."""
    tensor = tensor_scale(x, f)
    lots = event_bits(
        np, f.element.seed, 0, np.zeros_like(x, int), np.arange(x.size).reshape(x.shape)
    ).tolist()
    found = [block(row.tolist(), f, lot, tensor) for row, lot in zip(x, lots, strict=True)]
    numbers = [[_product(p, s, tensor) for p in elements] for s, elements in found]
    with np.errstate(over="ignore"):
        return (
            np.array([p for _, p in found], np.float32),
            np.array([[s] for s, _ in found], np.float32),
            np.array(numbers).astype(np.float32),
        )


def _product(p: float, scale: float, tensor: Fraction) -> float:
    """T X P; of 46 bits or fewer, so binary64 has it."""
    if not (math.isfinite(p) and math.isfinite(scale)):
        return p * scale
    return math.copysign(float(abs(Fraction(p)) * Fraction(scale) * tensor), p)


def everything(x: object, f: BlockFormat) -> tuple[object, ...]:
    """Elements, scales, the numbers they stand for, and the same without the detour."""
    b = to_blocks(x, f)
    return b.elements, b.scales, from_blocks(b), round_blocks(x, f)


def on_xla(x: np.ndarray, f: BlockFormat) -> tuple[object, ...]:
    """Compiled as one function: XLA may rewrite what it likes."""
    return jax.jit(lambda x: everything(x, f))(x)  # type: ignore[no-any-return]


def are_the_judges(name: str, mode: str, execute: Callable[..., tuple[object, ...]]) -> None:
    f = block_format(FORMATS[name], mode, seed=11)
    x = cases(f)
    elements, scales, numbers = judged(x, f)
    for got, want in zip(execute(x, f), (elements, scales, numbers, numbers), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("mode", MODES)
@formats
def test_numpy_is_the_judges(name: str, mode: str) -> None:
    """A wrong carry at a scale's threshold, double rounding of V / X, a flushed subnormal, a NaN
    that stayed in its element.
    """
    are_the_judges(name, mode, everything)


@pytest.mark.parametrize(("name", "mode"), COMPILED)
def test_xla_is_the_judges(name: str, mode: str) -> None:
    """The same, of what XLA makes of the operations."""
    are_the_judges(name, mode, on_xla)


@pytest.mark.parametrize("mode", ["ties-to-even", "stochastic"])
@most
def test_float64_arrays_are_the_judges(name: str, mode: str) -> None:
    """A quotient cut at binary32's bits; a result that was rounded to binary32 on its way."""
    f = block_format(FORMATS[name], mode, seed=4)
    x = cases(f).astype(np.float64)
    x = x * (1 + 2.0**-40) if mode != "stochastic" else x
    elements, scales, _ = judged(x, f)
    tensor = float(to_blocks(x, f).tensor)
    wide = elements.astype(np.float64) * (scales.astype(np.float64) * tensor)
    np.testing.assert_array_equal(bits(to_blocks(x, f).elements), bits(elements))
    np.testing.assert_array_equal(bits(round_blocks(x, f)), bits(wide))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(bits(jax.jit(lambda x: round_blocks(x, f))(x)), bits(wide))


def test_float64_quotients_next_to_ties() -> None:
    """V = (tie) X and its neighbours in binary64; numbers so small that a quotient would
    become 0.
    """
    f = replace(BLOCK_NAMED["fp8_1x128"], size=64)
    scales = (1 + RNG.random(40)).astype(np.float32).astype(np.float64)
    ties = np.arange(17, 32, 2) / 16.0
    exact = scales[:, None] * ties
    x = np.concatenate(
        [448 * scales[:, None], exact, np.nextafter(exact, 0.0), np.nextafter(exact, 9.0)], axis=1
    )
    elements, found, _ = judged(x, f)
    np.testing.assert_array_equal(found[:, 0], scales)
    np.testing.assert_array_equal(to_blocks(x, f).elements, elements)
    np.testing.assert_array_equal(round_blocks(x, f), elements * scales[:, None])
    tiny = np.array([448.0 * 3, 5e-324, -5e-324, 2.0**-1022])
    up = to_blocks(tiny, f, mode="toward-positive")
    assert up.elements.tolist() == [448.0, 2.0**-9, -0.0, 2.0**-9]


@most
def test_rounding_is_quantising_and_back_on_many_numbers(name: str) -> None:
    """The fast paths of both executors against the definition, over all of binary32's exponents, in
    every mode.
    """
    f = FORMATS[name]
    x = RNG.integers(0, 2**32, (1 << 12, f.size), dtype=np.uint32).view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(1.5))
    x = np.concatenate(
        [
            x,
            np.ldexp(
                RNG.standard_normal((1 << 12, f.size)), RNG.integers(-149, 124, (1 << 12, 1))
            ).astype(np.float32),
        ]
    )
    for mode in RoundingMode:
        r = block_format(f, mode, seed=2)
        want = from_blocks(to_blocks(x, r))
        np.testing.assert_array_equal(bits(round_blocks(x, r)), bits(want))
        if mode in ("ties-to-even", "ties-to-away"):
            np.testing.assert_array_equal(
                bits(jax.jit(lambda x, r=r: round_blocks(x, r))(x)), bits(want)
            )
