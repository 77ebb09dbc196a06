"""The choices of a plan for the forward: its exponents, its maximum, its row sums.

The letters are those of the docstring of `Plan`. A message says how to fix a plan that is refused.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundscope.attention.plans.choices import (
    Exponential,
    Log2E,
    Logarithm,
    Polynomial,
    Reciprocal,
    RowSum,
    Stabilizer,
)
from roundscope.attention.sites import Site
from roundscope.events.choice import Moves, choice
from roundscope.events.plan import BasePlan

if TYPE_CHECKING:
    from roundscope.attention.plans.record import PlanRecord

POWERS_OF_2 = (Exponential.BASE2, Exponential.EX2)
KEPT_LANES = (RowSum.LANES, RowSum.PAIRED_LANES, RowSum.TILE_LANES)  # from tile to tile


def _without_log2_e(p: "PlanRecord") -> str:
    if p.exp not in POWERS_OF_2 or p.log2_e is not Log2E.NONE:
        return ""
    return (
        f"with exp={p.exp} X is the exponent of a power of 2, and log2_e=none leaves log2 e out of"
        " it; use log2_e=scale, maximum or scores"
    )


def _stale(p: "PlanRecord") -> str:
    if 0.0 <= p.stale_maximum < 64.0 and p.log2_e is not Log2E.SCORES:
        return ""
    return (
        "a number of powers of two, of e with log2_e=none, 0 or more and below 64; log2_e=scores"
        " has none"
    )


def _offset(p: "PlanRecord") -> str:
    if p.log2_e is not Log2E.NONE and 0 <= p.offset < 64:
        return ""
    return (
        "a number of powers of two, whole, from 0 to 63; it needs log2_e=scale, maximum or scores,"
        f" here log2_e={p.log2_e}"
    )


def _stabiliser(p: "PlanRecord") -> str:
    if p.log2_e is Log2E.NONE:
        return ""
    told = f"its shift is of scores in base e; use log2_e=none, here log2_e={p.log2_e}"
    raise ValueError(f"stabiliser: {told}")


def _log(p: "PlanRecord") -> str:
    if p.log is Logarithm.LG2_FACTOR and p.log2_e is not Log2E.MAXIMUM:
        return "it multiplies the maximum of unscaled scores; use log2_e=maximum"
    if p.log is Logarithm.LG2_FACTOR and p.lse_base2:
        return "it ends with L in base e; use lse_base2=false"
    if p.log is not Logarithm.LG2_SUM:
        return ""
    if p.log2_e is Log2E.NONE:
        return "it adds log2 l to an m in base 2; use log2_e=scale, maximum or scores"
    return "it ends with L in base e; use lse_base2=false" if p.lse_base2 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentChoices(BasePlan):
    """The exponent and the maximum."""

    exp: Exponential = choice(
        Exponential.CORRECT,
        number=8,
        called="exponential",
        doc="How exp is computed, forward and backward, one of `Exponential`: correct (default),"
        " base2, cuda (CUDA's expf: eager frameworks) or ex2 (ex2.approx.ftz.f32: fused kernels).",
        moves=Moves(forward=1),
    )
    log2_e: Log2E = choice(
        Log2E.NONE,
        number=11,
        called="place of log2 e",
        doc="Where log2 e enters the scores, one of `Log2E`: none (default), scale (cuDNN), maximum"
        " (FlashAttention-2), scores (Triton). Values other than none need exp base2 or ex2.",
        refused=lambda p: (
            f"goes with exp=base2 or exp=ex2, here exp={p.exp}" if p.exp not in POWERS_OF_2 else ""
        ),
        moves=Moves(forward=2),
        example="exp=base2 log2_e=scale",
    )
    fused_exponent: bool = choice(
        False,
        number=12,
        doc="True computes X as one multiply-add. The scores are multiplied by scale, c or log2 e"
        " in it, and this product is not rounded before m is subtracted. Default False. With exp"
        " base2 or ex2 it needs log2_e other than none.",
        source="twins flex and triton-tutorial, and FlashAttention-4",
        refused=_without_log2_e,
        moves=Moves(forward=7),
        example="exp=base2 log2_e=scores fused_exponent=true",
    )
    unfused_if_cut: bool = choice(
        False,
        number=13,
        doc="With fused_exponent, True rounds the product of that multiply-add in the tiles that"
        " causality or a window cuts, forward and backward. Default False.",
        source="twins flex and triton-tutorial",
        moves=Moves(forward=14),
    )
    fused_without_mask: bool = choice(
        False,
        number=14,
        doc="True sets fused_exponent in calls that have no mask and no window and are not causal,"
        " and needs what that needs. Default False.",
        source="the compiled code of arXiv 2510.04212",
        refused=_without_log2_e,
        moves=Moves(forward=13),
        example="exp=base2 log2_e=scale fused_without_mask=true",
    )
    stabiliser: Stabilizer | None = choice(
        None,
        number=7,
        doc="The shifted maximum of arXiv 2510.04212, a `Stabilizer`, or None (default). It needs"
        " log2_e none. (The field keeps its British spelling because stored results contain its"
        " name.)",
        refused=_stabiliser,
        words=("2", "8", "1.01", "none"),
    )
    stale_maximum: float = choice(
        0.0,
        number=27,
        doc="A number from 0 up to, but not including, 64. m keeps its old value where it would"
        " grow by this many powers of two or fewer (powers of e with log2_e none). With 0"
        " (default), m is always the maximum.",
        source="FlashAttention-4 (8 in BF16; 4, later 0, in FP8), tokamax (any) and cuDNN's MXFP8"
        " reference (4)",
        refused=_stale,
        kernels=(0.0,),
        moves=Moves(forward=16, values=(0.0, 4.0, 8.0)),
        words=("0", "0.5", "4"),
        example="exp=base2 log2_e=scale stale_maximum=4",
    )
    offset: int = choice(
        0,
        number=28,
        doc="A whole number from 0 (default) to 63, which is added to the exponent X. EXP, P, the"
        " row sum and O are then larger by the factor 2^offset, so P is cast in another range of"
        " its format. L does not have the factor. It needs log2_e other than none.",
        source="FlashAttention-4 in FP8 (8 in its first release, 4 in a later one)",
        refused=_offset,
        kernels=(0,),
        words=("0", "4", "8"),
        example="exp=base2 log2_e=maximum offset=8",
    )
    polynomial: Polynomial | None = choice(
        None,
        number=29,
        doc="The columns in which a polynomial takes the place of 2^x in EXP, a `Polynomial`, or"
        " None (default). It needs exp base2 or ex2.",
        source="FlashAttention-4",
        refused=lambda p: (
            f"takes the place of 2^x; it goes with exp=base2 or exp=ex2, here exp={p.exp}"
            if p.exp not in POWERS_OF_2
            else ""
        ),
        kernels=(None,),
        words=("1:1:0", "10:4:0", "none"),
        example="exp=ex2 log2_e=scale polynomial=1:1:0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChoices(ExponentChoices):
    """The row sum, its logarithm, and the output."""

    pv_into_o: bool = choice(
        False,
        number=3,
        doc="True adds P V to alpha O as one sum, and site O rounds the result; there is then no"
        " event PV. This is FlashAttention-2 (arXiv 2307.08691), preset fa2-bf16. False (default)"
        " makes P V an event PV of its own, and site O rounds the sum of the results of AO (which"
        " is alpha O) and PV. This is preset qiu-yao.",
        moves=Moves(forward=9),
    )
    normalise_first: bool = choice(
        False,
        number=4,
        doc="True divides P by the row sum before P V. The whole row must then be one key tile,"
        " which `attend` ensures. Default False. True is unfused attention: presets baseline-bf16,"
        " eager, gpt-oss, sdpa-math, jax-xla. (The field keeps its British spelling because stored"
        " results contain its name.)",
        moves=Moves(forward=15),
        words=None,  # the word is unfused
    )
    row_sum_of: Site = choice(
        Site.EXP,
        number=5,
        doc="What the row sum adds: `Site.EXP` (default), as released kernels do, or `Site.P`, the"
        " operand of P V after its cast. It has no effect with normalise_first.",
        refused=lambda p: "" if p.row_sum_of == Site.P else "the row sum adds EXP or P",
        moves=Moves(forward=6, values=(Site.EXP, Site.P)),
        words=("EXP", "P"),
    )
    row_sum: RowSum = choice(
        RowSum.PLAIN,
        number=15,
        called="row sum",
        doc="How threads add up a row, one of `RowSum`: plain (default), lanes (FlashAttention-2),"
        " paired-lanes (FlashAttention-4 on Hopper), tile-lanes (cuDNN), tiles (Triton), eights"
        " (FlashAttention-4), sixteens (Mosaic), groups (CUTLASS).",
        refused=lambda p: (
            "its lanes are kept from tile to tile, and a softmax of whole rows has one; use"
            " row_sum=plain before unfused=true"
            if p.normalise_first and p.row_sum in KEPT_LANES
            else ""
        ),
        kernels=(RowSum.PLAIN, RowSum.LANES, RowSum.TILE_LANES),
        moves=Moves(forward=3),
    )
    reciprocal: Reciprocal = choice(
        Reciprocal.CORRECT,
        number=16,
        called="reciprocal",
        doc="How 1 / l is computed, one of `Reciprocal`: correct (default), or rcp, the instruction"
        " rcp.approx.ftz.f32 (cuDNN, Triton).",
        moves=Moves(forward=4),
    )
    log: Logarithm = choice(
        Logarithm.CORRECT,
        number=19,
        called="logarithm",
        doc="How ln l is computed, one of `Logarithm`: correct (default), lg2 (FlashAttention-2,"
        " cuDNN), lg2-factor (FlashAttention-3: m times c ln 2), lg2-sum (FlashAttention-4: in base"
        " 2 until the end) or cuda (CUTLASS, Triton). lg2-factor needs log2_e=maximum and lg2-sum"
        " log2_e other than none, both an L in base e.",
        refused=_log,
        moves=Moves(follows=True),
        example="exp=ex2 log2_e=maximum log=lg2",
    )
    lse_base2: bool = choice(
        False,
        number=35,
        doc="True keeps L in base 2: m + log2 l. Default False. It needs log2_e scale or scores,"
        " exponent_again forward, and goes with no sinks.",
        source="kernels that Triton compiles (flex, triton-tutorial, pallas-mha)",
        refused=lambda p: (
            f"L is m + log2 l, so m has to be in base 2, here log2_e={p.log2_e}; use log2_e=scale"
            " or scores"
            if p.log2_e not in (Log2E.SCALE, Log2E.SCORES)
            else ""
        ),
        moves=Moves(backward=9, follows=True),
        example="exp=base2 log2_e=scale lse_base2=true",
    )
    registers: bool = choice(
        False,
        number=20,
        doc="True casts from binary32 registers, so a cast is two roundings: first event EI and"
        " then P, or OI and then OUT, PD and then DS, SDQ and then DQ_OUT, SDK and then DK_OUT. A"
        " sum with a product that is not rounded (AL or AO in binary64) is one multiply-add."
        " Default False: a cast is one rounding.",
        source="GPU kernels. Every twin, a plan that gives the bits of a real kernel"
        " (`attention.plans.twins`), has True",
        moves=Moves(forward=8, backward=7),
    )
