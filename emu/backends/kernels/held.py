"""The numbers of a kernel in the narrowest types that hold them, and the machine for them.

`narrowing` runs a function on such numbers by such a machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from roundscope.emu.backends.kernels.instructions import Instructions
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import BF16, BINARY32, FP16, Rounding
from roundscope.emu.sums.accumulator import Accumulator

FP64, FP32 = "fp64", "fp32"


class NoSuchArithmetic(NotImplementedError):
    """A machine has no arithmetic in this type between its instructions."""


WITHIN_FP32 = ("bf16", "fp16", FP32)
ROUNDINGS = {"bf16": BF16, "fp16": FP16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Numbers of a kernel, computed or still to be computed.

    Attributes:
        array: an array of the machine's type for the format; None if the numbers are not computed
            yet.
        format: bf16, fp16, fp32 or fp64, a format that holds all the numbers.
        made: (operation, factors) if the numbers are not computed yet, so that their rounding can
            be part of the operation. The operation is add, sub, mul, div, fma (a b + c), odd (a +
            b, rounded to odd), select (c or b, as the conditions a say) or a function.
        wider: a float32 array that still has to be rounded to the format; `held_as` rounds it, to
            the type that is asked for.
        uniform: the number, if all the numbers are equal and this is known.
        seen_as: the shape that a traced function sees, if it is not the shape of the array.
    """

    array: Any
    format: str
    made: tuple[Any, tuple["Held", ...]] | None = None
    wider: Any = None
    uniform: float | None = None
    seen_as: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers, which must be computed."""
        shape: tuple[int, ...] = (self.wider if self.array is None else self.array).shape
        return shape


def bind_again(eqn: Any, arrays: list[Any]) -> list[Any]:
    """Return the results of a traced operation on other arrays."""
    results = eqn.primitive.bind(*arrays, **eqn.params)
    return list(results) if eqn.primitive.multiple_results else [results]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The functions that do the arithmetic of a kernel.

    A float32 array here is an array of the type for fp32; in an interpreter that may be float64.

    Attributes:
        types: the types of arrays, by the name of the format.
        combined: (operation, x, y, to_odd) -> the sum (add), difference (sub) or product (mul) of
            two float32 arrays, rounded once to binary32. It is rounded to nearest even; a product
            can also be rounded to odd.
        fused: (a, b, c) -> a b + c of float32 arrays, rounded once to binary32.
        combined16: (operation, x, y, rounding) -> the sum, difference or product of two arrays of
            the rounding's 16-bit format, rounded once.
        scaled16: (x, y, rounding) -> x y of a float32 array and an array of the rounding's 16-bit
            format, rounded once.
        narrow: (x, rounding) -> a float32 array rounded once, in the type of the rounding's format.
        narrow32: (x, rounding) -> a float32 array rounded once, as a float32 array.
        exponential: the function of a float64 array that `exp` computes, such as exp64.
        exp: (x, format) -> the function `exponential` of an array for this format, which must fit
            binary32, rounded once to binary32.
        instructions: for each function with an approximate GPU instruction, a function that
            computes it; both its argument and its result are arrays for binary32.
        odd_sum: the sum of float64 arrays, rounded to odd.
        round: (x, rounding, random) -> a float64 array rounded once.
        multiply: the product of float64 arrays, which no compiler fuses with a following addition.
        divide: the quotient of float64 arrays, which no compiler narrows. If binary32 numbers are
            divided and the quotient is rounded to binary32, LLVM makes this a division in binary32,
            which is approximate on a GPU.
        function: (f, x) -> f of a float64 array.
        total: (machine, accumulator, a, b, init) -> init + a @ b. a and init may still have to be
            computed.
        bound: (operation, arrays) -> the results of a traced operation on other arrays.
        toward_zero: (operation, x, y) -> the sum, difference or product of two float32 arrays,
            rounded toward zero; None where binary64 serves instead.
        seen: (name, before, after, which exist) -> None, where an event happens (`marks.seen`), its
            numbers as arrays for fp32 or fp64; None if no events are recorded.
        pairs: (lanes, whether they are crossed) -> two arrays whose sum is the row sum, each
            rounded to binary32 (`marks.in_pairs`); None if a row's lanes are an axis of an array.
    """

    types: dict[str, Any]
    combined: Callable[[str, Array, Array, bool], Array]
    fused: Callable[[Array, Array, Array], Array]
    combined16: Callable[[str, Array, Array, Rounding], Array]
    scaled16: Callable[[Array, Array, Rounding], Array]
    narrow: Callable[[Array, Rounding], Array]
    narrow32: Callable[[Array, Rounding], Array]
    exponential: Callable[..., Any]
    exp: Callable[[Array, str], Array]
    instructions: Instructions
    odd_sum: Callable[[Array, Array], Array]
    round: Callable[[Array, Rounding, Array | None], Array]
    multiply: Callable[[Array, Array], Array]
    divide: Callable[[Array, Array], Array]
    function: Callable[[Callable[..., Array], Array], Array]
    total: Callable[["Machine", Accumulator, Held, Held, Held], Held]
    bound: Callable[[Any, list[Any]], list[Any]] = bind_again
    toward_zero: Callable[[str, Array, Array], Array] | None = None
    pairs: Callable[[Array, bool], tuple[Array, Array]] | None = None
    seen: Callable[[str, Array, Array, Array], None] | None = None


def format_of(f: Format) -> str:
    """Return bf16, fp16, fp32 or fp64, the narrowest of them that holds a format's numbers."""
    if f in (BF16.format, FP16.format, BINARY32.format):
        return f.name
    return FP32 if f.fits_binary32 else FP64


def held_as(machine: Machine, x: Held, name: str) -> Array:
    """Return the numbers as an array for a format that holds them."""
    if name not in machine.types:
        raise NoSuchArithmetic(f"{name} in a warp group")
    x = computed(machine, x)
    array, dtype = x.array, machine.types[name]
    if x.wider is not None:
        narrow = machine.narrow if name == x.format else machine.narrow32
        array = narrow(x.wider, ROUNDINGS[x.format])
    return array if array.dtype == dtype else jnp.asarray(array).astype(dtype)


def computed(machine: Machine, x: Held) -> Held:
    """Return the numbers, computed in binary64 if they were not computed yet."""
    if x.made is None:
        return x
    operation, factors = x.made
    if operation == "select":
        which, *either = factors
        wide = (held_as(machine, y, FP64) for y in either)
        return Held(array=selected(which, *wide), format=FP64)
    arrays = [held_as(machine, y, FP64) for y in factors]
    if callable(operation):
        return Held(array=machine.function(operation, *arrays), format=FP64)
    if operation == "div":
        return Held(array=machine.divide(*arrays), format=FP64)
    if operation == "fma":
        arrays = [machine.multiply(*arrays[:2]), arrays[2]]
    if operation in ("fma", "odd"):
        return Held(array=machine.odd_sum(*arrays), format=FP64)
    return Held(array=in_binary64(machine.multiply, operation, *arrays), format=FP64)


def selected(which: Held, first: Array, second: Array) -> Array:
    """Return the numbers of `second` where the conditions hold, else those of `first`."""
    array: Array = jnp.where(which.array, second, first)
    return array


def in_binary64(
    multiply: Callable[[Array, Array], Array], operation: str, a: Array, b: Array
) -> Array:
    """Return the sum, difference, product or quotient (add, sub, mul, div) of float64 arrays."""
    operations: dict[str, Callable[[Array, Array], Array]] = {
        "add": jnp.add,
        "sub": jnp.subtract,
        "mul": multiply,
        "div": jnp.divide,
    }
    return operations[operation](a, b)
