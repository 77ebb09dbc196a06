"""Hypothesis strategies of plans in the words of docs/reference/grammar.md.

A plan is a preset and changes that it accepts, such as "fa2-bf16 P=e4m3fn O.mode=stochastic". The
words shrink to the first preset without any change. The module `strategies` makes plans of them,
and the fuzzer of the engines draws its calls from them. Sums whose order is the device's own are
not drawn, since they have no result of their own.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from roundscope.attention import PRESETS, PRODUCTS, Plan, Site
from roundscope.attention.places import absent
from roundscope.attention.plans.record import CHOICES as OF_PLANS
from roundscope.attention.plans.twins import TWINS
from roundscope.events.plan import check_factors


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


FORMATS = words(
    "bf16 fp16 fp32 e4m3fn e5m2 tf32 fp64 e4m3fnuz e5m2fnuz e3m2fn e2m3fn e2m1fn e8m3 e3m4 "
    "e5m7 e8m20 e10m18 e11m30"
)
BLOCK_FORMATS = words(
    "mxfp8_e4m3 mxfp8_e5m2 mxfp6_e3m2 mxfp6_e2m3 mxfp4 mxint8 nvfp4 fp8_1x128 fp8_128x128"
)
MODES = words(
    "ties-to-even stochastic toward-zero ties-to-away toward-positive toward-negative "
    "away-from-zero to-odd"
)
OVERFLOWS = words("inf nan saturate")
RULES = words("floor ceil even bump rceil nearest")
ORDERS = words(
    "ascending pairwise halves exact chunked1 chunked3 strided2 strided32 octets8 octets2 "
    "octet-pairs16 warps4 warps1 cascade8 levels quad-warps128 octet-warps256 octet-strides1024 "
    "quad-strides1024 block32"
)
TENSOR_CORES = words(
    "volta:fp16 volta:fp16:fp16 turing:fp16:fp16 ampere:bf16 ampere:tf32 ada:e4m3fn "
    "ada:e5m2:fp16 hopper:bf16 hopper-8:bf16 hopper:e4m3fn blackwell:bf16 blackwell:e2m1fn "
    "blackwell:e5m2:fp16 hopper:fp16:fp16"
)
BASES = (
    *PRESETS,
    *words(
        "all:bf16 all:e4m3fn all:fp16 all:e5m2 fa2-bf16@hopper qiu-yao@hopper fa2-bf16@ampere "
        "all:fp16@volta fa3-fp8@ada all:tf32@hopper fa3-fp8@blackwell"
    ),
    *TWINS,
)

CHOICES = {name: own.words for name, own in OF_PLANS.items() if own.words} | {
    "unfused": ("true",),
    "mode": MODES,
}
TOGETHER = (
    *(own.example for own in OF_PLANS.values() if " " in own.example),
    "exp=ex2 log2_e=maximum row_sum=lanes log=lg2 registers=true",
    "exp=base2 log2_e=scale stale_maximum=4 offset=4",
)


@st.composite
def roundings(draw: st.DrawFn) -> str:
    """Return a strategy of roundings in words; one in eight is of blocks, which few sites take."""
    if draw(st.integers(0, 7)) == 7:
        rule = draw(st.sampled_from(("", *RULES)))
        return draw(st.sampled_from(BLOCK_FORMATS)) + (f":{rule}" if rule else "")
    parts = [draw(st.sampled_from(FORMATS))]
    if draw(st.booleans()):
        parts.append(draw(st.sampled_from(MODES)))
    if draw(st.integers(0, 3)) == 3:
        parts.append(draw(st.sampled_from(OVERFLOWS)))
    return ":".join(parts)


@st.composite
def accumulators(draw: st.DrawFn) -> str:
    """Return a strategy of sums of products in words."""
    if draw(st.integers(0, 3)) == 3:
        return draw(st.sampled_from(TENSOR_CORES))
    parts = [draw(st.sampled_from(ORDERS))]
    if draw(st.booleans()):
        parts.append(draw(st.sampled_from(FORMATS)))
        if draw(st.booleans()):
            parts.append(draw(st.sampled_from(MODES)))
    return ":".join(parts)


@st.composite
def changes(draw: st.DrawFn, plan: Plan) -> str:
    """Return a strategy of changes of a plan in words, some of which the plan refuses."""
    kind = draw(st.sampled_from(("site", "choice", "sum", "together", "mode", "stage")))
    sites = sites_of(plan, True) if kind in ("site", "mode") else []
    if kind == "site":
        return f"{draw(st.sampled_from(sites))}={draw(roundings())}"
    if kind == "choice":
        name = draw(st.sampled_from(list(CHOICES)))
        return f"{name}={draw(st.sampled_from(CHOICES[name]))}"
    if kind == "sum":
        site = draw(st.sampled_from(("", *(f"{site}." for site in PRODUCTS))))
        return f"{site}sum={draw(accumulators())}"
    if kind == "together":
        return draw(st.sampled_from(TOGETHER))
    if kind == "mode":
        return f"{draw(st.sampled_from(sites))}.mode={draw(st.sampled_from(MODES))}"
    stage = draw(st.sampled_from(("inputs", "forward", "backward", "format")))
    return f"{stage}={draw(st.sampled_from(FORMATS[:8]))}"


def sites_of(plan: Plan, is_backward: bool) -> list[Site]:
    """Return the events of a plan, forward and, if asked for, backward."""
    own = [site for site in Site if absent(plan, site) is None]
    return [site for site in own if is_backward or site.stage != "backward"]


def accepted(plan: Plan, change: str) -> Plan | None:
    """Return the plan with a change, or None where it refuses that."""
    try:
        changed = plan.changed(change)
        check_factors(changed)
    except ValueError:
        return None
    return changed


@st.composite
def plans(draw: st.DrawFn, presets: Sequence[str] = BASES, most: int = 6) -> str:
    """Return a strategy of presets with the changes that they accept, at most `most`, in words."""
    told = [draw(st.sampled_from(presets))]
    plan = Plan.preset(told[0])
    for _ in range(draw(st.integers(0, most))):
        change = draw(changes(plan))
        changed = accepted(plan, change)
        if changed is not None:
            plan = changed
            told.append(change)
    return " ".join(told)


def plan_of(text: str, seed: int) -> Plan:
    """Return the plan of a preset and changes in words."""
    preset, *changes = text.split()
    return Plan.preset(preset).changed(*changes, seed=seed)
