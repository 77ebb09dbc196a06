"""FlashAttention-2, as SDPA of PyTorch runs it."""

from dataclasses import replace

from roundscope.attention.plans.choices import (
    KeyOrder,
    Log2E,
    QueryOrder,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import rounding_to
from roundscope.attention.plans.twins.twin import TORCH, fused, twin
from roundscope.emu.roundings.modes import (
    BF16,
)


# dQ of FlashAttention-2 and cuDNN is added up by atomics, in no fixed order
@twin(
    "fa2",
    tiles=lambda width, is_cut: (128, 128) if width < 128 else (64, 64),
    source=f"SDPA's flash back end, {TORCH}",
    kernels=("sdpa-flash",),
    outputs=("sdpa-flash", "sdpa-flash-gqa"),
    least={"dq": 0.9999},
)
def fa2() -> Plan:
    """Return FlashAttention-2 as torch's SDPA runs it: m is of the unscaled scores, and
    X = c S - c m with both products rounded.

    SDPA aligns causal calls at the top left; FlashAttention's own package aligns them at the bottom
    right since version 2.1, for which the argument `alignment` of a call stands.
    """
    plan = rounding_to(fused(), BF16, "DKH DVH")
    plan = replace(plan, log2_e=Log2E.MAXIMUM, rounded_heads=True)
    return replace(plan, key_order=KeyOrder.DESCENDING, query_order=QueryOrder.DESCENDING)


@twin(
    "fa2-split",
    tiles=lambda width, is_cut: (128, 256) if width < 128 else (64, 128),
    source=f"SDPA's flash back end with few heads, {TORCH}",
    outputs=("sdpa-flash-few",),
    least={"dq": 0.9999},
)
def fa2_split() -> Plan:
    """Return FlashAttention-2 as it runs with few heads, where thread blocks share the keys of one
    head: each key tile is a softmax of its own, and the results are combined. The backward has key
    tiles of 128.
    """
    return replace(fa2(), split_tiles=1, backward_keys=128)
