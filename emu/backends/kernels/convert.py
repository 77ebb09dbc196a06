"""Roundings, sums and products by a GPU's own instructions, for kernels.

A rounding takes a few operations here, whereas the rule takes forty. A GPU converts binary64 to
binary32, and binary32 to bfloat16 or binary16, to nearest even and with subnormal numbers. It has
no conversion from binary64 to bfloat16 or binary16, and two conversions in a row would round twice.
So the first rounds **to odd**: an inexact result is the neighbor whose last bit is 1. Such a number
never lies on a rounding boundary of a format with 22 bits or fewer, so it is on the same side of
every boundary as the original number, and the second conversion is right (Boldo and Melquiond
2008).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

from roundscope.emu.roundings.modes import BF16, BINARY32, FP16, Rounding

NARROW = {BF16: jnp.bfloat16, FP16: jnp.float16}
PAIRS = {BF16: "bf16x2", FP16: "f16x2"}
ONE, NEGATIVE = {BF16: 0x3F80, FP16: 0x3C00}, 0x8000  # the code of 1, and the bit of the sign
ONE_AT_A_TIME = {
    BF16: "{ .reg .b16 x, z; mov.b16 z, 0; cvt.rn.bf16.f32 x, $1; mov.b32 $0, {z, x}; }",
    FP16: "{ .reg .b16 x; cvt.rn.f16.f32 x, $1; cvt.f32.f16 $0, x; }",
}
THREADS = 128  # the number of threads of a program that has 64 rows of a tile
TOGETHER = 32  # the number of elements of a thread that share a branch


# (text, constraints, together, dtype, *arrays) -> the result of a PTX text for arrays of one shape
Assembler: TypeAlias = Callable[..., Array]


def by_triton(text: str, constraints: str, together: int, dtype: Any, *args: Array) -> Array:
    """Return the result of a PTX text for arrays of one shape, in a kernel that Triton compiles.

    The text takes `together` elements at a time. The result has the shape of the arrays and the
    type dtype.
    """
    like = jax.ShapeDtypeStruct(args[0].shape, dtype)
    (result,) = triton.elementwise_inline_asm(
        text, args=args, constraints=constraints, pack=together, result_shape_dtypes=[like]
    )
    return result


def converted(x: Array, r: Rounding) -> Array | None:
    """Return a float64 array rounded once by conversions, or None for roundings they cannot do."""
    if r == BINARY32:
        return x.astype(jnp.float32).astype(jnp.float64)
    if r not in NARROW:
        return None
    return to_odd(x).astype(NARROW[r]).astype(jnp.float32).astype(jnp.float64)


def to_odd(x: Array) -> Array:
    """Return a float64 array rounded to odd, as float32.

    A number that binary32 holds is unchanged; any other becomes the neighbor with an odd last bit.
    A number beyond the largest one becomes the largest one or infinity.
    """
    y = x.astype(jnp.float32)
    b, back = lax.bitcast_convert_type(y, jnp.int32), y.astype(jnp.float64)
    toward = jnp.where(jnp.abs(x) > jnp.abs(back), 1, -1).astype(jnp.int32)
    moves = (back != x) & (b & 1 == 0) & (x == x)
    return lax.bitcast_convert_type(jnp.where(moves, b + toward, b), jnp.float32)


def narrowed_to(x: Array, r: Rounding, by: Assembler = by_triton) -> Array:
    """Return a float32 array rounded once to bfloat16 or float16, as an array of that type.

    The numbers of a tile are rounded two at a time, which takes a fourth of the time.
    """
    if x.ndim < 2:
        return x.astype(NARROW[r])
    return by(f"cvt.rn.{PAIRS[r]}.f32 $0, $2, $1;", "=r,f,f", 2, NARROW[r], x)


def narrowed32(x: Array, r: Rounding, by: Assembler = by_triton) -> Array:
    """Return what `narrowed_to` returns, as a float32 array."""
    if x.ndim < 2:
        return instruction(ONE_AT_A_TIME[r], jnp.float32, x, by=by)
    both = f".reg .b32 both; cvt.rn.{PAIRS[r]}.f32 both, $3, $2;"
    text = f"{{ {both} {parts(r, '$0', '$1', 'both')} }}"
    return by(text, "=f,=f,f,f", 2, jnp.float32, x)


def parts(r: Rounding, first: str, second: str, both: str) -> str:
    """Return PTX that converts the two bfloat16 or float16 numbers in a register to binary32."""
    if r == BF16:
        return (
            f"{{ .reg .b32 x; shl.b32 x, {both}, 16; mov.b32 {first}, x; and.b32 x, {both},"
            f" 0xFFFF0000; mov.b32 {second}, x; }}"
        )
    return (
        f"{{ .reg .b16 x, y; mov.b32 {{x, y}}, {both}; cvt.f32.f16 {first}, x; cvt.f32.f16"
        f" {second}, y; }}"
    )


def multiplied(a: Array, b: Array) -> Array:
    """Return a * b of float64 arrays inside a kernel.

    The assembler does not fuse an instruction with an explicit rounding mode with an addition.
    """
    return instruction("mul.rn.f64 $0, $1, $2;", jnp.float64, a, b)


def divided(a: Array, b: Array) -> Array:
    """Return a / b of float64 arrays, rounded once to nearest even."""
    return instruction("div.rn.f64 $0, $1, $2;", jnp.float64, a, b)


def combined(operation: str, a: Array, b: Array, to_odd: bool, by: Assembler = by_triton) -> Array:
    """Return a + b, a - b, a b or a / b (add, sub, mul, div) of float32 arrays, rounded once.

    The result is rounded to nearest even, or to odd if `to_odd` is true, which is allowed only for
    products. To round to odd, the product is computed rounded down and rounded up, and the result
    is the one whose last bit is 1. If the product is exact, the two are the same number.
    """
    if not to_odd:
        return instruction(f"{operation}.rn.f32 $0, $1, $2;", jnp.float32, a, b, by=by)
    return instruction(_directed_twice(operation, "$0", "$1", "$2"), jnp.float32, a, b, by=by)


def toward_zero(operation: str, a: Array, b: Array, by: Assembler = by_triton) -> Array:
    """Return a + b, a - b or a b (add, sub, mul) of float32 arrays, rounded toward zero."""
    return instruction(f"{operation}.rz.f32 $0, $1, $2;", jnp.float32, a, b, by=by)


def fused(a: Array, b: Array, c: Array, by: Assembler = by_triton) -> Array:
    """Return a b + c of float32 arrays, rounded once to nearest even."""
    return instruction("fma.rn.f32 $0, $1, $2, $3;", jnp.float32, a, b, c, by=by)


def _directed_twice(operation: str, result: str, a: str, b: str) -> str:
    """Return PTX for an operation whose result is rounded to odd."""
    return f"""{{ .reg .f32 down, up; .reg .b32 bits; .reg .pred odd;
        {operation}.rm.f32 down, {a}, {b}; {operation}.rp.f32 up, {a}, {b};
        mov.b32 bits, down; and.b32 bits, bits, 1; setp.ne.b32 odd, bits, 0;
        selp.f32 {result}, down, up, odd; }}"""


def combined16(operation: str, a: Array, b: Array, r: Rounding, by: Assembler = by_triton) -> Array:
    """Return a + b, a - b or a b (add, sub, mul) of 16-bit arrays, rounded once to their type.

    The type is bfloat16 or float16. The numbers of a tile are combined two at a time, by fused
    multiply-adds with 1, -1 or -0, which every GPU since Ampere has for both types.
    """
    a, b = jnp.broadcast_arrays(a, b)
    code, factors = {
        "add": (ONE[r], "$1, c, $2"),
        "sub": (ONE[r] | NEGATIVE, "$2, c, $1"),
        "mul": (NEGATIVE, "$1, $2, c"),
    }[operation]
    one, two = (PAIRS[r][:-2], "h", 16, 1), (PAIRS[r], "r", 32, 2)
    name, letter, bits, together = one if a.ndim < 2 else two
    constant = code if together == 1 else code * 0x10001
    text = f"{{ .reg .b{bits} c; mov.b{bits} c, {constant:#x}; fma.rn.{name} $0, {factors}; }}"
    return by(text, f"={letter},{letter},{letter}", together, NARROW[r], a, b)


def scaled16(a: Array, b: Array, r: Rounding, by: Assembler = by_triton) -> Array:
    """Return the product of a and a tile b, rounded once to the type of b.

    a is a float32 array, b a bfloat16 or float16 one. A thread whose factors a are all 1 only
    copies b. In attention this happens often: a is the factor alpha that rescales a sum when the
    maximum of a row grows, and alpha is 1 where the maximum does not grow.
    """
    a, b = jnp.broadcast_arrays(a, b)
    together = in_turn(a, TOGETHER)
    pairs = range(together // 2)
    results, factors = [f"${n}" for n in pairs], [f"${len(pairs) + n}" for n in range(together)]
    given = [f"${len(pairs) + together + n}" for n in pairs]
    registers = [".reg .pred other;", *(f".reg .f32 x{n}, y{n};" for n in range(together))]
    lines = [*registers, *_differing(factors), "@other bra MULTIPLY;"]
    lines += [*(f"mov.b32 {results[n]}, {given[n]};" for n in pairs), "bra DONE;", "MULTIPLY:"]
    lines += [parts(r, f"x{2 * n}", f"x{2 * n + 1}", given[n]) for n in pairs]
    lines += [_directed_twice("mul", f"y{n}", x, f"x{n}") for n, x in enumerate(factors)]
    lines += [f"cvt.rn.{PAIRS[r]}.f32 {results[n]}, y{2 * n + 1}, y{2 * n};" for n in pairs]
    constraints = ",".join(["=r"] * len(pairs) + ["f"] * together + ["r"] * len(pairs))
    return by("{ " + "\n".join([*lines, "DONE:"]) + " }", constraints, together, NARROW[r], a, b)


def _differing(factors: list[str]) -> list[str]:
    """Return PTX that tests whether any factor differs from 1; it combines the factors in pairs.

    The factors of a row are in one register, so the assembler removes most of the tests.
    """
    lines = [
        f".reg .b32 d{n}; mov.b32 d{n}, {x}; xor.b32 d{n}, d{n}, 0x3F800000;"
        for n, x in enumerate(factors)
    ]
    step = 1
    while step < len(factors):
        lines += [f"or.b32 d{n}, d{n}, d{n + step};" for n in range(0, len(factors), 2 * step)]
        step *= 2
    return [*lines, "setp.ne.b32 other, d0, 0;"]


def in_turn(x: Array, most: int) -> int:
    """Return how many elements of a thread one piece of PTX takes, an even number.

    If an array has one number for each row, a thread has two of them. If a program has more threads
    than THREADS, Triton adds numbers that are not part of the array. A PTX text may compute with
    these numbers, but it must not store to addresses that depend on them.
    """
    return 2 if x.ndim < 2 else max(2, min(most, x.size // THREADS))


def instruction(text: str, dtype: Any, *args: Any, by: Assembler = by_triton) -> Array:
    """Return the result of a PTX text for every element of arrays; all have the type dtype."""
    arrays = jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in args))
    letter = "d" if dtype == jnp.float64 else "f"
    return by(text, ",".join([f"={letter}", *letter * len(arrays)]), 1, dtype, *arrays)
