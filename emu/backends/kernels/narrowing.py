"""Running a function of binary64 numbers in narrower types where its results keep the same bits.

The carrier of every event is binary64, but most values are rounded to binary32 or less at once, and
a GPU has a far higher throughput in these types. So the function is traced, and its operations are
carried out again one by one. A number that is known to be in binary32 stays in binary32. A sum,
difference or product of two such numbers is not computed until it is rounded; then one instruction
computes and rounds it. Every other operation runs in binary64, as the function says. The function
marks its roundings, products and sums by `emu.backends.kernels.marks`, so that this module can
recognize them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array
from jax.extend.core import Jaxpr, Literal

from roundscope.emu.backends.kernels import marks
from roundscope.emu.backends.kernels.held import (
    FP32,
    FP64,
    WITHIN_FP32,
    Held,
    Machine,
    NoSuchArithmetic,
    computed,
    format_of,
    held_as,
    selected,
)
from roundscope.emu.roundings.modes import BF16, BINARY32, FP16, Rounding

ARITHMETIC = ("add", "sub", "mul")
SHAPING = ("broadcast_in_dim", "reshape", "squeeze", "transpose")  # the same numbers, elsewhere
STRUCTURE = (*SHAPING, "slice", "copy", "select_n")  # which move numbers without computing any
# operations with the same result in every type that holds their arguments
COMPARISON = ("max", "min", "reduce_max", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge")
RESHARD = "reshard"  # by JAX, where a caller has several devices; a kernel is on one of them
INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call")
NUMBERS: dict[Rounding, Callable[[float], Any]] = {BF16: ml_dtypes.bfloat16, FP16: np.float16}
EVERYWHERE = (0.0, np.inf, -np.inf)


def narrowed(
    machine: Machine, f: Callable[..., Any], formats: Sequence[str]
) -> Callable[..., tuple[tuple[Array, ...], Any]]:
    """Return f as a function that runs in narrower types where its results keep the same bits.

    f must return a pair: a tuple of arrays of numbers, and a structure of other results. The new
    function takes `Held` numbers and other arrays as arguments, and returns the same pair. In the
    tuple, each array has the type for the format at its place in `formats`, which must hold its
    numbers. In the structure, numbers are float64 arrays; an array that occurs twice there is
    converted only once.
    """

    def run(*args: Any) -> tuple[tuple[Array, ...], Any]:
        flat, tree = jax.tree.flatten(args)
        with jax.enable_x64(True):
            closed, like = jax.make_jaxpr(
                lambda *x: f(*jax.tree.unflatten(tree, x)), return_shape=True
            )(*map(_like, flat))
        results = _evaluate(machine, closed.jaxpr, closed.consts, flat)
        numbers, rest = jax.tree.unflatten(jax.tree.structure(like), results)
        arrays = tuple(held_as(machine, x, name) for x, name in zip(numbers, formats, strict=True))
        wide = {
            id(x): held_as(machine, x, FP64) for x in jax.tree.leaves(rest) if isinstance(x, Held)
        }
        return arrays, jax.tree.map(lambda x: wide.get(id(x), x), rest)

    return run


def _like(x: Any) -> jax.ShapeDtypeStruct:
    if isinstance(x, Held):
        return jax.ShapeDtypeStruct(x.seen_as or x.array.shape, jnp.float64)
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _constant(machine: Machine, value: Any, like: Any) -> Any:
    """Return a float64 constant of the traced program as `Held`, and other constants unchanged."""
    if like.dtype != jnp.float64:
        return value
    if np.ndim(value):
        return Held(array=value, format=FP64)
    number = float(value)
    with np.errstate(over="ignore"):
        name = FP32 if number != number or float(np.float32(number)) == number else FP64
    if name not in machine.types:
        raise NoSuchArithmetic(f"the number {number}")
    return Held(array=np.dtype(machine.types[name]).type(number), format=name, uniform=number)


def _evaluate(
    machine: Machine, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]
) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))
    values |= {
        v: _constant(machine, x, v.aval) for v, x in zip(jaxpr.constvars, consts, strict=True)
    }

    def read(v: Any) -> Any:
        return _constant(machine, v.val, v.aval) if isinstance(v, Literal) else values[v]

    for eqn in _needed(jaxpr):
        results = _again(machine, eqn, [read(v) for v in eqn.invars])
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def inlined(eqn: Any) -> Any:
    """Return the program that an operation calls, or None if the operation is not a plain call."""
    if eqn.primitive.name not in INLINED:
        return None
    return eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]


def _needed(jaxpr: Jaxpr) -> list[Any]:
    """Return the operations that some result depends on."""
    needed, operations = {v for v in jaxpr.outvars if not isinstance(v, Literal)}, []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            needed |= {v for v in eqn.invars if not isinstance(v, Literal)}
            operations.append(eqn)
    return operations[::-1]


def _again(machine: Machine, eqn: Any, x: list[Any]) -> list[Any]:
    """Return the results of one operation, carried out on narrow numbers."""
    name, params = eqn.primitive.name, eqn.params
    if closed := inlined(eqn):
        return _evaluate(machine, closed.jaxpr, closed.consts, x)
    if eqn.primitive is marks.ROUND:
        return [rounded(machine, x[0], params["rounding"], x[1] if len(x) > 1 else None)]
    if eqn.primitive is marks.TOTAL:
        a, b, init = x
        return [machine.total(machine, params["accumulator"], a, computed(machine, b), init)]
    if name == RESHARD:
        return x
    if eqn.primitive is marks.ABSENT:
        return [_absent(machine, x[0])]
    if eqn.primitive is marks.SEEN:
        assert machine.seen is not None
        before, after = (
            held_as(machine, y, FP32 if y.format in WITHIN_FP32 else FP64) for y in x[:2]
        )
        machine.seen(params["name"], before, after, x[2])
        return [np.float64(0.0)]
    if eqn.primitive is marks.IN_LANES:
        return [computed(machine, x[0])]
    if eqn.primitive is marks.IN_PAIRS:
        return [_in_pairs(machine, x[0], **params)]
    if eqn.primitive is marks.FUNCTION:
        return [_function(machine, params["function"], x[0])]
    if eqn.primitive is marks.ODD_SUM:
        return [_odd_sum(machine, *x)]
    if eqn.primitive is marks.PRODUCT or name in ARITHMETIC:
        if any(isinstance(y, Held) for y in x):
            return [promised(machine, "mul" if eqn.primitive is marks.PRODUCT else name, x)]
    elif name == "div" and any(isinstance(y, Held) for y in x):
        return [promised(machine, "div", x)]
    elif name == "convert_element_type" and params["new_dtype"] == jnp.float64:
        if isinstance(x[0], Held):
            return [x[0]]
        return [Held(array=jnp.asarray(x[0]).astype(jnp.float64), format=FP64)]
    elif name in STRUCTURE and any(isinstance(y, Held) for y in x):
        return [_moved(machine, eqn, x)]
    return _bound(machine, eqn, x, FP64 if name not in COMPARISON else _joined(x, FP32))


def _function(machine: Machine, f: Any, x: Held) -> Held:
    """Return f(x); an approximate instruction maps binary32 numbers to binary32 numbers."""
    if f in machine.instructions and x.format != FP64:
        return Held(array=machine.instructions[f](held_as(machine, x, FP32)), format=FP32)
    return promised(machine, f, (x,))


def _odd_sum(machine: Machine, a: Held, b: Held) -> Held:
    """Return a + b, rounded to odd.

    If a is a product and b fits binary32, the sum is not computed yet, so that one fused
    multiply-add can compute it when it is rounded to binary32.
    """
    if a.made is not None and a.made[0] == "mul" and b.format != FP64:
        return Held(array=None, format=FP64, made=("fma", (*a.made[1], b)))
    return computed(machine, Held(array=None, format=FP64, made=("odd", (a, b))))


def promised(machine: Machine, operation: Any, x: Sequence[Held]) -> Held:
    """Return the result of add, sub, mul or a function.

    If one instruction may compute and round the result, it is not computed until it is rounded.
    """
    known = operation in (*ARITHMETIC, "div") or operation is machine.exponential
    promise = Held(array=None, format=FP64, made=(operation, tuple(x)))
    return promise if known and all(y.format != FP64 for y in x) else computed(machine, promise)


def _absent(machine: Machine, x: Held) -> Held:
    """Return numbers that are only multiplied by 0 later."""
    if x.made is None or machine.toward_zero is None or x.made[0] not in ARITHMETIC:
        return computed(machine, x)
    operation, factors = x.made
    arrays = (held_as(machine, y, FP32) for y in factors)
    return Held(array=machine.toward_zero(operation, *arrays), format=FP32)


def _in_pairs(machine: Machine, x: Held, is_crossed: bool, rounding: Rounding) -> Held:
    if machine.pairs is None or rounding != BINARY32:
        raise NoSuchArithmetic(f"sums of pairs of lanes in {rounding}")
    sums = machine.pairs(held_as(machine, x, FP32), is_crossed)
    return promised(machine, "add", [Held(array=y, format=FP32) for y in sums])


def rounded(machine: Machine, x: Held, r: Rounding, random: Array | None = None) -> Held:
    """Return numbers rounded once."""
    name = format_of(r.format)
    is_held = x.format in WITHIN_FP32 if r == BINARY32 else r in (BF16, FP16) and x.format == name
    if r.is_identity or is_held:
        return x
    if x.made is not None and x.made[0] == "select":
        return _selected(machine, x.made[1], r, random)
    if r in (BF16, FP16) and (array := _in_16_bits(machine, x, r)) is not None:
        return Held(array=array, format=name)
    array = _in_binary32(machine, x, r) if r in (BINARY32, BF16, FP16) else None
    if array is None:
        array = machine.round(held_as(machine, x, FP64), r, random)
        return Held(array=array.astype(machine.types[name]), format=name)
    if r == BINARY32:
        return Held(array=array, format=FP32)
    return Held(array=None, wider=array, format=name)


def _selected(machine: Machine, x: tuple[Held, ...], r: Rounding, random: Array | None) -> Held:
    """Return a choice of numbers, each of which is rounded before the choice is made."""
    which, *either = x
    parts = [rounded(machine, y, r, random) for y in either]
    name = _joined(parts)
    return Held(array=selected(which, *(held_as(machine, y, name) for y in parts)), format=name)


def _in_16_bits(machine: Machine, x: Held, r: Rounding) -> Array | None:
    """Return x rounded to a 16-bit format by instructions of this format, as an array of its type.

    The result is None if these instructions cannot compute x. They compute a sum, difference or
    product of two numbers of the format, and the product of binary32 numbers and a tile of numbers
    of the format. They round once, whereas the definition rounds to binary64 and then to the
    format. Both give the same bits: for sums because 53 >= 2 p + 2 with p the precision of the
    format (Figueroa 1995), and for products because they are exact in binary64.
    """
    if x.made is None or x.made[0] not in ARITHMETIC:
        return None
    (operation, (a, b)), name = x.made, r.format.name
    if _is_within(a, r) and _is_within(b, r):
        first, second = (_in_own(machine, y, name) for y in (a, b))
        return machine.combined16(operation, first, second, r)
    if operation == "mul" and b.format == name and len(b.shape) == 2 and a.format in WITHIN_FP32:
        return machine.scaled16(held_as(machine, a, FP32), held_as(machine, b, name), r)
    return None


def _in_own(machine: Machine, x: Held, name: str) -> Array:
    """Return numbers as an array of the format; a uniform number is broadcast to the full shape."""
    if x.uniform is None:
        return held_as(machine, x, name)
    return jnp.broadcast_to(jnp.asarray(x.uniform, machine.types[name]), jnp.shape(x.array))


def _is_within(x: Held, r: Rounding) -> bool:
    """Return whether all the numbers are known to be numbers of the rounding's format."""
    with np.errstate(over="ignore"):
        return x.format == r.format.name or (
            x.uniform is not None and float(NUMBERS[r](x.uniform)) == x.uniform
        )


