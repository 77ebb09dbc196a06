"""Rotary position embedding: x cos + rotated(x) sin (Su et al., arXiv 2104.09864).

The table of cosines and sines is an input. Implementations differ in which features are rotated
together, in the type of the products and of their sum, and in whether a product is fused into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.operation import Operation, Value, in_bf16, published


class Site(SiteBase):
    """The events of a rotary embedding; F is the number of features of a head."""

    X = "X", "x", Axes.RF, "inputs", 0
    COS = "COS", "cos of each feature", Axes.RF, "inputs", 1
    SIN = "SIN", "sin of each feature", Axes.RF, "inputs", 2
    XC = "XC", "X COS", Axes.RF, "forward", 3
    XS = "XS", "rotated(X) SIN", Axes.RF, "forward", 4
    SUM = "SUM", "XC + XS, or X COS + XS in one (fused)", Axes.RF, "forward", 5
    OUT = "OUT", "SUM as it is stored", Axes.RF, "forward", 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of a rotary embedding."""

    SITES: ClassVar = Site

    pairs: bool = choice(
        False,
        number=0,
        doc="True rotates features 0 and 1, 2 and 3 and so on; False (default) the first half with"
        " the second. It is what is computed, and not how.",
        source="GPT-J",
    )
    fused: bool = choice(
        False,
        number=1,
        doc="True adds X COS to XS by a multiply-add, without the event XC. Default False.",
        moves=Moves(forward=1),
    )


def forward(
    at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array, cos: Array, sin: Array
) -> tuple[Array, ...]:
    """Return (out,), for x, cos and sin of shape (R, F), all with a column for each feature."""
    xp, mul = at.ops.xp, at.ops.multiply
    x, cos, sin = at(Site.X, x), at(Site.COS, cos), at(Site.SIN, sin)
    if at.plan.pairs:
        rotated = xp.stack([-x[:, 1::2], x[:, ::2]], axis=2).reshape(x.shape)
    else:
        half = x.shape[1] // 2
        rotated = xp.concatenate([-x[:, half:], x[:, :half]], axis=1)
    xs = at(Site.XS, mul(rotated, sin))
    if at.plan.fused:
        total = at(Site.SUM, at.ops.odd_sum(mul(x, cos), xs))
    else:
        total = at(Site.SUM, at(Site.XC, mul(x, cos)) + xs)
    return (at(Site.OUT, total),)


def transformers_llama() -> Plan:
    """Return transformers' apply_rotary_pos_emb: each operation in the type of x
    (models/llama/modeling_llama.py; 5.24).

    Equal in every bit on a CPU in BF16, FP16 and FP32 (tests/operations/test_rope.py).
    """
    return in_bf16(Plan, "transformers-llama", *Site)


def transformers_gptj() -> Plan:
    """Return the same of neighboring features (models/gptj/modeling_gptj.py, apply_rotary_pos_emb;
    transformers 5.24).

    Equal in every bit on a CPU in BF16, FP16 and FP32 (tests/operations/test_rope.py).
    """
    return replace(transformers_llama(), name="transformers-gptj", pairs=True)


ROPE = Operation(
    name="rope",
    number=5,
    plan=Plan,
    inputs=(Value("x", Site.X), Value("cos", Site.COS), Value("sin", Site.SIN)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    published=published(Plan, transformers_llama, transformers_gptj),
    moved=(Site.XC, Site.XS, Site.SUM, Site.OUT),
)
