"""The presets: published attention kernels as plans, each with its source."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from roundscope.attention.plans.choices import DeltaFrom, KeyOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import FACTORS, PRODUCTS, Site
from roundscope.emu.blocks.format import BlockFormat, ScaleRule, block_format
from roundscope.emu.formats.format import Format, format_named, unknown
from roundscope.emu.rounding.modes import (
    BF16,
    BINARY32,
    BINARY64,
    E4M3,
    FP16,
    Overflow,
    Rounding,
    rounding,
)
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import architecture, tensor_core

INPUTS = (Site.Q, Site.K, Site.V, Site.DO)
GRADIENTS = (Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT)

ALL = 2**30  # a block's size beyond every tensor's
HEAD_FP8 = BlockFormat(
    element=E4M3, size=ALL, rows=ALL, scale=format_named("fp32"), rule=ScaleRule.NEAREST
)
"""E4M3 with one binary32 scale, max |x| / 448, for a whole head."""


def _scaled_e4m3(power: int) -> Rounding:
    """2^power x in E4M3: a fixed scale is another exponent range."""
    name, largest = f"e4m3fn/{2**power}", 448.0 / 2**power
    f = Format(name=name, precision=4, emin=-6 - power, max_finite=largest, inf=False, nan=True)
    return Rounding(format=f, overflow=Overflow.SATURATE)


P_256 = _scaled_e4m3(8)
"""256 P in E4M3: down to 2^-17 and up to 1.75."""
P_16 = _scaled_e4m3(4)
"""16 P in E4M3: down to 2^-13 and up to 28."""


def everywhere(name: str, r: Rounding) -> Plan:
    """Every event, steps of sums included, in one format."""
    return Plan(
        name=name, roundings=(r,) * len(Site), accumulators=(Accumulator(step=r),) * len(PRODUCTS)
    )


def _with(plan: Plan, name: str, r: Rounding, *sites: Site) -> Plan:
    changed = tuple(r if site in sites else plan[site] for site in Site)
    return replace(plan, name=name, roundings=changed)


def exact() -> Plan:
    """binary64 throughout: the golden value. delta from the unrounded output."""
    return everywhere("exact", BINARY64)


def fp32() -> Plan:
    """Every event rounds to binary32."""
    return everywhere("fp32", BINARY32)


def qiu_yao() -> Plan:
    """The forward of the code released with arXiv 2510.04212 (attention.py, commit 30ef021, eager,
    under autocast): scores, running maximum, row sum and O are kept in BF16 and O is rounded per
    tile, before normalisation, by mul_, einsum and add_ in turn; exp and the row sum of a tile are
    FP32. div_ divides, so INV stays in binary64 and the quotient rounds once.

    Backward in FP32 from the BF16 output; gradients leave in BF16.

    The code's own backward runs under autocast, and compiled its forward is another one too:
    `attention.plans.twins.qiu_yao_eager` and `qiu_yao_compiled` give their bits (docs/kernels.md).
    """
    plan = _with(
        fp32(),
        "qiu-yao",
        BF16,
        *INPUTS,
        *GRADIENTS,
        Site.S,
        Site.SCALED,
        Site.M,
        Site.X,
        Site.P,
        Site.DM,
        Site.L,
        Site.AO,
        Site.PV,
        Site.O,
        Site.OUT,
    )
    return _with(plan, "qiu-yao", BINARY64, Site.INV)


def fa2_bf16() -> Plan:
    """FlashAttention-2 and -3 in BF16 (arXiv 2307.08691; flash-attention at 0251105a): S, m, l and
    O in FP32, the row sum over FP32 P, P and dS cast to BF16, P V accumulating into O, one rounding
    of the normalised O, delta the FP32 row sum of dO times the BF16 output.
    """
    plan = _with(fp32(), "fa2-bf16", BF16, *INPUTS, *GRADIENTS, Site.P, Site.OUT, Site.P_B, Site.DS)
    return replace(plan, pv_into_o=True)


def fa3_fp8() -> Plan:
    """FlashAttention-3 in FP8 (arXiv 2407.08608) without its scales: plain E4M3 casts of Q, K, V
    and P, saturating.

    The backward is that of fa2-bf16 on the same operands: FA3 has none in FP8.
    """
    return _with(fa2_bf16(), "fa3-fp8", E4M3, Site.Q, Site.K, Site.V, Site.P)


def fa3_fp8_scaled() -> Plan:
    """FlashAttention-3 in FP8 as released: Q, K and V in E4M3 with one binary32 scale per head
    (q_descale, k_descale, v_descale of shape (batch, heads); Dao-AILab/flash-attention, issue 1699:
    "more accurately per-head quantization"), P as 256 P in E4M3 (hopper/softmax.h, Max_offset = 8,
    "to reduce underflow"), key tiles from the last to the first.

    The paper has a scale for each block of Br x d or Bc x d instead: `replace(HEAD_FP8, rows=128)`
    at Q and K, `size=128` at V.

    Differences: the kernel scales sums of codes, here the scales go into the operands (the sums'
    roundings are as large, not the same bits); its scales come from the caller, here they are max
    |x| / 448; and Q's is of its key head there, of its own here. The backward is that of fa2-bf16
    on the same operands.
    """
    plan = fa2_bf16().rounded(
        {Site.Q: HEAD_FP8, Site.K: HEAD_FP8, Site.V: HEAD_FP8, Site.P: P_256}, "fa3-fp8-scaled"
    )
    return replace(plan, key_order=KeyOrder.DESCENDING)


def mxfp8_attention() -> Plan:
    """FlashAttention-2 with the operands of both products in MXFP8 (OCP MX 1.0): Q, K, P and V in
    E4M3, a power of two for every 32 numbers along the sum, by the standard's rule (`rule="rceil"`
    is that of arXiv 2506.08027, whose recipe keeps attention in BF16).

    The backward is that of fa2-bf16 on the same operands.
    """
    mx = block_format("mxfp8_e4m3")
    return fa2_bf16().rounded(
        dict.fromkeys((Site.Q, Site.K, Site.P, Site.V), mx), "mxfp8-attention"
    )


def baseline_bf16() -> Plan:
    """Unfused attention in BF16 with an FP32 softmax: matrix products return BF16, P is normalised
    and cast before P V, delta is the FP32 row sum of P dP inside the softmax backward (PyTorch's
    math path under autocast).
    """
    plan = _with(
        fp32(),
        "baseline-bf16",
        BF16,
        *INPUTS,
        *GRADIENTS,
        Site.S,
        Site.SCALED,
        Site.P,
        Site.PV,
        Site.OUT,
        Site.S_B,
        Site.SCALED_B,
        Site.P_B,
        Site.DP,
        Site.DS,
    )
    return replace(plan, normalise_first=True, delta_from=DeltaFrom.P_DP)


def _blackwell() -> ModuleType:
    """The module of FlashAttention-4's plans, which are made of these."""
    from roundscope.attention.plans import blackwell

    return blackwell


