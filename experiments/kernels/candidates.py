"""The plans that `identify` tries: whole structures first, then changes of one event or choice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention import Plan, Site
from roundscope.attention.places import absent
from roundscope.attention.plans.choices import (
    BackwardExponent,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
)
from roundscope.attention.plans.half import half
from roundscope.attention.plans.hopper import EIGHTS, HOPPER
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import FACTORS
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64, E4M3, FP16, Rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import tensor_core

PRESETS = (
    "fa2-bf16@hopper",
    "qiu-yao@hopper",
    "baseline-bf16@hopper",
    "fp32",
    "fa2-bf16",
    "qiu-yao",
    "baseline-bf16",
)
KEY_TILES = (16, 32, 64, 128, 256, 512)
SUMS = {
    "tensor core": HOPPER,
    "tensor core, 8 at a time": EIGHTS,
    "fp32 ascending": Accumulator(),
    "exact": Accumulator(order=Order.EXACT),
}
ROW_SUMS = {
    "ascending": Accumulator(),
    "halves": Accumulator(order=Order.HALVES),
    "pairwise": Accumulator(order=Order.PAIRWISE),
    "warps": Accumulator(order=Order.WARPS),
    "octets2": Accumulator(order=Order.OCTETS, chunk=2),
    "octets8": Accumulator(order=Order.OCTETS, chunk=8),
    "strided32": Accumulator(order=Order.STRIDED, chunk=32),
}
FORMATS = {"bf16": BF16, "fp16": FP16, "fp32": BINARY32, "fp64": BINARY64}
FORWARD = tuple(s for s in Site if s.stage == "forward" and s not in (Site.LSE, Site.LN))
BACKWARD = tuple(s for s in Site if s.stage == "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan and its tiles.

    block_k  keys of a tile
    block_q  queries of a tile, in whose order the gradients of K and V are added up
    change   the words of the last change; empty for a structure
    """

    plan: Plan
    block_k: int
    block_q: int = 128
    change: str = ""


def structures(width: int, keys: int) -> Iterator[Candidate]:
    """Yield every twin and preset on its own tiles; those that are not fused get a whole row."""
    for twin in TWINS.values():
        block_q, block_k = twin.tiles(width)
        yield Candidate(plan=twin.plan, block_q=block_q, block_k=min(block_k, keys))
    for name in PRESETS:
        plan = Plan.preset(name)
        yield Candidate(plan=plan, block_k=keys if plan.normalise_first else min(128, keys))


RESULTS = {"out": Site.OUT, "dq": Site.DQ_OUT, "dk": Site.DK_OUT, "dv": Site.DV_OUT}


def narrowest(*arrays: np.ndarray) -> Rounding:
    """Return the narrowest of BF16, FP16 and FP32 that has every number of some arrays."""
    for name in ("bfloat16", "float16"):
        kind = np.dtype(getattr(ml_dtypes, name, name))
        with np.errstate(over="ignore"):
            if all(
                np.array_equal(x.astype(kind).astype(np.float32), x, equal_nan=True) for x in arrays
            ):
                return BF16 if name == "bfloat16" else FP16
    return BINARY32


def leaving(best: Candidate, results: Mapping[str, np.ndarray]) -> Candidate:
    """Return the candidate with its results rounded to the formats of these arrays, given by name.

    In a plan that is not fused, P V is rounded to the format of the output if its own lacks numbers
    of that.
    """
    events: dict[Site, Rounding] = {RESULTS[name]: narrowest(x) for name, x in results.items()}
    if (
        Site.OUT in events
        and best.plan.normalise_first
        and not best.plan[Site.PV].format.holds(events[Site.OUT].format)
    ):
        events[Site.PV] = events[Site.OUT]
    return replace(best, plan=best.plan.rounded(events))


def in_half(best: Candidate) -> Candidate:
    """Return the candidate with FP16 in place of BF16 everywhere, on tensor cores of FP16."""
    return replace(best, plan=half(best.plan))


