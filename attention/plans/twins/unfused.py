"""Attention operation by operation in PyTorch: eager models, the math back end of SDPA, and code
that arXiv 2510.04212 released, which torch.compile fuses in part.
"""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    DeltaFrom,
    Exponential,
    GradientsApart,
    Logarithm,
    Reciprocal,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
    Tanh,
)
from roundscope.attention.plans.hopper import (
    EIGHTS,
    WARP,
    octets,
    on_hopper,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import ENDS, fp32, rounding_to
from roundscope.attention.plans.twins.twin import TORCH, always, twin, whole_rows
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
)
from roundscope.emu.sums.accumulator import Accumulator, Order

RELEASED = (
    "ucker/why-low-precision-training-fails at 02f0ab6 (arXiv 2510.04212), under BF16 autocast"
)


@twin(
    "eager",
    tiles=whole_rows,
    source=f"eager attention of transformers 5.17.0, {TORCH}",
    kernels=("eager",),
    outputs=("eager", "eager-gqa", "gemma2"),
    runs_on_cpu=True,
)
def eager() -> Plan:
    """Return transformers' eager attention: operation by operation in BF16, with an FP32 softmax.

    The scores are rounded to BF16 after their product and scaled in BF16. A warp adds each row. P
    is divided in FP32 and cast. The backward keeps P in FP32, and dS is cast, scaled and cast
    again. Keys and values of grouped heads are repeated first (`repeat_kv`), so each query head's
    dK and dV are rounded before the group is added.
    """
    plan = on_hopper(fp32().at(Site.INV, BINARY64))
    plan = rounding_to(plan, BF16, f"{ENDS} S SCALED P PV OUT P_B DP DS SDS DKH DVH")
    plan = rounding_to(plan, BF16, "SS CAP TANH TT DTANH DSC DCT DCAP DCQ BIAS BIASED DBIAS")
    return replace(
        plan.adding(Site.ROWSUM, WARP).adding(Site.DELTA, WARP),
        normalise_first=True,
        delta_from=DeltaFrom.P_DP,
        exp=Exponential.CUDA,
        registers=True,
        saved_p=True,
        score_gradient=ScoreGradient.SOFTMAX,
        gradient_scale=ScaleOfGradient.OPERAND,
        capped_by=CappedBy.CHAIN,
        tanh=Tanh.CUDA,
        rounded_heads=True,
    )


# with 32 features P V takes 16 products at a time (PV.sum=hopper:bf16), with 64 it takes 8
@twin(
    "gpt-oss",
    tiles=whole_rows,
    source=f"eager attention of gpt-oss in transformers 5.17.0, {TORCH}",
    outputs=("gpt-oss",),
    least={"out": 0.9998},
    runs_on_cpu=True,
)
def gpt_oss() -> Plan:
    """Return transformers' eager attention of gpt-oss, whose softmax returns BF16.

    A sink is one more column of BF16 scores. The row maximum is subtracted in BF16 before the
    softmax, and automatic differentiation goes through it, so dS is made to add up to zero. P then
    has an odd number of columns, such as 513, which is not aligned for the longer instruction of
    the tensor core, so P V and dV use the one that takes 8 products at a time.
    """
    plan = rounding_to(eager(), BF16, "SINK X DM PDP PSINK DSINK DMAX DSM")
    plan = plan.adding(Site.PV, EIGHTS).adding(Site.DV, EIGHTS)
    return replace(plan, sinks=Sinks.KEY, ds_from_p=True, maximum_gradient=True)


def _released() -> Plan:
    """Return what both forms of the released code share: operations in BF16, CUDA's expf, and a
    scale that multiplies P before dS.
    """
    own = "S SCALED M X P DM L AO PV O OUT S_B SCALED_B P_B DP DS"
    plan = rounding_to(fp32(), BF16, f"{ENDS} {own}")
    return replace(
        on_hopper(plan.at(Site.INV, BINARY64)).adding(Site.ROWSUM, WARP),
        exp=Exponential.CUDA,
        registers=True,
        exponent_again=BackwardExponent.NATURAL,
        gradient_scale=ScaleOfGradient.PROBABILITY,
        kept_state=True,
        log=Logarithm.CUDA,
    )


@twin(
    "qiu-yao-eager",
    tiles=always(512, 512),
    source=f"attention.py of {RELEASED}, run eagerly, {TORCH}",
    kernels=("released-eager",),
    outputs=("released-eager-512",),
    runs_on_cpu=True,
)
def qiu_yao_eager() -> Plan:
    """Return the released code run eagerly under autocast, tile by tile, where the result of every
    operation is BF16.
    """
    plan = rounding_to(_released(), BF16, "DOO DQP DQ DKP DK DVP DV")
    plan = plan.adding(Site.DELTA, Accumulator(order=Order.PAIRWISE))
    return replace(plan, gradients_apart=GradientsApart.ALL, delta_products=True)


@twin(
    "qiu-yao-compiled",
    tiles=always(512, 512),
    source=f"attention.py of {RELEASED}, compiled, one tile, {TORCH}",
    kernels=("released-compiled",),
    outputs=("released-compiled-512",),
)
def qiu_yao_compiled() -> Plan:
    """Return the released code as its training runs it, compiled and under autocast.

    The compiler keeps the scaled scores, the maximum, EXP and O in FP32, adds the tiles by
    multiply-adds, and writes m and l to memory in BF16. The backward computes BF16 scores again and
    adds BF16 parts in FP32. Without a mask X is one multiply-add. If there are several query tiles,
    the first divides by l in FP32 and the others divide by l in BF16. A single tile divides by l in
    BF16.
    """
    plan = rounding_to(_released(), BINARY32, "SCALED X DM M L O SCALED_B INV")
    plan = rounding_to(plan, BINARY64, "AL AO")
    plan = rounding_to(plan, BF16, "MS LANES DQP DKP DVP")
    return replace(
        plan.adding(Site.DELTA, octets(16)),
        gradients_apart=GradientsApart.ALL,
        reciprocal=Reciprocal.RCP,
        first_tile_apart=True,
        fused_without_mask=True,
    )


@twin(
    "sdpa-math",
    tiles=whole_rows,
    source=f"SDPA's math back end, {TORCH}",
    kernels=("sdpa-math",),
    outputs=("sdpa-math", "sdpa-math-gqa"),
    runs_on_cpu=True,
)
def sdpa_math() -> Plan:
    """Return SDPA's math back end, which computes in FP32 until results are cast.

    q and k are each multiplied by the root of the scale. Products are chains of multiply-adds in
    ascending order, a warp adds up each row, and P is divided and kept in FP32. In calls with one
    head cuBLAS adds over keys in chunks of 64 instead, which is PV.sum=chunked64 and the same for
    DQ, DK and DV.
    """
    plan = rounding_to(fp32(), BF16, f"{ENDS} OUT").at(Site.INV, BINARY64)
    return replace(
        plan.adding(Site.ROWSUM, WARP).adding(Site.DELTA, WARP),
        normalise_first=True,
        delta_from=DeltaFrom.P_DP,
        exp=Exponential.CUDA,
        registers=True,
        saved_p=True,
        score_gradient=ScoreGradient.SOFTMAX,
        scale_roots=True,
        rounded_heads=True,
    )
