"""What overflow means where nobody says: one answer for one word, in every function."""

import math

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.roundings.modes import without_saturation

BEYOND = {  # twice the largest finite number, rounded by the format's own rule
    "e4m3fn": 448.0,
    "e5m2": 57344.0,
    "e3m2fn": 28.0,
    "e2m3fn": 7.5,
    "e2m1fn": 6.0,
    "e1m2fn": 1.75,
    "fp64": math.inf,
    "fp32": math.inf,
    "tf32": math.inf,
    "bf16": math.inf,
    "fp16": math.inf,
    "e5m10": math.inf,
    "e4m3": math.inf,
    "e5m2fnuz": math.nan,
    "e4m3fnuz": math.nan,
    "e4m3b11fnuz": math.nan,
    "e8m0fnu": math.nan,
}


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("on", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_the_formats_own_overflow(name, on):
    """A format that nobody decided about, an executor that decides alone."""
    if name in (
        "fp64",
        "fp32",
        "tf32",
        "bf16",
        "e8m0fnu",
    ):  # twice their largest number is no binary32 number
        x = np.array([math.inf])
        got = [emu.explain(v, name).result for v in x.tolist()]
    else:
        x = on(np.array([2 * emu.format_named(name).max_finite, math.inf], np.float32))
        got = np.asarray(emu.round_to(x, name)).tolist()
    np.testing.assert_array_equal(got, [BEYOND[name]] * len(got))


def test_every_named_format_is_in_the_table():
    assert set(emu.NAMED) <= set(BEYOND)


def test_one_e4m3_and_one_e5m2():
    """Two roundings of one name: constants, words, blocks."""
    assert (
        emu.rounding("e4m3fn")
        == emu.E4M3
        == emu.rounding("e4m3fn", overflow="saturate")
        == emu.block_format("mxfp8_e4m3").element
    )
    assert (
        emu.rounding("e5m2")
        == emu.E5M2
        == emu.rounding("e5m2", overflow="saturate")
        == emu.block_format("mxfp8_e5m2").element
    )
    assert emu.round_to(500.0, "e4m3fn") == emu.round_to(500.0, emu.E4M3) == 448
    assert emu.round_to(1e6, "e5m2") == emu.round_to(1e6, emu.E5M2) == 57344


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2"])
def test_ml_dtypes_overflow_is_there_for_who_asks(name):
    """Infinity of e5m2, NaN of e4m3fn, at the boundary too."""
    x = np.array([448, 464, 464.1, 480, 1e4, 57344, 61439, 61440, 1e6, np.inf], np.float32)
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        theirs = x.astype(getattr(ml_dtypes, f"float8_{name}")).astype(np.float32)
    for r in (
        without_saturation(emu.rounding(name)),
        emu.rounding(name, overflow={"e5m2": "inf", "e4m3fn": "nan"}[name]),
    ):
        np.testing.assert_array_equal(emu.round_to(x, r), theirs)


def test_an_infinity_is_a_number_of_e5m2() -> None:
    """A tensor core refused it: it is none that rounds to itself by the format's own overflow."""
    core = emu.Accumulator.tensor_core("hopper", "e5m2")
    assert float(emu.dot([[math.inf, 1.0]], [[1.0], [1.0]], core)[0, 0]) == math.inf
    with pytest.raises(ValueError, match="no e4m3fn number"):
        emu.dot([[math.inf]], [[1.0]], emu.Accumulator.tensor_core("hopper", "e4m3fn"))


def test_the_text_of_a_rounding_tells_overflow_apart():
    """Stored results are keyed by it: two roundings with one text would share them."""
    texts = {
        str(emu.rounding(name, overflow=overflow))
        for name in ("e4m3fn", "e5m2", "e4m3fnuz", "bf16")
        for overflow in ("saturate", "nan", *(["inf"] if emu.format_named(name).inf else []))
    }
    assert len(texts) == 2 + 3 + 2 + 3
    assert {
        "e4m3fn:saturate",
        "e4m3fn:nan",
        "e5m2:inf",
        "e4m3fnuz",
        "bf16",
        "bf16:saturate",
    } <= texts
