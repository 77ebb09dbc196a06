"""Integers that stay 32 bits wide under Numba.

Numba widens int32 to int64 at every operation, so a loop over binary32 numbers fills only half of
each vector register. A `Word` is an int32 that wraps around and does not widen. `+ - & | << >>` and
unary minus of words give words, and comparisons give booleans. If the other operand is an integer,
its low 32 bits are taken as a word.
"""

import operator
from typing import Any

import numba
from llvmlite import ir
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast, models, register_model

from roundscope.emu.backends.numba.jit import intrinsic


class Word(numba.types.Type):  # type: ignore[misc]  # Numba has no types
    """Numba's type of a word; `word` is its only instance."""

    def __init__(self) -> None:
        super().__init__(name="Word")

    def unify(self, context: Any, other: Any) -> Any:
        """Return the common type of a word and another type: a word for an integer, else None."""
        return self if isinstance(other, numba.types.Integer) else None

    def can_convert_from(self, context: Any, other: Any) -> Any:
        """Accept an integer, such as a literal or a field of a target, where a word is needed."""
        return (
            numba.core.typeconv.Conversion.unsafe
            if isinstance(other, numba.types.Integer)
            else None
        )


word = Word()


@register_model(Word)
class _Model(models.PrimitiveModel):  # type: ignore[misc]  # Numba has no types
    def __init__(self, manager: Any, type: Any) -> None:
        super().__init__(manager, type, ir.IntType(32))


def _low_bits(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return context.cast(builder, value, source, numba.int32)


lower_cast(numba.types.Integer, Word)(_low_bits)


@intrinsic
def to_word(typing: Any, value: Any) -> Any:
    """Return an int32 as a word."""
    return word(numba.int32), lambda context, builder, signature, args: args[0]


@intrinsic
def from_word(typing: Any, value: Any) -> Any:
    """Return a word as an int32."""
    return numba.int32(word), lambda context, builder, signature, args: args[0]


def _define(operation: Any, result: Any, arity: int, emit: Any) -> None:
    """Define an operation on words; `emit` is the function that emits its instruction."""

    class Operation(ConcreteTemplate):  # type: ignore[misc]  # Numba has no types
        cases = (signature(result, *[word] * arity),)

    infer_global(operation)(Operation)
    lower_builtin(operation, *[word] * arity)(
        lambda context, builder, signature, args: emit(builder, *args)
    )


_ARITHMETIC = {name: name for name in ("add", "sub", "and_", "or_")}
_ARITHMETIC |= {"lshift": "shl", "rshift": "ashr"}
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def _instruction(name: str, *first: str) -> Any:
    return lambda builder, *args: getattr(builder, name)(*first, *args)


for _name, _emit in _ARITHMETIC.items():
    _define(getattr(operator, _name), word, 2, _instruction(_emit))
for _name, _sign in _ORDER.items():
    _define(getattr(operator, _name), numba.boolean, 2, _instruction("icmp_signed", _sign))
_define(operator.neg, word, 1, lambda builder, a: builder.neg(a))
