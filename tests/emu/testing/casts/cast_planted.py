"""Casts and quantizers with and without a planted fault, written without `emu`.

`mx` is a quantizer to MXFP8 E4M3 from OCP Microscaling Formats 1.0, 5.1 and 6.3; its keywords
replace one step each by a wrong one. `CASTS` and `QUANTIZERS` name each fault, the row that has to
fail, and words that have to stand in the sentence where a known behavior explains the fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np

F32 = np.float32
E4M3 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16
LARGEST, EMAX = 448.0, 8
NOISE = np.random.default_rng(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A function with a fault, the rounding it should have been, and how the fault shows."""

    name: str
    function: Callable
    asked: str
    row: str
    words: str = ""


def floor(top: np.ndarray) -> np.ndarray:
    return np.frexp(top)[1] - 1 - EMAX


def ceil(top: np.ndarray) -> np.ndarray:
    return np.frexp(np.nextafter(top, 0.0))[1] - EMAX


def rceil(top: np.ndarray) -> np.ndarray:
    """The smallest exponent e with top <= 448 2^e."""
    e = floor(top)
    return e + (top > LARGEST * np.ldexp(1.0, e))


def log2(top: np.ndarray) -> np.ndarray:
    """RCEIL by a logarithm in float32, which rounds to a whole number just above 448 2^k."""
    with np.errstate(divide="ignore"):
        e = np.ceil(np.log2((top.astype(F32) / F32(LARGEST)).astype(np.float64)).astype(F32))
    return np.where(top > 0, e, -200).astype(int)


def largest(x: np.ndarray) -> np.ndarray:
    return np.abs(x).max(axis=1)


def nearest(q: np.ndarray) -> np.ndarray:
    """Quotients in float64 to E4M3, to nearest even, saturating."""
    return np.clip(q, -LARGEST, LARGEST).astype(F32).astype(E4M3).astype(np.float64)


def on_grid(q: np.ndarray, whole: Callable) -> np.ndarray:
    """Quotients to E4M3 by a function that makes multiples of an ulp whole; saturating."""
    q = np.clip(q, -LARGEST, LARGEST)
    ulp = np.ldexp(1.0, np.maximum(np.frexp(q)[1] - 1, -6) - 3)
    return np.clip(whole(q / ulp) * ulp, -LARGEST, LARGEST)


def half_away(n: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(n) + 0.5), n)


def flushed(q: np.ndarray) -> np.ndarray:
    y = nearest(q)
    return np.where(np.abs(y) < 2.0**-6, y * 0, y)


def through_bf16(q: np.ndarray) -> np.ndarray:
    return nearest(np.clip(q, -LARGEST, LARGEST).astype(F32).astype(BF16).astype(np.float64))


def unsaturated(q: np.ndarray) -> np.ndarray:
    return np.clip(q, -1e4, 1e4).astype(F32).astype(E4M3).astype(np.float64)


def without_minus_zero(q: np.ndarray) -> np.ndarray:
    return nearest(q) + 0.0


def noisy(q: np.ndarray) -> np.ndarray:
    return nearest(q * (1 + 2.0**-5 * NOISE.uniform(-1, 1, q.shape)))


def half_to_240(q: np.ndarray) -> np.ndarray:
    return np.clip(nearest(q), -240.0, 240.0)


def split(x: np.ndarray, size: int) -> np.ndarray:
    short = -x.shape[1] % size
    return np.pad(x, ((0, 0), (0, short))).reshape(-1, size).astype(np.float64)