PRESETS: dict[str, Callable[[], Plan]] = {
    "exact": exact,
    "fp32": fp32,
    "qiu-yao": qiu_yao,
    "fa2-bf16": fa2_bf16,
    "fa3-fp8": fa3_fp8,
    "fa3-fp8-scaled": fa3_fp8_scaled,
    "mxfp8-attention": mxfp8_attention,
    "baseline-bf16": baseline_bf16,
    "fa4-bf16": lambda: _blackwell().fa4_bf16(),
    "fa4-fp8": lambda: _blackwell().fa4_fp8(),
    "fa4-fp8-offset4": lambda: _blackwell().fa4_fp8_offset4(),
    "fa4-fp8-threshold0": lambda: _blackwell().fa4_fp8_threshold0(),
    "cudnn-mxfp8": lambda: _blackwell().cudnn_mxfp8(),
}


def on_tensor_cores(plan: Plan, arch: str) -> Plan:
    """The plan with its products on the tensor cores of an architecture ("hopper"): those whose
    factors both have a type that it reads.

    Factors of two types meet in the first of their own two, bf16 and fp16 that holds both. Sums of
    FP32 factors and delta stay as they are: they run elsewhere. In blocks the scales are in the
    factors, so those products stay too. The row sum adds by halves, as lanes of a GPU reduce.
    (FlashAttention-3's own lanes first add their columns one after the other, over all tiles.)

    Raises ValueError for an unknown architecture.
    """
    own, found = architecture(arch).operands, plan
    for site, factors in FACTORS.items():
        formats = {plan[factor].format for factor in factors}
        fitting = [
            f
            for f in (*formats, BF16.format, FP16.format)
            if f.name in own and all(map(f.holds, formats))
        ]
        if fitting and not any(map(plan.block, factors)):
            found = found.adding(site, tensor_core(arch, fitting[0].name))
    if found is not plan and plan.accumulator(Site.ROWSUM).order is Order.ASCENDING:
        found = found.adding(
            Site.ROWSUM, replace(plan.accumulator(Site.ROWSUM), order=Order.HALVES)
        )
    return replace(found, name=f"{plan.name}@{arch}")


def preset(name: str) -> Plan:
    """The preset of that name, or all:<format>: every event in one format.

    Either may end in @<architecture>: its products on tensor cores. Or a twin
    (attention.plans.twins): a plan that gives a real kernel's own bits, whose products are there
    already.

    Raises ValueError with the nearest name.
    """
    if not isinstance(name, str):
        raise TypeError(f"name={name!r}: give the name of a preset, such as 'fa2-bf16'")
    plain, _, arch = name.partition("@")
    if arch:
        return on_tensor_cores(preset(plain), arch)
    if name.startswith("all:"):
        f = format_named(name.removeprefix("all:"))
        if not (f.zero and f.signed):
            raise ValueError(
                f"preset '{name}': {f.name} is a scale format without zero or sign; no event"
                " fits it"
            )
        return everywhere(name, rounding(f))
    if name in PRESETS:
        return PRESETS[name]()
    from roundscope.attention.plans.twins import TWINS  # which are made of presets

    if name not in TWINS:
        raise ValueError(unknown("preset", name, (*PRESETS, *TWINS), "or all:<format>"))
    return TWINS[name].plan
