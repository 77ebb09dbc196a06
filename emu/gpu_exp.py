"""exp of a binary32 number inside a GPU's kernels: rounded correctly to binary32, in 8 binary64 operations; of a bfloat16 number, in 6.

e^x = 2^(k / 32) e^r = T + T r q(r),   k = round(32 x / ln 2),   r = x - k ln 2 / 32, |r| < 0.0109,   T = 2^(k / 32)

k and the first part of r are binary32 arithmetic, r's exactly: k has 13 bits, the first part of ln 2 / 32 has 10. T is 2^(k // 32) times
one of 32 numbers that a warp's lanes hold, one each: a shuffle fetches that of lane k mod 32. q = 1 + c_2 r + c_3 r^2 ..., by Remez.

binary32   q of degree 4, |r q(r) - (e^r - 1)| < 2^-52.9; the whole within 2^-51.9. Of the 2^32 arguments 120 come within 2^-46 of a
           rounding boundary, and every one falls on the right side (`make gpu-check` runs all 2^32)
bfloat16   q of degree 2, about 2^-32.6, its two numbers moved a little until all of the 2^16 arguments come out right (run, too)
"""

import struct
from decimal import Decimal

import jax.numpy as jnp
from jax import Array

from emu.gpu_convert import assembled

LANES = 32
SCALE = "0x1.715476p+5"  # 32 / ln 2 in binary32
LN2 = "0x1.63p-6", "-0x1.bd0105c610ca8p-18"  # ln 2 / 32: ten bits, and the rest in binary64
MAGIC = "0x1.8p+23"  # added and taken away again: a binary32 number rounded to a whole one, which is in its low bits between
WHOLE = "0x1.800004b4p+52"  # those bits as the low word of a binary64 number 1.5 2^52 + ...: this and k
LEAST, LARGEST = "-0x1.b8p+6", "0x1.9p+6"  # -110 and 100: beyond them the result is 0 or infinity anyway
TOGETHER, THREADS = 32, 128  # elements of a thread at a time; threads of 64 rows of a tile

# q from the highest power on, but for its last number, 1
BINARY32 = "0x1.11115d8aec0eap-7", "0x1.5555db2a87e24p-5", "0x1.5555555548d6ep-3", "0x1.ffffffffd4458p-2"
BFLOAT16 = "0x1.553f5a064586p-3", "0x1.000084905207cp-1"


def exp32(x: Array, name: str, zero: Array) -> Array:
    """e^x of a float32 array, rounded once to nearest even; NaN for NaN. Every lane of a warp has to come here.

    name  a format that holds x, bf16 or another;  zero: an integer 0 that no compiler knows
    """
    together = 2 if x.ndim < 2 else max(1, min(TOGETHER, x.size // THREADS))
    text = _text(BFLOAT16 if name == "bf16" else BINARY32, together)
    constraints = ",".join(["=f"] * together + ["f"] * together + ["r"] * together)
    return assembled(text, constraints, together, jnp.float32, x, jnp.broadcast_to(zero.astype(jnp.int32), x.shape))


def powers() -> list[float]:
    """2^(n / 32) for every lane n, rounded once."""
    return [float(Decimal(2) ** (Decimal(n) / LANES)) for n in range(LANES)]


def _text(q: tuple[str, ...], together: int) -> str:
    """PTX for some elements at a time, an instruction for each in turn. An operation waits for the one before it, and the assembler,
    to save registers, would draw those of one element together. A branch that is never taken, before the polynomial, keeps it from that:
    a fused kernel is faster by a fifth.
    """
    registers = (
        ".f32 z#", ".f32 k#", ".f64 r#", ".f64 whole#", ".f64 t#", ".f64 q#", ".b32 bits#", ".b32 low#", ".b32 high#",
    )  # fmt: skip
    reduction = [
        f"max.NaN.f32 z#, %, {_single(LEAST)};", f"min.NaN.f32 z#, z#, {_single(LARGEST)};",
        f"fma.rn.f32 k#, z#, {_single(SCALE)}, {_single(MAGIC)};", "mov.b32 bits#, k#;", f"sub.rn.f32 k#, k#, {_single(MAGIC)};",
        f"fma.rn.f32 z#, k#, {_single(LN2[0], -1.0)}, z#;", "cvt.f64.f32 r#, z#;",
        f"mov.b64 whole#, {{bits#, {_double(WHOLE)[:10].replace('d', 'x')}}};", f"sub.rn.f64 whole#, whole#, {_double(WHOLE)};",
        f"fma.rn.f64 r#, whole#, {_double(LN2[1], -1.0)}, r#;",
    ]  # fmt: skip
    fetched = [
        "shfl.sync.idx.b32 low#, lane_low, bits#, 31, 0xFFFFFFFF;", "shfl.sync.idx.b32 high#, lane_high, bits#, 31, 0xFFFFFFFF;",
        "shl.b32 bits#, bits#, 15;", "add.s32 high#, high#, bits#;", "mov.b64 t#, {low#, high#};",
    ]  # fmt: skip
    power = [
        f"mov.f64 q#, {_double(q[0])};", *(f"fma.rn.f64 q#, q#, r#, {_double(c)};" for c in (*q[1:], "0x1p+0")), "mul.rn.f64 r#, r#, t#;",
        "fma.rn.f64 t#, r#, q#, t#;", "cvt.rn.f32.f64 @, t#;",
    ]  # fmt: skip
    never = [".reg .pred never;", f"setp.ne.s32 never, ${2 * together}, 0;", "@never bra NEVER;"]
    lines = [
        *_table(), *_each([f".reg {r};" for r in registers] + reduction + fetched, together), *never, *_each(power, together),
        "bra DONE;", "NEVER: trap;", "DONE:",
    ]  # fmt: skip
    return "{ " + "\n".join(lines) + " }"


def _table() -> list[str]:
    """A lane's own power of two. Its high word is less n 2^15: added to k 2^15 it is that of 2^(k / 32), k = 32 (k // 32) + n."""
    words = []
    for n, power in enumerate(powers()):
        bits = int.from_bytes(struct.pack(">d", power)) - (n << 47)
        words.append(f"0x{bits:X}")
    return [
        f".const .align 8 .b64 powers[{LANES}] = {{{', '.join(words)}}};", ".reg .b32 lane, lane_low, lane_high;", ".reg .b64 at;",
        "mov.u32 lane, %laneid;", "mov.u64 at, powers;", "mad.wide.u32 at, lane, 8, at;", "ld.const.v2.b32 {lane_low, lane_high}, [at];",
    ]  # fmt: skip


def _each(lines: list[str], together: int) -> list[str]:
    """Every line for every element: # its number, % its argument, @ its result."""
    return [line.replace("#", str(n)).replace("%", f"${together + n}").replace("@", f"${n}") for line in lines for n in range(together)]


def _double(text: str, sign: float = 1.0) -> str:
    """A binary64 number as PTX writes its bits."""
    return "0d" + struct.pack(">d", sign * float.fromhex(text)).hex().upper()


def _single(text: str, sign: float = 1.0) -> str:
    """A binary32 number as PTX writes its bits."""
    return "0f" + struct.pack(">f", sign * float.fromhex(text)).hex().upper()
