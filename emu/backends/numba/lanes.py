"""Vectors of eight numbers, on which a compiled function computes as it does on single numbers.

LLVM forms vectors by itself where it may choose the order of additions; sums whose order is part of
their bits need vectors that are written down. A function that is compiled for `Lanes` computes in
each lane what it computes for single numbers, such as the classification of `emu.stats`.
`+ - * & | << >>`, comparisons, unary minus, `abs` and `where` act lane by lane. Where one operand
is a single number, every lane meets it.
"""

import operator
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core.cgutils import get_or_insert_function
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast, models, register_model

from roundscope.emu.backends.numba.jit import intrinsic, njit

LANES = 8


class Lanes(numba.types.Type):  # type: ignore[misc]  # Numba has no types
    """Numba's type of a vector of numbers of one type."""

    def __init__(self, scalar: Any, word: ir.Type, width: int = LANES) -> None:
        super().__init__(name=f"Lanes({scalar}, {width})")
        self.scalar, self.vector = scalar, ir.VectorType(word, width)

    def can_convert_from(self, context: Any, other: Any) -> Any:
        """Accept a single number where a vector is needed."""
        kinds = {F64: numba.types.Float, I32: numba.types.Integer}
        takes = isinstance(other, kinds.get(self, ()))
        return numba.core.typeconv.Conversion.unsafe if takes else None


