"""Scores that a softcap c bounds, c tanh(scale S / c), as in Gemma 2 (arXiv 2408.00118, section 2).

TANH takes the place of S, and c that of the scale.

As FlashAttention-4 and eager attention do it, SS = scale S, then CAP = SS / c, then TANH, each rounded. What the hardware's
tanh.approx gives is not modeled: TANH is the rounded tanh.
"""

from roundscope.attention.events.hook import Events
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array
from roundscope.emu.functions import tanh64

FORWARD = (Site.SS, Site.CAP, Site.TANH)
BACKWARD = (Site.SS_B, Site.CAP_B, Site.TANH_B)


def capped(at: Events, scale: float, s: Array, sites: tuple[Site, Site, Site] = FORWARD) -> tuple[Array, float]:
    """The scores and the factor that makes them logits: (S, scale), or (TANH, c) of a plan with a softcap c."""
    cap, ops = at.plan.softcap, at.ops
    if not cap:
        return s, scale
    scaled, quotient, tanh = sites
    x = at(quotient, ops.divide(at(scaled, ops.multiply(s, scale)), ops.xp.full_like(s, cap)))
    return at(tanh, ops.call(tanh64, x)), cap


def factor(at: Events, scale: float) -> float:
    """The factor of `capped` alone, with which the maximum is multiplied too."""
    return at.plan.softcap or scale


def slope(at: Events, tanh: Array) -> Array:
    """DTANH = 1 - tanh^2, the derivative of a capped score by scale S."""
    return at(Site.DTANH, 1.0 - at.ops.multiply(tanh, tanh))
