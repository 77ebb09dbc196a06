"""FlashAttention-4 and cuDNN's MXFP8 as plans: constants of public code, which no hardware has
confirmed here.

flash_attn/cute of Dao-AILab/flash-attention, read at 0251105 (softmax.py, `SoftmaxSm100`; utils.py,
`fadd_reduce` and `ex2_emulation`; flash_fwd_sm100.py, `_TUNING_CONFIG`): the last key tile comes
first; m of the unscaled scores stays as it is where it would grow by a threshold of powers of two
or less; X is one multiply-add with c = scale log2 e and offset - c m; P is 2^X, in some columns by
a polynomial; a thread adds its row in eight lanes. Left out: what ex2, rcp and lg2 of a Blackwell
GPU give (here they are correctly rounded), the order of its tensor cores' sums, and multiply-adds
that a compiler may make of products and sums.
"""

from dataclasses import replace

from roundscope.attention.plans.choices import Exponential, KeyOrder, Log2E, Polynomial, RowSum
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import HEAD_FP8, P_16, fa2_bf16
from roundscope.attention.sites import Site
from roundscope.emu.blocks.format import block_format
from roundscope.emu.rounding.modes import E4M3

B200 = Polynomial(10, 4, 1)
"""Columns by polynomial on a B200 with 128 features, not causal; causal calls have 16:4:1 in BF16
and 8:4:1 in FP8, a B300 none.
"""


def fa4_bf16() -> Plan:
    """FlashAttention-4 in BF16 on a B200: threshold 8, no offset, a polynomial in columns `B200`.

    Not compared with hardware.
    """
    return replace(_fa4("fa4-bf16", 8.0), polynomial=B200)


def fa4_fp8() -> Plan:
    """FlashAttention-4 in FP8 as first released (b65ae6b, April 2026): offset 8 and threshold 4.

    P of up to 2^4 is scaled by 2^8 and clips at 448, its row sum does not (flash-attention issues
    2577, 2694, 2713, 2716). Q, K and V in E4M3 with a binary32 scale per head, which the kernel
    multiplies with scores and outputs. No polynomial, as on a B300, for which errors were
    published: those here agree with all ten (docs/kernels.md); bits were not compared. The backward
    is that of fa2-bf16 on the same operands.
    """
    return _in_fp8("fa4-fp8", 8, 4.0)


def fa4_fp8_offset4() -> Plan:
    """The same with offset 4 (2409214, July 2026), with which 2^4 2^4 < 448: nothing clips.

    Not compared with hardware.
    """
    return _in_fp8("fa4-fp8-offset4", 4, 4.0)


def fa4_fp8_threshold0() -> Plan:
    """The same with offset 8 and threshold 0 (849f660, July 2026, and 0251105): m is never stale,
    so P is at most 2^8.

    Not compared.
    """
    return _in_fp8("fa4-fp8-threshold0", 8, 0.0)


def cudnn_mxfp8() -> Plan:
    """cuDNN's MXFP8 forward as the reference of its tests has it (NVIDIA/cudnn-frontend at 3929da2,
    test/python/sdpa/mxfp8_ref.py): Q, K and V in MXFP8 E4M3, scales rounded up as
    TransformerEngine's; exp in base e; m stays where it would grow by 4 or less; 16 P in E4M3, of
    up to 16 e^4 = 874, which clips at 448 here; the row sum of P in FP32, before its cast.

    Not compared with hardware, nor with the reference's bits. The reference's backward has two
    roundings of Q, K, dO and dS, along either axis, 256 P in E4M3; no plan has two: the backward
    here is that of fa2-bf16 on the same operands.
    """
    mx = block_format("mxfp8_e4m3", rule="rceil")
    plan = fa2_bf16().rounded(
        dict.fromkeys((Site.Q, Site.K, Site.V), mx) | {Site.P: P_16}, "cudnn-mxfp8"
    )
    return replace(plan, stale_maximum=4.0)


def _fa4(name: str, threshold: float) -> Plan:
    plan = replace(
        fa2_bf16(),
        exp=Exponential.BASE2,
        log2_e=Log2E.MAXIMUM,
        fused_exponent=True,
        row_sum=RowSum.EIGHTS,
    )
    return replace(plan, name=name, stale_maximum=threshold, key_order=KeyOrder.DESCENDING)


def _in_fp8(name: str, offset: int, threshold: float) -> Plan:
    plan = _fa4(name, threshold).rounded(
        dict.fromkeys((Site.Q, Site.K, Site.V), HEAD_FP8) | {Site.P: E4M3}, name
    )
    return replace(plan, offset=offset)
