"""Scores that a softcap c bounds, c tanh(scale S / c), as in Gemma 2 (arXiv 2408.00118, section 2).

TANH takes the place of S, and c that of the scale: SS = scale S, then CAP = SS / c, then TANH, each
rounded. What the hardware's tanh.approx gives, which FlashAttention-4 uses, is not modeled.
"""

import numpy as np

from roundscope.attention.events.hook import Events
from roundscope.attention.plans.choices import CappedBy, Tanh
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array
from roundscope.emu.functions import tanh64
from roundscope.emu.instructions.tanh import tanhf
from roundscope.emu.rounding.modes import BINARY32

FORWARD = (Site.SS, Site.CAP, Site.TANH)
BACKWARD = (Site.SS_B, Site.CAP_B, Site.TANH_B)


def capped(
    at: Events, scale: float, s: Array, sites: tuple[Site, Site, Site] = FORWARD
) -> tuple[Array, Array | float]:
    """The scores and the factor that makes them logits: (S, scale), or (TANH, c) of a plan with a
    softcap c.
    """
    if not at.plan.softcap:
        return s, scale
    cap, ops = _cap(at), at.ops
    scaled, quotient, tanh = sites
    x = at(quotient, _by_cap(at, at(scaled, ops.multiply(s, scale))))
    if at.plan.tanh is Tanh.CUDA:
        return at(tanh, ops.call(tanhf, ops.round(x, BINARY32, None))), cap
    return at(tanh, ops.call(tanh64, x)), cap


def factor(at: Events, scale: float) -> Array | float:
    """The factor of `capped` alone, with which the maximum is multiplied too."""
    return _cap(at) if at.plan.softcap else scale


def uncapped(at: Events, ds: Array, tanh: Array) -> Array:
    """The gradient of scale S, (bq, bk), from that of a capped score: DSC, then DCAP = DSC DTANH
    with DTANH = 1 - TT, TT = tanh^2.

    Of a chain, DCT = c DSC comes before DCAP, and DCQ = DCAP / c behind it.
    """
    ops, cap = at.ops, _cap(at)
    slope = at(
        Site.DTANH,
        ops.odd_sum(ops.hidden(ops.xp.ones_like(tanh)), -at(Site.TT, ops.multiply(tanh, tanh))),
    )
    ds = at(Site.DSC, ds)
    if at.plan.capped_by is CappedBy.QUOTIENT:
        return at(Site.DCAP, ops.multiply(ds, slope))
    ds = at(Site.DCT, ops.multiply(ds, cap))
    return at(Site.DCQ, _by_cap(at, at(Site.DCAP, ops.multiply(ds, slope))))


def _cap(at: Events) -> Array | float:
    """c, in binary32 unless SCALED is wider, as the scale is; of arms trained side by side the
    format is traced.
    """
    cap, narrow = at.plan.softcap, _narrow(at.plan.softcap)
    if cap == narrow:
        return cap
    wide = at.plan[Site.SCALED].format.precision > 24
    if isinstance(wide, bool):
        return (
            cap if wide else narrow
        )  # a number of Python's, as the scale is: what takes it by log2 e needs one
    return at.ops.xp.where(wide, cap, narrow)


def _by_cap(at: Events, x: Array) -> Array:
    """x / c, or of a chain x times binary32(1 / c), not rounded yet."""
    ops = at.ops
    if at.plan.capped_by is CappedBy.QUOTIENT:
        return ops.divide(x, ops.xp.full_like(x, _cap(at)))
    return ops.multiply(x, _narrow(1.0 / _narrow(at.plan.softcap)))


def _narrow(x: float) -> float:
    return float(np.float32(x))
