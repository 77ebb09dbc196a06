"""Vectors of numbers, on which a compiled function computes as it does on single numbers.

LLVM forms vectors by itself where it may choose the order of additions; sums whose order is part of
their bits need vectors that are written down. A function that is compiled for `Lanes` computes in
each lane what it computes for single numbers, such as the classification of `emu.stats`.
`+ - * & | << >>`, comparisons, `abs` and `where` act lane by lane. Where one operand
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

WIDTH = 16  # numbers of a vector
LANES = 8  # parts of a sum whose order is defined


class Lanes(numba.types.Type):  # type: ignore[misc]  # Numba has no types
    """Numba's type of a vector of numbers of one type."""

    def __init__(self, scalar: Any, word: ir.Type, width: int = WIDTH) -> None:
        super().__init__(name=f"Lanes({scalar}, {width})")
        self.scalar, self.vector = scalar, ir.VectorType(word, width)

    def can_convert_from(self, context: Any, other: Any) -> Any:
        """Accept a single number where a vector is needed."""
        kinds = {F64: numba.types.Float, F32: numba.types.Float, I32: numba.types.Integer}
        takes = isinstance(other, kinds.get(self, ()))
        return numba.core.typeconv.Conversion.unsafe if takes else None


F64 = Lanes(numba.float64, ir.DoubleType())
F32 = Lanes(numba.float32, ir.FloatType())
I32 = Lanes(numba.int32, ir.IntType(32))
I1 = Lanes(numba.boolean, ir.IntType(1))
PARTS = Lanes(numba.float64, ir.DoubleType(), LANES)
FOUR = Lanes(numba.float64, ir.DoubleType(), 4)
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
    I32: {"add": "add", "sub": "sub", "and_": "and_", "lshift": "shl", "rshift": "ashr"},
    I1: {"and_": "and_", "or_": "or_"},
    F64: {"sub": "fsub", "mul": "fmul"},
    F32: {"sub": "fsub", "mul": "fmul"},
}
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

for _kind, _operations in _ARITHMETIC.items():
    for _name, _emit in _operations.items():
        _define(getattr(operator, _name), _kind, _kind, 2, _instruction(_emit))
for _name, _sign in _ORDER.items():
    _test = "fcmp_unordered" if _name == "ne" else "fcmp_ordered"
    _define(getattr(operator, _name), I1, I32, 2, _instruction("icmp_signed", _sign))
    _define(getattr(operator, _name), I1, F32, 2, _instruction(_test, _sign))
    _define(getattr(operator, _name), I1, F64, 2, _instruction(_test, _sign))
_define(abs, F32, F32, 1, _called(f"llvm.fabs.v{WIDTH}f32", F32))
_define(abs, F64, F64, 1, _called(f"llvm.fabs.v{WIDTH}f64", F64))
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


def _loads(kind: Lanes, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, array, kind, *args)
        return builder.load(place, align=array.dtype.bitwidth // 8)

    return kind(array, numba.intp), emit


@intrinsic
def words(typing: Any, array: Any, first: Any) -> Any:
    """Return a vector of integers from a contiguous array of int32."""
    return _loads(I32, array)


@intrinsic
def load(typing: Any, array: Any, first: Any) -> Any:
    """Return eight numbers of a contiguous array of float64."""
    return _loads(PARTS, array)


@intrinsic
def store(typing: Any, array: Any, first: Any, vector: Any) -> Any:
    """Write eight float64 numbers to a contiguous array."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, array, PARTS, *args[:2]), align=8)
        return context.get_dummy_value()

    return numba.void(array, numba.intp, PARTS), emit


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


@intrinsic
def four_zeros(typing: Any) -> Any:
    """Return four numbers that are 0."""
    return FOUR(), lambda context, builder, signature, args: ir.Constant(FOUR.vector, [0.0] * 4)


@intrinsic
def plus_parts(typing: Any, total: Any, terms: Any) -> Any:
    """Return a vector plus each part of a longer one that is as long, one after the other."""
    size = total.vector.count

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result, every = args
        for first in range(0, terms.vector.count, size):
            chosen = ir.Constant(ir.VectorType(_INDEX, size), [*range(first, first + size)])
            result = builder.fadd(result, builder.shuffle_vector(every, every, chosen))
        return result

    return total(total, terms), emit


@intrinsic
def flagged(typing: Any, flags: Any) -> Any:
    """Return an integer with the bits that are the flags of a vector."""
    return numba.int64(I1), lambda context, builder, signature, args: builder.zext(
        builder.bitcast(args[0], ir.IntType(WIDTH)), ir.IntType(64)
    )


@intrinsic
def ones(typing: Any, bits: Any) -> Any:
    """Return how many bits of an integer are 1."""
    return numba.int64(numba.int64), lambda _, builder, signature, args: builder.ctpop(args[0])


@njit
def counted(flags: Any) -> int:
    """Return how many flags of a vector are set."""
    number: int = ones(flagged(flags))
    return number


@intrinsic
def float_of_word(typing: Any, vector: Any) -> Any:
    """Return the binary32 numbers with these bits."""
    return F32(I32), lambda context, builder, signature, args: builder.bitcast(args[0], F32.vector)


@njit
def single_power_of_two(exponent: Any) -> Any:
    """Return the positive binary32 powers of two with these biased exponents."""
    return float_of_word(exponent << 23)


@intrinsic
def widened(typing: Any, vector: Any) -> Any:
    """Return binary32 numbers as binary64 ones."""
    return F64(F32), lambda context, builder, signature, args: builder.fpext(args[0], F64.vector)


@intrinsic
def power_of_two(typing: Any, exponent: Any) -> Any:
    """Return the positive binary64 powers of two with these biased exponents."""
    words = ir.VectorType(ir.IntType(64), WIDTH)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.shl(builder.zext(args[0], words), ir.Constant(words, [52] * WIDTH))
        return builder.bitcast(bits, F64.vector)

    return F64(I32), emit


@intrinsic
def prefetch(typing: Any, array: Any, place: Any) -> Any:
    """Ask for the line of the cache that an entry is in; the entry need not exist."""
    kinds = [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3]

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[0]).data
        declared = ir.FunctionType(ir.VoidType(), kinds)
        ask = get_or_insert_function(builder.module, declared, "llvm.prefetch.p0i8")
        at = builder.bitcast(builder.gep(data, [args[1]]), kinds[0])
        builder.call(ask, [at, _INDEX(0), _INDEX(3), _INDEX(1)])
        return context.get_dummy_value()

    return numba.void(array, numba.intp), emit
