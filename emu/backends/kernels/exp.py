"""exp of a binary32 number inside a GPU's kernels, rounded correctly to binary32.

It takes 13 binary64 operations, or 10 for a bfloat16 number. The method is e^x = 2^k e^r with k =
round(x / ln 2), r = x - k ln 2 and |r| <= 0.347, where ln 2 is one binary64 number. Then e^r = 1 +
r f(r) with a polynomial f.

**Arguments in binary32.** f has degree 9, and |r f(r) - (e^r - 1)| < 2^-43 e^r. This bound alone is
not enough, since for 3,038 of the 2^32 arguments e^x lies within 2^-42 of a rounding boundary. A
linear program chose the coefficients so that each of these results, with the error of k ln 2, is on
the right side of its boundary. The low words of the first four coefficients are 0, so that they fit
into an instruction (docs/notes/decisions.md). `make gpu-check` checks all 2^32 arguments.

**Arguments in bfloat16.** f has degree 6 and comes from Remez' exchange, with an error of 2^-33.
For each of the 2^16 arguments e^x is farther than that from a boundary or falls on the right side
of it; all were run, too.
"""

import struct
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from roundscope.emu.backends.kernels.convert import Assembler, by_triton, in_turn

LN2 = "0x1.62e42fefa39efp-1"
LOG2_E = "0x1.71547652b82fep+0"
AT_ONCE = 32  # the number of elements that a thread computes at the same time
# adding it to a binary64 number rounds the number to a whole one, which is then in the low word;
# subtracting it again gives the whole number
MAGIC = "0x1.8p+52"


# the coefficients of f, the highest power first
BINARY32 = (
    "0x1.9f4a400000000p-23",
    "0x1.6fc6a00000000p-19",
    "0x1.a070a00000000p-16",
    "0x1.a01c500000000p-13",
    "0x1.6c16a4039c1c8p-10",
    "0x1.1111105b9819cp-7",
    "0x1.5555555d4572dp-5",
    "0x1.55555555a1e4cp-3",
    "0x1.fffffffffd508p-2",
    "0x1.ffffffffffe0bp-1",
)
BFLOAT16 = (
    "0x1.a17e0849c6dfdp-13",
    "0x1.6da76bab2b2c8p-10",
    "0x1.1110ab6f50a74p-7",
    "0x1.5554708f903a4p-5",
    "0x1.555555742f345p-3",
    "0x1.0000004572a0cp-1",
    "0x1.0000000000000p+0",
)


def exp32(x: Array, name: str, zero: Array, at_once: int, by: Assembler = by_triton) -> Array:
    """Return e^x of binary32 numbers, rounded once to nearest even, as a float32 array.

    NaN stays NaN.

    Args:
        x: an array whose numbers are in binary32.
        name: the format that holds x, bf16 or another.
        zero: an integer 0 whose value no compiler knows.
        at_once: how many elements a thread computes at the same time. More elements hide more
            latency, but they take more registers.
        by: what runs PTX in the kernel.
    """
    together = in_turn(x, at_once)
    text = _text(BFLOAT16 if name == "bf16" else BINARY32, together)
    constraints = ",".join(["=f"] * together + ["f"] * together + ["r"] * together)
    return by(
        text,
        constraints,
        together,
        jnp.float32,
        x.astype(jnp.float32),
        jnp.broadcast_to(zero.astype(jnp.int32), x.shape),
    )


def _text(f: Sequence[str], together: int) -> str:
    """Return PTX for `together` elements, which executes each instruction for all elements in turn.

    Each operation on an element waits for the one before it. To save registers, the assembler would
    put the operations on one element next to each other. A branch before the series that is never
    taken prevents that, and makes a fused kernel faster by a fifth.
    """
    reduction, power = evaluated(
        f, [f"${together + n}" for n in range(together)], [f"${n}" for n in range(together)]
    )
    never = [".reg .pred never;", f"setp.ne.s32 never, ${2 * together}, 0;", "@never bra NEVER;"]
    return (
        "{ " + "\n".join([*reduction, *never, *power, "bra DONE;", "NEVER: trap;", "DONE:"]) + " }"
    )


def evaluated(
    f: Sequence[str], arguments: Sequence[str], results: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return PTX that computes e^x from registers to registers.

    The text has two parts: the reduction of x to k and r, and the power. x is clipped to [-110,
    100], since beyond this range the result is 0 or infinity.
    """
    registers = (
        ".f32 z#",
        ".f64 x#",
        ".f64 k#",
        ".f64 p#",
        ".b32 whole#",
        ".b32 unused#",
        ".b32 low#",
        ".b32 high#",
    )
    reduction = [
        "max.NaN.f32 z#, %, 0fC2DC0000;",
        "min.NaN.f32 z#, z#, 0f42C80000;",
        "cvt.f64.f32 x#, z#;",
        f"fma.rn.f64 k#, x#, {_constant(LOG2_E)}, {_constant(MAGIC)};",
        "mov.b64 {whole#, unused#}, k#;",
        f"sub.rn.f64 k#, k#, {_constant(MAGIC)};",
        f"fma.rn.f64 x#, k#, {_constant(LN2, -1.0)}, x#;",
    ]
    power = [
        f"mov.f64 p#, {_constant(f[0])};",
        *(f"fma.rn.f64 p#, p#, x#, {_constant(c)};" for c in (*f[1:], "0x1p+0")),
        "mov.b64 {low#, high#}, p#;",
        "shl.b32 whole#, whole#, 20;",
        "add.s32 high#, high#, whole#;",
        "mov.b64 p#, {low#, high#};",
        "cvt.rn.f32.f64 @, p#;",
    ]
    elements = [(f"{n}", x, y) for n, (x, y) in enumerate(zip(arguments, results, strict=True))]

    def each(lines: list[str]) -> list[str]:
        """Return the lines for every element: # is its number, % its argument, @ its result."""
        return [
            line.replace("#", n).replace("%", x).replace("@", y)
            for line in lines
            for n, x, y in elements
        ]

    return each([f".reg {r};" for r in registers] + reduction), each(power)


def _constant(text: str, sign: float = 1.0) -> str:
    """Return a binary64 number, times the sign, in PTX's notation for its bits."""
    return "0d" + struct.pack(">d", sign * float.fromhex(text)).hex().upper()
