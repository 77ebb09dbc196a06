"""FlashAttention-3 and FlashAttention-4 on Hopper GPUs."""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    Descales,
    KeyOrder,
    Log2E,
    Logarithm,
    QueryOrder,
    Reciprocal,
    RowSum,
    Tanh,
)
from roundscope.attention.plans.hopper import (
    octet_pairs,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import rounding_to
from roundscope.attention.plans.twins.cudnn import E4M3_CORE
from roundscope.attention.plans.twins.twin import always, fused, twin
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import (
    BINARY64,
    E4M3,
)

H100_FA3 = "flash-attn3-jax 0.2.3 (CUDA 13.0), one H100"


# dQ, and dK and dV of grouped heads, are added as thread blocks arrive
@twin(
    "fa3",
    tiles=lambda width, is_cut: (128, 128 if is_cut else 176),
    source=f"FlashAttention-3, {H100_FA3}",
    kernels=("fa3",),
    outputs=("fa3", "fa3-gqa"),
    least={"dq": 0.9999},
)
def fa3() -> Plan:
    """Return FlashAttention-3, compiled for 128 features; heads with fewer run in it too.

    X is one multiply-add of S, c and c m, forward and backward. Key tiles go from the last to the
    first; they have 176 keys, or 128 in causal calls, in those with a window and in the backward.
    dK and dV go up through the queries. Parts of dQ are added in memory as thread blocks arrive,
    and so are, with grouped heads, dK and dV, in FP32.

    Compared with 32, 64 and 128 features, causal, full and with a window, one head and four on one
    key head, and in FP16. In full calls flash-attn3-jax 0.2.3 gives its backward too little memory,
    with which some gradients are not those of any call (docs/findings/kernels.md).
    """
    return replace(
        fused(lanes=16),
        log2_e=Log2E.MAXIMUM,
        fused_exponent=True,
        reciprocal=Reciprocal.RCP,
        log=Logarithm.LG2_FACTOR,
        key_order=KeyOrder.DESCENDING,
        query_order=QueryOrder.FROM_DIAGONAL,
        backward_keys=128,
    )


@twin(
    "fa3-e4m3",
    tiles=always(128, 224),
    source=f"the forward of FlashAttention-3 in E4M3, {H100_FA3}",
    kernels=("fa3-fp8",),
    outputs=("fa3-fp8", "fa3-fp8-descaled"),
)
def fa3_e4m3() -> Plan:
    """Return the forward of FlashAttention-3 in E4M3.

    P is multiplied by 2^8, and the offset enters c m - 8 as one multiply-add, so CM is not rounded.
    The tensor core adds products of FP8 to O itself, 32 at a time. The output is BF16. Scales
    of q and k multiply c, and that of v multiplies 1 / l. The kernel has no backward; the plan's is
    that of fa2-bf16.
    """
    plan = fa3().adding(Site.S, E4M3_CORE).adding(Site.PV, E4M3_CORE).at(Site.CM, BINARY64)
    return replace(rounding_to(plan, E4M3, "Q K V P"), offset=8, descales=Descales.PRODUCTS)


def _tiles_of_fa4(width: int, is_cut: bool) -> tuple[int, int]:
    """Return the tiles of FlashAttention-4's forward on Hopper.

    Its backward has key tiles of 96 above 128 features and of 48 above 192, so that dQ of such
    widths is not the kernel's. Full calls with 65 to 96 features have key tiles of 144 forward.
    """
    if width <= 128:
        return (192 if width <= 96 else 128, 128)
    return (128, 112 if width <= 192 else 80)


# dQ, and dK and dV of grouped heads, are added as thread blocks arrive
@twin(
    "fa4-hopper",
    tiles=_tiles_of_fa4,
    source="flash-attn-4 4.0.0b36, 64, 96 and 128 features, torch 2.11.0 (CUDA 13.0), one H100",
    kernels=("fa4",),
    outputs=("fa4", "fa4-gqa"),
    least={"dq": 0.9999, "fa4-gqa/dk": 0.9999, "fa4-gqa/dv": 0.9998},
)
def fa4_hopper() -> Plan:
    """Return FlashAttention-4 as it runs on Hopper (flash_attn/cute, CuTe DSL, sm90).

    X is one multiply-add of S, c and c m, forward and backward. L is computed in base 2 and then
    multiplied by ln 2, and by log2 e again in the backward. Threads that hold parts of a row
    exchange them with their neighbors first, in the row sum and in delta. dK and dV go up through
    the queries. Parts of dQ are added in memory as thread blocks arrive; in a causal call those of
    the last keys reach a query first, which is also the order of the deterministic mode. With
    grouped heads dK and dV are added in FP32 in the order of arrival too, and rounded once.

    Compared with 64 and 128 features, causal and full, one head and four on one key head, and with
    96 features, causal. A softcap divides, ends in the instruction tanh.approx and is rounded as a
    score (`cap_apart`); its derivative is one multiply-add. It was compared with 128 features,
    causal.
    """
    return replace(
        fa3().at(Site.TT, BINARY64).adding(Site.DELTA, octet_pairs(16)),
        row_sum=RowSum.PAIRED_LANES,
        log=Logarithm.LG2_SUM,
        tanh=Tanh.APPROX,
        cap_apart=True,
        backward_keys=0,
    )
