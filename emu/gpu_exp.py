"""exp of a binary32 number inside a GPU's kernels: rounded correctly to binary32, in 14 binary64 operations; of a bfloat16 number, in 10.

e^x = 2^k e^r, k = round(x / ln 2), r = x - k ln 2, |r| <= 0.347; e^r = 1 + r + r^2 g(r), g by Remez' exchange.

binary32   g of degree 8, |r^2 g(r) - (e^r - 1 - r)| < 2^-51.5; k ln 2 in two parts. Fused multiply-adds leave an error of about 2^-52. Of
           the 2^32 arguments 120 come within 2^-46 of a rounding boundary, and every one falls on the right side (`make gpu-check` runs
           all 2^32)
bfloat16   g of degree 5, 2^-34: none of its 2^16 arguments is that near to a boundary, or it falls on the right side (run, too)
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from emu.gpu_convert import assembled, in_turn

LN2 = "0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56"
LOG2_E = "0x1.71547652b82fep+0"
AT_ONCE = 32  # elements of a thread that are under way together
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


def exp32(x: Array, name: str, zero: Array, at_once: int) -> Array:
    """e^x of an array of binary32 numbers, rounded once to nearest even, as a float32 array; NaN for NaN.

    name  a format that holds x, bf16 or another;  zero: an integer 0 that no compiler knows
    at_once  elements of a thread that are under way together: they hide each other's latency, and take registers
    """
    together = in_turn(x, at_once)
    text = _text(BFLOAT16 if name == "bf16" else BINARY32, together)
    constraints = ",".join(["=f"] * together + ["f"] * together + ["r"] * together)
    return assembled(text, constraints, together, jnp.float32, x.astype(jnp.float32), jnp.broadcast_to(zero.astype(jnp.int32), x.shape))


def _text(series: _Series, together: int) -> str:
    """PTX for some elements at a time, an instruction for each in turn. An operation waits for the one before it, and the assembler,
    to save registers, would draw those of one element together. A branch that is never taken, before the series, keeps it from that: a
    fused kernel is faster by a fifth.
    """
    reduction, power = evaluated(series, [f"${together + n}" for n in range(together)], [f"${n}" for n in range(together)])
    never = [".reg .pred never;", f"setp.ne.s32 never, ${2 * together}, 0;", "@never bra NEVER;"]
    return "{ " + "\n".join([*reduction, *never, *power, "bra DONE;", "NEVER: trap;", "DONE:"]) + " }"


def evaluated(series: _Series, arguments: Sequence[str], results: Sequence[str]) -> tuple[list[str], list[str]]:
    """PTX from registers to registers: the reduction, and the power. Beyond [-110, 100] the result is 0 or infinity anyway."""
    registers = (".f32 z#", ".f64 x#", ".f64 k#", ".f64 p#", ".b32 whole#", ".b32 unused#", ".b32 low#", ".b32 high#")
    reduction = [
        "max.NaN.f32 z#, %, 0fC2DC0000;", "min.NaN.f32 z#, z#, 0f42C80000;", "cvt.f64.f32 x#, z#;",
        f"fma.rn.f64 k#, x#, {_constant(LOG2_E)}, {_constant(MAGIC)};", "mov.b64 {whole#, unused#}, k#;",
        f"sub.rn.f64 k#, k#, {_constant(MAGIC)};", *(f"fma.rn.f64 x#, k#, {_constant(part, -1.0)}, x#;" for part in series.ln2),
    ]  # fmt: skip
    power = [
        f"mov.f64 p#, {_constant(series.g[0])};",
        *(f"fma.rn.f64 p#, p#, x#, {_constant(c)};" for c in (*series.g[1:], "0x1p+0", "0x1p+0")),
        "mov.b64 {low#, high#}, p#;", "shl.b32 whole#, whole#, 20;", "add.s32 high#, high#, whole#;", "mov.b64 p#, {low#, high#};",
        "cvt.rn.f32.f64 @, p#;",
    ]  # fmt: skip
    own = [(f"{n}", x, y) for n, (x, y) in enumerate(zip(arguments, results, strict=True))]

    def each(lines: list[str]) -> list[str]:  # for every element: # its number, % its argument, @ its result
        return [line.replace("#", n).replace("%", x).replace("@", y) for line in lines for n, x, y in own]

    return each([f".reg {r};" for r in registers] + reduction), each(power)


def _constant(text: str, sign: float = 1.0) -> str:
    """A binary64 number as PTX writes its bits."""
    return "0d" + struct.pack(">d", sign * float.fromhex(text)).hex().upper()