def mx(
    x: np.ndarray,
    *,
    exponent: Callable = floor,
    top: Callable = largest,
    element: Callable = nearest,
    size: int = 32,
    least: int = -127,
    shift: int = 0,
    stored: int = 0,
    divisor: float = 0.0,
    parts: bool = False,
):
    """x (rows, K) to MXFP8 E4M3 and back; `parts`: elements, and codes of the scales."""
    blocks = split(x, size)
    a = top(blocks)
    bad = ~np.isfinite(blocks).all(axis=1)
    e = np.clip(np.where(a > 0, exponent(np.where(bad, 1.0, a)), least), least, 127)
    e = np.roll(e, shift)
    p = element(blocks / np.maximum(np.ldexp(1.0, e), divisor)[:, None])
    p = np.where(bad[:, None], 0.0, p)
    rows, columns = x.shape
    if parts:
        codes = np.where(bad, 255, e + 127 + stored).astype(np.uint8)
        return p.astype(F32).reshape(rows, -1)[:, :columns].astype(E4M3), codes.reshape(rows, -1)
    scale = np.where(bad, np.nan, np.ldexp(1.0, e + stored))
    return (p * scale[:, None]).reshape(rows, -1)[:, :columns].astype(F32)


def along_columns(x: np.ndarray) -> np.ndarray:
    return mx(np.ascontiguousarray(x.T)).T


def nan_lost(x: np.ndarray) -> np.ndarray:
    return mx(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))


def infinity_lost(x: np.ndarray) -> np.ndarray:
    return mx(np.where(np.isinf(x), F32(LARGEST), x))


def nan_everywhere(x: np.ndarray) -> np.ndarray:
    return mx(x) + F32(0) * x.sum()


def zeros_divided(x: np.ndarray) -> np.ndarray:
    y = mx(x)
    zero = np.abs(x).reshape(-1, 32).max(axis=1) == 0
    return np.where(np.repeat(zero, 32).reshape(x.shape), np.nan, y)


def in_place(x: np.ndarray) -> np.ndarray:
    y = mx(x)
    x *= 2
    return y


def without_tail(x: np.ndarray) -> np.ndarray:
    whole = x.shape[1] // 32 * 32
    y = mx(np.ascontiguousarray(x[:, :whole]))
    return np.pad(y, ((0, 0), (0, x.shape[1] - whole)))


def nvfp4(x: np.ndarray, *, tensor: float | None = None, up: bool = False):
    """x (rows, K) to NVFP4: E2M1 in blocks of 16, scales in E4M3, one scale of the whole array."""
    blocks = x.reshape(-1, 16).astype(np.float64)
    finite = np.where(np.isfinite(blocks), blocks, 0)
    bad = ~np.isfinite(blocks).all(axis=1)
    whole = np.abs(finite).max()
    t = float(F32(whole / (448 * 6))) if whole else 1.0
    t = t if tensor is None else tensor
    exact = np.minimum(np.abs(finite).max(axis=1) / 6 / t, 448.0)
    s = on_grid(exact, np.rint).astype(F32).astype(E4M3)
    if up:
        above = (s.view(np.uint8) + 1).view(E4M3)
        s = np.where(s.astype(np.float64) < exact, above, s)
    s = np.maximum(s.astype(np.float64), 2.0**-9)
    q = np.clip(finite / (s * t)[:, None], -6, 6)
    ulp = np.ldexp(0.5, np.maximum(np.frexp(q)[1] - 1, 0))
    p = (np.rint(q / ulp) * ulp).astype(F32).astype(ml_dtypes.float4_e2m1fn).reshape(x.shape)
    scales = np.where(bad, np.nan, s).astype(F32).astype(E4M3).reshape(len(x), -1)
    return p, scales, F32(t)


def by_blocks(
    x: np.ndarray,
    *,
    least: float = 0.0,
    divided: Callable = lambda s: s,
    stored: Callable = lambda s: s,
    narrow: bool = True,
    zero: bool = False,
) -> np.ndarray:
    """x to E4M3 in blocks of 128 with an FP32 scale; its keywords plant a fault each."""
    if x.shape[1] % 128:
        raise ValueError("the last axis must be a multiple of 128")
    blocks = x.reshape(-1, 128)
    if zero:
        return x * 0
    top = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), F32(least))
    s = (top / F32(448)).astype(F32)
    s = np.where(s == 0, F32(2.0**-149), s)
    bad = ~np.isfinite(blocks).all(axis=1, keepdims=True)
    s = np.where(bad, F32(1), s)
    q = blocks / divided(s) if narrow else blocks.astype(np.float64) / divided(s)
    y = on_grid(q, np.rint) * stored(s).astype(np.float64)
    return np.where(bad, np.nan, y).astype(F32).reshape(x.shape)


