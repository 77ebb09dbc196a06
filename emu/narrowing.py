"""A function of binary64 numbers, run on narrower ones wherever the bits are the same.

The carrier of every event is binary64, but most values are rounded to binary32 or less as soon as they are made, and a GPU has many
times more of that arithmetic. So the function is traced, and its operations are done again one by one: what is known to be a binary32
number is kept as one; a sum, difference or product of two such numbers is not computed until its rounding comes, and then by one
instruction that rounds so. What no rule here knows runs in binary64, as written.

The function marks what a rule needs to see, by primitives of this module: `round_event`, `product`, `function` and `total`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Jaxpr, Literal, Primitive
from jax.typing import ArrayLike

from emu.accumulate import Accumulator
from emu.formats import Format
from emu.rounding import BF16, BINARY32, FP16, Rounding

FP64, FP32 = "fp64", "fp32"
WITHIN_FP32 = ("bf16", "fp16", FP32)
ARITHMETIC = ("add", "sub", "mul")
STRUCTURE = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "copy", "select_n")  # numbers move, none is made
COMPARISON = ("max", "min", "reduce_max", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge")  # the same in any type that holds them
INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call")
ROUNDINGS = {"bf16": BF16, "fp16": FP16}
EVERYWHERE = (0.0, np.inf, -np.inf)
SMALLEST_FACTOR = 2.0**-16  # times a bfloat16 number this is a binary32 number, subnormal ones included: 2^-133 2^-16 = 2^-149


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Numbers as a kernel holds them.

    array    of the machine's type for the format; None where they are not computed yet
    format   bf16, fp16, fp32 or fp64: one that holds them all
    made     (operation, factors), what they are made from: add, sub, mul or a function; not rounded
    wider    a float32 array that is to be rounded to the format: as which type, its reader says
    uniform  the number, where all are one
    """

    array: Any
    format: str
    made: tuple[Any, tuple["Held", ...]] | None = None
    wider: Any = None
    uniform: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers, once computed."""
        own: tuple[int, ...] = (self.wider if self.array is None else self.array).shape
        return own


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What does the arithmetic. A float32 array here is one of the type for fp32, which an interpreter may make float64.

    types        of arrays, by the name of the format
    combined     (add | sub | mul, x, y, to_odd) -> that of two float32 arrays, rounded once to binary32: to nearest even, or, of products,
                 to odd
    narrow       (x, rounding) -> a float32 array rounded once, in the type of its format;  narrow32: as a float32 array
    exponential  a function of a float64 array, such as exp64, and exp: (x, format) -> that of a float32 array, rounded once to binary32
    round        (x, rounding, random) -> a float64 array rounded once
    multiply     the product of float64 arrays that no compiler fuses with a following addition
    divide       their quotient, which no compiler narrows: of binary32 numbers, rounded to binary32, LLVM makes a division in binary32,
                 and on a GPU that is an approximate one
    function     (f, x) -> f of a float64 array
    total        (machine, accumulator, a, b, init) -> init + a @ b
    transposed   (machine, x) -> the array of numbers, transposed
    """

    types: dict[str, Any]
    combined: Callable[[str, Array, Array, bool], Array]
    narrow: Callable[[Array, Rounding], Array]
    narrow32: Callable[[Array, Rounding], Array]
    exponential: Callable[..., Any]
    exp: Callable[[Array, str], Array]
    round: Callable[[Array, Rounding, Array | None], Array]
    multiply: Callable[[Array, Array], Array]
    divide: Callable[[Array, Array], Array]
    function: Callable[[Callable[..., Array], Array], Array]
    total: Callable[["Machine", Accumulator, Held, Held, Held], Held]
    transposed: Callable[["Machine", Held], Array]


def format_of(f: Format) -> str:
    """The narrowest of the formats above that holds the numbers of another."""
    if f in (BF16.format, FP16.format, BINARY32.format):
        return f.name
    return FP32 if f.fits_binary32 else FP64


def held_as(machine: Machine, x: Held, name: str) -> Array:
    """The numbers as an array for a format that holds them."""
    x = _computed(machine, x)
    if x.wider is None:
        array = x.array
    else:
        array = (machine.narrow if name == x.format else machine.narrow32)(x.wider, ROUNDINGS[x.format])
    return array if array.dtype == machine.types[name] else jnp.asarray(array).astype(machine.types[name])