def _in_binary32(machine: Machine, x: Held, r: Rounding) -> Array | None:
    """Return a float32 array that rounds to the same numbers as x, or None if x needs binary64."""
    if x.made is None:
        return held_as(machine, x, FP32) if x.format in WITHIN_FP32 else None
    operation, factors = x.made
    to_odd = r != BINARY32
    # all engines round sums to binary64 first, where 1 + 2^-8 + 2^-60 is a tie of bf16; a sum that
    # is rounded to odd in binary32 would not be a tie
    if to_odd and operation != "mul":
        return None
    if callable(operation):
        return machine.exp(held_as(machine, factors[0], factors[0].format), factors[0].format)
    if operation == "fma":
        return machine.fused(*(held_as(machine, y, FP32) for y in factors))
    a, b = (held_as(machine, y, FP32) for y in factors)
    return machine.combined(operation, a, b, to_odd)


def _joined(x: Sequence[Any], least: str | None = None) -> str:
    """Return the narrowest format that holds all the numbers of x.

    The result is at least as wide as the format `least`. Uniform numbers that are 0 or infinite are
    ignored, since every format here holds them.
    """
    held = [y for y in x if isinstance(y, Held)]
    formats = {y.format for y in held if y.uniform not in EVERYWHERE}
    formats |= {least} if least else set()
    if not formats:
        return FP32
    if len(formats) == 1:
        return formats.pop()
    return FP64 if FP64 in formats else FP32


