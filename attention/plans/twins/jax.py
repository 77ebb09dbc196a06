"""Kernels that JAX runs: Pallas, tokamax, and what XLA makes of `dot_product_attention`."""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    BackwardExponent,
    GradientsApart,
    Log2E,
    Logarithm,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import rounding_to
from roundscope.attention.plans.twins.twin import always, fused, twin, whole_rows
from roundscope.attention.plans.twins.unfused import eager
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
)
from roundscope.emu.sums.accumulator import Accumulator, Order

TOKAMAX = "tokamax 0.0.17, implementation='mosaic', jax 0.11.2, one H100"


@twin(
    "pallas-mha",
    tiles=always(128, 128),
    source="jax.experimental.pallas.ops.gpu.attention.mha, jax 0.11.2, one H200",
    kernels=("pallas",),
    outputs=("pallas",),
)
def pallas_mha() -> Plan:
    """Return `jax.experimental.pallas.ops.gpu.attention.mha`, which Triton compiles without fusing
    any multiply-add.
    """
    plan = rounding_to(fused(), BINARY32, "AL AO")
    plan = rounding_to(plan, BF16, "DOO DELTA DSQ")
    return replace(
        plan.adding(Site.ROWSUM, Accumulator(order=Order.PAIRWISE)),
        log2_e=Log2E.SCALE,
        row_sum=RowSum.TILES,
        reciprocal=Reciprocal.RCP,
        log=Logarithm.CUDA,
        lse_base2=True,
        gradients_apart=GradientsApart.NONE,
        gradient_scale=ScaleOfGradient.REGISTER,
        delta_products=True,
        dp_from_delta=True,
    )


@twin(
    "tokamax-mosaic",
    tiles=lambda width, is_cut: (64, 128 if width <= 128 else 64),
    source=TOKAMAX,
    kernels=("tokamax-mosaic",),
    outputs=("tokamax-mosaic",),
)
def tokamax_mosaic() -> Plan:
    """Return tokamax's attention for Hopper, which is Pallas through Mosaic.

    The scores are multiplied by c inside the multiply-add of X, and a thread adds a row of a tile
    in four sums. The backward computes P from m and l. Compared with 32, 64, 128 and 256 features,
    causal, full and with a window, one head and four on one key head. With a softcap
    of 60 or less the kernel subtracts no maximum, which no plan does (docs/findings/kernels.md).
    """
    return replace(
        fused(lanes=16),
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        row_sum=RowSum.SIXTEENS,
        reciprocal=Reciprocal.RCP,
        exponent_again=BackwardExponent.STATE,
        gradients_apart=GradientsApart.NONE,
        backward_keys=64,
    )


@twin(
    "tokamax-mosaic-stale",
    tiles=lambda width, is_cut: (64, 128 if width <= 128 else 64),
    source=f"{TOKAMAX}, with rescale_threshold = 2^-8",
    kernels=("tokamax-mosaic-stale",),
    outputs=("tokamax-mosaic-stale",),
)
def tokamax_mosaic_stale() -> Plan:
    """Return `tokamax-mosaic` with a maximum that keeps its value where it would grow by a factor
    of 2^8 or less, and alpha l rounded.
    """
    return replace(tokamax_mosaic().at(Site.AL, BINARY32), stale_maximum=8.0)


@twin(
    "jax-xla",
    tiles=whole_rows,
    source="jax.nn.dot_product_attention, implementation='xla', jax 0.11.2, one H200",
    kernels=("jax-xla",),
    outputs=("jax-xla",),
)
def jax_xla() -> Plan:
    """Return `jax.nn.dot_product_attention` as XLA compiles it for a GPU.

    Scores and their gradients are FP32, P = EXP rcp(l), and warps add up the rows. dS is the
    derivative of a quotient (`ScoreGradient.QUOTIENT`), as automatic differentiation of the softmax
    gives it.
    """
    fours, eights = (Accumulator(order=Order.WARPS, chunk=n) for n in (4, 8))
    plan = rounding_to(eager(), BINARY32, "S SCALED S_B INV SDS DKH DVH")
    return replace(
        plan.adding(Site.ROWSUM, fours).adding(Site.DELTA, eights),
        reciprocal=Reciprocal.RCP,
        gradient_scale=ScaleOfGradient.REGISTER,
        score_gradient=ScoreGradient.QUOTIENT,
        rounded_heads=False,
    )
