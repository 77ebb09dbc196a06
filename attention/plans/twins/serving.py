"""Kernels of few bits for serving: SageAttention."""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    Exponential,
    Log2E,
    Reciprocal,
    RowSum,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import fa2_bf16, rounding_to
from roundscope.attention.plans.twins.twin import always, twin
from roundscope.attention.sites import Site
from roundscope.emu.blocks.format import INT8, BlockFormat
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
    FP16,
    Rounding,
    RoundingMode,
)
from roundscope.emu.sums.accumulator import Accumulator


@twin(
    "sage-int8",
    tiles=always(128, 64),
    source="SageAttention 1.0.6, torch 2.11.0 (CUDA 13.0), one H100",
    kernels=("sage-int8",),
    outputs=("sage-int8",),
)
def sage_int8() -> Plan:
    """Return the forward of SageAttention 1 (arXiv 2410.02367), which Triton compiles.

    K loses its mean over the tokens, q is multiplied by c, and both become INT8 in blocks of 128
    queries and of 64 keys, by Triton's division and with ties away from zero. (The kernel adds 0.5
    in binary32, so of all quotients 0.5 - 2^-25 becomes 1, here 0.) The products of INT8 are added
    exactly and multiplied by the scale of Q and then by that of K. P and V are FP16, and the tensor
    core keeps the sum of a tile in FP16. The kernel has no backward; the plan's is that of
    fa2-bf16.
    """
    element = Rounding(format=INT8, mode=RoundingMode.TIES_TO_AWAY)
    q = BlockFormat(
        element=element, size=128, rows=128, scale=BINARY32.format, rule=ScaleRule.NEAREST
    )
    plan = fa2_bf16().rounded({Site.Q: q, Site.K: replace(q, rows=64)})
    plan = rounding_to(rounding_to(plan, FP16, "V P PV"), BINARY64, "AL AO").at(Site.KM, BF16)
    plan = plan.adding(Site.S, Accumulator(step=BINARY64))  # exact, as integers are
    return replace(
        plan.adding(Site.PV, Accumulator.tensor_core("hopper", "fp16", "fp16")),
        exp=Exponential.EX2,
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        unfused_if_cut=True,
        pv_into_o=False,
        row_sum=RowSum.TILES,
        reciprocal=Reciprocal.RCP,
        registers=True,
        scaled_queries=True,
        smoothed_keys=True,
        key_scales=True,
        block_reciprocal=Reciprocal.RCP,
    )
