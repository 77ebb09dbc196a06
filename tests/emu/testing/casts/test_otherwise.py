"""A right quantizer that is asked for as another one is told what to ask instead."""

import ml_dtypes
import numpy as np
import pytest

from roundscope.emu.testing.casts import examine_cast
from roundscope.tools.check_cast.command import _again
from roundscope.tools.check_cast.options import CheckCastOptions


def by_token(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """INT8 with a scale of max / 127 for each row."""
    scale = np.abs(x).max(axis=1, keepdims=True).astype(np.float64) / 127
    scale = np.where(scale == 0, 1, scale).astype(np.float32)
    return np.rint(x.astype(np.float64) / scale).astype(np.int8), scale[:, 0]


def of_powers(x: np.ndarray) -> np.ndarray:
    """E4M3 in blocks of 128, whose scale is the least power of two without overflow."""
    rows, features = x.shape
    padded = np.zeros((rows, -(-features // 128) * 128))
    padded[:, :features] = x
    blocks = padded.reshape(rows, -1, 128)
    fraction, e = np.frexp(np.abs(blocks).max(axis=2, keepdims=True) / 448)
    scale = np.ldexp(1.0, np.clip(np.where(fraction == 0.5, e - 1, e), -127, 127))
    y = np.clip(blocks / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return (y * scale).reshape(rows, -1)[:, :features].astype(np.float32)


def of_one_scale(x: np.ndarray) -> np.ndarray:
    """INT8 with the scale 1/64 for all."""
    return np.clip(np.rint(x * np.float32(64)), -127, 127).astype(np.int8)


def turned(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    h = np.array([[1.0]])
    while len(h) < 16:
        h = np.block([[h, h], [h, -h]])
    y = (x.reshape(len(x), -1, 16) @ h / 4).reshape(x.shape)
    return by_token(y.astype(np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "words", "more", "option", "value", "told"),
    [
        (of_powers, "e4m3fn[128]", {}, "format", "e4m3fn:saturate[128]*e8m0fnu:rceil", " all "),
        (turned, "int8[token]", {}, "hadamard", "16", "Hadamard 16"),
    ],
)
def test_blocks_are_told_what_to_ask(function, words, more, option, value, told) -> None:
    check(examine_cast(function, words, **more), words, option, value, told)


def test_the_scale_of_one_tensor_is_found() -> None:
    with np.errstate(invalid="ignore"):
        found = examine_cast(of_one_scale, "int8[tensor]", tensor_scale=0.02)
    check(found, "int8[tensor]", "tensor_scale", "0.015625", "the scale 0.015625 explains all")
    assert found.returned == "codes (int8)"


def test_a_scale_counts_in_binary32_and_quotients_may_too() -> None:
    """0.02 is no number of float32, and NumPy and PyTorch divide float32 arrays in float32."""

    def divided(x: np.ndarray) -> np.ndarray:
        return np.rint(np.clip(x / np.float32(0.02), -127, 127)).astype(np.int8)

    found = examine_cast(divided, "int8[tensor]", tensor_scale=0.02)
    assert found.instead == f"{found.name} divided in float32"
    again = _again(CheckCastOptions(function="m:f", format="int8[tensor]"), found)
    assert again is not None and again[1].endswith("--divided float32")
    right = examine_cast(divided, "int8[tensor]", tensor_scale=0.02, divided="float32")
    assert right.passed and right.title == "int8[tensor] with the scale 0.0199999996"
    other = examine_cast(divided, "int8[tensor]", tensor_scale=0.03)
    check(other, "int8[tensor]", "tensor_scale", "0.02", "the scale 0.02 explains")


def test_numbers_of_another_scale_are_counted() -> None:
    """Products k * 0.02 in place of the integers k, asked for with the scale 0.03."""

    def products(x: np.ndarray) -> np.ndarray:
        step = np.float32(0.02)
        return (np.clip(np.rint(x / step), -127, 127) * step).astype(np.float32)

    found = examine_cast(products, "int8[tensor]", tensor_scale=0.03)
    check(found, "int8[tensor]", "tensor_scale", "0.02", "the scale 0.02 explains")


def test_a_cast_of_another_mode_is_told_to_ask_for_it_and_which_nan_is_lost() -> None:
    def cut(x: np.ndarray) -> np.ndarray:
        return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    found = examine_cast(cut, "bf16")
    again = _again(CheckCastOptions(function="m:f", format="bf16"), found)
    assert again is not None and again[1].endswith("--format bf16:toward-zero")
    [nan] = [row for row in found.rows if row.name == "NaN"]
    assert nan.note == "0x7f800001 became inf"


def test_what_is_right_is_told_nothing_else() -> None:
    found = examine_cast(of_one_scale, "int8[tensor]", tensor_scale=2.0**-6)
    assert found.passed or found.failed[0].name == "NaN"
    assert found.otherwise is None


def check(found, words: str, option: str, value: str, told: str) -> None:
    assert not found.passed and told in found.sentence
    assert (found.otherwise.option, found.otherwise.value) == (option, value)
    again = _again(CheckCastOptions(function="m:f", format=words), found)
    assert again is not None and value in again[1]
