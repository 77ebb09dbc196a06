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
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 7
    DC = "DC", "DOUT COS", Axes.RF, "backward", 8
    DS = "DS", "DOUT SIN", Axes.RF, "backward", 9
    DX = "DX", "DC + DS rotated back", Axes.RF, "backward", 10
    DXO = "DXO", "DX as it is stored", Axes.RF, "backward", 11


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
    """Return (out,), for x, cos and sin of shape (R, F), all with a column for each feature; and
    behind it cos and sin, for `backward`.
    """
    mul = at.ops.multiply
    x, cos, sin = at(Site.X, x), at(Site.COS, cos), at(Site.SIN, sin)
    xs = at(Site.XS, mul(_rotated(at, x), sin))
    if at.plan.fused:
        total = at(Site.SUM, at.ops.odd_sum(mul(x, cos), xs))
    else:
        total = at(Site.SUM, at(Site.XC, mul(x, cos)) + xs)
    return at(Site.OUT, total), cos, sin


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of x; the table is a constant."""
    cos, sin = saved
    dout = at(Site.DOUT, gradients[0])
    dc = at(Site.DC, at.ops.multiply(dout, cos))
    ds = at(Site.DS, at.ops.multiply(dout, sin))
    return {"x": at(Site.DXO, at(Site.DX, dc - _rotated(at, ds)))}


def _rotated(at: Events[Plan, Rows], x: Array) -> Array:
    """Return (-b, a) for each two features (a, b) that are rotated together."""
    xp = at.ops.xp
    if at.plan.pairs:
        return xp.stack([-x[:, 1::2], x[:, ::2]], axis=2).reshape(x.shape)
    half = x.shape[1] // 2
    return xp.concatenate([-x[:, half:], x[:, :half]], axis=1)


def transformers_llama() -> Plan:
    """Return transformers' apply_rotary_pos_emb: each operation in the type of x
    (models/llama/modeling_llama.py; 5.24).

    Equal in every bit on a CPU in BF16, FP16 and FP32, and so is autograd's gradient
    (tests/operations/test_rope.py).
    """
    return in_bf16(Plan, "transformers-llama", *Site)


def transformers_gptj() -> Plan:
    """Return transformers' apply_rotary_pos_emb of GPT-J: the same, of neighboring features
    (models/gptj/modeling_gptj.py; 5.24).

    Equal in every bit on a CPU in BF16, FP16 and FP32, and so is autograd's gradient
    (tests/operations/test_rope.py).
    """
    return replace(transformers_llama(), name="transformers-gptj", pairs=True)


ROPE = Operation(
    name="rope",
    number=5,
    plan=Plan,
    inputs=(Value("x", Site.X), Value("cos", Site.COS), Value("sin", Site.SIN)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    published=published(Plan, transformers_llama, transformers_gptj),
)
