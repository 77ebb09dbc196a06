"""JAX primitives that mark the operations of a kernel for `emu.backends.kernels.narrowing`.

Each primitive represents one operation, such as a rounding or a product. It does not say how the
operation is computed; `narrowing` decides that.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.typing import ArrayLike

from roundscope.emu.backends.ops import Event
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.sums.accumulator import Accumulator


def _marked(name: str, shape: Callable[..., tuple[int, ...]]) -> Primitive:
    """Return a primitive with a float64 result, whose shape follows from those of its arguments."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(
        lambda *x, **_: jax.core.ShapedArray(shape(*(y.shape for y in x)), jnp.dtype("float64"))
    )
    return primitive


ROUND = _marked("round_event", lambda x, *random: x)
PRODUCT = _marked("guarded_product", lambda a, b: a)
FUNCTION = _marked("function", lambda x: x)
ODD_SUM = _marked("odd_sum", lambda a, b: a)
TOTAL = _marked("sum_of_products", lambda a, b, init: (a[0], b[1]))
IN_LANES = _marked("in_lanes", lambda x: (4 * x[0], x[1] // 4))
IN_PAIRS = _marked("in_pairs", lambda x: x[:1])
ABSENT = _marked("absent", lambda x: x)
SEEN = _marked("seen", lambda before, after, exists: ())
TRANSPOSED = _marked("transposed", lambda x: x[::-1])


def _of(mark: Primitive, *x: Array, **how: Any) -> Array:
    """Return the result of a primitive."""
    result: Array = mark.bind(*x, **how)
    return result


def round_event(x: Array, r: Rounding, random: Array | None = None) -> Array:
    """Return x rounded once."""
    return _of(ROUND, x, *(() if random is None else (random,)), rounding=r)


def product(a: ArrayLike, b: ArrayLike) -> Array:
    """Return a b."""
    return _of(PRODUCT, *jnp.broadcast_arrays(*(jnp.asarray(x, jnp.float64) for x in (a, b))))


def odd_sum(a: ArrayLike, b: ArrayLike) -> Array:
    """Return a + b, rounded to odd."""
    return _of(ODD_SUM, *jnp.broadcast_arrays(*(jnp.asarray(x, jnp.float64) for x in (a, b))))


def function(f: Callable[..., Array], x: Array) -> Array:
    """Return f(x)."""
    return _of(FUNCTION, x, function=f)


def total(acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    """Return init + a @ b."""
    return _of(TOTAL, a, b, init, accumulator=acc)


def transposed(x: Array) -> Array:
    """Return the transpose of x."""
    return _of(TRANSPOSED, x)


def absent(x: Array) -> Array:
    """Return x, whose numbers are only multiplied by 0 later (`Ops.absent`)."""
    return _of(ABSENT, x)


def seen(name: str, event: Event) -> Array:
    """Return a number that stands for the summary of an event, which `Machine.seen` gets.

    name: the name of the event's site.
    """
    before, after, _, exists = event
    return _of(SEEN, before, after, exists, name=name)


def in_lanes(x: Array) -> Array:
    """Return x (rows, n) as (4 rows, n / 4), a row for each lane of each row of x."""
    return _of(IN_LANES, x)


def in_pairs(x: Array, is_crossed: bool, r: Rounding) -> Array:
    """Return the sum of four lanes (rows, 4) by pairs, the sum of a pair rounded: (rows,).

    is_crossed: whether lanes 0 and 2, and 1 and 3 are pairs; else 0 and 1, and 2 and 3 are.
    """
    return _of(IN_PAIRS, x, is_crossed=is_crossed, rounding=r)