def _moved(machine: Machine, eqn: Any, x: list[Any]) -> Held:
    """Return the result of an operation that moves numbers without computing any."""
    if eqn.primitive.name in SHAPING and _is_sum_or_product(x[0]):
        operation, factors = x[0].made
        parts = tuple(_moved(machine, eqn, [y]) for y in factors)
        return Held(array=None, format=FP64, made=(operation, parts))
    made = [v.made[0] for v in x if isinstance(v, Held) and v.made is not None]
    if eqn.primitive.name == "select_n" and "div" in made:
        which, *either = x
        condition = Held(array=which, format=FP32)
        return Held(array=None, format=FP64, made=("select", (condition, *either)))
    y = [computed(machine, v) if isinstance(v, Held) else v for v in x]
    (moved,) = _bound(machine, eqn, y, _joined(y))
    uniform = y[0].uniform if len(y) == 1 else None
    return Held(array=moved.array, format=moved.format, uniform=uniform)


def _is_sum_or_product(x: Any) -> bool:
    """Return whether x still has to be computed from arrays of its own shape."""
    if not isinstance(x, Held) or x.made is None or x.made[0] not in ARITHMETIC:
        return False
    return len({np.shape(y.array) for y in x.made[1]}) == 1


def _bound(machine: Machine, eqn: Any, x: list[Any], name: str) -> list[Any]:
    """Return the results of the traced operation, on arrays for the format `name`."""
    arrays = [held_as(machine, y, name) if isinstance(y, Held) else y for y in x]
    return [
        Held(array=y, format=name) if v.aval.dtype == jnp.float64 else y
        for y, v in zip(machine.bound(eqn, arrays), eqn.outvars, strict=True)
    ]
