"""Assertions on arrays: each planted difference is found and shown, and nothing else is."""

import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.emu.formats.format import format_named
from roundscope.emu.testing import assert_bit_equal, assert_max_ulp
from roundscope.emu.testing.differences import APART, distance
from roundscope.emu.testing.given import FORMATS
from tests.checks.exhaustive import REFERENCES

ROOT = Path(__file__).parents[3]
SIGNED = [name for name in REFERENCES if name != "e8m0fnu"]


def dtype_named(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def every_code(dtype: np.dtype) -> np.ndarray:
    """Return every code of an 8-bit or 16-bit dtype that NumPy stores, or random ones of others."""
    bits = 8 * dtype.itemsize
    if bits > 16:
        words = np.random.default_rng(0).integers(0, 2**bits, 1000, np.uint64)
        return words.astype(f"u{dtype.itemsize}").view(dtype)
    return np.arange(2**bits, dtype=f"u{dtype.itemsize}").view(dtype)


def message_of(assertion, *args, **named) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **named)
    return str(caught.value)


def test_importing_the_assertions_is_light():
    """A test suite that pays for JAX, or needs hypothesis, because it compares two arrays."""
    absent = ("jax", "torch", "numba", "hypothesis", "pytest", "rich", "ml_dtypes")
    code = f"import sys, roundscope.emu.testing; print(*sorted({set(absent)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


# ------------------------------------------------------------------------------ assert_bit_equal


