"""Roundings, sums and products by a GPU's own instructions, for kernels: a few operations where the rule takes forty.

A GPU converts binary64 to binary32 and binary32 to bfloat16 or binary16 to nearest even, subnormal numbers included. There is no
conversion from binary64 to the narrow two, and two in a row would round twice. So the first rounds **to odd**: where binary32 had to
drop something, the result is the neighbour whose last bit is 1, which lies on no boundary of a format with 22 bits or fewer, so that
the second conversion sees on which side of it x was (Boldo and Melquiond 2008).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

from emu.rounding import BF16, BINARY32, FP16, Rounding

NARROW = {BF16: jnp.bfloat16, FP16: jnp.float16}
PAIRS = {BF16: "bf16x2", FP16: "f16x2"}


def converted(x: Array, r: Rounding) -> Array | None:
    """A float64 array rounded once, by conversions; None where they do not do that."""
    if r == BINARY32:
        return x.astype(jnp.float32).astype(jnp.float64)
    if r not in NARROW:
        return None
    return to_odd(x).astype(NARROW[r]).astype(jnp.float32).astype(jnp.float64)


def to_odd(x: Array) -> Array:
    """A float64 array as float32: itself, or the neighbour with an odd last bit. Beyond the largest number: that, or infinity."""
    y = x.astype(jnp.float32)
    b, back = lax.bitcast_convert_type(y, jnp.int32), y.astype(jnp.float64)
    toward = jnp.where(jnp.abs(x) > jnp.abs(back), 1, -1).astype(jnp.int32)
    moves = (back != x) & (b & 1 == 0) & (x == x)
    return lax.bitcast_convert_type(jnp.where(moves, b + toward, b), jnp.float32)


def narrowed_to(x: Array, r: Rounding) -> Array:
    """A float32 array rounded once to bfloat16 or float16, in that type; of a tile two at a time, in a fourth of the time."""
    return x.astype(NARROW[r]) if x.ndim < 2 else assembled(f"cvt.rn.{PAIRS[r]}.f32 $0, $2, $1;", "=r,f,f", 2, NARROW[r], x)


def narrowed32(x: Array, r: Rounding) -> Array:
    """The same as a float32 array."""
    if x.ndim < 2:
        return x.astype(NARROW[r]).astype(jnp.float32)
    apart = {
        BF16: "shl.b32 $0, both, 16; and.b32 $1, both, 0xFFFF0000;",
        FP16: "mov.b32 {low, high}, both; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;",
    }[r]
    text = f"{{ .reg .b32 both; .reg .b16 low, high; cvt.rn.{PAIRS[r]}.f32 both, $3, $2; {apart} }}"
    return assembled(text, "=f,=f,f,f", 2, jnp.float32, x)


def multiplied(a: Array, b: Array) -> Array:
    """a * b of float64 arrays inside a kernel; an instruction that says how it rounds is not fused with an addition."""
    return instruction("mul.rn.f64 $0, $1, $2;", jnp.float64, a, b)


def divided(a: Array, b: Array) -> Array:
    """a / b of float64 arrays, rounded once to nearest even."""
    return instruction("div.rn.f64 $0, $1, $2;", jnp.float64, a, b)


def combined(operation: str, a: Array, b: Array, to_odd: bool) -> Array:
    """a + b, a - b or a b (add, sub, mul) of float32 arrays, rounded to nearest even; a product also to odd: of the two neighbours of an
    inexact result, by rounding down and up, the one whose last bit is 1; they are one number where it is exact.
    """
    if not to_odd:
        return instruction(f"{operation}.rn.f32 $0, $1, $2;", jnp.float32, a, b)
    text = f"""{{ .reg .f32 down, up; .reg .b32 bits; .reg .pred odd;
        {operation}.rm.f32 down, $1, $2; {operation}.rp.f32 up, $1, $2;
        mov.b32 bits, down; and.b32 bits, bits, 1; setp.ne.b32 odd, bits, 0; selp.f32 $0, down, up, odd; }}"""
    return instruction(text, jnp.float32, a, b)


def instruction(text: str, dtype: Any, *args: Any) -> Array:
    """PTX for every element of arrays of one type, to a result of that type."""
    arrays = jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in args))
    letter = "d" if dtype == jnp.float64 else "f"
    return assembled(text, ",".join([f"={letter}", *letter * len(arrays)]), 1, dtype, *arrays)


def assembled(text: str, constraints: str, together: int, dtype: Any, *args: Array) -> Array:
    """PTX for so many elements at a time of arrays of one shape, to a result of another type."""
    like = jax.ShapeDtypeStruct(args[0].shape, dtype)
    (found,) = triton.elementwise_inline_asm(text, args=args, constraints=constraints, pack=together, result_shape_dtypes=[like])
    return found
