"""cuDNN's fused attention, in BF16 and FP8."""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    BackwardExponent,
    Descales,
    Log2E,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
)
from roundscope.attention.plans.hopper import (
    on_hopper,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import rounding_to
from roundscope.attention.plans.twins.twin import TORCH, always, fused, twin
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    E4M3,
    FP16,
)
from roundscope.emu.sums.accumulator import Accumulator

E4M3_CORE = Accumulator.tensor_core("hopper", "e4m3fn")


@twin(
    "cudnn",
    tiles=always(128, 128),
    source=f"SDPA's cuDNN back end (9.19), {TORCH}",
    kernels=("sdpa-cudnn", "jax-cudnn"),
    outputs=("sdpa-cudnn", "sdpa-cudnn-gqa", "jax-cudnn-gqa"),
    least={"dq": 0.9999},
)
def cudnn() -> Plan:
    """Return cuDNN's fused attention, which multiplies the scores by c before the maximum.

    With a negative scale it is not the kernel: of a full call with scale -0.125, half of the
    numbers of the output have the kernel's bits, and a causal call has NaN there.
    """
    return replace(
        rounding_to(fused(lanes=16), BF16, "DKH DVH"),
        log2_e=Log2E.SCALE,
        row_sum=RowSum.TILE_LANES,
        reciprocal=Reciprocal.RCP,
        exponent_again=BackwardExponent.AFTER,
        gradient_scale=ScaleOfGradient.REGISTER,
        rounded_heads=True,
    )


# how the splits' L are combined is not known: L of half of the heads is one ulp off
@twin(
    "cudnn-split",
    tiles=always(128, 128),
    source="SDPA's cuDNN back end (9.19) with one query, torch 2.11.0 (CUDA 13.0), one H100",
    outputs=("sdpa-cudnn-one",),
    least={"lse": 0.0},
)
def cudnn_split() -> Plan:
    """Return cuDNN's fused attention as it runs with one query: four thread blocks share the keys
    of a head. Key tile j goes to block j mod 4, and each block has one softmax.
    """
    return replace(cudnn(), split_tiles=1, split_count=4)


@twin(
    "cudnn-fp8",
    tiles=always(64, 256),
    source="sdpa_fp8 and sdpa_fp8_backward of nvidia-cudnn-frontend 1.32.0, cuDNN 9.19, one H100",
    kernels=("cudnn-fp8",),
    outputs=("cudnn-fp8",),
)
def cudnn_fp8() -> Plan:
    """Return cuDNN's fused attention in FP8, with every scale of the call 1 and 128 features.

    The operands of all products, the output and the gradients are E4M3, and alpha l is rounded
    before a row sum is added to it. dS for dK is cast from FP32; dS for dQ is cast to FP16 first,
    so that it is rounded twice. The query heads of a key head are added before they are rounded. A
    scale of P, `scale_s` = 2^n, is offset=n (`cudnn-fp8-s256`). Where other scales enter is taken
    from the documentation, which multiplies products, and was compared in calls whose scales are 1.
    """
    ends = "Q K V P OUT DO P_B DS DSQ DQ_OUT DK_OUT DV_OUT"
    plan = on_hopper(cudnn().at(Site.AL, BINARY32), E4M3_CORE)
    plan = rounding_to(plan, E4M3, ends).at(Site.DSR, FP16)
    plan = replace(plan, ds_apart=True, backward_keys=128, offset_again=True)
    return replace(plan, rounded_heads=False, descales=Descales.PRODUCTS)


@twin(
    "cudnn-fp8-s256",
    tiles=always(64, 256),
    source="sdpa_fp8 of nvidia-cudnn-frontend 1.32.0 with scale_s = 256, cuDNN 9.19, one H100",
    kernels=("cudnn-fp8-s256",),
    outputs=("cudnn-fp8-s256",),
)
def cudnn_fp8_s256() -> Plan:
    """Return `cudnn-fp8` with P multiplied by 256 before its cast, which keeps small weights."""
    return replace(cudnn_fp8(), offset=8)
