"""Sinks: one logit per head, which takes part in every row's softmax like a key whose value is 0.

gpt-oss has sinks (arXiv 2508.10925). A sink enters as a key, or is added to the row sum at the end
(`attention.plans.choices.Sinks`). L is the logarithm of a row's sum, m + ln l.
"""

import math

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import Log2E, Sinks
from roundscope.attention.sites import Site
from roundscope.attention.softmax.exponents import LOG2_E32, exponent, exponential
from roundscope.emu.backends.ops import Array
from roundscope.emu.functions import exp64


def sink_logit(at: Events, scale: float, rows: int) -> Array | None:
    """Return SINK, the sink of each row in the units of m, (rows,); None in calls without sinks.

    It is the sink times log2 e where the scores contain the factor log2 e, and the sink divided by
    the scale where m is the maximum of unscaled scores.

    scale: the factor of the scores in the exponents.
    """
    if at.sink is None:
        return None
    ops, sink = at.ops, at.ops.xp.broadcast_to(at.sink, (rows,))
    if at.plan.log2_e is Log2E.MAXIMUM and at.plan.sinks is not Sinks.LAST:
        sink = ops.divide(sink, ops.xp.full_like(sink, scale))
    elif at.plan.log2_e is not Log2E.NONE:
        sink = ops.multiply(sink, LOG2_E32)
    return at(Site.SINK, sink)


def with_sink(at: Events, scale: float, m: Array, l: Array, sink: Array) -> tuple[Array, Array]:
    """Return m and SL = l + exp(SINK - m), for rows whose sink was not added yet.

    The plan's `offset` is added to the exponent. In rows without a key m is the sink.

    scale: the factor of the scores in the exponents; m, l: (rows,); sink: as `sink_logit` returns
    it.
    """
    ops, xp, is_empty = at.ops, at.ops.xp, m == -math.inf
    if at.plan.log2_e is Log2E.MAXIMUM:
        x = ops.odd_sum(sink, -ops.multiply(xp.where(is_empty, 0.0, m), scale))
        m = xp.where(is_empty, ops.divide(sink, xp.full_like(sink, scale)), m)
    else:
        x = exponent(ops, at.plan, sink - xp.where(is_empty, 0.0, m))
        m = xp.where(is_empty, sink, m)
    x = at(Site.SX, xp.where(is_empty, 0.0, x) + at.plan.offset)
    return m, at(Site.SL, l + at(Site.SE, exponential(at, x)))


def sink_gradient(at: Events, lse: Array, delta: Array) -> Array:
    """Return DSINK (rows,), what each row adds to the gradient of the sink.

    DSINK = -PSINK delta, with PSINK = exp(sink - L); lse: L, (rows,).
    """
    share = at(Site.PSINK, at.ops.call(exp64, at.sink - lse))
    return at(Site.DSINK, -at.ops.multiply(share, delta))
