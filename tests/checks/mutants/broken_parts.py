"""Broken versions of the parts of a kernel, which planted faults put in place of the good ones."""

import math

import ml_dtypes
import numpy as np

__all__ = [
    "clipped",
    "flushed",
    "garbage",
    "in_order",
    "lazy_maximum",
    "losing_last_row",
    "short_exp",
    "through_fp16",
    "ties_away",
    "truncated",
    "unscaled_e4m3",
]


def truncated(x):
    """Cut float32 numbers to BF16: the lower half of the bits is dropped."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def ties_away(x):
    """Round float32 numbers to nearest BF16, but ties away from zero: add half an ulp, then cut."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return truncated((bits + np.uint32(0x8000)).view(np.float32))


def through_fp16(x):
    """Round to FP16 first and to BF16 then: two roundings, and the range of FP16."""
    return x.astype(np.float16).astype(ml_dtypes.bfloat16).astype(np.float32)


def unscaled_e4m3(x):
    """Round to E4M3 without a scale: numbers below 2^-10 become zero."""
    return x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def flushed(x):
    """Replace numbers below 2^-14, the smallest normal FP16 number, by zero."""
    return np.where(np.abs(x) < 2.0**-14, np.float32(0), x)


def clipped(x):
    """Clip at 448 / 256, the largest E4M3 number under the scale 2^8."""
    return np.minimum(x, np.float32(448 / 256))


def lazy_maximum(m, s):
    """Return the running maximum, updated only if it grew by more than a factor 2^4 of P."""
    grown = np.maximum(m, s.max(-1, keepdims=True))
    return np.where(grown - m > np.float32(4 * math.log(2)), grown, m)


def short_exp(x):
    """Return exp by a Taylor polynomial of degree 3 in the fraction of x log2(e).

    It is exact where the fraction is 0 and up to 0.6 % too small elsewhere.
    """
    t = np.maximum(x * np.float32(math.log2(math.e)), np.float32(-150))
    whole = np.floor(t)
    f = (t - whole) * np.float32(math.log(2))
    polynomial = 1 + f * (1 + f * (np.float32(1 / 2) + f * np.float32(1 / 6)))
    return np.ldexp(polynomial, whole.astype(np.int32)).astype(np.float32)


def garbage(like):
    """Return what uninitialized memory may hold: other small numbers at every call."""
    return np.random.default_rng().standard_normal(like.shape, np.float32) / 16


def losing_last_row(x):
    """Lose the last row of a tile in about half of the heads, others at every call: a race."""
    lost = np.random.default_rng().random((*x.shape[:2], 1)) < 0.5
    x[:, :, -1] = np.where(lost, 0, x[:, :, -1])
    return x


def in_order(tiles, batch):
    """Return the tiles in ascending order for a single batch entry, descending for more."""
    return list(tiles) if batch == 1 else list(tiles)[::-1]