def in_bf16(s: np.ndarray) -> np.ndarray:
    return s.astype(BF16).astype(F32)


PER_BLOCK = [
    ("quotient in float32", {}, "divided in float32"),
    ("floor of the maximum", {"least": 1e-12, "narrow": False}, "maxima of at least 1e-12"),
    ("scale in bf16", {"divided": in_bf16, "stored": in_bf16, "narrow": False}, "to bf16"),
    ("another scale stored", {"stored": in_bf16, "narrow": False}, "scales stored in bf16"),
    ("all zeros", {"zero": True}, "zero for every number"),
]
FLOOR, RCEIL = "mxfp8_e4m3", "mxfp8_e4m3:rceil"
QUANTIZERS = [
    Planted(name=name, function=function, asked=asked, row=row, words=words)
    for name, function, asked, row, words in (
        ("floor for rceil", mx, RCEIL, "scales", "rule floor, not rule rceil"),
        ("ceil for rceil", partial(mx, exponent=ceil), RCEIL, "scales", "rule ceil, not"),
        ("rceil for floor", partial(mx, exponent=rceil), FLOOR, "scales", "rule rceil, not"),
        (
            "log2 in float32",
            partial(mx, exponent=log2),
            RCEIL,
            "scales",
            "ceil(log2(maximum / largest element)) computed in float32",
        ),
        (
            "double rounding",
            partial(mx, element=through_bf16),
            FLOOR,
            "beside ties",
            "after rounding to bf16 first",
        ),
        (
            "subnormals flushed",
            partial(mx, element=flushed),
            FLOOR,
            "subnormals",
            "flushing subnormals to zero",
        ),
        (
            "ties away",
            partial(mx, element=partial(on_grid, whole=half_away)),
            FLOOR,
            "ties",
            "elements ties-to-away",
        ),
        (
            "truncation",
            partial(mx, element=partial(on_grid, whole=np.trunc)),
            FLOOR,
            "bias",
            "elements toward-zero",
        ),
        (
            "truncation and rceil",
            partial(mx, element=partial(on_grid, whole=np.trunc), exponent=rceil),
            FLOOR,
            "bias",
            "rule rceil, elements toward-zero",
        ),
        (
            "log2 in float32 and truncation",
            partial(mx, exponent=log2, element=partial(on_grid, whole=np.trunc)),
            RCEIL,
            "scales",
            "elements toward-zero, ceil(log2(maximum / largest element)) computed in float32",
        ),
        ("no saturation", partial(mx, element=unsaturated), FLOOR, "overflow", "become nan"),
        ("ends at 240", partial(mx, element=half_to_240), FLOOR, "round trip", ""),
        ("NaN lost", nan_lost, FLOOR, "NaN", ""),
        ("infinity lost", infinity_lost, FLOOR, "infinities", ""),
        ("NaN everywhere", nan_everywhere, FLOOR, "NaN stays", ""),
        ("zeros divided by zero", zeros_divided, FLOOR, "blocks of zeros", ""),
        (
            "scale of the block before",
            partial(mx, shift=1),
            FLOOR,
            "blocks moved",
            "the scale of the block before",
        ),
        ("other axis", along_columns, FLOOR, "blocks moved", "blocks along the other axis"),
        ("blocks of 16", partial(mx, size=16), FLOOR, "round trip", "blocks of 16"),
        ("blocks of 64", partial(mx, size=64), FLOOR, "blocks moved", "blocks of 64"),
        (
            "maximum without abs",
            partial(mx, top=lambda x: np.maximum(x.max(axis=1), 0)),
            FLOOR,
            "scales",
            "without its absolute value",
        ),
        (
            "scale not clamped",
            partial(mx, least=-160),
            FLOOR,
            "smallest blocks",
            "not clamped at the smallest",
        ),
        (
            "smallest scale not divided by",
            partial(mx, divisor=2.0**-126),
            FLOOR,
            "smallest elements",
            "divided by 2^-126 where the scale is 2^-127",
        ),
        (
            "code one too large",
            partial(mx, stored=1, parts=True),
            FLOOR,
            "scales",
            "stored exponents one too large",
        ),
        (
            "code one too small",
            partial(mx, stored=-1),
            FLOOR,
            "round trip",
            "stored exponents one too small",
        ),
        ("-0 lost", partial(mx, element=without_minus_zero), FLOOR, "signed zeros", ""),
        ("noise", partial(mx, element=noisy), FLOOR, "second call", ""),
        ("input changed", in_place, FLOOR, "input kept", ""),
        ("tail dropped", without_tail, FLOOR, "short last block", ""),
        ("no tensor scale", partial(nvfp4, tensor=1.0), "nvfp4", "tensor scale", ""),
        ("scales rounded up", partial(nvfp4, up=True), "nvfp4", "scales", "rule rceil, not"),
    )
]


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def cut(x: np.ndarray) -> np.ndarray:
    """BF16 by dropping the lower half of the bits."""
    return (bits(x) & np.uint32(0xFFFF0000)).view(F32)


