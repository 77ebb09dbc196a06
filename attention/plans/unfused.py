"""Plans of unfused attention: eager frameworks, XLA, and the math back end of torch's SDPA.

Their softmax is a separate step.

These are twins: they give the bits of that code on an H200 (docs/findings/kernels.md).
"""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    CappedBy,
    DeltaFrom,
    Exponential,
    Reciprocal,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
    Tanh,
)
from roundscope.attention.plans.hopper import EIGHTS, on_hopper
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import fp32
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64
from roundscope.emu.sums.accumulator import Accumulator, Order


def eager() -> Plan:
    """Return transformers' eager attention: operation by operation in BF16, with an FP32 softmax.

    The scores are rounded to BF16 after their product and scaled in BF16. A warp adds each row. P
    is divided in FP32 and cast. The backward keeps P in FP32, and dS is cast, scaled and cast
    again.
    """
    bf16 = (
        *(Site.Q, Site.K, Site.V, Site.DO, Site.S, Site.SCALED, Site.P, Site.PV, Site.OUT),
        *(
            Site.SS,
            Site.CAP,
            Site.TANH,
            Site.TT,
            Site.DTANH,
            Site.DSC,
            Site.DCT,
            Site.DCAP,
            Site.DCQ,
        ),
        *(Site.P_B, Site.DP, Site.DS, Site.SDS, Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT),
    )
    plan = on_hopper(fp32().rounded(dict.fromkeys(bf16, BF16)).at(Site.INV, BINARY64))
    warp = Accumulator(order=Order.STRIDED, chunk=32)
    plan = plan.adding(Site.ROWSUM, warp).adding(Site.DELTA, warp)
    return replace(
        plan,
        name="eager",
        normalise_first=True,
        delta_from=DeltaFrom.P_DP,
        exp=Exponential.CUDA,
        registers=True,
        saved_p=True,
        score_gradient=ScoreGradient.SOFTMAX,
        gradient_scale=ScaleOfGradient.OPERAND,
        capped_by=CappedBy.CHAIN,
        tanh=Tanh.CUDA,
    )


def gpt_oss() -> Plan:
    """Return transformers' eager attention of gpt-oss, whose softmax returns BF16.

    A sink is one more column of BF16 scores. The row maximum is subtracted in BF16 before the
    softmax, and automatic differentiation goes through it, so dS is made to add up to zero. P then
    has an odd number of columns, such as 513, which is not aligned for the longer instruction of
    the tensor core, so P V and dV use the one that takes 8 products at a time.
    """
    bf16 = dict.fromkeys(
        (Site.SINK, Site.X, Site.DM, Site.PDP, Site.PSINK, Site.DSINK, Site.DMAX, Site.DSM), BF16
    )
    plan = eager().rounded(bf16).adding(Site.PV, EIGHTS).adding(Site.DV, EIGHTS)
    return replace(plan, name="gpt-oss", sinks=Sinks.KEY, ds_from_p=True, maximum_gradient=True)


def jax_xla() -> Plan:
    """Return `jax.nn.dot_product_attention` as XLA compiles it for a GPU.

    Scores and their gradients are FP32, P = EXP rcp(l), and warps add up the rows. dS is the
    derivative of a quotient (`ScoreGradient.QUOTIENT`), as automatic differentiation of the softmax
    gives it.
    """
    fours, eights = (Accumulator(order=Order.WARPS, chunk=n) for n in (4, 8))
    wide = dict.fromkeys((Site.S, Site.SCALED, Site.S_B), BINARY32)
    plan = (
        eager()
        .rounded(wide)
        .adding(Site.ROWSUM, fours)
        .adding(Site.DELTA, eights)
        .at(Site.INV, BINARY32)
        .at(Site.SDS, BINARY32)
    )
    return replace(
        plan,
        name="jax-xla",
        reciprocal=Reciprocal.RCP,
        gradient_scale=ScaleOfGradient.REGISTER,
        score_gradient=ScoreGradient.QUOTIENT,
    )


def sdpa_math() -> Plan:
    """Return SDPA's math back end, which computes in FP32 until results are cast.

    q and k are each multiplied by the root of the scale. Products are chains of multiply-adds in
    ascending order, a warp adds up each row, and P is divided and kept in FP32. In calls with one
    head cuBLAS adds over keys in chunks of 64 instead, which is PV.sum=chunked64 and the same for
    DQ, DK and DV.
    """
    cast = (Site.Q, Site.K, Site.V, Site.DO, Site.OUT, Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT)
    plan = fp32().rounded(dict.fromkeys(cast, BF16)).at(Site.INV, BINARY64)
    warp = Accumulator(order=Order.STRIDED, chunk=32)
    plan = plan.adding(Site.ROWSUM, warp).adding(Site.DELTA, warp)
    return replace(
        plan,
        name="sdpa-math",
        normalise_first=True,
        delta_from=DeltaFrom.P_DP,
        exp=Exponential.CUDA,
        registers=True,
        saved_p=True,
        score_gradient=ScoreGradient.SOFTMAX,
        scale_roots=True,
    )
