"""Twins: plans that give a real kernel's own bits, with the tiles and the versions for which that was shown.

A twin is compared with outputs that the kernel wrote on an H200 (tests/golden/kernels); the share of equal bits is in
docs/kernels.md. What is not compared is not here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from roundscope.attention.plans.choices import (
    BackwardExponent,
    DeltaFrom,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    Logarithm,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import fa2_bf16, fp32
from roundscope.attention.sites import FACTORS, Site
from roundscope.emu.rounding.modes import BF16, BINARY32, BINARY64
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import tensor_core

HOPPER = tensor_core("hopper", "bf16")
EIGHTS = replace(HOPPER, chunk=8)
"""The same tensor core under mma.m16n8k8, whose sums take 8 products at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A real kernel as a plan.

    plan    its arithmetic
    tiles   width of the heads -> (block_q, block_k)
    source  what it was compared with
    """

    plan: Plan
    tiles: Callable[[int], tuple[int, int]]
    source: str


def octets(lanes: int) -> Accumulator:
    """Return the accumulator of threads that read eight BF16 numbers at a time, as kernels add up delta."""
    return Accumulator(order=Order.OCTETS, chunk=lanes)


def _on_hopper(plan: Plan, core: Accumulator = HOPPER) -> Plan:
    """The plan with every product of matrices on tensor cores."""
    for site in FACTORS:
        plan = plan.adding(site, core)
    return plan


def _fused(name: str, core: Accumulator = HOPPER, lanes: int = 8) -> Plan:
    """Return the plan that the twins of fused kernels start from: tensor cores, ex2, rows in four lanes that begin at alpha l."""
    plan = fa2_bf16().at(Site.AL, BINARY64)  # one multiply-add with the first column
    plan = _on_hopper(plan.adding(Site.DELTA, octets(lanes)), core)
    return replace(
        plan, name=name, exp=Exponential.EX2, row_sum=RowSum.LANES, log=Logarithm.LG2, registers=True,
        gradients_apart=GradientsApart.DQ,
    )  # fmt: skip


def fa2() -> Plan:
    """FlashAttention-2 as torch's SDPA runs it: m of the unscaled scores, X = c S - c m with both products rounded."""
    plan = replace(_fused("fa2"), log2_e=Log2E.MAXIMUM)
    return replace(plan, key_order=KeyOrder.DESCENDING, query_order=QueryOrder.DESCENDING)


def cudnn() -> Plan:
    """cuDNN's fused attention: the scores are scaled by c before the maximum."""
    return replace(
        _fused("cudnn", lanes=16), log2_e=Log2E.SCALE, row_sum=RowSum.TILE_LANES, reciprocal=Reciprocal.RCP,
        exponent_again=BackwardExponent.AFTER, gradient_scale=ScaleOfGradient.REGISTER,
    )  # fmt: skip


def efficient() -> Plan:
    """Memory-efficient attention (CUTLASS) as torch's SDPA runs it: as cuDNN's, on tensor cores that take 8 products at a time."""
    plan = _fused("sdpa-efficient", EIGHTS, lanes=2).at(Site.AL, BINARY32)
    return replace(
        plan, log2_e=Log2E.SCORES, row_sum=RowSum.GROUPS, log=Logarithm.CUDA, exponent_again=BackwardExponent.NATURAL,
        ds_from_p=True, gradient_scale=ScaleOfGradient.REGISTER,
        gradients_apart=GradientsApart.NONE, query_order=QueryOrder.WRAPPED,
    )  # fmt: skip


def flex() -> Plan:
    """torch's flex_attention, which Triton compiles: the scores are scaled, then multiplied by log2 e inside X's multiply-add."""
    return replace(
        _fused("flex"), log2_e=Log2E.SCORES, fused_exponent=True, row_sum=RowSum.TILES, exponent_again=BackwardExponent.ROUNDED_IF_CUT,
        reciprocal=Reciprocal.RCP, key_order=KeyOrder.MASKED_FIRST, gradients_apart=GradientsApart.NONE, lse_base2=True, log=Logarithm.CUDA,
        query_order=QueryOrder.MASKED_FIRST,
    )  # fmt: skip


def qiu_yao_compiled() -> Plan:
    """The released code of arXiv 2510.04212 as its training runs it, compiled and under autocast, causal: the compiler keeps the scaled
    scores, the maximum, EXP and O in FP32, adds the tiles by multiply-adds and writes m and l in BF16; the backward repeats BF16
    scores and adds BF16 parts in FP32. Without a mask the compiler fuses X, and of two query tiles the first has m and l in FP32.
    """
    wide = (Site.SCALED, Site.X, Site.DM, Site.M, Site.L, Site.O, Site.SCALED_B)
    plan = _released("qiu-yao-compiled").rounded(dict.fromkeys(wide, BINARY32)).rounded(dict.fromkeys((Site.AL, Site.AO), BINARY64))
    plan = plan.rounded(dict.fromkeys((Site.MS, Site.LANES, Site.DQP, Site.DKP, Site.DVP), BF16))
    plan = plan.adding(Site.DELTA, octets(16)).at(Site.INV, BINARY32)
    return replace(plan, gradients_apart=GradientsApart.ALL, reciprocal=Reciprocal.RCP)


