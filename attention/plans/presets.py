"""The presets: published ways to compute attention as plans, each with its source.

A preset rounds where a paper or a release says so, and leaves out what only hardware or a library
decides; for plans that give a real kernel's bits see `attention.plans.twins`, and for the names
that `Plan.preset` reads `attention.plans.named`.
"""

from collections.abc import Callable
from dataclasses import replace

from roundscope.attention.plans.choices import (
    DeltaFrom,
    Exponential,
    KeyOrder,
    Log2E,
    Polynomial,
    RowSum,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.untried import UNTRIED
from roundscope.attention.sites import Site, site_named
from roundscope.emu.blocks.format import BlockFormat, block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
    E4M3,
    Overflow,
    Rounding,
)
from roundscope.emu.sums.accumulator import Accumulator, Order

ENDS = "Q K V DO DQ_OUT DK_OUT DV_OUT"  # the sites of inputs and results
ALL = 2**30  # a block's size beyond every tensor's
HEAD_FP8 = BlockFormat(
    element=E4M3, size=ALL, rows=ALL, scale=format_named("fp32"), rule=ScaleRule.NEAREST
)
"""E4M3 with one binary32 scale for a whole head, max |x| / 448."""


def _scaled_e4m3(power: int) -> Rounding:
    """Return the rounding of x to numbers whose 2^power-fold is an E4M3 number.

    A fixed scale of a power of two is the same as a format with another exponent range.
    """
    name, largest = f"e4m3fn/{2**power}", 448.0 / 2**power
    f = Format(name=name, precision=4, emin=-6 - power, max_finite=largest, inf=False, nan=True)
    return Rounding(format=f, overflow=Overflow.SATURATE)


P_256 = _scaled_e4m3(8)
"""P as 256 P in E4M3: numbers from 2^-17 up to 1.75."""
P_16 = _scaled_e4m3(4)
"""P as 16 P in E4M3: numbers from 2^-13 up to 28."""


def rounding_to(plan: Plan, r: Rounding, sites: str, name: str | None = None) -> Plan:
    """Return the plan with the sites of these names, which blanks separate, rounded alike.

    name: the name of the new plan; None keeps that of the given one
    """
    return plan.rounded({site_named(site): r for site in sites.split()}, name)


def exact() -> Plan:
    """Return the plan that rounds to binary64 throughout, the reference for all others.

    delta is of the output in binary64 too.
    """
    return Plan.everywhere("exact", BINARY64)


def fp32() -> Plan:
    """Return the plan in which every event and every step of a sum rounds to binary32."""
    return Plan.everywhere("fp32", BINARY32)


def qiu_yao() -> Plan:
    """Return the forward of the code released with arXiv 2510.04212 (attention.py, commit 30ef021,
    run eagerly under autocast), with a backward in FP32.

    Scores, running maximum, row sum and O are kept in BF16, and O is rounded per tile, before it is
    normalized, by mul_, einsum and add_ in turn. exp and the row sum of a tile are FP32. div_
    divides, so INV stays in binary64 and the quotient rounds once. The backward starts from the
    BF16 output, and the final gradients are in BF16.

    The code's own backward runs under autocast, and its compiled forward is different too: the
    twins qiu-yao-eager and qiu-yao-compiled give their bits (docs/findings/kernels.md).
    """
    plan = rounding_to(fp32(), BF16, f"{ENDS} S SCALED M X P DM L AO PV O OUT", "qiu-yao")
    return plan.rounded({Site.INV: BINARY64})


def fa2_bf16() -> Plan:
    """Return FlashAttention-2 and -3 in BF16 (arXiv 2307.08691; flash-attention at 0251105a).

    S, m, l and O are FP32, and the row sum adds P before its cast. P and dS are cast to BF16. P V
    is added into alpha O as one sum (`pv_into_o`), so site O rounds both at once. The normalized O
    rounds once, and delta is the FP32 row sum of dO times the BF16 output.
    """
    plan = rounding_to(fp32(), BF16, f"{ENDS} P OUT P_B DS", "fa2-bf16")
    return replace(plan, pv_into_o=True)


def fa3_fp8() -> Plan:
    """Return FlashAttention-3 in FP8 (arXiv 2407.08608) without its scales.

    Q, K, V and P are cast to E4M3 as they are, and saturate. The backward is that of fa2-bf16 on
    the same operands, since FlashAttention-3 has none in FP8. Twin `fa3-e4m3` has the bits of the
    kernel; this preset, which follows the paper, has 7 to 46 percent of the numbers of its output.
    """
    return rounding_to(fa2_bf16(), E4M3, "Q K V P", "fa3-fp8")


def fa3_fp8_scaled() -> Plan:
    """Return FlashAttention-3 in FP8 as released.

    Q, K and V are in E4M3 with one binary32 scale per head (q_descale, k_descale and v_descale of
    shape (batch, heads); Dao-AILab/flash-attention, issue 1699: "more accurately per-head
    quantization"). P is in E4M3 as 256 P (hopper/softmax.h, Max_offset = 8, "to reduce underflow").
    Key tiles go from the last to the first. The backward is that of fa2-bf16 on the same operands.

    The paper has a scale for each block of Br x d or Bc x d instead. That is
    `replace(HEAD_FP8, rows=128)` at Q and K, and `size=128` at V.

    It differs from the kernel, whose bits twin `fa3-e4m3` has without scales, in three ways. The
    kernel scales sums of codes, while here the scales go into the operands, so the roundings of
    sums are as large, but not the same bits. Its scales come from the caller, while here they are
    max |x| / 448. The scale of Q is that of its key head there, and of its own head here.
    """
    plan = fa2_bf16().rounded(
        {Site.Q: HEAD_FP8, Site.K: HEAD_FP8, Site.V: HEAD_FP8, Site.P: P_256}, "fa3-fp8-scaled"
    )
    return replace(plan, key_order=KeyOrder.DESCENDING)


