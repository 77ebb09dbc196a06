"""The choices of a plan for Q and K before their product: what is done to them, and their scales.

The letters are those of the docstring of `Plan`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundscope.attention.plans.backward import BackwardChoices
from roundscope.attention.plans.choices import (
    BackwardExponent,
    Descales,
    Log2E,
    Reciprocal,
    ScaleOfGradient,
)
from roundscope.events.choice import choice

if TYPE_CHECKING:
    from roundscope.attention.plans.record import PlanRecord


def _scaled_queries(p: "PlanRecord") -> str:
    for name in ("scale_roots", "scaled_keys"):
        if getattr(p, name):
            return (
                f"the queries contain the scale, and {name}=True has no place for it; use"
                f" {name}=false"
            )
    if p.log2_e is Log2E.MAXIMUM:
        return "scores are scaled before the maximum; use log2_e=none, scale or scores"
    if p.exponent_again is not BackwardExponent.FORWARD:
        return (
            "the backward's scores contain what the queries contain; use exponent_again=forward,"
            f" here {p.exponent_again}"
        )
    if p.gradient_scale is not ScaleOfGradient.RESULT:
        return f"needs gradient_scale=result, here gradient_scale={p.gradient_scale}"
    return ""


def _descales(p: "PlanRecord") -> str:
    for name in ("normalise_first", "normalized_last", "scale_roots", "scaled_queries"):
        if getattr(p, name):
            word = "unfused" if name == "normalise_first" else name
            return (
                "the scales are in the factor of the scores and in 1 / l after the last tile; use"
                f" {word}=false"
            )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandChoices(BackwardChoices):
    """Queries and keys before their product."""

    scaled_queries: bool = choice(
        False,
        number=48,
        doc="True multiplies q by the scale, with log2_e scale by c, and rounds the product to"
        " binary32 before the event Q. The scores are then not multiplied by it. It needs"
        " gradient_scale result and exponent_again forward, goes with log2_e none, scale or scores,"
        " and has neither scale_roots, scaled_keys nor a softcap. Default False.",
        source="SageAttention (sage-int8)",
        refused=_scaled_queries,
        kernels=(False,),
        example="scaled_queries=true",
    )
    smoothed_keys: bool = choice(
        False,
        number=49,
        doc="True subtracts from k its mean over all keys of its head, before the event K. The"
        " event KM rounds the difference, and the mean before it. Probabilities do not change in"
        " exact arithmetic, and L is that of the new scores: smaller by scale times q times the"
        " mean. It has neither sinks nor a softcap. Default False.",
        source="SageAttention (arXiv 2410.02367, 4.2)",
        kernels=(False,),
        programs=(False,),
    )
    hadamard: bool = choice(
        False,
        number=62,
        doc="True multiplies the features of q and k by a Hadamard matrix with random signs, which"
        " is the same for all heads, before the events Q and K (and QB and KB), and dQ and dK by"
        " its transpose at the end. Scores do not change in exact arithmetic. The additions are"
        " exact for inputs of few bits and are no events. The features are a power of two. It has"
        " neither sinks nor a softcap. Default False.",
        source="incoherent processing (arXiv 2407.08608, 3.3)",
        kernels=(False,),
        programs=(False,),
    )
    key_scales: bool = choice(
        False,
        number=50,
        doc="True leaves the scales of K's blocks out of the product S and multiplies S by them"
        " (event SCALED). A block has then all features of its keys. It needs scaled_queries, and"
        " has no effect where K is not in blocks. The backward multiplies by K with its scales."
        " Default False.",
        source="SageAttention (arXiv 2410.02367)",
        refused=lambda p: (
            "the scores are multiplied by the scale of K alone; it goes with scaled_queries"
            if not p.scaled_queries
            else ""
        ),
        kernels=(False,),
        programs=(False,),
        example="scaled_queries=true key_scales=true",
    )
    block_reciprocal: Reciprocal = choice(
        Reciprocal.CORRECT,
        number=51,
        called="reciprocal of a block's scale",
        doc="How events in blocks divide, one of `Reciprocal`: correct (default), where each"
        " quotient is rounded once, to its element or to its scale; or rcp, where it is first"
        " rounded to binary32: a scale is a maximum times binary32(1 / m), with m the largest"
        " element, and an element is a number times rcp.approx of its scale. rcp has an effect on"
        " formats with scales fp32:nearest.",
        source="kernels that Triton compiles (sage-int8)",
        kernels=(Reciprocal.CORRECT,),
        example="block_reciprocal=rcp",
    )
    descales: Descales = choice(
        Descales.OPERANDS,
        number=55,
        called="place of scales",
        doc="Where the scales of q, k and v that a call has enter (`scales` of `attend`), one of"
        " `Descales`: operands (default; vLLM's Triton kernel), where q, k and v are multiplied"
        " before their events; or products (FlashAttention-3, cuDNN), where the operands are the"
        " stored numbers, the scale or c is multiplied by descale_q times descale_k, and 1 / l by"
        " descale_v. It has no effect in calls without scales.",
        refused=_descales,
    )
