"""Embedding: the rows of a table at the tokens of a text, possibly times a number, as in Gemma."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, BINARY32
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.events.choice import choice
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
    DB = "DB", "sum of DS over the tokens of a row of the table in a batch", Axes.GF, "backward", 7
    DBO = "DBO", "DB as it is added", Axes.GF, "backward", 8
    DW = "DW", "the same over all tokens, or sum of DBO over the batches", Axes.GF, "backward", 5
    DWO = "DWO", "DW as it is stored", Axes.GF, "backward", 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of an embedding."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.DB, Site.DW)
    FACTORS: ClassVar = {Site.DB: (Site.DS,), Site.DW: (Site.DS,)}

    batch: int = choice(
        0,
        number=0,
        doc="How many neighboring tokens are summed by row of the table before these sums are added"
        " to the gradient. Default 0: each token is added alone.",
        source="torch on a GPU",
        refused=lambda plan: "give 0 or more" if plan.batch < 0 else "",
        words=("0", "32"),
    )


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
    """Return the gradient of the weight, 0 in rows without a token."""
    (tokens, count, scale), xp = saved, at.ops.xp
    dout = at(Site.DOUT, gradients[0])
    ds = at(Site.DS, at.ops.multiply(dout, xp.broadcast_to(scale, dout.shape)))
    ones = (xp.arange(count)[:, None] == tokens).astype("float64")
    if not at.plan.batch:
        return {"weight": at(Site.DWO, _by_token(at, Site.DW, ones, ds))}
    parts = []
    for lo in range(0, len(ds), at.plan.batch):
        own = slice(lo, lo + at.plan.batch)
        part = at(Site.DBO, _by_token(at, Site.DB, ones[:, own], ds[own]))
        parts.append(part.reshape(-1))
    dw = at.product(Site.DW, xp.stack(parts, axis=1), xp.ones((len(parts), 1)))
    return {"weight": at(Site.DWO, dw[:, 0].reshape(count, -1))}


def _by_token(at: Events[Plan, Rows], site: Site, ones: Array, rows: Array) -> Array:
    """Return the sum of the rows of each token: a product with zeros and ones, in which a number
    that is not finite reaches only its token.
    """
    xp = at.ops.xp
    total, exact = at.sum(site, ones, xp.where(xp.isfinite(rows), rows, 0.0))
    special = (rows == xp.inf, rows == -xp.inf, xp.isnan(rows))
    high, low, is_nan = (ones @ x.astype("float64") > 0.0 for x in special)
    total = xp.where(high, xp.inf, xp.where(low, -xp.inf, total))
    return at(site, xp.where(is_nan | (high & low), xp.nan, total), exact)


def torch_cpu() -> Plan:
    """Return torch.nn.functional.embedding, and with a scale transformers' GemmaModel, whose
    normalizer has the type of the model (models/gemma/modeling_gemma.py; 5.24).

    Equal in every bit in BF16, FP16 and FP32, and so is autograd's gradient, which adds the tokens
    of a row in ascending order, in the type of the table (tests/operations/test_gated.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *Site)
    return replace(plan.adding(Site.DW, Accumulator(step=BF16)), name="torch-cpu")


def torch_cuda() -> Plan:
    """Return torch.nn.functional.embedding on a GPU, of up to 3072 tokens: the gradient of 32
    neighbors is added up in binary32, cast, and added in the type of the table
    (aten/src/ATen/native/cuda/Embedding.cu, embedding_backward_feature_kernel; torch 2.11). More
    tokens are sorted before; in 16 bits that is `batch=0 DW=fp32 DW.sum=ascending:fp32`, and in
    FP32 it is not modelled.

    The gradient is equal in every bit in BF16, FP16 and FP32, of 64 and 1000 tokens on an H200
    (tests/operations/test_gradients_on_a_gpu.py).
    """
    plan = torch_cpu().rounded({Site.DB: BINARY32})
    return replace(plan, name="torch-cuda", batch=32)


EMBEDDING = Operation(
    name="embedding",
    number=9,
    plan=Plan,
    inputs=(Value("weight", Site.W, Shape.SHARED), Value("tokens", None, Shape.NUMBERS)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    settings={"scale": 1.0},
    published=published(Plan, torch_cpu, torch_cuda),
)
