"""JAX primitives that mark the operations of a kernel for `emu.backends.kernels.narrowing`.

Each primitive represents one operation, such as a rounding or a product. It does not say how the
operation is computed; `narrowing` decides that.
"""

from collections.abc import Callable

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


def round_event(x: Array, r: Rounding, random: Array | None = None) -> Array:
    """Return x rounded once."""
    result: Array = ROUND.bind(x, *(() if random is None else (random,)), rounding=r)
    return result


def product(a: ArrayLike, b: ArrayLike) -> Array:
    """Return a b."""
    result: Array = PRODUCT.bind(
        *jnp.broadcast_arrays(jnp.asarray(a, jnp.float64), jnp.asarray(b, jnp.float64))
    )
    return result


def odd_sum(a: ArrayLike, b: ArrayLike) -> Array:
    """Return a + b, rounded to odd."""
    result: Array = ODD_SUM.bind(
        *jnp.broadcast_arrays(jnp.asarray(a, jnp.float64), jnp.asarray(b, jnp.float64))
    )
    return result


def function(f: Callable[..., Array], x: Array) -> Array:
    """Return f(x)."""
    result: Array = FUNCTION.bind(x, function=f)
    return result


def total(acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    """Return init + a @ b."""
    result: Array = TOTAL.bind(a, b, init, accumulator=acc)
    return result


def transposed(x: Array) -> Array:
    """Return the transpose of x."""
    result: Array = TRANSPOSED.bind(x)
    return result


def absent(x: Array) -> Array:
    """Return x, whose numbers are only multiplied by 0 later (`Ops.absent`)."""
    result: Array = ABSENT.bind(x)
    return result


def seen(name: str, event: Event) -> Array:
    """Return a number that stands for the summary of an event, which `Machine.seen` gets.

    name: the name of the event's site.
    """
    before, after, _, exists = event
    result: Array = SEEN.bind(before, after, exists, name=name)
    return result


def in_lanes(x: Array) -> Array:
    """Return x (rows, n) as (4 rows, n / 4), a row for each lane of each row of x."""
    result: Array = IN_LANES.bind(x)
    return result


def in_pairs(x: Array, is_crossed: bool, r: Rounding) -> Array:
    """Return the sum of four lanes (rows, 4) by pairs, the sum of a pair rounded: (rows,).

    is_crossed: whether lanes 0 and 2, and 1 and 3 are pairs; else 0 and 1, and 2 and 3 are.
    """
    result: Array = IN_PAIRS.bind(x, is_crossed=is_crossed, rounding=r)
    return result
