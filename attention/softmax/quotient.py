"""The gradient of P = EXP / l by the quotient rule, as JAX differentiates its softmax.

The gradient is dS = (dP / l - delta) EXP. Here delta is the sum of (dP / l^2) EXP over the keys,
which is rowsum(P dP) / l.
"""

from dataclasses import replace

from roundscope.attention.events.hook import Events
from roundscope.attention.sites import Site
from roundscope.attention.softmax.row_sums import inverse
from roundscope.emu.backends.ops import Array


def quotient_terms(at: Events, e: Array, l: Array, dp: Array) -> Array:
    """Return (dP / l^2) EXP, (bq, bk), whose row sums are delta; e, dp: (bq, bk), l: (bq,)."""
    mul = at.ops.multiply
    squared = at(Site.INV2, inverse(at, at(Site.LL, mul(l, l))))
    return at(Site.PDP, mul(at(Site.DPL2, mul(dp, squared[:, None])), e))


def quotient_gradient(at: Events, e: Array, l: Array, dp: Array, delta: Array) -> Array:
    """Return (dP / l - delta) EXP, (bq, bk), not rounded yet.

    The events of delta's terms are recorded here, since the pass that computes delta records
    nothing.
    """
    mul = at.ops.multiply
    quotient_terms(at, e, l, dp)
    inv = replace(at, recorder=None)(Site.INV, inverse(at, l))  # the forward's event
    dpl = at(Site.DPL, mul(dp, inv[:, None]))
    return mul(at(Site.DPD, dpl - delta[:, None]), e)