def qiu_yao_eager() -> Plan:
    """The released code of arXiv 2510.04212 run eagerly under autocast, tile by tile: every result of an operation is BF16."""
    plan = _released("qiu-yao-eager").rounded(dict.fromkeys((Site.DOO, Site.DQP, Site.DQ, Site.DKP, Site.DK, Site.DVP, Site.DV), BF16))
    plan = plan.adding(Site.DELTA, Accumulator(order=Order.PAIRWISE))
    return replace(plan, gradients_apart=GradientsApart.ALL, delta_products=True)


def _released(name: str) -> Plan:
    """Return the plan that both forms of the released code start from: BF16 operations, CUDA's expf, P scaled before dS."""
    bf16 = (
        *(Site.Q, Site.K, Site.V, Site.DO, Site.S, Site.SCALED, Site.M, Site.X, Site.P, Site.DM, Site.L, Site.AO, Site.PV, Site.O),
        *(Site.OUT, Site.S_B, Site.SCALED_B, Site.P_B, Site.DP, Site.DS, Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT),
    )
    plan = _on_hopper(fp32().rounded(dict.fromkeys(bf16, BF16)).at(Site.INV, BINARY64))
    plan = plan.adding(Site.ROWSUM, Accumulator(order=Order.STRIDED, chunk=32))
    return replace(
        plan, name=name, exp=Exponential.CUDA, registers=True, exponent_again=BackwardExponent.NATURAL,
        gradient_scale=ScaleOfGradient.PROBABILITY, kept_state=True,
    )  # fmt: skip


def jax_xla() -> Plan:
    """`jax.nn.dot_product_attention` as XLA compiles it: scores and their gradients in FP32, P = EXP rcp(l), sums by warps."""
    warps = Accumulator(order=Order.WARPS)
    wide = dict.fromkeys((Site.S, Site.SCALED, Site.S_B), BINARY32)
    plan = eager().rounded(wide).adding(Site.ROWSUM, warps).adding(Site.DELTA, warps).at(Site.INV, BINARY32).at(Site.SDS, BINARY32)
    return replace(plan, name="jax-xla", reciprocal=Reciprocal.RCP, gradient_scale=ScaleOfGradient.REGISTER)


def eager() -> Plan:
    """Attention that a framework runs operation by operation in BF16, with a softmax in FP32: as transformers' eager attention.

    The scores leave their product in BF16 and are scaled in BF16; a warp adds each row; P is divided in FP32 and cast; the
    backward keeps P in FP32, and dS is cast, scaled and cast again.
    """
    bf16 = (
        *(Site.Q, Site.K, Site.V, Site.DO, Site.S, Site.SCALED, Site.P, Site.PV, Site.OUT),
        *(Site.P_B, Site.DP, Site.DS, Site.SDS, Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT),
    )
    plan = _on_hopper(fp32().rounded(dict.fromkeys(bf16, BF16)).at(Site.INV, BINARY64))
    warp = Accumulator(order=Order.STRIDED, chunk=32)
    plan = plan.adding(Site.ROWSUM, warp).adding(Site.DELTA, warp)
    return replace(
        plan, name="eager", normalise_first=True, delta_from=DeltaFrom.P_DP, exp=Exponential.CUDA, registers=True,
        saved_p=True, score_gradient=ScoreGradient.SOFTMAX, gradient_scale=ScaleOfGradient.OPERAND,
    )  # fmt: skip


RELEASED = "ucker/why-low-precision-training-fails at 02f0ab6 (arXiv 2510.04212), under BF16 autocast"
TORCH = "torch 2.11.0 (CUDA 13.0), one H200"


def _square(size: int) -> Callable[[int], tuple[int, int]]:
    return lambda width: (size, size)


WHOLE = 2**20  # keys of a tile that holds every row whole
_TWINS = {
    "fa2": Twin(
        plan=fa2(), tiles=lambda width: (128, 128 if width < 128 else 64), source=f"SDPA's flash back end, {TORCH}"
    ),
    "cudnn": Twin(plan=cudnn(), tiles=_square(128), source=f"SDPA's cuDNN back end (9.19), {TORCH}"),
    "sdpa-efficient": Twin(
        plan=efficient(), tiles=lambda width: (64, 64) if width < 128 else (128, 128),
        source=f"SDPA's memory-efficient back end, {TORCH}",
    ),
    "flex": Twin(
        plan=flex(), tiles=lambda width: (128, 128 if width == 64 else 64), source=f"flex_attention, compiled, {TORCH}"
    ),
    "eager": Twin(
        plan=eager(), tiles=lambda width: (512, WHOLE), source=f"eager attention of transformers 5.17.0, {TORCH}"
    ),
    "qiu-yao-eager": Twin(
        plan=qiu_yao_eager(), tiles=_square(512), source=f"attention.py of {RELEASED}, run eagerly, {TORCH}"
    ),
    "qiu-yao-compiled": Twin(
        plan=qiu_yao_compiled(), tiles=_square(512), source=f"attention.py of {RELEASED}, compiled, one tile, {TORCH}"
    ),
    "jax-xla": Twin(
        plan=jax_xla(), tiles=lambda width: (512, WHOLE),
        source="jax.nn.dot_product_attention, implementation='xla', jax 0.11.2, one H200",
    ),
}  # fmt: skip
TWINS = {name: replace(twin, plan=replace(twin.plan, name=name)) for name, twin in _TWINS.items()}
"""By name; `Plan.preset` knows the names too."""