def tilings(best: Candidate, keys: int) -> Iterator[Candidate]:
    """Yield the same plan on other tiles of keys, in each order of the keys that it can have."""
    if best.plan.normalise_first:
        return
    orders = (KeyOrder.ASCENDING, KeyOrder.DESCENDING) if best.plan.split_tiles else tuple(KeyOrder)
    for order in orders:
        for size in (*(n for n in KEY_TILES if n < keys), keys):
            plan = replace(best.plan, key_order=order)
            rows = size if plan.first_tile_apart else best.block_q  # square tiles
            yield replace(
                best, plan=plan, block_q=rows, block_k=size, change=f"key tiles of {size}, {order}"
            )


def forward_changes(best: Candidate) -> Iterator[Candidate]:
    """Yield the candidate with each change of one event, sum or choice of the forward."""
    plan = best.plan
    for name, accumulator in SUMS.items():
        for site in (Site.S, Site.PV):
            yield _changed(best, f"{site}.sum: {name}", plan.adding(site, accumulator))
    for name, accumulator in ROW_SUMS.items():
        yield _changed(best, f"ROWSUM.sum: {name}", plan.adding(Site.ROWSUM, accumulator))
    yield from _fields(best, "exp", tuple(Exponential))
    yield from _fields(best, "log2_e", tuple(Log2E))
    for name in ("fused_exponent", "registers", "pv_into_o", "scale_roots"):
        yield from _fields(best, name, (True, False))
    yield from _fields(best, "row_sum", tuple(RowSum))
    yield from _fields(best, "reciprocal", tuple(Reciprocal))
    yield from _fields(best, "split_tiles", (0, 1))
    yield from _fields(best, "row_sum_of", (Site.EXP, Site.P))
    yield from _formats(best, FORWARD)
    for site in (Site.P, Site.Q, Site.K, Site.V):
        yield _changed(best, f"{site}=e4m3fn", _readable(plan.at(site, E4M3)))


def backward_changes(best: Candidate) -> Iterator[Candidate]:
    """Yield the candidate with each change of one event, sum or choice of the backward."""
    plan = best.plan
    for name, accumulator in SUMS.items():
        for site in (Site.S_B, Site.DP, Site.DQ, Site.DK, Site.DV):
            yield _changed(best, f"{site}.sum: {name}", plan.adding(site, accumulator))
    for name, accumulator in ROW_SUMS.items():
        yield _changed(best, f"DELTA.sum: {name}", plan.adding(Site.DELTA, accumulator))
    yield from _fields(best, "gradient_scale", tuple(ScaleOfGradient))
    yield from _fields(best, "score_gradient", tuple(ScoreGradient))
    yield from _fields(best, "query_order", tuple(QueryOrder))
    yield from _fields(best, "exponent_again", tuple(BackwardExponent))
    yield from _fields(best, "gradients_apart", tuple(GradientsApart))
    for name in ("registers", "ds_from_p", "lse_base2", "delta_products", "dp_from_delta"):
        yield from _fields(best, name, (True, False))
    if plan.normalise_first:
        yield from _fields(best, "saved_p", (True, False))
    yield from _formats(best, BACKWARD)


def _formats(best: Candidate, sites: tuple[Site, ...]) -> Iterator[Candidate]:
    for site in sites:
        if absent(best.plan, site) is not None:
            continue
        for name, r in FORMATS.items():
            yield _changed(best, f"{site}={name}", _readable(_rounded(best.plan, site, r)))


def _rounded(plan: Plan, site: Site, r: Rounding) -> Plan:
    return plan if plan.block(site) is not None else plan.rounded({site: r})


def _readable(plan: Plan) -> Plan:
    """Return the plan with tensor cores that can read the factors of their products.

    A product whose factors its tensor core cannot read gets a tensor core of TF32 instead.
    """
    for site, factors in FACTORS.items():
        kept = plan.accumulator(site).alignment
        if kept is not None and not all(kept.operand.holds(plan[f].format) for f in factors):
            plan = plan.adding(site, tensor_core("hopper", "tf32"))
    return plan


def _fields(best: Candidate, name: str, values: tuple[Any, ...]) -> Iterator[Candidate]:
    for value in values:
        try:
            plan = replace(best.plan, **{name: value})
            yield _changed(best, f"{name}={str(value).lower()}", plan)
        except ValueError:
            continue  # the plan has no such form


def _changed(best: Candidate, change: str, plan: Plan) -> Candidate:
    return replace(best, plan=plan, change=change)
