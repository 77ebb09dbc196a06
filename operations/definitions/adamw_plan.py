"""The plan of AdamW: its events and choices.

Implementations differ in the type of the parameter and of the averages, in which results they store
in between, in how an average is moved, in where the corrections and the decay stand, and in which
products are fused into an addition: a product that does not round (binary64) is.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.events.choice import Moves, choice
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase


class Site(SiteBase):
    """The events of AdamW; F is the number of numbers in a row of the parameter."""

    P = "P", "parameter", Axes.RF, "inputs", 0
    G = "G", "gradient", Axes.RF, "inputs", 1
    M = "M", "exp_avg, the average of gradients", Axes.RF, "inputs", 2
    V = "V", "exp_avg_sq, the average of their squares", Axes.RF, "inputs", 3
    KW = "KW", "1 - lr weight_decay, or what else multiplies P", Axes.ONE, "inputs", 4
    K1 = "K1", "1 - beta1", Axes.ONE, "inputs", 5
    B1 = "B1", "beta1 (average=weighted)", Axes.ONE, "inputs", 6
    K2 = "K2", "1 - beta2", Axes.ONE, "inputs", 7
    B2 = "B2", "beta2", Axes.ONE, "inputs", 8
    KR = "KR", "sqrt(1 - beta2^t), or 1 over it (reciprocal)", Axes.ONE, "inputs", 9
    KE = "KE", "eps", Axes.ONE, "inputs", 10
    KS = "KS", "lr / (1 - beta1^t), or lr (correction=averages)", Axes.ONE, "inputs", 11
    C1 = "C1", "1 - beta1^t (correction=averages)", Axes.ONE, "inputs", 12
    C2 = "C2", "1 - beta2^t (correction=averages)", Axes.ONE, "inputs", 13
    R1 = "R1", "1 / C1 (reciprocal)", Axes.ONE, "inputs", 14
    R2 = "R2", "1 / C2 (reciprocal)", Axes.ONE, "inputs", 15
    PW = "PW", "P KW (decay=subtracted or update)", Axes.RF, "forward", 16
    PD = "PD", "P KW, or P - PW (decay=subtracted)", Axes.RF, "forward", 17
    PDO = "PDO", "PD as it is stored in between", Axes.RF, "forward", 18
    MD = "MD", "G - M (average=lerp)", Axes.RF, "forward", 19
    MG = "MG", "MD K1, or G K1 (average=weighted)", Axes.RF, "forward", 20
    MB = "MB", "M B1 (average=weighted)", Axes.RF, "forward", 21
    MN = "MN", "M + MG, or MB + MG (average=weighted)", Axes.RF, "forward", 22
    MO = "MO", "MN as it is stored", Axes.RF, "forward", 23
    VB = "VB", "V B2", Axes.RF, "forward", 24
    VBO = "VBO", "VB as it is stored in between", Axes.RF, "forward", 25
    GS = "GS", "G K2, or G G (square=first)", Axes.RF, "forward", 26
    VG = "VG", "GS G, or GS K2 (square=first)", Axes.RF, "forward", 27
    VN = "VN", "VBO + VG", Axes.RF, "forward", 28
    VO = "VO", "VN as it is stored", Axes.RF, "forward", 29
    MC = "MC", "MO / C1, or MO R1 (correction=averages)", Axes.RF, "forward", 30
    MCO = "MCO", "MC as it is stored in between", Axes.RF, "forward", 31
    VC = "VC", "VO / C2, or VO R2 (correction=averages)", Axes.RF, "forward", 32
    VCO = "VCO", "VC as it is stored in between", Axes.RF, "forward", 33
    SD = "SD", "sqrt(VO), or sqrt(VCO)", Axes.RF, "forward", 34
    SC = "SC", "SD / KR, or SD KR (reciprocal)", Axes.RF, "forward", 35
    SCO = "SCO", "SC as it is stored in between", Axes.RF, "forward", 36
    DN = "DN", "SCO + KE, or SD + KE (correction=averages)", Axes.RF, "forward", 37
    DNO = "DNO", "DN as it is stored in between", Axes.RF, "forward", 38
    UM = "UM", "-KS MO (update=product-first)", Axes.RF, "forward", 39
    UQ = "UQ", "MO or MCO / DNO, or UM / DNO (update=product-first)", Axes.RF, "forward", 40
    UD = "UD", "UQ + PW (decay=update)", Axes.RF, "forward", 41
    UP = "UP", "-KS UQ, or -KS UD (decay=update)", Axes.RF, "forward", 42
    PN = "PN", "PDO + UP, or PDO + UQ (update=product-first)", Axes.RF, "forward", 43
    PO = "PO", "PN as it is stored", Axes.RF, "forward", 44
    COPY = "COPY", "PO as the model reads it", Axes.RF, "forward", 45


class Average(StrEnum):
    """How the average of gradients is moved."""

    LERP = "lerp"
    """M + (1 - beta1) (G - M)."""
    WEIGHTED = "weighted"
    """beta1 M + (1 - beta1) G."""


class Square(StrEnum):
    """Which of (1 - beta2), G and G are multiplied first."""

    FACTOR = "factor"
    """(1 - beta2) G, then G."""
    FIRST = "first"
    """G G, then 1 - beta2."""


class Correction(StrEnum):
    """Where 1 - beta1^t and 1 - beta2^t stand."""

    STEP = "step"
    """In the step size and behind the root, as in torch."""
    AVERAGES = "averages"
    """Under both averages, as in the paper."""


class Decay(StrEnum):
    """How the weight decay is applied."""

    FACTOR = "factor"
    """P (1 - lr weight_decay), before the update."""
    SUBTRACTED = "subtracted"
    """P - lr weight_decay P, before the update."""
    UPDATE = "update"
    """weight_decay P is added to the update before lr multiplies it."""


class Update(StrEnum):
    """Which of the step size, M and the root are combined first."""

    PRODUCT = "product-first"
    """(-lr / (1 - beta1^t) M) / DN."""
    QUOTIENT = "quotient-first"
    """-lr / (1 - beta1^t) (M / DN)."""


def _no_product(plan: Any) -> str:
    is_apart = plan.correction is Correction.AVERAGES or plan.decay is Decay.UPDATE
    is_product = plan.update is Update.PRODUCT and is_apart
    return "needs update=quotient-first" if is_product else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of AdamW."""

    SITES: ClassVar = Site
    BLOCK_AXIS: ClassVar = dict.fromkeys((Site.M, Site.V, Site.MO, Site.VO), 1)

    average: Average = choice(
        Average.LERP,
        number=0,
        called="average",
        doc="How the average of gradients is moved, one of `Average`: lerp (default) or weighted.",
        moves=Moves(forward=1),
    )
    square: Square = choice(
        Square.FACTOR,
        number=1,
        called="square",
        doc="Which of (1 - beta2), G and G are multiplied first, one of `Square`: factor (default)"
        " or first (G G).",
        moves=Moves(forward=2),
    )
    update: Update = choice(
        Update.QUOTIENT,
        number=2,
        called="update",
        doc="Whether the step size multiplies M / DN (quotient-first, default) or M"
        " (product-first).",
        refused=_no_product,
        moves=Moves(forward=3),
    )
    decay: Decay = choice(
        Decay.FACTOR,
        number=3,
        called="decay",
        doc="How the weight decay is applied, one of `Decay`: factor (default), subtracted or"
        " update.",
        refused=_no_product,
        moves=Moves(forward=4),
    )
    correction: Correction = choice(
        Correction.STEP,
        number=4,
        called="correction",
        doc="Where the corrections of the averages stand, one of `Correction`: step (default) or"
        " averages.",
        refused=_no_product,
        moves=Moves(forward=5),
    )
    reciprocal: bool = choice(
        False,
        number=5,
        doc="True multiplies by 1 / sqrt(1 - beta2^t), or by 1 / (1 - beta^t), in place of a"
        " division. Default False.",
        source="torch's division by a number on a GPU, XLA's of optax",
        moves=Moves(forward=6),
    )
    stored: bool = choice(
        True,
        number=6,
        doc="True (default) computes the update from the averages as they are stored; False from"
        " those in registers, MN and VN.",
        source="fused kernels",
        moves=Moves(forward=7),
    )
    narrow_settings: bool = choice(
        False,
        number=7,
        doc="True rounds lr, weight_decay and the betas to binary32 before other numbers are made"
        " of them, such as 1 - beta1. Default False: these are made in binary64.",
        source="torch's fused kernel on a GPU",
        moves=Moves(forward=8),
    )
    narrow_powers: bool = choice(
        False,
        number=8,
        doc="True computes beta^t and 1 - beta^t in binary32, of a beta rounded to it. Default"
        " False: in binary64.",
        source="optax, and torch's fused kernel on a GPU",
        moves=Moves(forward=9),
    )