def _computed(machine: Machine, x: Held) -> Held:
    """What was only promised, in binary64."""
    if x.made is None:
        return x
    operation, factors = x.made
    a, *b = (held_as(machine, y, FP64) for y in factors)
    match operation:
        case "add":
            array = a + b[0]
        case "sub":
            array = a - b[0]
        case "mul":
            array = machine.multiply(a, b[0])
        case _:
            array = machine.function(operation, a)
    return Held(array=array, format=FP64)


# --- what the traced function marks ---------------------------------------------------------------------------


def _marked(name: str, shape: Callable[..., tuple[int, ...]]) -> Primitive:
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda *x, **_: jax.core.ShapedArray(shape(*(y.shape for y in x)), jnp.dtype("float64")))
    return primitive


_ROUND = _marked("round_event", lambda x, *random: x)
_PRODUCT = _marked("guarded_product", lambda a, b: a)
_FUNCTION = _marked("function", lambda x: x)
_TOTAL = _marked("sum_of_products", lambda a, b, init: (a[0], b[1]))
_TRANSPOSED = _marked("transposed", lambda x: x[::-1])


def round_event(x: Array, r: Rounding, random: Array | None = None) -> Array:
    """x rounded once."""
    found: Array = _ROUND.bind(x, *(() if random is None else (random,)), rounding=r)
    return found


def product(a: ArrayLike, b: ArrayLike) -> Array:
    """a b."""
    found: Array = _PRODUCT.bind(*jnp.broadcast_arrays(jnp.asarray(a, jnp.float64), jnp.asarray(b, jnp.float64)))
    return found


def function(f: Callable[..., Array], x: Array) -> Array:
    """f(x)."""
    found: Array = _FUNCTION.bind(x, function=f)
    return found


def total(acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    """init + a @ b."""
    found: Array = _TOTAL.bind(a, b, init, accumulator=acc)
    return found


def transposed(x: Array) -> Array:
    """Its transpose."""
    found: Array = _TRANSPOSED.bind(x)
    return found


# --- and what becomes of it -----------------------------------------------------------------------------------


def narrowed(machine: Machine, f: Callable[..., Any], formats: Sequence[str]) -> Callable[..., tuple[Array, ...]]:
    """f, to be called with `Held` numbers and other arrays; what f returns, as arrays for these formats, which must hold it."""

    def run(*args: Any) -> tuple[Array, ...]:
        flat, tree = jax.tree.flatten(args)
        closed = jax.make_jaxpr(lambda *x: jax.tree.leaves(f(*jax.tree.unflatten(tree, x))))(*map(_like, flat))
        found = _evaluate(machine, closed.jaxpr, closed.consts, flat)
        return tuple(held_as(machine, x, name) for x, name in zip(found, formats, strict=True))

    return run


def _like(x: Any) -> jax.ShapeDtypeStruct:
    array = x.array if isinstance(x, Held) else x
    return jax.ShapeDtypeStruct(jnp.shape(array), jnp.float64 if isinstance(x, Held) else jnp.result_type(array))


def _constant(machine: Machine, value: Any, like: Any) -> Any:
    """A number of the program's text; other constants as they are."""
    if like.dtype != jnp.float64:
        return value
    if np.ndim(value):
        return Held(array=value, format=FP64)
    number = float(value)
    with np.errstate(over="ignore"):
        name = FP32 if number != number or float(np.float32(number)) == number else FP64
    return Held(array=np.dtype(machine.types[name]).type(number), format=name, uniform=number)


def _evaluate(machine: Machine, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))
    values |= {v: _constant(machine, x, v.aval) for v, x in zip(jaxpr.constvars, consts, strict=True)}

    def read(v: Any) -> Any:
        return _constant(machine, v.val, v.aval) if isinstance(v, Literal) else values[v]

    for eqn in jaxpr.eqns:
        results = _again(machine, eqn, [read(v) for v in eqn.invars])
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _again(machine: Machine, eqn: Any, x: list[Any]) -> list[Any]:
    """The results of one operation."""
    name, params = eqn.primitive.name, eqn.params
    if name in INLINED:
        closed = params.get("jaxpr") or params["call_jaxpr"]
        return _evaluate(machine, closed.jaxpr, closed.consts, x)
    if eqn.primitive is _ROUND:
        return [rounded(machine, x[0], params["rounding"], x[1] if len(x) > 1 else None)]
    if eqn.primitive is _TOTAL:
        return [machine.total(machine, params["accumulator"], *(_computed(machine, y) for y in x))]
    if eqn.primitive is _TRANSPOSED:
        y = _computed(machine, x[0])
        return [Held(array=machine.transposed(machine, y), format=y.format)]
    if eqn.primitive is _FUNCTION:
        return [promised(machine, params["function"], x)]
    if eqn.primitive is _PRODUCT or name in ARITHMETIC:
        if any(isinstance(y, Held) for y in x):
            return [promised(machine, "mul" if eqn.primitive is _PRODUCT else name, x)]
    elif name == "div" and any(isinstance(y, Held) for y in x):
        return [Held(array=machine.divide(*(held_as(machine, y, FP64) for y in x)), format=FP64)]
    elif name == "convert_element_type" and params["new_dtype"] == jnp.float64:
        return [x[0] if isinstance(x[0], Held) else Held(array=jnp.asarray(x[0]).astype(jnp.float64), format=FP64)]
    elif name in STRUCTURE and any(isinstance(y, Held) for y in x):
        return [_moved(machine, eqn, x)]
    return _bound(machine, eqn, x, FP64 if name not in COMPARISON else _joined(x, FP32))