def mxfp8_attention() -> Plan:
    """Return FlashAttention-2 with the operands of both products in MXFP8 (OCP MX 1.0).

    Q, K, P and V are in E4M3 with a power of two as the scale of every 32 numbers along the sum, by
    the standard's rule. (`rule="rceil"` is that of arXiv 2506.08027, whose recipe keeps attention
    in BF16.) The backward is that of fa2-bf16 on the same operands.
    """
    mx = block_format("mxfp8_e4m3")
    return fa2_bf16().rounded(
        dict.fromkeys((Site.Q, Site.K, Site.P, Site.V), mx), "mxfp8-attention"
    )


def baseline_bf16() -> Plan:
    """Return unfused attention in BF16 with an FP32 softmax, as PyTorch's math path under autocast.

    Matrix products return BF16, P is normalized and cast before P V, and delta is the FP32 row sum
    of P dP inside the backward of the softmax.
    """
    own = "S SCALED BIAS BIASED P PV OUT S_B SCALED_B BIASED_B P_B DP DS DBIAS"
    plan = rounding_to(fp32(), BF16, f"{ENDS} {own}", "baseline-bf16")
    return replace(plan, normalise_first=True, delta_from=DeltaFrom.P_DP)


# The plans below follow public code for Blackwell GPUs, and were not compared with one.
#
# The source of FlashAttention-4 is flash_attn/cute of Dao-AILab/flash-attention, read at 0251105
# (softmax.py, `SoftmaxSm100`; utils.py, `fadd_reduce` and `ex2_emulation`; flash_fwd_sm100.py,
# `_TUNING_CONFIG`). The last key tile comes first. The maximum m is that of the unscaled scores. It
# keeps its old value if it would grow by no more than a threshold, which is a number of powers of
# two. X is one multiply-add with c = scale log2 e and offset - c m. P is 2^X, in some columns by a
# polynomial. A thread adds its row in eight lanes.
#
# Three things are left out: what ex2, rcp and lg2 of a Blackwell GPU give (here they are correctly
# rounded), the order in which its tensor cores add, and multiply-adds that a compiler may make of
# products and sums. The stale maximum was compared with hardware in another kernel
# (`tokamax-mosaic-stale`).

B200 = Polynomial(10, 4, 1)
"""The columns that a polynomial computes on a B200, with 128 features and no causal mask.

Causal calls have 16:4:1 in BF16 and 8:4:1 in FP8, and a B300 has no such columns.
"""


def fa4_bf16() -> Plan:
    """Return FlashAttention-4 in BF16 on a B200 (flash_attn/cute of Dao-AILab/flash-attention at
    0251105), with threshold 8, no offset, and a polynomial in the columns `B200`.

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


PRESETS: dict[str, Callable[[], Plan]] = {
    "exact": exact,
    "fp32": fp32,
    "qiu-yao": qiu_yao,
    "fa2-bf16": fa2_bf16,
    "fa3-fp8": fa3_fp8,
    "fa3-fp8-scaled": fa3_fp8_scaled,
    "mxfp8-attention": mxfp8_attention,
    "baseline-bf16": baseline_bf16,
    "fa4-bf16": fa4_bf16,
    "fa4-fp8": fa4_fp8,
    "fa4-fp8-offset4": fa4_fp8_offset4,
    "fa4-fp8-threshold0": fa4_fp8_threshold0,
    "cudnn-mxfp8": cudnn_mxfp8,
    **UNTRIED,
}
"""The published plans by name; each value is a function without arguments that makes the plan.

* exact: binary64 throughout, the reference.
* fp32: binary32 throughout.
* qiu-yao: the released code of arXiv 2510.04212, statistics and O in BF16, with an FP32 backward.
* fa2-bf16: FlashAttention-2 and -3 in BF16 (arXiv 2307.08691).
* fa3-fp8: FlashAttention-3 in FP8 without scales (arXiv 2407.08608), whose kernel is the twin
  fa3-e4m3.
* fa3-fp8-scaled: the same as released, with a scale per head; not compared with hardware.
* mxfp8-attention: FlashAttention-2 with operands in MXFP8 (OCP MX 1.0).
* baseline-bf16: unfused attention in BF16, as PyTorch's math path under autocast.
* fa4-bf16, fa4-fp8, fa4-fp8-offset4, fa4-fp8-threshold0: FlashAttention-4, from its public code;
  no bits were compared with hardware (errors of fa4-fp8 were, with those published for a B300).
* cudnn-mxfp8: cuDNN's MXFP8 forward, from the reference of its tests.
* aiter-ck, aiter-asm: AMD's aiter on an MI300, by Composable Kernel with casts toward zero, and by
  its assembly kernels with ties away; from public code, not compared with hardware.
* tpu-splash, mlx-sdpa, flash-mla, flashinfer-split: JAX's splash attention for TPUs, MLX on an
  Apple GPU, FlashMLA's decoding, FlashInfer with split keys; from public code, likewise.

`Plan.preset(name)` is the usual way to make one, and knows the names of twins, all:FORMAT and
@ARCHITECTURE too.

Example:
    >>> from roundscope.attention import PRESETS, Plan
    >>> PRESETS["fa2-bf16"]() == Plan.preset("fa2-bf16")
    True
"""


def native(plan: Plan) -> Plan:
    """Return the plan with every sum of products added up by the device, in float32."""
    return replace(
        plan,
        accumulators=tuple(Accumulator(order=Order.NATIVE, step=a.step) for a in plan.accumulators),
    )
