"""PTX on the registers of a warp group.

A matrix (64, n) lies in the registers of 128 threads as the tensor core leaves it: a thread has two
rows, and of each row the columns 8 j + 2 c and 8 j + 2 c + 1 for every j, where c is its number
within four threads. A vector lies in them as the rows of such a matrix (`ROWWISE`), the same in
four threads, or as its columns (`COLUMNWISE`).
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

MATRIX = plgpu.Layout.WGMMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How the arrays of a function lie in the registers.

    axis    the axis of a matrix that a vector lies along
    vector  the layout of vectors
    """

    axis: int
    vector: Any

    def layout(self, axes: int) -> Any:
        """Return the layout of an array with this number of axes."""
        return MATRIX if axes == 2 else self.vector

    def placed(self, x: Array) -> Array:
        """Return a matrix or a vector in the registers in which all of them lie."""
        array: Array = plgpu.layout_cast(x, self.layout(x.ndim))
        return array

    def loaded(self, memory: Any) -> Array:
        """Return a vector in shared memory; jax before 0.11 wants an index."""
        index = inspect.signature(plgpu.load).parameters.get("idx")
        wanted = ((),) if index is not None and index.default is inspect.Parameter.empty else ()
        array: Array = plgpu.load(memory, *wanted, layout=self.vector)
        return array

    def inlined(self, f: Any, shape: tuple[int, ...], dtype: Any, *args: Array) -> Array:
        """Return the array of f(*registers), a function that writes instructions.

        f takes the registers of each array, as NumPy arrays of MLIR values, and returns those of
        the result.
        """
        own = self.layout(len(shape))
        result = plgpu.ShapeDtypeStruct(shape, dtype, layout=own)

        def run(_: Any, *arrays: Any) -> Any:
            registers, signed = f(*(x.registers for x in arrays)), mgpu.utils.is_signed(dtype)
            return mgpu.FragmentedArray(
                _registers=registers, _layout=own.to_mgpu(), _is_signed=signed
            )

        types = tuple(self.layout(x.ndim) for x in args)
        inline = plgpu.inline_mgpu(arg_types=types, return_type=result)
        array: Array = inline(run)(*map(self.placed, args))
        return array


ROWWISE = Placement(axis=0, vector=MATRIX.reduce(1))
COLUMNWISE = Placement(axis=1, vector=MATRIX.reduce(0))