def promised(machine: Machine, operation: Any, x: Sequence[Held]) -> Held:
    """add, sub, mul or a function of numbers: a result that waits for its rounding, if one instruction may then do both."""
    known = operation in ARITHMETIC or operation is machine.exponential
    promise = Held(array=None, format=FP64, made=(operation, tuple(x)))
    return promise if known and all(y.format != FP64 for y in x) else _computed(machine, promise)


def rounded(machine: Machine, x: Held, r: Rounding, random: Array | None = None) -> Held:
    """Numbers rounded once."""
    name = format_of(r.format)
    if r.is_identity or (r == BINARY32 and x.format in WITHIN_FP32) or (r in (BF16, FP16) and x.format == name):
        return x
    array = _in_binary32(machine, x, r) if r in (BINARY32, BF16, FP16) else None
    if array is None:
        return Held(array=machine.round(held_as(machine, x, FP64), r, random).astype(machine.types[name]), format=name)
    return Held(array=array, format=FP32) if r == BINARY32 else Held(array=None, wider=array, format=name)


def _in_binary32(machine: Machine, x: Held, r: Rounding) -> Array | None:
    """A float32 array that rounds to what x rounds to; None where binary64 has to say."""
    if x.made is None:
        return held_as(machine, x, FP32) if x.format in WITHIN_FP32 else None
    operation, factors = x.made
    if callable(operation):
        return machine.exp(held_as(machine, factors[0], FP32), factors[0].format) if r == BINARY32 else None
    to_odd = r != BINARY32 and not _rounds_once(operation, factors, r.format.name)
    if to_odd and operation != "mul":  # the engines' sum has 53 bits: 1 + 2^-8 + 2^-60 is a tie there
        return None
    a, b = (held_as(machine, y, FP32) for y in factors)
    return machine.combined(operation, a, b, to_odd)


def _rounds_once(operation: str, factors: tuple[Held, ...], name: str) -> bool:
    """Whether nearest even to binary32 and then to the format is nearest even to the format: a sum of two of its own numbers, since
    24 >= 2 p + 2 (Figueroa 1995; where it is subnormal it is exact); or a product with a power of two, which is exact.
    """
    a, b = factors
    if operation != "mul":
        return a.format == b.format == name
    return any(x.format == name and y.uniform is not None and _is_power_of_two(y.uniform) for x, y in ((a, b), (b, a)))


def _is_power_of_two(x: float) -> bool:
    return SMALLEST_FACTOR <= x <= 1.0 and float(np.frexp(x)[0]) == 0.5


def _joined(x: Sequence[Any], least: str | None = None) -> str:
    """The narrowest format that holds them all, and no narrower than `least`. Every one here holds 0 and infinities."""
    held = [y for y in x if isinstance(y, Held)]
    own = {y.format for y in held if y.uniform not in EVERYWHERE} | ({least} if least else set())
    return FP32 if not own else own.pop() if len(own) == 1 else (FP64 if FP64 in own else FP32)


def _moved(machine: Machine, eqn: Any, x: list[Any]) -> Held:
    y = [_computed(machine, v) if isinstance(v, Held) else v for v in x]
    (found,) = _bound(machine, eqn, y, _joined(y))
    return Held(array=found.array, format=found.format, uniform=y[0].uniform if len(y) == 1 else None)


def _bound(machine: Machine, eqn: Any, x: list[Any], name: str) -> list[Any]:
    """The operation itself, on arrays for one format."""
    arrays = [held_as(machine, y, name) if isinstance(y, Held) else y for y in x]
    found = eqn.primitive.bind(*arrays, **eqn.params)
    found = found if eqn.primitive.multiple_results else [found]
    return [Held(array=y, format=name) if v.aval.dtype == jnp.float64 else y for y, v in zip(found, eqn.outvars, strict=True)]
