"""The choices of a plan for features that models ask for: windows, softcaps, sinks and biases.

`attend` can set the window and the softcap for one call, and is given the sinks and the bias. A
value is refused where it is impossible, and where the rest of the plan does not support it: the
kernels of the fields that a message names have no such feature, so there is nothing that the plan
could imitate.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roundscope.attention.plans.choices import (
    CappedBy,
    DeltaFrom,
    Log2E,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
    Tanh,
)
from roundscope.attention.plans.operands import OperandChoices
from roundscope.attention.sites import Site
from roundscope.events.choice import choice

if TYPE_CHECKING:
    from roundscope.attention.plans.record import PlanRecord

UNCAPPED = {  # fields of plans whose kernel has no softcap, and what it has instead
    "dp_from_delta": "a second dS",
    "scaled_keys": "keys that contain scale log2 e already",
    "scaled_queries": "queries that contain the scale already",
    "smoothed_keys": "keys less their mean, which moves all scores of a row",
    "hadamard": "queries and keys that were turned",
    "maximum_gradient": "a sum of dS that is taken away behind the tanh",
}


def _window(p: "PlanRecord") -> str:
    if isinstance(p.window, bool) or p.window < 0:
        return "how many keys a query sees, its own included, such as 128; 0 for all"
    return ""


def _softcap(p: "PlanRecord") -> str:
    if not 0.0 <= p.softcap < math.inf:
        return "a number above 0, such as 50.0, that bounds the scores; 0 for no bound"
    if told := _uncapped(p):
        raise ValueError(f"softcap={p.softcap:g}: {told}")
    return ""


def _uncapped(p: "PlanRecord") -> str:
    """Return why a plan cannot have its softcap, which is in range, or ""."""
    has_inverse = p.capped_by is CappedBy.CHAIN
    if has_inverse or p[Site.SCALED].format.precision <= 24:
        with np.errstate(over="ignore", divide="ignore"):
            narrow = np.float32(p.softcap)
            kept = (narrow, np.float32(1.0) / narrow)[: 1 + has_inverse]
        if not all(0.0 < x < math.inf for x in kept):
            return "0 or infinite in binary32, itself or its inverse; give a number such as 50.0"
    for name, why in UNCAPPED.items():
        if getattr(p, name):
            return (
                f"{p.name} has {name}=True, {why}, and its kernel has no softcap; use {name}=false"
            )
    return ""


def _sinks(p: "PlanRecord") -> str:
    for name in ("split_tiles", "kept_state", "lse_base2", "smoothed_keys", "hadamard"):
        if getattr(p, name):
            return f"{p.name} has {name}={getattr(p, name)}, which knows no sinks; change it"
    if p.score_gradient is ScoreGradient.QUOTIENT:
        return (
            f"{p.name} has score_gradient=quotient, whose delta is divided by l, and its kernel has"
            " no sinks; use score_gradient=softmax or difference"
        )
    early = (ScaleOfGradient.REGISTER, ScaleOfGradient.PROBABILITY)
    if p.maximum_gradient and p.gradient_scale in early:
        return (
            "the sum of dS of maximum_gradient=True has the sink's part without the scale; use"
            f" gradient_scale=operand or result, not {p.gradient_scale}"
        )
    if p.delta_from not in (DeltaFrom.OUT, DeltaFrom.WIDE_O, DeltaFrom.P_DP):
        return (
            f"rows of P do not add up to 1, which delta_from={p.delta_from} expects; use OUT, O or"
            " P_DP"
        )
    if p.sinks is Sinks.KEY and not p.normalise_first:
        return (
            "of tiles, each adds up its own keys; it goes with a softmax of whole rows; use"
            " sinks=first or last"
        )
    if p.sinks is Sinks.LAST and p.normalise_first:
        return (
            "P of a softmax of whole rows is divided before any later key; use sinks=key or"
            " sinks=first"
        )
    return ""


UNBIASED = {  # fields of plans in which nothing is there that a bias is added to, or none of its dS
    "scaled_keys": "keys that contain scale log2 e in the backward",
    "key_scales": "scales of the keys in the factor of the scores",
    "dp_from_delta": "a second dS",
    "ds_apart": "two casts of dS",
}


def _biased(p: "PlanRecord") -> str:
    told = ""
    if p.log2_e in (Log2E.SCALE, Log2E.MAXIMUM):
        told = (
            f"multiplies the scores by scale log2 e in one step (log2_e={p.log2_e}), so it has no"
            " scaled score to add it to"
        )
    elif p.gradient_scale is ScaleOfGradient.PROBABILITY:
        told = "has the scale in dS (gradient_scale=probability), which is then not its gradient"
    elif p.gradient_scale is ScaleOfGradient.REGISTER and p.maximum_gradient:
        told = "has the scale in the dS of which the gradient of the maximum is taken away"
    else:
        for name, why in UNBIASED.items():
            if getattr(p, name):
                told = f"has {name}=True, {why}, and its kernel adds none"
    if told:
        raise ValueError(
            f"bias: {p.name} {told}; give a plan that adds one, such as fa2-bf16, eager, sdpa-math,"
            " sdpa-efficient or flex, or, where it only hides keys, a mask of booleans"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChoices(OperandChoices):
    """Windows, softcaps, sinks and biases."""

    window: int = choice(
        0,
        number=33,
        doc="How many keys a query sees, its own included: query t sees keys t - window < s <= t of"
        " a causal call and `|t - s|` < window of any other. 0 (default): all. If the argument"
        " `window` of `attend` is given, it replaces this value.",
        source="sliding-window attention",
        refused=_window,
        kernels=(0,),
        words=("0", "1", "3"),
    )
    softcap: float = choice(
        0.0,
        number=30,
        doc="A bound c > 0 of the scores, which become c tanh(scale S / c), by the events SS, CAP"
        " and TANH. 0.0 (default): the scores are scale S. If the argument `softcap` of `attend` is"
        " given, it replaces this value.",
        source="Gemma 2 (arXiv 2408.00118)",
        refused=_softcap,
        kernels=(0.0,),
        words=("0", "50", "0.7"),
    )
    capped_by: CappedBy = choice(
        CappedBy.QUOTIENT,
        number=31,
        called="way of a softcap",
        doc="How a softcap divides, one of `CappedBy`: quotient (default; FlashAttention-4) or"
        " chain (automatic differentiation). It has no effect without a softcap.",
        example="softcap=2 capped_by=chain",
    )
    tanh: Tanh = choice(
        Tanh.CORRECT,
        number=32,
        called="tanh",
        doc="How the tanh of a softcap is computed, one of `Tanh`: correct (default), cuda"
        " (tanhf: torch, Triton) or approx (FlashAttention-4).",
        example="softcap=2 tanh=cuda",
    )
    cap_apart: bool = choice(
        False,
        number=52,
        doc="Whether c TANH is rounded (events CT and CT_B) and then is the score, whose scale is 1"
        " (FlashAttention-4); otherwise c is the scale of TANH. It has no effect without a"
        " softcap. Default False.",
        example="softcap=2 cap_apart=true",
    )
    sinks: Sinks = choice(
        Sinks.NONE,
        number=34,
        called="way of sinks",
        doc="How the sinks of a call enter, one of `Sinks`: key (eager gpt-oss), first (vLLM), last"
        " (FlashAttention-3 and -4), or none (default). A plan with none treats sinks like key with"
        " normalise_first, and like last otherwise.",
        refused=_sinks,
        kernels=(Sinks.NONE,),
        example="sinks=first",
    )
    biased: bool = choice(
        False,
        number=57,
        doc="Whether a bias B is added to the scaled scores (events BIAS and BIASED). Calls set it:"
        " True where `attend` is given a bias, else False. In words it stands before what changes"
        " these events. It goes with log2_e none or scores. Default False.",
        source="T5 (arXiv 1910.10683) and ALiBi (arXiv 2108.12409)",
        refused=_biased,
        kernels=(False,),
    )