def assembled(
    place: Placement, text: str, constraints: str, together: int, dtype: Any, *args: Array
) -> Array:
    """Return the result of a PTX text for arrays of one shape (`convert.Assembler`)."""
    letters = [x for x in constraints.split(",") if not x.startswith("=")]
    count = len(constraints.split(",")) - len(letters)

    def run(*arrays: np.ndarray) -> np.ndarray:
        words = [_words(x) for x in arrays]
        turns = len(words[0]) * (2 if _is_sixteen(arrays[0]) else 1) // together
        each = [len(x) // turns for x in words]
        found: list[Any] = []
        for n in range(turns):
            given = [w for x, k in zip(words, each, strict=True) for w in x[n * k : (n + 1) * k]]
            found += _asm(text, constraints, given, count, "32" if "=r" in constraints else "f")
        return _registers(found, arrays[0], dtype)

    return place.inlined(run, args[0].shape, dtype, *args)


def between(first: Array | None, last: Array | None, shape: tuple[int, int]) -> Array:
    """Return which numbers of a matrix (64, n) lie between two bounds of their row, as bool.

    Each call compares again: where the conditions are needed twice, no compiler keeps one for every
    number of a thread, for which there are no registers.

    first  the first column of each row, int32 (64,), or None for column 0
    last   the last column plus one, or None for n
    """
    bounds = {"sge": first, "slt": last}
    given = {name: x for name, x in bounds.items() if x is not None}

    def run(*vectors: np.ndarray) -> np.ndarray:
        found = np.empty(MATRIX.to_mgpu().registers_shape(shape), object)
        registers = found.reshape(-1, 2)  # of the thread's two rows
        for row in range(2):
            own = [_from_own_column(extracted(x.flat[row], 0)) for x in vectors]
            for j in range(len(registers)):
                lies = [_lies(8 * j + n, dict(zip(given, own, strict=True))) for n in range(2)]
                registers[j, row] = together(lies)
        return found

    return ROWWISE.inlined(run, shape, jnp.bool_, *given.values())


def _from_own_column(bound: Any) -> Any:
    """Return a bound less the first column of this thread, as a number that no compiler knows."""
    i32 = ir.IntegerType.get_signless(32)
    two, three = (mgpu.utils.c(n, i32) for n in (2, 3))
    own = arith.muli(arith.andi(mgpu.utils.thread_idx(), three), two)
    least = arith.subi(bound, own)
    return llvm.inline_asm(i32, [least], "mov.b32 $0, $1;", "=r,r", has_side_effects=True)


def _lies(column: int, bounds: dict[str, Any]) -> Any:
    """Return whether a column is >= (sge) one bound and < (slt) the other."""
    at = mgpu.utils.c(column, ir.IntegerType.get_signless(32))
    conditions = (
        arith.cmpi(getattr(arith.CmpIPredicate, name), at, x) for name, x in bounds.items()
    )
    return reduce(arith.andi, conditions)


def _is_sixteen(registers: np.ndarray) -> bool:
    element: Any = ir.VectorType(registers.flat[0].type).element_type
    return bool(element.width == 16)


def _words(registers: np.ndarray) -> list[Any]:
    """Return the words of registers in order; two 16-bit numbers are one integer of 32 bits."""
    if _is_sixteen(registers):
        i32 = ir.IntegerType.get_signless(32)
        return [mgpu.utils.bitcast(x, i32) for x in registers.flat]
    return [extracted(x, n) for x in registers.flat for n in range(length(x))]


def length(register: Any) -> int:
    """Return how many numbers a register of MLIR has."""
    return int(ir.VectorType(register.type).shape[0])


def extracted(register: Any, n: int) -> Any:
    """Return number n of a register."""
    at = ir.DenseI64ArrayAttr.get([n])
    return vector.extract(register, dynamic_position=[], static_position=at)


def _registers(words: Sequence[Any], like: np.ndarray, dtype: Any) -> np.ndarray:
    """Return registers of a type, in the order of others, from words."""
    numbers = length(like.flat[0])
    element = mgpu.utils.dtype_to_ir_type(jnp.dtype(dtype))
    kind = ir.VectorType.get((numbers,), element)
    found = np.empty(like.shape, object)
    for n in range(found.size):
        if jnp.dtype(dtype).itemsize == 2:
            found.flat[n] = mgpu.utils.bitcast(words[n], kind)
        else:
            found.flat[n] = together(words[n * numbers : (n + 1) * numbers])
    return found


def together(words: Sequence[Any]) -> Any:
    """Return the register of some numbers of one type."""
    register = llvm.mlir_undef(ir.VectorType.get((len(words),), words[0].type))
    for n, word in enumerate(words):
        at = ir.DenseI64ArrayAttr.get([n])
        register = vector.insert(word, register, dynamic_position=[], static_position=at)
    return register


def _asm(text: str, constraints: str, given: Sequence[Any], count: int, kind: str) -> list[Any]:
    """Return the results of a PTX text for some words."""
    one = ir.F32Type.get() if kind == "f" else ir.IntegerType.get_signless(32)
    if count == 1:
        return [llvm.inline_asm(one, list(given), text, constraints)]
    several = ir.Type.parse(f"!llvm.struct<({', '.join([str(one)] * count)})>")
    found: Any = llvm.inline_asm(several, list(given), text, constraints)
    return [llvm.extractvalue(one, found, ir.DenseI64ArrayAttr.get([n])) for n in range(count)]


def instruction(text: str, *given: Any) -> Any:
    """Return the result of a PTX instruction for binary32 words, such as add.rn.f32."""
    operands = ", ".join(f"${n}" for n in range(len(given) + 1))
    constraints = ",".join(["=f", *["f"] * len(given)])
    return llvm.inline_asm(ir.F32Type.get(), list(given), f"{text} {operands};", constraints)