@pytest.mark.parametrize("name", FORMATS)
def test_one_flipped_bit_of_any_dtype_is_found(name: str) -> None:
    """A dtype whose bits are not compared, or whose message shows another entry."""
    x = every_code(dtype_named(name))
    assert_bit_equal(x, x.copy())
    y = x.copy()
    words = y.view(f"u{y.dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
        at = int(np.flatnonzero(np.isfinite(x) & (words != 0))[5])
    words[at] ^= 1
    message = message_of(assert_bit_equal, x, y, what="codes")
    assert message.startswith(f"codes: 1 of {x.size:,} numbers differ")
    assert f"index {at}" in message
    width = format_named(FORMATS[name]).bits
    for label, shown in (("actual", x), ("expected", y)):
        word = int(shown.view(words.dtype)[at]) & (2**width - 1)
        line = next(row for row in message.splitlines() if row.strip().startswith(label))
        assert line.split()[-1].replace("|", "") == f"{word:0{width}b}"
        assert repr(float(shown[at])) in line


@pytest.mark.parametrize("on", [jnp.asarray, lambda x: x.view(np.uint16)], ids=["jax", "codes"])
def test_arrays_of_other_libraries_and_whole_numbers(on) -> None:
    """A JAX array or an array of codes that is converted before it is compared."""
    x = np.array([1.0, -0.0, np.inf, 1.5], ml_dtypes.bfloat16)
    y = x.copy()
    assert_bit_equal(on(x), on(y))
    y[3] = 1.5078125
    assert "1 of 4 numbers differ" in message_of(assert_bit_equal, on(x), on(y))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz"])
def test_tensors_keep_their_bits(name: str) -> None:
    """A tensor that is widened: the dtype would differ, and a NaN would lose its payload."""
    torch = pytest.importorskip("torch")
    x = every_code(dtype_named(name))
    word = torch.int16 if x.dtype.itemsize == 2 else torch.uint8
    signed = x.view(np.int16) if x.dtype.itemsize == 2 else x.view(np.uint8)
    tensor = torch.from_numpy(signed.copy()).view(getattr(torch, name))
    assert_bit_equal(tensor, x, nan="bits")
    other = tensor.view(word).clone()
    other[1] += 1
    assert "index 1 " in message_of(assert_bit_equal, other.view(tensor.dtype), x)


def test_nan_and_zeros_count_as_told() -> None:
    """A NaN that differs by its payload alone, or a zero that lost its sign."""
    quiet = np.array([0x7FC0, 0x8000, 0x3F80], np.uint16).view(ml_dtypes.bfloat16)
    other = np.array([0xFFC1, 0x0000, 0x3F80], np.uint16).view(ml_dtypes.bfloat16)
    assert_bit_equal(quiet, other, zeros="any")
    message = message_of(assert_bit_equal, quiet, other)
    assert "1 of 3" in message and "1|00000000|0000000" in message
    message = message_of(assert_bit_equal, quiet, other, nan="bits", zeros="any")
    assert "1 of 3" in message and "1|11111111|1000001" in message


def test_the_farthest_number_is_shown_with_its_index() -> None:
    """A message about the first difference while a NaN stands further back."""
    x = np.ones((2, 3), np.float32)
    y = x.copy()
    y[0, 1], y[1, 2] = np.nextafter(np.float32(1), np.float32(2)), np.nan
    message = message_of(assert_bit_equal, x, y)
    assert "2 of 6 numbers differ (33.3 %), the farthest at index (1, 2)" in message
    assert "one of the two is NaN" in message


def test_dtypes_and_shapes_differ() -> None:
    """Arrays that NumPy would convert or broadcast before it compares them."""
    x = np.zeros(3, np.float32)
    assert "dtype float32, expected float64" in message_of(assert_bit_equal, x, x.astype(float))
    assert "shape (3,), expected (1, 3)" in message_of(assert_bit_equal, x, x[None])
    assert_bit_equal(np.zeros((0, 2)), np.zeros((0, 2)))
    assert "the only number" in message_of(assert_bit_equal, np.float32(1), np.float32(2))


def test_arguments_that_are_refused() -> None:
    """A misspelt word, which would compare less than is meant."""
    x = np.zeros(2)
    with pytest.raises(ValueError, match="nan='bit'"):
        assert_bit_equal(x, x, nan="bit")
    with pytest.raises(TypeError, match="actual: dtype complex128"):
        assert_bit_equal(x.astype(complex), x)
    with pytest.raises(TypeError, match="expected: dtype int64"):
        assert_max_ulp(x, np.zeros(2, np.int64), 1)
    with pytest.raises(ValueError, match="ulps=-1"):
        assert_max_ulp(x, x, -1)
    with pytest.raises(TypeError, match="ulps='1'"):
        assert_max_ulp(x, x, "1")
    with pytest.raises(ValueError, match="ulps=nan"):
        assert_max_ulp(x, x, float("nan"))


# ------------------------------------------------------------------------------- assert_max_ulp


@pytest.mark.parametrize("name", [*SIGNED, "fp32", "fp64"])
def test_distances_are_differences_of_codes(name: str) -> None:
    """A distance in ulps of one of the two, which is wrong where the spacing changes."""
    f = format_named(name)
    dtype = {"fp32": np.dtype("f4"), "fp64": np.dtype("f8")}.get(name) or np.dtype(REFERENCES[name])
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**f.bits, (2, 2000), np.uint64)
    codes[:, 1000:1500] &= 3  # around zero
    sign = 2 ** (f.bits - 1)
    if not f.negative_zero:
        codes[codes == sign] = 0  # which is NaN in these formats
    with np.errstate(invalid="ignore"):
        x, y = codes.astype(f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    got = distance(x, y, f).tolist()
    for i, (a, b) in enumerate(codes.T.tolist()):
        keys = [-(code & (sign - 1)) if code & sign else code for code in (a, b)]
        nan = np.isnan(x[i]), np.isnan(y[i])
        want = 0 if all(nan) else APART if any(nan) else abs(keys[0] - keys[1])
        assert got[i] == want, (x[i], y[i])


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [
        (1.0, 1.0078125, 1),
        (1.0, 0.99609375, 1),  # half as far, below the power of two
        (2.0**-133, -(2.0**-133), 2),
        (0.0, -0.0, 0),
        (np.inf, float.fromhex("0x1.fep127"), 1),
        (np.inf, -np.inf, 2 * 0x7F80),
        (np.nan, np.nan, 0),
    ],
)
def test_the_limit_is_the_distance(a: float, b: float, steps: int) -> None:
    """An off-by-one at the edge of a binade, across zero or at infinity."""
    for dtype in (ml_dtypes.bfloat16, np.float32):
        x, y = np.array([1.0, a], dtype), np.array([1.0, b], dtype)
        assert_max_ulp(x, y, steps, "bf16")
        if steps:
            plural = "s" * (steps != 1)
            assert f"{steps:,} ulp{plural} of bf16" in message_of(
                assert_max_ulp, x, y, steps - 1, "bf16"
            )


