"""exp of bfloat16 numbers inside a GPU's kernels, from a table in shared memory.

A program makes the table once, with the series of `emu.backends.kernels.exp`. How e^x is computed
in binary32 depends on x::

    x                  e^x in binary32
    -2^-25 < x <= 0    1, since 2^-25 is half the distance from 1 to the number below it
    -104 to -2^-25     from the table of 4,049 numbers, in the order of the codes of x, 4 bytes each
    x < -104           0, since e^-103.97 is half the least number
    x > 0, or NaN      from the series

The arguments of exp in attention are negative or 0, so the table serves nearly all of them. It
takes 4 instructions, whereas the series takes 17.
"""

import jax.numpy as jnp
from jax import Array, lax

from roundscope.emu.backends.kernels.convert import by_triton, in_turn, parts
from roundscope.emu.backends.kernels.exp import AT_ONCE, BFLOAT16, evaluated, exp32
from roundscope.emu.roundings.modes import BF16

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
    return by_triton(
        _text(together), constraints, together, jnp.float32, x, jnp.broadcast_to(place, x.shape)
    )


def _text(together: int) -> str:
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
