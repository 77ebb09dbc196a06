"""The released code of arXiv 2510.04212 as plans, compiled and eager.

These are twins: they give the bits of that code on an H200 (docs/findings/kernels.md). The preset
`qiu-yao` describes the eager forward alone.
"""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    BackwardExponent,
    Exponential,
    GradientsApart,
    Logarithm,
    Reciprocal,
    ScaleOfGradient,
)
from roundscope.attention.plans.hopper import octets, on_hopper
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import fp32
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64
from roundscope.emu.sums.accumulator import Accumulator, Order


def qiu_yao_compiled() -> Plan:
    """Return the released code as its training runs it, compiled and under autocast.

    The compiler keeps the scaled scores, the maximum, EXP and O in FP32, adds the tiles by
    multiply-adds, and writes m and l to memory in BF16. The backward computes BF16 scores again and
    adds BF16 parts in FP32. Without a mask X is one multiply-add. If there are several query tiles,
    the first divides by l in FP32 and the others divide by l in BF16. A single tile divides by l in
    BF16.
    """
    wide = (Site.SCALED, Site.X, Site.DM, Site.M, Site.L, Site.O, Site.SCALED_B)
    plan = (
        _released("qiu-yao-compiled")
        .rounded(dict.fromkeys(wide, BINARY32))
        .rounded(dict.fromkeys((Site.AL, Site.AO), BINARY64))
    )
    plan = plan.rounded(dict.fromkeys((Site.MS, Site.LANES, Site.DQP, Site.DKP, Site.DVP), BF16))
    plan = plan.adding(Site.DELTA, octets(16)).at(Site.INV, BINARY32)
    return replace(
        plan,
        gradients_apart=GradientsApart.ALL,
        reciprocal=Reciprocal.RCP,
        first_tile_apart=True,
        fused_without_mask=True,
    )


def qiu_yao_eager() -> Plan:
    """Return the released code run eagerly under autocast, tile by tile, where the result of every
    operation is BF16.
    """
    plan = _released("qiu-yao-eager").rounded(
        dict.fromkeys((Site.DOO, Site.DQP, Site.DQ, Site.DKP, Site.DK, Site.DVP, Site.DV), BF16)
    )
    plan = plan.adding(Site.DELTA, Accumulator(order=Order.PAIRWISE))
    return replace(plan, gradients_apart=GradientsApart.ALL, delta_products=True)


def _released(name: str) -> Plan:
    """Return what both forms of the released code share: operations in BF16, CUDA's expf, and a
    scale that multiplies P before dS.
    """
    bf16 = (
        *(
            Site.Q,
            Site.K,
            Site.V,
            Site.DO,
            Site.S,
            Site.SCALED,
            Site.M,
            Site.X,
            Site.P,
            Site.DM,
            Site.L,
            Site.AO,
            Site.PV,
            Site.O,
        ),
        *(
            Site.OUT,
            Site.S_B,
            Site.SCALED_B,
            Site.P_B,
            Site.DP,
            Site.DS,
            Site.DQ_OUT,
            Site.DK_OUT,
            Site.DV_OUT,
        ),
    )
    plan = on_hopper(fp32().rounded(dict.fromkeys(bf16, BF16)).at(Site.INV, BINARY64))
    plan = plan.adding(Site.ROWSUM, Accumulator(order=Order.STRIDED, chunk=32))
    return replace(
        plan,
        name=name,
        exp=Exponential.CUDA,
        registers=True,
        exponent_again=BackwardExponent.NATURAL,
        gradient_scale=ScaleOfGradient.PROBABILITY,
        kept_state=True,
        log=Logarithm.CUDA,
    )
