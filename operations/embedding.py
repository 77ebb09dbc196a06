"""Embedding: the rows of a table at the tokens of a text, possibly times a number, as in Gemma."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of an embedding."""

    SITES: ClassVar = Site


def forward(
    at: Events[Plan, Rows], settings: Mapping[str, Any], weight: Array, tokens: Array
) -> tuple[Array, ...]:
    """Return (out,), for a table weight (V, F) and tokens (R,), whole numbers from 0 to V - 1.

    settings: scale, by which the rows are multiplied.
    """
    xp = at.ops.xp
    rows = at(Site.W, weight[tokens])
    scale = at(Site.SCALE, xp.full((1,), float(settings["scale"])))
    return (at(Site.OUT, at.ops.multiply(rows, xp.broadcast_to(scale, rows.shape))),)


def torch_cpu() -> Plan:
    """Return torch.nn.functional.embedding, and with a scale transformers' GemmaModel, whose
    normalizer has the type of the model (models/gemma/modeling_gemma.py; 5.24).

    Equal in every bit in BF16, FP16 and FP32 (tests/operations/test_gated.py).
    """
    return in_bf16(Plan, "torch-cpu", *Site)


EMBEDDING = Operation(
    name="embedding",
    number=9,
    plan=Plan,
    inputs=(Value("weight", Site.W, Shape.SHARED), Value("tokens", None, Shape.NUMBERS)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    settings={"scale": 1.0},
    published=published(Plan, torch_cpu),
)
