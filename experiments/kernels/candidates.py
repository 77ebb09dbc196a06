"""The plans among which `identify` looks: whole structures first, then changes of one event or choice."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from roundscope.attention import Plan, Site
from roundscope.attention.plan import (
    BackwardExponent,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
)
from roundscope.attention.twins import EIGHTS, HOPPER, TWINS
from roundscope.emu.rounding.modes import BF16, BINARY32, BINARY64, E4M3, FP16, Rounding
from roundscope.emu.sums.accumulator import Accumulator, Order

PRESETS = ("fa2-bf16@hopper", "qiu-yao@hopper", "baseline-bf16@hopper", "fp32", "fa2-bf16", "qiu-yao", "baseline-bf16")
KEY_TILES = (16, 32, 64, 128, 256, 512)
SUMS = {"tensor core": HOPPER, "tensor core, 8 at a time": EIGHTS, "fp32 ascending": Accumulator(), "exact": Accumulator(order=Order.EXACT)}
ROW_SUMS = {
    "ascending": Accumulator(), "halves": Accumulator(order=Order.HALVES), "pairwise": Accumulator(order=Order.PAIRWISE),
    "warps": Accumulator(order=Order.WARPS), "octets2": Accumulator(order=Order.OCTETS, chunk=2),
    "octets8": Accumulator(order=Order.OCTETS, chunk=8), "strided32": Accumulator(order=Order.STRIDED, chunk=32),
}  # fmt: skip
FORMATS = {"bf16": BF16, "fp16": FP16, "fp32": BINARY32, "fp64": BINARY64}
FORWARD = tuple(s for s in Site if s.stage == "forward" and s not in (Site.LSE, Site.LN))
BACKWARD = tuple(s for s in Site if s.stage == "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan on its tiles.

    change   the words of what was changed last; empty for a structure
    """

    plan: Plan
    block_k: int
    change: str = ""


def structures(width: int, keys: int) -> Iterator[Candidate]:
    """Every twin and preset on its own tiles; unfused ones on a whole row."""
    for twin in TWINS.values():
        yield Candidate(plan=twin.plan, block_k=min(twin.tiles(width)[1], keys))
    for name in PRESETS:
        plan = Plan.preset(name)
        yield Candidate(plan=plan, block_k=keys if plan.normalise_first else min(128, keys))


def tilings(best: Candidate, keys: int) -> Iterator[Candidate]:
    """The same plan on other tiles of keys, and from the other end."""
    if best.plan.normalise_first:
        return
    for order in KeyOrder:
        for size in (*(n for n in KEY_TILES if n < keys), keys):
            plan = replace(best.plan, key_order=order)
            yield Candidate(plan=plan, block_k=size, change=f"key tiles of {size}, {order}")


def forward_changes(best: Candidate) -> Iterator[Candidate]:
    """Changes of one event, sum or choice of the forward."""
    plan = best.plan
    for name, accumulator in SUMS.items():
        for site in (Site.S, Site.PV):
            yield _changed(best, f"{site}.sum: {name}", plan.adding(site, accumulator))
    for name, accumulator in ROW_SUMS.items():
        yield _changed(best, f"ROWSUM.sum: {name}", plan.adding(Site.ROWSUM, accumulator))
    yield from _fields(best, "exp", tuple(Exponential))
    yield from _fields(best, "log2_e", tuple(Log2E))
    for name in ("fused_exponent", "registers", "pv_into_o"):
        yield from _fields(best, name, (True, False))
    yield from _fields(best, "row_sum", tuple(RowSum))
    yield from _fields(best, "reciprocal", tuple(Reciprocal))
    yield from _fields(best, "row_sum_of", (Site.EXP, Site.P))
    yield from _formats(best, FORWARD)
    for site in (Site.P, Site.Q, Site.K, Site.V):
        yield _changed(best, f"{site}=e4m3fn", plan.at(site, E4M3))


def backward_changes(best: Candidate) -> Iterator[Candidate]:
    """Changes of one event, sum or choice of the backward."""
    plan = best.plan
    for name, accumulator in SUMS.items():
        for site in (Site.S_B, Site.DP, Site.DQ, Site.DK, Site.DV):
            yield _changed(best, f"{site}.sum: {name}", plan.adding(site, accumulator))
    for name, accumulator in ROW_SUMS.items():
        yield _changed(best, f"DELTA.sum: {name}", plan.adding(Site.DELTA, accumulator))
    yield from _fields(best, "gradient_scale", tuple(ScaleOfGradient))
    yield from _fields(best, "score_gradient", tuple(ScoreGradient))
    yield from _fields(best, "query_order", tuple(KeyOrder))
    yield from _fields(best, "exponent_again", tuple(BackwardExponent))
    yield from _fields(best, "gradients_apart", tuple(GradientsApart))
    for name in ("registers", "ds_from_p", "lse_base2", "delta_products"):
        yield from _fields(best, name, (True, False))
    if plan.normalise_first:
        yield from _fields(best, "saved_p", (True, False))
    yield from _formats(best, BACKWARD)


def _formats(best: Candidate, sites: tuple[Site, ...]) -> Iterator[Candidate]:
    for site in sites:
        for name, r in FORMATS.items():
            yield _changed(best, f"{site}={name}", _rounded(best.plan, site, r))


def _rounded(plan: Plan, site: Site, r: Rounding) -> Plan:
    return plan if plan.block(site) is not None else plan.at(site, r)


def _fields(best: Candidate, name: str, values: tuple[object, ...]) -> Iterator[Candidate]:
    for value in values:
        try:
            yield _changed(best, f"{name}={str(value).lower()}", replace(best.plan, **{name: value}))
        except ValueError:
            continue  # the plan has no such form


def _changed(best: Candidate, change: str, plan: Plan) -> Candidate:
    return Candidate(plan=plan, block_k=best.block_k, change=change)
