"""exp of a binary32 number inside a GPU's kernels: rounded correctly to binary32, in 14 binary64 operations; of a bfloat16 number, in 10.

e^x = 2^k e^r, k = round(x / ln 2), r = x - k ln 2, |r| <= 0.347; e^r = 1 + r + r^2 g(r), g by Remez' exchange.

binary32   g of degree 8, |r^2 g(r) - (e^r - 1 - r)| < 2^-51.5; k ln 2 in two parts. Fused multiply-adds leave an error of about 2^-52. Of
           the 2^32 arguments 120 come within 2^-46 of a rounding boundary, and every one falls on the right side (`make gpu-check` runs
           all 2^32)
bfloat16   g of degree 5, 2^-34: none of its 2^16 arguments is that near to a boundary, or it falls on the right side (run, too)
"""

import struct
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from emu.gpu_convert import instruction

LN2 = "0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56"
LOG2_E = "0x1.71547652b82fep+0"
MAGIC = "0x1.8p+52"  # added and taken away again: a binary64 number rounded to a whole one, which is in the low word between


class _Series(NamedTuple):
    ln2: tuple[str, ...]
    g: tuple[str, ...]  # from the highest power on


BINARY32 = _Series(LN2, (
    "0x1.28bc2ca6e27e8p-22", "0x1.72ea2daf1000cp-19", "0x1.a0198994b8678p-16", "0x1.a0198c4dddec3p-13", "0x1.6c16c18a5ce8fp-10",
    "0x1.1111112603de5p-7", "0x1.555555554ec7ap-5", "0x1.55555555505fbp-3", "0x1.000000000000ep-1",
))  # fmt: skip
BFLOAT16 = _Series(LN2[:1], (
    "0x1.a17e0849c6dfdp-13", "0x1.6da76bab2b2c8p-10", "0x1.1110ab6f50a74p-7", "0x1.5554708f903a4p-5", "0x1.555555742f345p-3",
    "0x1.0000004572a0cp-1",
))  # fmt: skip


def exp32(x: Array, name: str) -> Array:
    """e^x of a float32 array, rounded once to nearest even; NaN for NaN. name: a format that holds x, bf16 or another."""
    return instruction(_text(BFLOAT16 if name == "bf16" else BINARY32), jnp.float32, x)


def _text(series: _Series) -> str:
    """Beyond [-110, 100] the result is 0 or infinity anyway."""
    reduced = f"fma.rn.f64 r, k, {_constant(series.ln2[0], -1.0)}, x; "
    reduced += "".join(f"fma.rn.f64 r, k, {_constant(part, -1.0)}, r; " for part in series.ln2[1:])
    terms = "".join(f"fma.rn.f64 p, p, r, {_constant(c)}; " for c in (*series.g[1:], "0x1p+0", "0x1p+0"))
    return f"""{{ .reg .f32 z; .reg .f64 x, k, r, p; .reg .b32 whole, unused, low, high;
        max.NaN.f32 z, $1, 0fC2DC0000; min.NaN.f32 z, z, 0f42C80000; cvt.f64.f32 x, z;
        fma.rn.f64 k, x, {_constant(LOG2_E)}, {_constant(MAGIC)}; mov.b64 {{whole, unused}}, k; sub.rn.f64 k, k, {_constant(MAGIC)};
        {reduced}
        mov.f64 p, {_constant(series.g[0])}; {terms}
        mov.b64 {{low, high}}, p; shl.b32 whole, whole, 20; add.s32 high, high, whole; mov.b64 p, {{low, high}};
        cvt.rn.f32.f64 $0, p; }}"""


def _constant(text: str, sign: float = 1.0) -> str:
    """A binary64 number as PTX writes its bits."""
    return "0d" + struct.pack(">d", sign * float.fromhex(text)).hex().upper()
