"""Running a function without its transpositions, by computing arrays in transposed form.

Inside a kernel a transposition goes through memory that threads share, and the threads wait before
and after it. But the arrays of a tile are computed number by number, from rows, columns and sums of
products, and (a b)^T = b^T a^T has the same products in the same order. So every array is computed
directly in the form that is needed, plain or transposed, and at most once in each form.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array
from jax.extend.core import Jaxpr, Literal

from roundscope.emu.backends.kernels import marks
from roundscope.emu.backends.kernels.narrowing import RESHARD, inlined

BY_NUMBER = (
    *("add", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "eq", "ne", "lt", "le", "gt"),
    *("ge", "and", "or", "not", "xor", "select_n", "shift_left", "shift_right_logical", "copy"),
    *("shift_right_arithmetic", "convert_element_type", "bitcast_convert_type"),
    *(marks.ROUND, marks.PRODUCT, marks.FUNCTION, marks.ODD_SUM, marks.ABSENT),
)
EitherWay = Callable[[bool], Array]  # returns an array for False and its transpose for True


def untransposed(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return f, a function of arrays with `emu.backends.kernels.marks`, without its transpositions.

    The results are the same, bit for bit. The new function transposes nothing but arguments of f.
    It raises NotImplementedError for an operation that it cannot compute in transposed form.
    """

    def run(*args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        closed, like = jax.make_jaxpr(
            lambda *x: f(*jax.tree.unflatten(tree, x)), return_shape=True
        )(*flat)
        results = _evaluate(closed.jaxpr, [*map(_given, closed.consts)], [*map(_given, flat)])
        return jax.tree.unflatten(jax.tree.structure(like), [x(False) for x in results])

    return run


def _given(x: Any) -> EitherWay:
    """Return an existing array as a function that returns it plain or transposed."""
    return functools.cache(lambda is_transposed: x.T if is_transposed and x.ndim == 2 else x)


def _evaluate(
    jaxpr: Jaxpr, consts: Sequence[EitherWay], args: Sequence[EitherWay]
) -> list[EitherWay]:
    values: dict[Any, EitherWay] = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)
    )

    def read(v: Any) -> EitherWay:
        return (lambda _: v.val) if isinstance(v, Literal) else values[v]

    for eqn in jaxpr.eqns:
        values |= dict(zip(eqn.outvars, _results(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _results(eqn: Any, x: Sequence[EitherWay]) -> list[EitherWay]:
    if closed := inlined(eqn):
        return _evaluate(closed.jaxpr, [*map(_given, closed.consts)], x)
    if eqn.primitive.name == RESHARD:
        return [*x]
    swaps = eqn.primitive.name == "transpose" and eqn.params["permutation"] == (1, 0)
    if eqn.primitive is marks.TRANSPOSED or swaps:
        return [lambda is_transposed: x[0](not is_transposed)]

    @functools.cache
    def computed(is_transposed: bool) -> Any:
        return _transpose(eqn, x) if is_transposed else _bound(eqn, *(y(False) for y in x))

    def result(n: int, is_transposed: bool) -> Array:
        results = computed(is_transposed and eqn.outvars[n].aval.ndim == 2)
        array: Array = results[n] if eqn.primitive.multiple_results else results
        return array

    return [functools.partial(result, n) for n in range(len(eqn.outvars))]


def _transpose(eqn: Any, x: Sequence[EitherWay]) -> Any:
    """Return the transpose of an operation's result."""
    name, params = eqn.primitive.name, eqn.params
    if name in BY_NUMBER or eqn.primitive in BY_NUMBER:
        return _bound(eqn, *(y(True) for y in x))
    if eqn.primitive is marks.TOTAL:
        a, b, init = x
        return marks.total(params["accumulator"], b(True), a(True), init(True))
    if name == "broadcast_in_dim":
        ways = tuple(sorted(1 - d for d in params["broadcast_dimensions"]))
        return _bound(eqn, x[0](True), shape=params["shape"][::-1], broadcast_dimensions=ways)
    if name == "reshape" and eqn.invars[0].aval.ndim == 1 and 1 in params["new_sizes"]:
        return _bound(eqn, x[0](False), new_sizes=params["new_sizes"][::-1])
    if name == "iota":
        return _bound(eqn, shape=params["shape"][::-1], dimension=1 - params["dimension"])
    raise NotImplementedError(f"the transpose of what {name} makes")


def _bound(eqn: Any, *arrays: Array, **changes: Any) -> Any:
    """Return the result of the same operation on other arrays, with some parameters changed."""
    return eqn.primitive.bind(*arrays, **eqn.params | changes)
