"""Fused kernels of PyTorch and Triton beside FlashAttention and cuDNN: memory-efficient attention,
flex_attention, and Triton's tutorial.
"""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    GradientsApart,
    KeyOrder,
    Log2E,
    Logarithm,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    Tanh,
)
from roundscope.attention.plans.hopper import (
    EIGHTS,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import rounding_to
from roundscope.attention.plans.twins.twin import TORCH, fused, twin
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
    FP16,
)
from roundscope.emu.sums.accumulator import Accumulator


@twin(
    "sdpa-efficient",
    tiles=lambda width, is_cut: (64, 64) if width < 128 else (128, 128),
    source=f"SDPA's memory-efficient back end, {TORCH}",
    kernels=("sdpa-efficient",),
    outputs=("sdpa-efficient",),
    wide="pv_into_o=false AO=fp64 normalized_last=true",
)
def efficient() -> Plan:
    """Return memory-efficient attention (CUTLASS) as torch's SDPA runs it, on tensor cores that
    take 8 products at a time.

    Above 128 features the kernel keeps O in memory, which the words of `Twin.wide` say.
    """
    plan = rounding_to(fused(EIGHTS, lanes=2).at(Site.AL, BINARY32), BF16, "BIAS DBIAS")
    return replace(
        plan,
        log2_e=Log2E.SCORES,
        row_sum=RowSum.GROUPS,
        log=Logarithm.CUDA,
        exponent_again=BackwardExponent.NATURAL,
        ds_from_p=True,
        gradient_scale=ScaleOfGradient.REGISTER,
        gradients_apart=GradientsApart.NONE,
        query_order=QueryOrder.WRAPPED,
    )


@twin(
    "flex",
    tiles=lambda width, is_cut: (128, 128 if width == 64 else 64),
    source=f"flex_attention, compiled, {TORCH}",
    kernels=("flex",),
    outputs=("flex", "flex-served"),
)
def flex() -> Plan:
    """Return torch's flex_attention, which Triton compiles: the scores are scaled, and then
    multiplied by log2 e inside the multiply-add of X.
    """
    return replace(
        fused().at(Site.TT, BINARY64),
        log2_e=Log2E.SCORES,
        fused_exponent=True,
        row_sum=RowSum.TILES,
        unfused_if_cut=True,
        reciprocal=Reciprocal.RCP,
        key_order=KeyOrder.MASKED_FIRST,
        gradients_apart=GradientsApart.NONE,
        lse_base2=True,
        log=Logarithm.CUDA,
        query_order=QueryOrder.MASKED_FIRST,
        capped_by=CappedBy.CHAIN,
        tanh=Tanh.CUDA,
    )


@twin(
    "triton-tutorial",
    tiles=lambda width, is_cut: (128, min(64, width)),
    source="Triton's tutorial 06, triton 3.6.0, one H200",
    kernels=("triton-tutorial",),
    outputs=("triton-tutorial",),
)
def triton_tutorial() -> Plan:
    """Return the attention of Triton's tutorial 06, in FP16.

    Its backward multiplies K by scale times log2 e and rounds it again, so the scores that it
    computes again, S_B, are not those of the forward.
    """
    plan = replace(
        fused(Accumulator.tensor_core("hopper", "fp16"), lanes=16),
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        row_sum=RowSum.TILES,
        unfused_if_cut=True,
        reciprocal=Reciprocal.RCP,
        gradients_apart=GradientsApart.NONE,
        lse_base2=True,
        log=Logarithm.CUDA,
        query_order=QueryOrder.MASKED_FIRST,
        scaled_keys=True,
    )
    halves = (*(site for site in Site if plan[site] == BF16), Site.KC)
    return plan.rounded(dict.fromkeys(halves, FP16))
