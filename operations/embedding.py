"""Embedding: the rows of a table at the tokens of a text, possibly times a number, as in Gemma."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published


class Site(SiteBase):
    """The events of an embedding; F is the number of features of a row of the table."""

    W = "W", "weight at the token", Axes.RF, "inputs", 0
    SCALE = "SCALE", "scale", Axes.ONE, "inputs", 1
    OUT = "OUT", "W SCALE", Axes.RF, "forward", 2
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 3
    DS = "DS", "DOUT SCALE", Axes.RF, "backward", 4
    DW = "DW", "sum of DS over the tokens of a row of the table", Axes.GF, "backward", 5
    DWO = "DWO", "DW as it is stored", Axes.GF, "backward", 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of an embedding."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.DW,)
    FACTORS: ClassVar = {Site.DW: (Site.DS,)}


def forward(
    at: Events[Plan, Rows], settings: Mapping[str, Any], weight: Array, tokens: Array
) -> tuple[Array, ...]:
    """Return (out,), for a table weight (V, F) and tokens (R,), whole numbers from 0 to V - 1; and
    behind it the tokens, V and SCALE, for `backward`.

    settings: scale, by which the rows are multiplied.
    """
    xp = at.ops.xp
    rows = at(Site.W, weight[tokens])
    scale = at(Site.SCALE, xp.full((1,), float(settings["scale"])))
    out = at(Site.OUT, at.ops.multiply(rows, xp.broadcast_to(scale, rows.shape)))
    return out, tokens, weight.shape[0], scale


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, int, Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of the weight, 0 in rows without a token.

    It is a product with zeros and ones, in which a row that is not finite reaches only its token.
    """
    (tokens, count, scale), xp = saved, at.ops.xp
    dout = at(Site.DOUT, gradients[0])
    ds = at(Site.DS, at.ops.multiply(dout, xp.broadcast_to(scale, dout.shape)))
    ones = (xp.arange(count)[:, None] == tokens).astype("float64")
    total, exact = at.sum(Site.DW, ones, xp.where(xp.isfinite(ds), ds, 0.0))
    high, low = (ones @ x.astype("float64") > 0.0 for x in (ds == xp.inf, ds == -xp.inf))
    total = xp.where(high, xp.inf, xp.where(low, -xp.inf, total))
    is_nan = (ones @ xp.isnan(ds).astype("float64") > 0.0) | (high & low)
    return {"weight": at(Site.DWO, at(Site.DW, xp.where(is_nan, xp.nan, total), exact))}


def torch_cpu() -> Plan:
    """Return torch.nn.functional.embedding, and with a scale transformers' GemmaModel, whose
    normalizer has the type of the model (models/gemma/modeling_gemma.py; 5.24).

    Equal in every bit in BF16, FP16 and FP32, and so is autograd's gradient, which adds the tokens
    of a row in ascending order, in the type of the table (tests/operations/test_gated.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *Site)
    return replace(plan.adding(Site.DW, Accumulator(step=BF16)), name="torch-cpu")


EMBEDDING = Operation(
    name="embedding",
    number=9,
    plan=Plan,
    inputs=(Value("weight", Site.W, Shape.SHARED), Value("tokens", None, Shape.NUMBERS)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    settings={"scale": 1.0},
    published=published(Plan, torch_cpu),
)