def test_a_number_of_another_format() -> None:
    """A float32 array said to hold BF16 numbers, one of which is none, passed as close enough."""
    x = np.array([1.0, 1.001], np.float32)
    message = message_of(assert_max_ulp, x, np.ones(2), 100, "bf16")
    assert "index 1" in message and "not a number of bf16" in message
    assert_max_ulp(np.ones(2), x, 0.5, "bf16")  # the reference need be none
    assert "NaN" in message_of(assert_max_ulp, np.array([np.nan]), np.array([1.0]), 2**60)


# ------------------------------------------------------- assert_max_ulp of FP32 and FP64 references


def half_ulp(y: float, emin: int, fraction: int) -> Fraction:
    """Half an ulp at y of a format with so many fraction bits, from its definition."""
    exponent = math.frexp(y)[1] - 1 if y else emin
    return Fraction(2) ** (max(exponent, emin) - fraction - 1)


@pytest.mark.parametrize(
    ("name", "dtype", "emin", "fraction", "largest"),
    [
        ("bf16", ml_dtypes.bfloat16, -126, 7, 3.3e38),
        ("fp16", np.float16, -14, 10, 65504.0),
        ("e4m3fn", ml_dtypes.float8_e4m3fn, -6, 3, 448.0),
    ],
)
def test_a_result_rounded_once_is_within_half_an_ulp(name, dtype, emin, fraction, largest) -> None:
    """A good kernel that fails beside its FP32 reference, or one that rounds twice and passes."""
    rng = np.random.default_rng(23)
    exact = rng.standard_normal(4000) * 2.0 ** rng.integers(emin - fraction - 2, 8, 4000)
    exact = np.clip(np.float32(exact), -largest, largest).astype(np.float64)
    exact[:6] = [0.0, 1.0, np.nextafter(1.0, 0), np.nextafter(2.0, 3), 2.0**emin, 2.0 ** (emin - 3)]
    once = exact.astype(np.float32).astype(dtype)
    assert_max_ulp(once, exact, 0.5, name)
    assert_max_ulp(once, exact.astype(np.float32), 0.5)
    most = max(
        abs(Fraction(float(a)) - Fraction(b)) / (2 * half_ulp(b, emin, fraction))
        for a, b in zip(once.astype(np.float64), exact, strict=True)
    )
    assert most <= Fraction(1, 2)
    with pytest.raises(AssertionError, match="by more than"):
        assert_max_ulp(once, exact, float(most) * 0.999, name)
    assert_max_ulp(once, exact, float(most), name)


def test_numbers_that_are_lost_come_before_distances() -> None:
    """A NaN whose distance is counted, or left out; an overflow as IEEE 754 rounds it."""
    exact = np.array([1.001, 2.0, -70000.0, np.nan, np.inf])
    right = np.array([1.0009765625, 2.0, -np.inf, np.nan, np.inf], np.float16)
    assert_max_ulp(right, exact, 0.5)
    wrong = right.copy()
    wrong[[0, 1]] = [3.0, np.nan]
    message = message_of(assert_max_ulp, wrong, exact, 0.5)
    first = "1 of 5 numbers are infinite or NaN where the expected ones are finite, the first at"
    assert message.startswith(f"{first} index 1")
    wrong[1], wrong[4] = 2.0, 65504.0
    message = message_of(assert_max_ulp, wrong, exact, 0.5)
    assert message.startswith(
        "2 of 5 numbers differ (40 %) by more than 0.5 ulp of fp16, the worst"
    )
    assert "index 4" in message
