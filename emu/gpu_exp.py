"""exp of a binary32 number inside a GPU's kernels: rounded correctly, in 14 binary64 operations.

e^x = 2^k e^r, k = round(x / ln 2), r = x - k ln 2 in two parts, |r| <= 0.347; e^r = 1 + r + r^2 g(r), g of degree 8 by Remez' exchange,
|r^2 g(r) - (e^r - 1 - r)| < 2^-51.5. Fused multiply-adds leave an error of about 2^-52: no more than 120 of the 2^32 arguments come within
2^-46 of a rounding boundary, and with these coefficients every one of them falls on the right side (`make gpu-check` runs all 2^32).
"""

import struct

import jax.numpy as jnp
from jax import Array

from emu.gpu_convert import instruction

LN2 = "0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56"
LOG2_E = "0x1.71547652b82fep+0"
MAGIC = "0x1.8p+52"  # added and taken away again: a binary64 number rounded to a whole one, which is in the low word between
G = (
    "0x1.28bc2ca6e27e8p-22", "0x1.72ea2daf1000cp-19", "0x1.a0198994b8678p-16", "0x1.a0198c4dddec3p-13", "0x1.6c16c18a5ce8fp-10",
    "0x1.1111112603de5p-7", "0x1.555555554ec7ap-5", "0x1.55555555505fbp-3", "0x1.000000000000ep-1",
)  # fmt: skip


def exp32(x: Array) -> Array:
    """e^x of a float32 array, rounded once to nearest even; NaN for NaN."""
    return instruction(_text(), jnp.float32, x)


def _text() -> str:
    """Beyond [-110, 100] the result is 0 or infinity anyway."""
    high, low = (_constant(part, -1.0) for part in LN2)
    terms = "".join(f"fma.rn.f64 p, p, r, {_constant(c)}; " for c in (*G[1:], "0x1p+0", "0x1p+0"))
    return f"""{{ .reg .f32 z; .reg .f64 x, k, r, p; .reg .b32 whole, unused, low, high;
        max.NaN.f32 z, $1, 0fC2DC0000; min.NaN.f32 z, z, 0f42C80000; cvt.f64.f32 x, z;
        fma.rn.f64 k, x, {_constant(LOG2_E)}, {_constant(MAGIC)}; mov.b64 {{whole, unused}}, k; sub.rn.f64 k, k, {_constant(MAGIC)};
        fma.rn.f64 r, k, {high}, x; fma.rn.f64 r, k, {low}, r;
        mov.f64 p, {_constant(G[0])}; {terms}
        mov.b64 {{low, high}}, p; shl.b32 whole, whole, 20; add.s32 high, high, whole; mov.b64 p, {{low, high}};
        cvt.rn.f32.f64 $0, p; }}"""


def _constant(text: str, sign: float = 1.0) -> str:
    """A binary64 number as PTX writes its bits."""
    return "0d" + struct.pack(">d", sign * float.fromhex(text)).hex().upper()
