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

**From a table.** A program that takes exp of bfloat16 numbers makes a table once in shared memory,
with this series. How e^x is computed in binary32 depends on x::

    x                  e^x in binary32
    -2^-25 < x <= 0    1, since 2^-25 is half the distance from 1 to the number below it
    -104 to -2^-25     from the table of 4,049 numbers, in the order of the codes of x, 4 bytes each
    x < -104           0, since e^-103.97 is half the least number
    x > 0, or NaN      from the series

The arguments of exp in attention are negative or 0, so the table serves nearly all of them. It
takes 4 instructions, whereas the series takes 17.
"""

import struct
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from roundscope.emu.backends.kernels.convert import Assembler, by_triton, in_turn, parts
from roundscope.emu.roundings.modes import BF16

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
    """Return e^x of binary32 numbers, rounded once to nearest even, as float32; NaN stays NaN.

    `name` is that of the format of x, and `zero` an integer 0 whose value no compiler knows. The
    more elements a thread computes `at_once`, the more latency it hides, and the more registers it
    takes.
    """
    together = in_turn(x, at_once)
    text = _text(BFLOAT16 if name == "bf16" else BINARY32, together)
    constraints = ",".join(["=f"] * together + ["f"] * together + ["r"] * together)
    zeros = jnp.broadcast_to(zero.astype(jnp.int32), x.shape)
    return by(text, constraints, together, jnp.float32, x.astype(jnp.float32), zeros)


def _text(f: Sequence[str], together: int) -> str:
    """Return PTX for `together` elements, which executes each instruction for all elements in turn.

    Each operation on an element waits for the one before it. To save registers, the assembler would
    put the operations on one element next to each other. A branch before the series that is never
    taken prevents that, and makes a fused kernel faster by a fifth.
    """
    names = [f"${n}" for n in range(2 * together)]
    reduction, power = evaluated(f, names[together:], names[:together])
    never = [".reg .pred never;", f"setp.ne.s32 never, ${2 * together}, 0;", "@never bra NEVER;"]
    lines = [*reduction, *never, *power, "bra DONE;", "NEVER: trap;", "DONE:"]
    return "{ " + "\n".join(lines) + " }"


def evaluated(
    f: Sequence[str], arguments: Sequence[str], results: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return PTX that computes e^x from registers to registers.

    The text has two parts: the reduction of x to k and r, and the power. x is clipped to [-110,
    100], since beyond this range the result is 0 or infinity.
    """
    registers = [".f32 z#", ".f64 x#", ".f64 k#", ".f64 p#"]
    registers += [".b32 whole#", ".b32 unused#", ".b32 low#", ".b32 high#"]
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


NEAREST, FARTHEST = 0xB300, 0xC2D0  # the codes of -2^-25 and -104
NUMBERS = 4096  # a multiple of the number of threads; the last entries are never read
BYTES = 4 * NUMBERS
TOGETHER = 16  # the number of elements that a thread looks up at the same time


def table(zero: Array, threads: int) -> Array:
    """Make the table and return its address in shared memory, an int32 number.

    Each thread of a program makes its part of the table. `zero` is the argument of `exp32`.
    """
    n, each = lax.iota(jnp.int32, NUMBERS), NUMBERS // threads
    exps = exp32(lax.bitcast_convert_type((n + NEAREST) << 16, jnp.float32), "bf16", zero, AT_ONCE)
    # Triton keeps tiles behind the table; it has their alignment
    lines = [f".shared .align 1024 .b8 exps[{BYTES}]; .reg .b32 first, at; mov.u32 first, exps;"]
    for i in range(each):
        lines.append(
            f"mad.lo.s32 at, ${2 * each + i}, 4, first; st.shared.f32 [at], ${each + i}; mov.b32"
            f" ${i}, first;"
        )
    constraints = ",".join(["=r"] * each + ["f"] * each + ["r"] * each)
    places = by_triton("{ " + "\n".join(lines) + " }", constraints, each, jnp.int32, exps, n)
    # Triton makes the threads wait for each other to compute the maximum, so that each has stored
    # its part of the table by then
    return places.max()


def exp32_by_table(x: Array, place: Array) -> Array:
    """Return e^x of bfloat16 numbers, rounded once to binary32; NaN stays NaN."""
    together = in_turn(x, TOGETHER)
    constraints = ",".join(["=f"] * together + ["r"] * (together // 2) + ["r"] * together)
    places = jnp.broadcast_to(place, x.shape)
    return by_triton(_text_of_table(together), constraints, together, jnp.float32, x, places)


def _text_of_table(together: int) -> str:
    """Return PTX for `together` elements, two of which share a register.

    The instruction `dp2a` multiplies the halves of a register by two bytes and adds the products to
    a number. Here it multiplies one half, the code of x, by 4, the other half by 0, and adds the
    products to the address that code 0 would have. The result is the address of e^x in the table.
    """
    results = [f"${i}" for i in range(together)]
    pairs = [f"${together + i}" for i in range(together // 2)]
    place = f"${together + together // 2}"
    registers = [
        ".reg .b32 origin, nearest, farthest, largest; .reg .f32 low, high; .reg .pred elsewhere;",
        *(f".reg .b32 near{i};" for i in range(len(pairs))),
        *(f".reg .b32 at{i}; .reg .f32 v{i};" for i in range(together)),
        f"sub.s32 origin, {place}, {4 * NEAREST};",
        f"mov.b32 nearest, {NEAREST * 0x10001:#x}; mov.b32 farthest, {FARTHEST * 0x10001:#x};",
    ]
    lookups = [
        f"mov.b32 largest, {pairs[0]};",
        *(f"max.NaN.bf16x2 largest, largest, {x};" for x in pairs[1:]),
    ]
    for i, x in enumerate(pairs):
        lookups.append(f"min.bf16x2 near{i}, {x}, nearest; max.bf16x2 near{i}, near{i}, farthest;")
    for i in range(len(pairs)):
        lookups.append(
            f"dp2a.lo.u32.u32 at{2 * i}, near{i}, 0x0004, origin; dp2a.lo.u32.u32 at{2 * i + 1},"
            f" near{i}, 0x0400, origin;"
        )
    lookups.append(parts(BF16, "low", "high", "largest"))
    lookups.append(
        "max.NaN.f32 low, low, high; setp.gtu.f32 elsewhere, low, 0f00000000; @elsewhere bra"
        " SERIES;"
    )
    loads = [f"ld.shared.f32 {y}, [at{i}];" for i, y in enumerate(results)]
    wide = [parts(BF16, f"v{2 * i}", f"v{2 * i + 1}", x) for i, x in enumerate(pairs)]
    reduction, power = evaluated(BFLOAT16, [f"v{i}" for i in range(together)], results)
    series = [*wide, *reduction, *power]
    lines = [*registers, *lookups, *loads, "bra DONE;", "SERIES:", *series, "DONE:"]
    return "{ " + "\n".join(lines) + " }"