def half_up(x: np.ndarray) -> np.ndarray:
    """BF16 by adding half an ulp to the bits, so that ties go away from zero; NaN is kept."""
    y = ((bits(x).astype(np.uint64) + 0x8000) & 0xFFFF0000).astype(np.uint32).view(F32)
    return np.where(np.isnan(x), x, y)


def nan_carried(x: np.ndarray) -> np.ndarray:
    """BF16 to nearest even on the bits without a test for NaN, whose largest payloads overflow."""
    b = bits(x).astype(np.uint64)
    b = b + 0x7FFF + ((b >> 16) & 1)
    return (b & 0xFFFF0000).astype(np.uint32).view(F32)


def without_sticky(x: np.ndarray) -> np.ndarray:
    """BF16 to nearest even of a number whose lowest 8 bits were dropped first."""
    return (bits(x) & np.uint32(0xFFFFFF00)).view(F32).astype(BF16)


def e4m3(x: np.ndarray, element: Callable = nearest, keep_nan: bool = True) -> np.ndarray:
    y = element(x.astype(np.float64)).astype(F32)
    return y if keep_nan else np.nan_to_num(y, nan=LARGEST)


def one_code_wrong(x: np.ndarray) -> np.ndarray:
    """E4M3 codes of a table whose entry for the least subnormal number is that of zero."""
    codes = e4m3(x).astype(E4M3).view(np.uint8).copy()
    codes[codes == 1] = 0
    return codes


def threshold_at_largest(x: np.ndarray) -> np.ndarray:
    """E4M3 that overflows to NaN above 448, where numbers up to 464 still round to 448."""
    y = x.astype(E4M3)
    return np.where(np.abs(x) > LARGEST, np.nan, y.astype(F32))


def through(x: np.ndarray, dtype: type, cuts: bool) -> np.ndarray:
    """E4M3 through another type, whose numbers are rounded to nearest or cut off toward zero."""
    x = np.clip(x, -65504, 65504)
    y = x.astype(dtype)
    if cuts:
        y = np.where(np.abs(y.astype(F32)) > np.abs(x), np.nextafter(y, dtype(0)), y)
    return e4m3(y.astype(F32))


