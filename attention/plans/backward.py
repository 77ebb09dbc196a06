"""The choices of a plan for the backward: P again, delta, dS, and the gradients.

The letters are those of the docstring of `Plan`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundscope.attention.plans.choices import (
    REAL_DELTAS,
    BackwardExponent,
    DeltaFrom,
    GradientsApart,
    Log2E,
    ScaleOfGradient,
    ScoreGradient,
)
from roundscope.attention.plans.forward import POWERS_OF_2, RowChoices
from roundscope.events.choice import Moves, choice

if TYPE_CHECKING:
    from roundscope.attention.plans.record import PlanRecord


def _again(p: "PlanRecord") -> str:
    if p.lse_base2:
        return (
            "subtracts L in base e, and lse_base2=True keeps it in base 2; use"
            " exponent_again=forward"
        )
    if p.exponent_again is BackwardExponent.AFTER and p.exp not in POWERS_OF_2:
        return (
            "P is a power of 2 in the backward; it goes with exp=base2 or exp=ex2, here"
            f" exp={p.exp}"
        )
    if p.exponent_again is BackwardExponent.STATE:
        for name in ("split_tiles", "kept_state"):
            if getattr(p, name):
                return f"reads m and l of whole rows, and {name}={getattr(p, name)} has others"
    return ""


def _score_gradient(p: "PlanRecord") -> str:
    is_known = p.saved_p and p.delta_from is DeltaFrom.P_DP
    if p.score_gradient is ScoreGradient.QUOTIENT and not is_known:
        return "is of EXP and l as the forward had them; it goes with saved_p and delta_from=P_DP"
    return ""


def _gradient_scale(p: "PlanRecord") -> str:
    if p.scale_roots:
        return (
            "with scale_roots=True the root of the scale multiplies dQ and dK at the end; use"
            " gradient_scale=result"
        )
    if p.gradient_scale is not ScaleOfGradient.PROBABILITY:
        return ""
    told = " has no product of the scale and P; use gradient_scale=result, register or operand"
    if p.score_gradient is ScoreGradient.QUOTIENT:
        return f"score_gradient=quotient{told}"
    return f"dp_from_delta=True{told}" if p.dp_from_delta else ""


def _scaled_keys(p: "PlanRecord") -> str:
    is_base2 = p.lse_base2 and p.log2_e is Log2E.SCALE
    if not is_base2 or p.gradient_scale is not ScaleOfGradient.RESULT:
        return (
            "S_B is in base 2, as L must be; it needs log2_e=scale, lse_base2,"
            " gradient_scale=result"
        )
    for name in ("saved_p", "scale_roots"):
        if getattr(p, name):
            return (
                f"the keys contain the scale, and {name}=True has no place for it; use {name}=false"
            )
    return ""


def _ds_apart(p: "PlanRecord") -> str:
    others = {
        "gradient_scale=operand": p.gradient_scale is ScaleOfGradient.OPERAND,
        "dp_from_delta=true": p.dp_from_delta,
        "maximum_gradient=true": p.maximum_gradient,
        "score_gradient=quotient": p.score_gradient is ScoreGradient.QUOTIENT,
    }
    found = [word for word, is_set in others.items() if is_set]
    return (
        f"casts one dS twice, and {found[0]} has another for dQ or after its cast" if found else ""
    )


def _inputs_again(p: "PlanRecord") -> str:
    others = ("saved_p", "scale_roots", "scaled_keys", "scaled_queries", "key_scales")
    found = [name for name in others if getattr(p, name)]
    return (
        f"the backward reads q, k and v of its own, and {found[0]}=True has others for it; use"
        f" {found[0]}=false"
        if found
        else ""
    )


_FROM_L = tuple(how for how in BackwardExponent if how is not BackwardExponent.STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardChoices(RowChoices):
    """The backward."""

    exponent_again: BackwardExponent = choice(
        BackwardExponent.FORWARD,
        number=17,
        called="exponent of the backward",
        doc="How the backward computes P again, one of `BackwardExponent`: forward (default), after"
        " (cuDNN; it needs exp base2 or ex2), natural (CUTLASS), state (Mosaic; from m and l, which"
        " event MS keeps; with neither split_tiles nor kept_state). All but forward need an L in"
        " base e.",
        refused=_again,
        kernels=_FROM_L,
        programs=_FROM_L,
        moves=Moves(backward=5, follows=True),
        example="exp=base2 log2_e=scale exponent_again=after",
    )
    saved_p: bool = choice(
        False,
        number=39,
        doc="True lets the backward read P as the forward had it instead of exp(S - L). It needs"
        " normalise_first. Default False.",
        source="eager frameworks and XLA",
        refused=lambda p: (
            "only a softmax of whole rows keeps P; it goes with normalise_first"
            if not p.normalise_first
            else ""
        ),
        moves=Moves(backward=12),
        example="unfused=true saved_p=true",
    )
    delta_from: DeltaFrom = choice(
        DeltaFrom.OUT,
        number=6,
        called="delta_from",
        doc="The operands of delta, one of `DeltaFrom`: OUT (default; fused kernels), O, P_DP"
        " (unfused softmax), or CENTRED, which keeps the row sums of dS at 0 and which no kernel"
        " uses. OTHER_ROWS and RANDOM_SIGNS are shams of CENTRED: corrections as large, in other"
        " rows or with random signs.",
        refused=lambda p: (
            "a sham corrects a delta of tiles and whole products; it goes with score_gradient"
            " difference or softmax"
            if p.delta_from not in REAL_DELTAS and p.score_gradient is ScoreGradient.QUOTIENT
            else ""
        ),
        kernels=REAL_DELTAS,
        programs=REAL_DELTAS,
        moves=Moves(backward=3, values=REAL_DELTAS, follows=True),
        example="delta_from=P_DP",
    )
    delta_products: bool = choice(
        False,
        number=38,
        doc="With delta_from OUT or O, True rounds the products of dO and O (event DOO) before"
        " delta adds them. Default False.",
        source="pallas-mha and the eager code of arXiv 2510.04212",
        moves=Moves(backward=10, follows=True),
    )
    ds_from_p: bool = choice(
        False,
        number=18,
        doc="True computes dS from P_B, which has been cast, instead of EXP_B. Default False.",
        source="CUTLASS (sdpa-efficient), gpt-oss",
        moves=Moves(backward=8, follows=True),
    )
    score_gradient: ScoreGradient = choice(
        ScoreGradient.DIFFERENCE,
        number=41,
        called="score gradient",
        doc="How dS is computed, one of `ScoreGradient`: difference (default; fused kernels),"
        " softmax (eager frameworks) or quotient (JAX). quotient needs saved_p and delta_from P_DP,"
        " and has no sinks.",
        refused=_score_gradient,
        kernels=(ScoreGradient.DIFFERENCE,),
        moves=Moves(backward=2, follows=True),
        example="unfused=true saved_p=true delta_from=P_DP score_gradient=quotient",
    )
    maximum_gradient: bool = choice(
        False,
        number=40,
        doc="True differentiates through m too. The row sum of dS (event DMAX) is then subtracted"
        " from dS at the first key that has the maximum (event DSM). It needs saved_p, and has no"
        " softcap. Default False.",
        source="eager gpt-oss",
        refused=lambda p: (
            "the sum of dS is of whole rows, whose maximum is known; it goes with saved_p"
            if not p.saved_p
            else ""
        ),
        example="unfused=true saved_p=true maximum_gradient=true",
    )
    gradient_scale: ScaleOfGradient = choice(
        ScaleOfGradient.RESULT,
        number=42,
        called="place of the gradient's scale",
        doc="Where the scale enters dQ and dK, one of `ScaleOfGradient`: result (default;"
        " FlashAttention-2), probability (arXiv 2510.04212), register (cuDNN) or operand (eager"
        " frameworks). scale_roots has result alone; score_gradient quotient and dp_from_delta have"
        " no probability; sinks with maximum_gradient need result or operand.",
        refused=_gradient_scale,
        moves=Moves(backward=1, follows=True),
    )
    gradients_apart: GradientsApart = choice(
        GradientsApart.NONE,
        number=22,
        called="gradients apart",
        doc="Which gradients sum each tile separately before they add it to the total, one of"
        " `GradientsApart`: none (default), dq (FlashAttention-2, cuDNN) or all (arXiv 2510.04212)."
        " The events DQP, DKP and DVP round the sums of one tile.",
        moves=Moves(backward=6, follows=True),
    )
    scale_roots: bool = choice(
        False,
        number=23,
        doc="True multiplies q and k by the square root of the scale (events QS and KS), and their"
        " gradients too. The scores are then not multiplied by the scale. Default False. It needs"
        " gradient_scale result.",
        source="the math back end of torch's SDPA",
        kernels=(False,),
        moves=Moves(forward=10),
    )
    scaled_keys: bool = choice(
        False,
        number=43,
        doc="True multiplies K by scale times log2 e in the backward, rounds the product (event"
        " KC), and uses it for S_B and dQ; dQ is multiplied by ln 2 at the end. It needs log2_e"
        " scale, lse_base2 and gradient_scale result, and has neither saved_p, scale_roots nor a"
        " softcap. Default False.",
        source="Triton's tutorial 06",
        refused=_scaled_keys,
        kernels=(False,),
        example="exp=ex2 log2_e=scale lse_base2=true scaled_keys=true",
    )
    dp_from_delta: bool = choice(
        False,
        number=24,
        doc="True computes a second dP - delta for dQ, as one sum of dO V^T that starts at -delta"
        " (event DPQ). It gives a second dS, the event DSQ. For dK, delta is subtracted from DP as"
        " usual. Default False. It goes neither with score_gradient quotient nor with a softcap.",
        source="Pallas' mha (pallas-mha)",
        refused=lambda p: (
            "dQ's sum begins at -delta, and delta of score_gradient=quotient is divided by l; use"
            " score_gradient=difference or softmax"
            if p.score_gradient is ScoreGradient.QUOTIENT
            else ""
        ),
        kernels=(False,),
        moves=Moves(backward=11, follows=True),
    )
    rounded_heads: bool = choice(
        False,
        number=44,
        doc="True rounds dK and dV of each query head (events DKH and DVH) before those of the"
        " query heads that share a key head are added in FP32 in ascending order and rounded again"
        " (DK_OUT and DV_OUT). False (default) adds them before any rounding. It has no effect in"
        " calls in which no key head is shared.",
        source="kernels that are given a key head for each query head, as torch's SDPA does for"
        " FlashAttention-2 and cuDNN with enable_gqa",
        moves=Moves(backward=13, follows=True),
    )
    ds_apart: bool = choice(
        False,
        number=45,
        doc="True casts dS for dQ apart from dS for dK: first to the register DSR, then to"
        " DSQ. With DSR in FP16 and DSQ in FP8 dQ has a dS that is rounded twice, and dK one (DS)"
        " that is rounded once. Default False. It goes neither with gradient_scale operand nor with"
        " dp_from_delta, maximum_gradient or score_gradient quotient.",
        source="cuDNN in FP8",
        refused=_ds_apart,
        kernels=(False,),
        moves=Moves(backward=14, follows=True),
    )
    offset_again: bool = choice(
        False,
        number=47,
        doc="With an offset, True multiplies P by 2^offset before its cast in the backward too"
        " (P_B), and dV by 2^-offset at the end, which is exact. Default False. It does not go"
        " with ds_from_p.",
        source="cuDNN in FP8, whose backward has the same `scale_s`",
        refused=lambda p: (
            "dS would have the factor too; use ds_from_p=false" if p.ds_from_p else ""
        ),
        kernels=(False,),
        moves=Moves(backward=16),
    )
    inputs_again: bool = choice(
        False,
        number=60,
        doc="True lets the backward read q, k and v from before their events Q, K and V: the events"
        " QB, KB and VB round them for it. With QB, KB and VB in the formats of Q, K and V the"
        " backward recomputes the forward's scores; in others it does not. Default False. It has"
        " neither saved_p, scale_roots, scaled_keys, scaled_queries nor key_scales.",
        source="training with a forward in few bits: the drop-in backward that arXiv 2603.00040"
        " warns of, and V of dP in arXiv 2603.02170",
        refused=_inputs_again,
        kernels=(False,),
        programs=(False,),
    )
    do_apart: bool = choice(
        False,
        number=61,
        doc="True casts dO as the operand of dV apart (event DOV). dP and delta read dO after its"
        " event DO alone. Default False.",
        source="SageBwd (arXiv 2603.02170), whose dV reads dO in INT8 and whose dP reads it in"
        " FP16",
        kernels=(False,),
        programs=(False,),
    )
    lse_again: bool = choice(
        False,
        number=63,
        doc="True takes L in the backward from the scores of QB and KB, so P of the backward sums"
        " to 1 whatever the forward's scores were. Default False. It needs inputs_again.",
        source="our own: what is left of a drop-in backward whose P is normalized",
        refused=lambda p: (
            "L of what the forward read is known already; it goes with inputs_again"
            if not p.inputs_again
            else ""
        ),
        kernels=(False,),
        programs=(False,),
        example="inputs_again=true lse_again=true",
    )
