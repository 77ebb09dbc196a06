"""RMSNorm: x / sqrt(mean(x^2) + eps) times a weight (Zhang and Sennrich, arXiv 1910.07467).

Implementations differ in the type in which the mean is computed, in the order of its sum, in the
root, and in whether the normalized x is cast to the type of x before or after it is multiplied by
the weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.operation import Operation, Shape, Value


class Site(SiteBase):
    """The events of RMSNorm; F is the number of features of a row."""

    X = "X", "x", Axes.RF, "inputs", 0
    W = "W", "weight", Axes.F, "inputs", 1
    SQ = "SQ", "X X", Axes.RF, "forward", 2
    SS = "SS", "sum_f SQ", Axes.R, "forward", 3
    MS = "MS", "SS / F", Axes.R, "forward", 4
    VE = "VE", "MS + eps", Axes.R, "forward", 5
    SD = "SD", "sqrt(VE)", Axes.R, "forward", 6
    RS = "RS", "1 / SD, or 1 / sqrt(VE) in one", Axes.R, "forward", 7
    XN = "XN", "X RS", Axes.RF, "forward", 8
    XC = "XC", "XN as it is multiplied by the weight", Axes.RF, "forward", 9
    W1 = "W1", "W, or 1 + W", Axes.F, "forward", 10
    OUT = "OUT", "XC W1", Axes.RF, "forward", 11


class Root(StrEnum):
    """How 1 / sqrt(VE) is computed."""

    DIVIDED = "divided"
    """A root and a division, two events."""
    CORRECT = "correct"
    """One event, 1 / sqrt(VE) rounded once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of RMSNorm."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.SS,)
    FACTORS: ClassVar = {Site.SS: (Site.SQ,)}

    root: Root = choice(
        Root.DIVIDED,
        number=0,
        called="root",
        doc="How 1 / sqrt(VE) is computed, one of `Root`: divided (default: a root, then a"
        " division) or correct (one rounding).",
        moves=Moves(forward=1),
    )
    unit_offset: bool = choice(
        False,
        number=1,
        doc="True multiplies by 1 + weight. Default False.",
        source="Gemma",
        moves=Moves(forward=2),
    )


def forward(
    at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array, weight: Array | None
) -> tuple[Array, ...]:
    """Return (out,), for x (R, F) and weight (F,) or None."""
    xp, mul = at.ops.xp, at.ops.multiply
    features = x.shape[1]
    x = at(Site.X, x)
    sq = at(Site.SQ, mul(x, x))
    ss = at.product(Site.SS, sq, xp.ones((features, 1)))[:, 0]
    ms = at(Site.MS, at.ops.divide(ss, xp.full_like(ss, features)))
    ve = at(Site.VE, ms + settings["eps"])
    if at.plan.root is Root.DIVIDED:
        sd = at(Site.SD, xp.sqrt(ve))
        rs = at(Site.RS, at.ops.divide(xp.ones_like(sd), sd))
    else:
        rs = at(Site.RS, at.ops.divide(xp.ones_like(ve), xp.sqrt(ve)))
    xn = at(Site.XN, mul(x, rs[:, None]))
    xc = at(Site.XC, xn)
    if weight is None:
        return (at(Site.OUT, xc),)
    w = at(Site.W, weight[None, :])
    w1 = at(Site.W1, w + 1.0 if at.plan.unit_offset else w)
    return (at(Site.OUT, mul(xc, xp.broadcast_to(w1, xc.shape))),)


def exact() -> Plan:
    """Return the plan in binary64, the reference."""
    return Plan.everywhere("exact", BINARY64)


def fp32() -> Plan:
    """Return the plan in which every event and every step of a sum rounds to binary32."""
    return Plan.everywhere("fp32", BINARY32)


def transformers_llama() -> Plan:
    """Return transformers' LlamaRMSNorm on BF16: FP32 inside, cast before the weight
    (models/llama/modeling_llama.py, LlamaRMSNorm.forward).
    """
    bf16 = dict.fromkeys((Site.X, Site.W, Site.W1, Site.XC, Site.OUT), BF16)
    return fp32().rounded(bf16, "transformers-llama")


RMS_NORM = Operation(
    name="rms_norm",
    number=1,
    plan=Plan,
    inputs=(
        Value("x", Site.X),
        Value("weight", Site.W, Shape.SHARED, optional=True),
    ),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    settings={"eps": 1e-6},
    published={"exact": exact, "fp32": fp32, "transformers-llama": transformers_llama},
    moved=(Site.XN, Site.XC, Site.OUT),
)