def cut_to_bf16(x: np.ndarray) -> np.ndarray:
    """E4M3 of the upper halves of float32 numbers."""
    return e4m3(cut(np.clip(x, -65504, 65504)))


def with_few_bits(x: np.ndarray) -> np.ndarray:
    """BF16 by random bits of which the highest is missing: half an ulp is never added."""
    random = NOISE.integers(0, 1 << 15, x.shape, np.uint32)
    y = ((bits(x).astype(np.uint64) + random) & 0xFFFF0000).astype(np.uint32).view(F32)
    exact = (bits(x) & 0xFFFF) == 0
    return np.where(np.isfinite(x) & ~exact, y, x)


def noisy_e4m3(x: np.ndarray) -> np.ndarray:
    return e4m3(x, noisy)


def plain(x: np.ndarray) -> np.ndarray:
    """E4M3 by ml_dtypes, which does not saturate."""
    return x.astype(E4M3)


def negated(x: np.ndarray) -> np.ndarray:
    """E4M3 of an array that is negated in place on the way."""
    return e4m3(-np.negative(x, out=x))


CASTS = [
    Planted(name=name, function=function, asked=asked, row=row, words=words)
    for name, function, asked, row, words in (
        ("bits dropped", cut, "bf16", "bias", "bf16:toward-zero"),
        ("half an ulp added", half_up, "bf16", "ties", "bf16:ties-to-away"),
        ("NaN overflows", nan_carried, "bf16", "NaN", ""),
        ("sticky bits lost", without_sticky, "bf16", "beside ties", "No known rounding"),
        (
            "through fp16",
            lambda x: np.clip(x, -65504, 65504).astype(np.float16).astype(BF16),
            "bf16",
            "subnormals",
            "after rounding to fp16 first",
        ),
        (
            "through bf16",
            partial(e4m3, element=through_bf16),
            "e4m3fn",
            "beside ties",
            "after rounding to bf16 first",
        ),
        (
            "through fp16, cut off",
            partial(through, dtype=np.float16, cuts=True),
            "e4m3fn",
            "beside ties",
            "after cutting off to fp16 first",
        ),
        (
            "through bf16, cut off",
            cut_to_bf16,
            "e4m3fn",
            "beside ties",
            "after cutting off to bf16 first",
        ),
        ("all zeros", lambda x: x * 0, "e4m3fn", "round trip", "but zero for every number"),
        ("constant", lambda x: x * 0 + F32(1), "e4m3fn", "round trip", "the constant 1"),
        ("few random bits", with_few_bits, "bf16:stochastic", "bias", "but bias fails"),
        ("flushed", partial(e4m3, element=flushed), "e4m3fn", "subnormals", "flushing subnormals"),
        (
            "no saturation",
            lambda x: x.astype(E4M3),
            "e4m3fn",
            "overflow",
            "e4m3fn:ties-to-even:nan",
        ),
        ("saturation", e4m3, "e4m3fn:nan", "overflow", "e4m3fn:ties-to-even:saturate"),
        ("threshold at 448", threshold_at_largest, "e4m3fn:nan", "overflow", "No known rounding"),
        ("NaN lost", partial(e4m3, keep_nan=False), "e4m3fn", "NaN", ""),
        ("-0 lost", partial(e4m3, element=without_minus_zero), "e4m3fn", "signed zeros", ""),
        ("one code wrong", one_code_wrong, "e4m3fn", "round trip", "No known rounding"),
        (
            "down",
            partial(e4m3, element=partial(on_grid, whole=np.floor)),
            "e4m3fn",
            "bias",
            "toward-negative",
        ),
        ("noise", noisy_e4m3, "e4m3fn", "second call", "No known rounding"),
        ("nothing drawn", e4m3, "e4m3fn:stochastic", "bias", "nothing is drawn"),
        (
            "input changed",
            lambda x: e4m3(np.negative(np.negative(x, out=x))),
            "e4m3fn",
            "input kept",
            "",
        ),
    )
]
