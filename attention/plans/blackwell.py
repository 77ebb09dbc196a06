"""FlashAttention-4 and cuDNN's MXFP8 attention as plans.

They follow public code and were not compared with a Blackwell GPU.

The source is flash_attn/cute of Dao-AILab/flash-attention, read at 0251105 (softmax.py,
`SoftmaxSm100`; utils.py, `fadd_reduce` and `ex2_emulation`; flash_fwd_sm100.py, `_TUNING_CONFIG`).
The last key tile comes first. The maximum m is that of the unscaled scores. It keeps its old value
if it would grow by no more than a threshold, which is a number of powers of two. X is one
multiply-add with c = scale log2 e and offset - c m. P is 2^X, in some columns by a polynomial. A
thread adds its row in eight lanes.

Three things are left out: what ex2, rcp and lg2 of a Blackwell GPU give (here they are correctly
rounded), the order in which its tensor cores add, and multiply-adds that a compiler may make of
products and sums.
"""

from dataclasses import replace

from roundscope.attention.plans.choices import Exponential, KeyOrder, Log2E, Polynomial, RowSum
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import HEAD_FP8, P_16, fa2_bf16
from roundscope.attention.sites import Site
from roundscope.emu.blocks.format import block_format
from roundscope.emu.roundings.modes import E4M3

B200 = Polynomial(10, 4, 1)
"""The columns that a polynomial computes on a B200, with 128 features and no causal mask.

Causal calls have 16:4:1 in BF16 and 8:4:1 in FP8, and a B300 has no such columns.
"""


def fa4_bf16() -> Plan:
    """Return FlashAttention-4 in BF16 on a B200, with threshold 8, no offset, and a polynomial in
    the columns `B200`.

    It was not compared with hardware.
    """
    return replace(_fa4("fa4-bf16", 8.0), polynomial=B200)


def fa4_fp8() -> Plan:
    """Return FlashAttention-4 in FP8 as first released (b65ae6b, April 2026), with offset 8 and
    threshold 4.

    P of up to 2^4 is scaled by 2^8 and clips at 448, but its row sum does not (flash-attention
    issues 2577, 2694, 2713, 2716). Q, K and V are in E4M3 with a binary32 scale per head, by which
    the kernel multiplies scores and outputs. There is no polynomial, as on a B300. The ten errors
    that were published for a B300 agree with those of this plan (docs/findings/kernels.md); bits
    were not compared. The backward is that of fa2-bf16 on the same operands.
    """
    return _in_fp8("fa4-fp8", 8, 4.0)


def fa4_fp8_offset4() -> Plan:
    """Return FlashAttention-4 in FP8 with offset 4 (2409214, July 2026) and threshold 4.

    Nothing clips, since 2^4 2^4 < 448. It was not compared with hardware.
    """
    return _in_fp8("fa4-fp8-offset4", 4, 4.0)


def fa4_fp8_threshold0() -> Plan:
    """Return FlashAttention-4 in FP8 with offset 8 and threshold 0 (849f660, July 2026, and
    0251105).

    The maximum is never stale, so P is at most 2^8. It was not compared with hardware.
    """
    return _in_fp8("fa4-fp8-threshold0", 8, 0.0)


def cudnn_mxfp8() -> Plan:
    """Return cuDNN's MXFP8 forward, as in the reference implementation of its tests.

    The source is NVIDIA/cudnn-frontend at 3929da2, test/python/sdpa/mxfp8_ref.py.

    Q, K and V are in MXFP8 E4M3, with scales rounded up as TransformerEngine does. exp is in base
    e, and m keeps its old value if it would grow by 4 or less. P is in E4M3 as 16 P, of up to 16
    e^4 = 874, which clips at 448 here. The row sum adds P in FP32, before its cast.

    It was compared neither with hardware nor with the reference's bits. In the backward the
    reference rounds Q, K, dO and dS twice, along either axis, and has 256 P in E4M3. No plan rounds
    an operand twice, so the backward here is that of fa2-bf16 on the same operands.
    """
    mx = block_format("mxfp8_e4m3", rule="rceil")
    plan = fa2_bf16().rounded(
        dict.fromkeys((Site.Q, Site.K, Site.V), mx) | {Site.P: P_16}, "cudnn-mxfp8"
    )
    return replace(plan, stale_maximum=4.0)


def _fa4(name: str, threshold: float) -> Plan:
    """Return what the plans of FlashAttention-4 share; threshold: their `stale_maximum`."""
    plan = replace(
        fa2_bf16(),
        exp=Exponential.BASE2,
        log2_e=Log2E.MAXIMUM,
        fused_exponent=True,
        row_sum=RowSum.EIGHTS,
    )
    return replace(plan, name=name, stale_maximum=threshold, key_order=KeyOrder.DESCENDING)


def _in_fp8(name: str, offset: int, threshold: float) -> Plan:
    """Return FlashAttention-4 in FP8 with this offset of P and this threshold of the maximum."""
    plan = _fa4(name, threshold).rounded(
        dict.fromkeys((Site.Q, Site.K, Site.V), HEAD_FP8) | {Site.P: E4M3}, name
    )
    return replace(plan, offset=offset)
