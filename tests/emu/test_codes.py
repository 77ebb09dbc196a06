"""`encode` and `decode`: every code of every format of up to 16 bits, on both engines."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.ops import Ops
from roundscope.emu.backends.xla.ops import xla_ops
from roundscope.emu.explanation.encoding import code_of
from roundscope.emu.formats.codes import decode, encode
from roundscope.emu.formats.format import NAMED, Format, format_named
from tests.checks.exhaustive import REFERENCES

USER = ("e4m3", "e2m1", "e3m4", "e8m3", "e10m5", "e11m4")
SMALL = tuple(f for f in map(format_named, (*NAMED, *USER)) if f.bits <= 16)
formats = pytest.mark.parametrize("f", SMALL, ids=lambda f: f.name)


@contextmanager
def engine(name: str) -> Iterator[Ops]:
    """The record of one engine, with 64-bit types."""
    with jax.enable_x64(True):
        yield numpy_ops() if name == "numpy" else xla_ops(jnp.int64(0))


engines = pytest.mark.parametrize("name", ["numpy", "xla"])


def codes_of(f: Format) -> np.ndarray:
    return np.arange(1 << f.bits, dtype=np.int64)


def quiet(f: Format, codes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The codes, with every NaN's replaced by the one that `encode` writes for it, sign apart."""
    nan = code_of(math.nan, f)
    sign = 1 << (f.bits - 1) if f.signed else 0
    return codes if nan is None else np.where(np.isnan(x), nan | (codes & sign), codes)


@formats
@engines
def test_every_code_comes_back(f: Format, name: str) -> None:
    """encode(decode(code)) = code; a NaN keeps its sign and takes the canonical code."""
    codes = codes_of(f)
    if name == "xla" and f.emin == -1022:  # it flushes binary64's own subnormal numbers
        codes = codes[(codes & ((1 << (f.bits - 1)) - 1)) >> (f.precision - 1) > 0]
    with engine(name) as ops:
        x = decode(ops, ops.xp.asarray(codes), f)
        back = np.asarray(encode(ops, x, f))
    x = np.asarray(x)
    assert x.dtype == np.float64
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, quiet(f, codes, x))


@pytest.mark.parametrize("reference", REFERENCES)
@engines
def test_codes_are_ml_dtypes(reference: str, name: str) -> None:
    """The bit patterns of ml_dtypes (NumPy's float16) are our codes, both ways, signed zeros
    included.
    """
    f, dtype = format_named(reference), REFERENCES[reference]
    codes = codes_of(f)
    with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
        theirs = codes.astype(np.uint16 if f.bits > 8 else np.uint8).view(dtype).astype(np.float64)
    with engine(name) as ops:
        ours = np.asarray(decode(ops, ops.xp.asarray(codes), f))
        back = np.asarray(encode(ops, ops.xp.asarray(theirs), f))
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    number = ~np.isnan(ours)
    assert np.array_equal(ours[number].view(np.int64), theirs[number].view(np.int64))
    np.testing.assert_array_equal(back[number], codes[number])


@formats
def test_magnitudes_are_ranks(f: Format) -> None:
    """Codes of one sign grow with the magnitude by one number each; exact arithmetic gives the same
    code.
    """
    magnitudes = codes_of(f)[: 1 << (f.bits - int(f.signed))]
    x = decode(numpy_ops(), magnitudes, f)
    finite = x[np.isfinite(x)]
    assert (np.diff(finite) > 0).all()
    assert finite[-1] == f.max_finite
    assert finite[0] == (0.0 if f.zero else f.min_positive)
    step = max(1, finite.size // 500)
    assert [code_of(v, f) for v in finite[::step].tolist()] == magnitudes[
        : finite.size : step
    ].tolist()


@formats
def test_specials(f: Format) -> None:
    """Infinities, NaN, the smallest and the largest subnormal number, both zeros."""
    values = (
        [math.nan] * f.nan
        + [math.inf, -math.inf] * (f.inf and f.signed)
        + [f.min_positive, f.min_normal, f.max_finite]
    )
    values += (
        [0.0] * f.zero + [-0.0] * f.negative_zero + [-f.min_positive, -f.max_finite] * f.signed
    )
    values += [f.min_normal - f.min_positive] * (f.precision > 1)
    x = np.array(values)
    codes = encode(numpy_ops(), x, f)
    assert codes.tolist() == [code_of(v, f) for v in values]
    back = decode(numpy_ops(), codes, f)
    nan = np.isnan(x)
    assert np.array_equal(np.isnan(back), nan)
    assert np.array_equal(back[~nan].view(np.int64), x[~nan].view(np.int64))


def test_known_codes() -> None:
    """A few that can be read off the specifications."""
    known = {
        "bf16": {1.0: 0x3F80, -2.0: 0xC000, math.inf: 0x7F80},
        "e4m3fn": {448.0: 0x7E, 2.0**-9: 0x01, -0.0: 0x80},
        "e5m2": {57344.0: 0x7B, math.inf: 0x7C},
        "e4m3fnuz": {240.0: 0x7F, 1.0: 0x40},
        "e2m1fn": {0.5: 1, 6.0: 7, -6.0: 15},
        "e1m2fn": {0.25: 1, 1.0: 4, 1.75: 7, -0.0: 8, -1.75: 15},
        "e4m3b11fnuz": {30.0: 0x7F, 1.0: 0x58, 2.0**-13: 1, -30.0: 0xFF},
        "e8m0fnu": {2.0**-127: 0, 1.0: 127, 2.0**127: 254},
    }
    for name, pairs in known.items():
        assert encode(numpy_ops(), np.array(list(pairs)), format_named(name)).tolist() == list(
            pairs.values()
        )