F64 = Lanes(numba.float64, ir.DoubleType())
F32 = Lanes(numba.float32, ir.FloatType())
I32 = Lanes(numba.int32, ir.IntType(32))
I1 = Lanes(numba.boolean, ir.IntType(1))
HALF = Lanes(numba.float64, ir.DoubleType(), LANES // 2)
_INDEX = ir.IntType(32)


@register_model(Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]  # Numba has no types
    def __init__(self, manager: Any, type: Any) -> None:
        super().__init__(manager, type, type.vector)


def _splat(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    """Return a vector whose lanes all are one number."""
    one = context.cast(builder, value, source, target.scalar)
    first = builder.insert_element(ir.Constant(target.vector, ir.Undefined), one, _INDEX(0))
    zeros = ir.Constant(ir.VectorType(_INDEX, target.vector.count), None)
    return builder.shuffle_vector(first, first, zeros)


lower_cast(numba.types.Number, Lanes)(_splat)

Emit = Callable[..., Any]
_CASES: dict[Any, list[Any]] = {}


def _define(operation: Any, result: Lanes, kind: Lanes, arity: int, emit: Emit) -> None:
    """Define an operation on vectors; `emit(builder, *vectors)` emits its instruction."""
    _CASES.setdefault(operation, []).append(signature(result, *[kind] * arity))
    lower_builtin(operation, *[kind] * arity)(
        lambda context, builder, signature, args: emit(builder, *args)
    )


def _instruction(name: str, *first: str) -> Emit:
    return lambda builder, *args: getattr(builder, name)(*first, *args)


def _called(name: str, kind: Lanes) -> Emit:
    """Return what emits a call of one of LLVM's functions of vectors of one type."""

    def emit(builder: Any, *args: Any) -> Any:
        declared = ir.FunctionType(kind.vector, [kind.vector] * len(args))
        return builder.call(get_or_insert_function(builder.module, declared, name), args)

    return emit


_ARITHMETIC = {
    I32: {
        "add": "add",
        "sub": "sub",
        "and_": "and_",
        "lshift": "shl",
        "rshift": "ashr",
    },
    I1: {"and_": "and_", "or_": "or_"},
    F64: {"add": "fadd", "sub": "fsub", "mul": "fmul"},
    F32: {"sub": "fsub", "mul": "fmul"},
    HALF: {"add": "fadd"},
}
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

for _kind, _operations in _ARITHMETIC.items():
    for _name, _emit in _operations.items():
        _define(getattr(operator, _name), _kind, _kind, 2, _instruction(_emit))
for _name, _sign in _ORDER.items():
    _test = "fcmp_unordered" if _name == "ne" else "fcmp_ordered"
    _define(getattr(operator, _name), I1, I32, 2, _instruction("icmp_signed", _sign))
    _define(getattr(operator, _name), I1, F64, 2, _instruction(_test, _sign))
_define(operator.neg, F64, F64, 1, _instruction("fneg"))
_define(abs, F64, F64, 1, _called(f"llvm.fabs.v{LANES}f64", F64))
for _operation, _signatures in _CASES.items():
    infer_global(_operation)(type("_Operation", (ConcreteTemplate,), {"cases": _signatures}))


@intrinsic
def spread(typing: Any, number: Any) -> Any:
    """Return a vector whose lanes all are one float64 number."""
    return F64(numba.float64), lambda context, builder, signature, args: _splat(
        context, builder, numba.float64, F64, args[0]
    )


@intrinsic
def where(typing: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Return the lanes of `yes` where a condition holds, and those of `no` elsewhere.

    One of `yes` and `no` may be a single number.
    """
    kind = yes if isinstance(yes, Lanes) else no
    return kind(I1, kind, kind), lambda context, builder, signature, args: builder.select(*args)


@intrinsic
def load(typing: Any, array: Any, first: Any) -> Any:
    """Return eight numbers of a contiguous array of int32 or float64 numbers."""
    kind = I32 if array.dtype == numba.int32 else F64

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, array, kind, *args)
        return builder.load(place, align=array.dtype.bitwidth // 8)

    return kind(array, numba.intp), emit


@intrinsic
def store(typing: Any, array: Any, first: Any, vector: Any) -> Any:
    """Write eight float64 numbers to a contiguous array."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, array, F64, *args[:2]), align=8)
        return context.get_dummy_value()

    return numba.void(array, numba.intp, F64), emit


def _place(
    context: Any, builder: Any, array: Any, kind: Lanes, value: Any, first: Any
) -> ir.Instruction:
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [first]), kind.vector.as_pointer())


@intrinsic
def numbers(typing: Any, vector: Any) -> Any:
    """Return the numbers of a vector as a tuple."""
    kind = numba.types.UniTuple(vector.scalar, vector.vector.count)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        each = [builder.extract_element(args[0], _INDEX(n)) for n in range(kind.count)]
        return context.make_tuple(builder, kind, each)

    return kind(vector), emit


def _half(first: int) -> Any:
    chosen = ir.Constant(ir.VectorType(_INDEX, LANES // 2), [*range(first, first + LANES // 2)])
    return HALF(F64), lambda context, builder, signature, args: builder.shuffle_vector(
        args[0], args[0], chosen
    )


@intrinsic
def lower_half(typing: Any, vector: Any) -> Any:
    """Return the first four numbers of a vector."""
    return _half(0)


@intrinsic
def upper_half(typing: Any, vector: Any) -> Any:
    """Return the last four numbers of a vector."""
    return _half(LANES // 2)


@intrinsic
def flagged(typing: Any, flags: Any) -> Any:
    """Return an integer with the bits that are the flags of a vector."""
    return numba.int64(I1), lambda context, builder, signature, args: builder.zext(
        builder.bitcast(args[0], ir.IntType(LANES)), ir.IntType(64)
    )


@intrinsic
def ones(typing: Any, bits: Any) -> Any:
    """Return how many bits of an integer are 1."""
    return numba.int64(numba.int64), lambda context, builder, signature, args: builder.ctpop(
        args[0]
    )


@njit
def counted(flags: Any) -> int:
    """Return how many flags of a vector are set."""
    number: int = ones(flagged(flags))
    return number


@intrinsic
def float_of_word(typing: Any, vector: Any) -> Any:
    """Return the binary32 numbers with these bits."""
    return F32(I32), lambda context, builder, signature, args: builder.bitcast(args[0], F32.vector)


@intrinsic
def word_of_float(typing: Any, vector: Any) -> Any:
    """Return the bits of binary32 numbers."""
    return I32(F32), lambda context, builder, signature, args: builder.bitcast(args[0], I32.vector)


@intrinsic
def widened(typing: Any, vector: Any) -> Any:
    """Return binary32 numbers as binary64 ones."""
    return F64(F32), lambda context, builder, signature, args: builder.fpext(args[0], F64.vector)


@intrinsic
def power_of_two(typing: Any, exponent: Any) -> Any:
    """Return the positive binary64 powers of two with these biased exponents."""
    words = ir.VectorType(ir.IntType(64), LANES)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.shl(builder.zext(args[0], words), ir.Constant(words, [52] * LANES))
        return builder.bitcast(bits, F64.vector)

    return F64(I32), emit


@intrinsic
def plus_square(typing: Any, total: Any, vector: Any) -> Any:
    """Return total + vector * vector, rounded once if the processor can and else twice.

    Both are the same where the squares need no rounding.
    """
    add = _called(f"llvm.fmuladd.v{LANES}f64", F64)
    return F64(F64, F64), lambda context, builder, signature, args: add(
        builder, args[1], args[1], args[0]
    )
