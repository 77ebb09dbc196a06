"""FlashAttention-4 as plans: constants of the public code, which no hardware has confirmed here.

flash_attn/cute of Dao-AILab/flash-attention at 017d473 (softmax.py, `SoftmaxSm100`): m of the unscaled scores stays as it is where it would
grow by a threshold of powers of two or less; X is one multiply-add with c = scale log2 e; P is 2^X. FP8 multiplies P with 2^offset before
its cast. Left out: the polynomial that takes the place of ex2 in some columns, and the order in which a thread adds its row.
"""

from dataclasses import replace

from roundscope.attention.plans.choices import Exponential, Log2E
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import HEAD_FP8, fa2_bf16
from roundscope.attention.sites import Site
from roundscope.emu.formats.format import Format
from roundscope.emu.rounding.modes import Overflow, Rounding


def fa4_bf16() -> Plan:
    """FlashAttention-4 in BF16: threshold 8, no offset. Not compared with hardware; public code at 017d473."""
    return _fa4("fa4-bf16", 8.0)


def fa4_fp8() -> Plan:
    """FlashAttention-4 in FP8 with offset 8 and threshold 4: P of up to 2^4 is scaled by 2^8 and clips at 448, its row sum does not
    (flash-attention issues 2577, 2694, 2713). Q, K and V in E4M3 with a binary32 scale per head. The backward is that of fa2-bf16 on
    the same operands. Errors are within a third of those published for a B300 (docs/kernels.md); bits were not compared.
    """
    return _in_fp8("fa4-fp8", 8)


def fa4_fp8_offset4() -> Plan:
    """The same with offset 4, with which 2^4 2^4 < 448: nothing clips."""
    return _in_fp8("fa4-fp8-offset4", 4)


def _fa4(name: str, threshold: float) -> Plan:
    plan = replace(fa2_bf16(), exp=Exponential.BASE2, log2_e=Log2E.MAXIMUM, fused_exponent=True)
    return replace(plan, name=name, stale_maximum=threshold)


def _in_fp8(name: str, offset: int) -> Plan:
    return _fa4(name, 4.0).rounded(dict.fromkeys((Site.Q, Site.K, Site.V), HEAD_FP8) | {Site.P: shifted(offset)}, name)


def shifted(offset: int) -> Rounding:
    """2^offset P in E4M3: a fixed scale is another exponent range, up to 448 / 2^offset."""
    code = Format(name=f"e4m3fn/{2**offset}", precision=4, emin=-6 - offset, max_finite=448.0 / 2**offset, inf=False, nan=True)
    return Rounding(format=code, overflow=Overflow.SATURATE)
