"""A product x W whose six operands and three results are rounded, and an identity that rounds.

Forward and backward round independently.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from roundscope.emu.blocks.traced import round_even, round_row
from roundscope.experiments.train.mx.formats import Formats
from roundscope.experiments.train.mx.sites import INDEX, Site

Rows = Array  # (events, FIELDS) int32: the formats of one matrix of a layer


class How(NamedTuple):
    """What is not data of the roundings.

    size     the numbers of a block
    rounded  the events that round in some arm;  drawn: those that may draw random bits
    even     whether all others are `is_even`
    """

    size: int
    rounded: frozenset[Site]
    drawn: frozenset[Site] = frozenset()
    even: bool = False


def how_of(size: int, found: Sequence[Formats]) -> How:
    """Return what an executable needs that serves all of these formats.

    size: numbers of a block.
    """
    rounded, drawn = (
        frozenset[Site]().union(*(getattr(f, name) for f in found)) for name in ("rounded", "drawn")
    )
    return How(size, rounded, drawn, all(f.even for f in found))


def rounded(how: How, x: Array, rows: Rows, site: Site) -> Array:
    """Return x as an event rounds it."""
    if site not in how.rounded:
        return x
    if how.even:
        return round_even(x, rows[INDEX[site]], how.size, site.axis)
    return round_row(x, rows[INDEX[site]], how.size, site.axis, drawn=site in how.drawn)


def _times(a: Array, b: Array) -> Array:
    # without it a GPU drops bits of the operands (TF32)
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear(how: How, x: Array, w: Array, rows: Rows) -> Array:
    """Return Y(X(x) W(w)) with sums in FP32: x (batch, in), w (in, out) -> (batch, out).

    The backward, of g, is DX(G_X(g) W_X(w)^T) and DW(X_W(x)^T G_W(g)). Every rounding starts from
    x, w and g as they are, so an operand along one axis and the same along the other are two
    roundings of one number.
    """
    return rounded(
        how, _times(rounded(how, x, rows, Site.X), rounded(how, w, rows, Site.W)), rows, Site.Y
    )


def _forward(how: How, x: Array, w: Array, rows: Rows) -> tuple[Array, Any]:
    return linear(how, x, w, rows), (x, w, rows)


def _backward(how: How, kept: Any, g: Array) -> tuple[Array, Array, None]:
    x, w, rows = kept
    dx = _times(rounded(how, g, rows, Site.G_X), rounded(how, w, rows, Site.W_X).T)
    dw = _times(rounded(how, x, rows, Site.X_W).T, rounded(how, g, rows, Site.G_W))
    return rounded(how, dx, rows, Site.DX), rounded(how, dw, rows, Site.DW), None


linear.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def passed(how: How, forward: Site | None, backward: Site | None, x: Array, rows: Rows) -> Array:
    """Return x as the event `forward` rounds it; its gradient is rounded as by `backward`.

    None means that nothing is rounded.
    """
    return x if forward is None else rounded(how, x, rows, forward)


def _forward_passed(
    how: How, forward: Site | None, backward: Site | None, x: Array, rows: Rows
) -> tuple[Array, Rows]:
    return passed(how, forward, backward, x, rows), rows


def _backward_passed(
    how: How, forward: Site | None, backward: Site | None, rows: Rows, g: Array
) -> tuple[Array, None]:
    return (g if backward is None else rounded(how, g, rows, backward)), None


passed.defvjp(_forward_passed, _backward_passed)
