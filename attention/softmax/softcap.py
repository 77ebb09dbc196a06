"""Scores that a softcap c bounds: c tanh(scale S / c), as in Gemma 2 (arXiv 2408.00118, section 2).

The events are SS = scale S, then CAP = SS / c, then TANH, each rounded. After that, TANH takes the
place of S, and c takes the place of the scale. In plans with `cap_apart` CT = c TANH is rounded too
and takes the place of S, and the scale is 1.
"""

from typing import NamedTuple

import numpy as np

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import CappedBy, Tanh
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array
from roundscope.emu.functions import tanh64
from roundscope.emu.instructions.approximate import tanh_approx
from roundscope.emu.instructions.polynomials import tanhf
from roundscope.emu.roundings.modes import BINARY32

FORWARD = (Site.SS, Site.CAP, Site.TANH, Site.CT)
BACKWARD = (Site.SS_B, Site.CAP_B, Site.TANH_B, Site.CT_B)


class Capped(NamedTuple):
    """The scores (bq, bk), the factor that makes them logits, and TANH, (bq, bk).

    The first two are S and the scale without a softcap c; TANH and c with one; and CT and 1 in
    plans with `cap_apart`. Without a softcap `tanh` is S.
    """

    s: Array
    factor: Array | float
    tanh: Array


def capped(
    at: Events, scale: float, s: Array, sites: tuple[Site, Site, Site, Site] = FORWARD
) -> Capped:
    """Return the scores S of a tile, bounded by the softcap of the plan if it has one.

    sites: the sites of SS, CAP, TANH and CT, in the forward or in the backward.
    """
    if not at.plan.softcap:
        return Capped(s, scale, s)
    ops, (scaled, quotient, of_tanh, apart) = at.ops, sites
    x = at(quotient, _by_cap(at, at(scaled, ops.multiply(s, scale))))
    if at.plan.tanh is Tanh.CORRECT:
        tanh = at(of_tanh, ops.call(tanh64, x))
    else:
        function = tanhf if at.plan.tanh is Tanh.CUDA else tanh_approx
        tanh = at(of_tanh, ops.call(function, ops.round(x, BINARY32, None)))
    if at.plan.cap_apart:
        return Capped(at(apart, ops.multiply(tanh, _cap(at))), 1.0, tanh)
    return Capped(tanh, _cap(at), tanh)


def factor(at: Events, scale: float) -> Array | float:
    """Return the factor that `capped` returns, by which the maximum is multiplied too."""
    if not at.plan.softcap:
        return scale
    return 1.0 if at.plan.cap_apart else _cap(at)


def uncapped(at: Events, ds: Array, tanh: Array) -> Array:
    """Return the gradient of scale S, (bq, bk), from the gradient of the capped scores.

    The events are DSC, then DCAP = DSC DTANH with DTANH = 1 - TT and TT = tanh^2. Where the plan
    differentiates step by step (`CappedBy.CHAIN`), DCT = c DSC comes before DCAP, and DCQ = DCAP /
    c after it.

    ds: the gradient of the capped scores; tanh: that of `capped`; both (bq, bk).
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
    """Return the softcap c, rounded to binary32 unless site SCALED has a wider format.

    The scale is rounded in the same way. Where plans are data (`attention.plans.traced`), the
    format of SCALED is data too, and c is an array.
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
    """Return x / c, or x times binary32(1 / c) with `CappedBy.CHAIN`, not rounded yet."""
    ops = at.ops
    if at.plan.capped_by is CappedBy.QUOTIENT:
        return ops.divide(x, ops.xp.full_like(x, _cap(at)))
    return ops.multiply(x, _narrow(1.0 / _narrow(at.plan.softcap)))


def _narrow(x: float) -> float:
    """Return x rounded to binary32."""
    return float(np.float32(x))
