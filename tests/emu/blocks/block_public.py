"""The rules of two public libraries, written anew in NumPy's binary32 from what their sources do,
step by step.

microxcaling (mx/mx_ops.py, mx/elemwise_ops.py): quantise and back, blocks along the last axis.
torchao (prototype/mx_formats/mx_tensor.py, nvfp4_tensor.py): the scale rules and what they scale,
as on its main branch after 0.18.0. Element casts there are the format's cast to nearest even,
saturating; a NaN or an infinity makes the whole block NaN. What 0.18.0 itself does otherwise is
`torchao_018_rceil`, and EVEN, which gives a finite scale where the rounded maximum is no binary32
number.
"""

import math

import ml_dtypes
import numpy as np

F32 = np.float32
MICROXCALING = {  # exponent bits, mantissa bits with sign and leading one, emax, largest
    "mxfp8_e4m3": (4, 5, 8, 448.0),
    "mxfp8_e5m2": (5, 4, 15, 57344.0),
    "mxfp6_e3m2": (3, 4, 4, 28.0),
    "mxfp6_e2m3": (2, 5, 2, 7.5),
    "mxfp4": (2, 3, 2, 6.0),
    "mxint8": (0, 8, 0, 127 / 64),
}
TORCHAO = {  # dtype, largest, exponent of the largest, mantissa bits
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8, 3),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0, 15, 2),
    "mxfp6_e3m2": (ml_dtypes.float6_e3m2fn, 28.0, 4, 2),
    "mxfp6_e2m3": (ml_dtypes.float6_e2m3fn, 7.5, 2, 3),
    "mxfp4": (ml_dtypes.float4_e2m1fn, 6.0, 2, 1),
}


def floor_log2(x: np.ndarray) -> np.ndarray:
    """floor of log2 rounded to binary32, as a library's float32 log2 gives it at best."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.floor(np.log2(x.astype(np.float64)).astype(F32))


def two_to(e: np.ndarray) -> np.ndarray:
    return np.exp2(e.astype(np.float64)).astype(F32)


def microxcaling(x: np.ndarray, name: str, mode: str = "nearest") -> np.ndarray:
    """quantize_mx_op of blocks (n, k), scale_bits 8; mode: nearest (ties away), even, or floor
    (toward zero).
    """
    exponent_bits, bits, emax, largest = MICROXCALING[name]
    top = np.abs(x).max(axis=1, keepdims=True)
    shared = floor_log2(np.where(top == 0, F32(2.0**-126), top)) - F32(emax)
    shared = np.where(shared > 127, F32(np.nan), np.maximum(shared, F32(-127)))
    scale = two_to(shared)
    a = x / scale
    e = (
        np.maximum(
            floor_log2(np.where(a == 0, F32(1), np.abs(a))), F32(2 - 2.0 ** (exponent_bits - 1))
        )
        if exponent_bits
        else F32(0) * a
    )
    n = np.abs(a / two_to(e) * F32(2.0 ** (bits - 2)))
    if mode == "nearest":
        n = np.floor(n + F32(0.5))
    elif mode == "even":
        n = np.floor(n + F32(0.5)) - ((n - F32(0.5)) % F32(2) == 0)
    else:
        n = np.floor(n)
    q = np.clip(np.sign(a) * n / F32(2.0 ** (bits - 2)) * two_to(e), F32(-largest), F32(largest))
    return (q * scale).astype(F32)


def torchao_scale(top: np.ndarray, name: str, rule: str) -> np.ndarray:
    """The biased E8M0 code (int32; 255 is NaN) of finite or infinite maxima (float32)."""
    _, largest, emax, mantissa = TORCHAO[name]
    if rule == "rceil":
        ratio = (top * (F32(1.0) / F32(largest))).astype(F32)
        b = ratio.view(np.int32)
        e, f = b >> 23 & 0xFF, b & 0x7FFFFF
        code = e + np.where(e == 0, f > 0x400000, f != 0)
        return np.where(np.isfinite(ratio), code, 255)
    if rule == "even":
        b = (top.view(np.int32) + (1 << (22 - mantissa))) & np.int32(-(1 << 23))
        top = b.view(F32)
    b = top.view(np.int32)
    e = (b >> 23 & 0xFF) - 127 + ((b & 0x7FFFFF) > 0 if rule == "ceil" else 0)
    return np.where(np.isfinite(top), np.clip(e - emax, -127, 128) + 127, 255)


def torchao_018_rceil(top: np.ndarray, name: str) -> np.ndarray:
    """The exponent of RCEIL in torchao 0.18.0: ceil(log2(top / m)), quotient and logarithm rounded
    to binary32.
    """
    quotient = (top / F32(TORCHAO[name][1])).astype(F32)
    return np.ceil(np.log2(quotient.astype(np.float64)).astype(F32))


def torchao(x: np.ndarray, name: str, rule: str) -> np.ndarray:
    """to_mx of blocks (n, k) and back."""
    dtype, largest, _, _ = TORCHAO[name]
    code = torchao_scale(np.abs(x).max(axis=1, keepdims=True), name, rule)
    scale = np.where(code == 255, F32(np.nan), two_to(code - 127))
    inverse = np.where(code == 255, F32(np.nan), two_to(127 - code))
    q = np.clip(x * inverse, F32(-largest), F32(largest)).astype(dtype).astype(F32)
    return (q * scale).astype(F32)


def torchao_nvfp4(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Elements (n, 16), scales (n, 1) and tensor scale, with per_tensor_amax_to_scale of x."""
    tensor = F32(np.abs(x).max()) / F32(448.0 * 6.0)
    ratio = np.abs(x).max(axis=1, keepdims=True) / F32(6.0) / tensor
    scales = np.clip(ratio, F32(2.0**-6), F32(448.0)).astype(ml_dtypes.float8_e4m3fn).astype(F32)
    q = np.clip(x / (tensor * scales), F32(-6.0), F32(6.0))
    return q.astype(ml_dtypes.float4_e2m1fn).astype(F32), scales, tensor


def just_below_half(a: np.ndarray) -> np.ndarray:
    """Where n + 0.5 in binary32 rounds up to 1: n = 0.5 - 2^-25."""
    return np.abs(a) == F32(0.5 - math.ldexp(1.0, -25))
