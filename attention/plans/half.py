"""Plans of BF16 kernels as the same kernels run in FP16, and which of the two fits some tensors."""

from collections.abc import Iterable
from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import FACTORS, Site
from roundscope.emu.roundings.modes import BF16, FP16
from roundscope.emu.sums.tensor_cores import tensor_core

SUFFIX = "-fp16"  # of the name of a preset or a twin, for the same in FP16
FORMATS = {"bfloat16": BF16.format, "float16": FP16.format}


def half(plan: Plan) -> Plan:
    """Return a plan with FP16 in place of BF16 everywhere, on tensor cores of FP16."""
    halved = plan.rounded({site: FP16 for site in Site if plan[site] == BF16})
    for site in FACTORS:
        kept = halved.accumulator(site)
        if kept.alignment is not None and kept.alignment.operand.name == "bf16":
            core = replace(tensor_core("hopper", "fp16"), chunk=kept.chunk)
            halved = halved.adding(site, core)
    return replace(halved, name=plan.name)


def fitting(name: str, types: Iterable[str]) -> str:
    """Return the name of a preset in BF16, or of the same in FP16 where q, k and v have that type.

    types: the names of the types of q, k and v; FP16 fits if one of them is float16, none bfloat16.

    Example:
        >>> fitting("fa2", ["float16", "float8_e4m3fn", "float8_e4m3fn"])
        'fa2-fp16'
    """
    own = set(types)
    return name + SUFFIX if "float16" in own and "bfloat16" not in own else name


def note_on_types(plan: Plan, types: Iterable[str]) -> str | None:
    """Return what to say of q, k and v of one 16-bit type that a plan rounds to the other, or None.

    types: the names of the types of q, k and v
    """
    for site, kind in zip((Site.Q, Site.K, Site.V), types, strict=False):
        to = plan[site].format
        if kind in FORMATS and to in FORMATS.values() and to != FORMATS[kind]:
            rounded = (
                f"{str(site).lower()} is {kind}, and the plan {plan.name} rounds it to {to.name}"
            )
            other = f"; {plan.name.rstrip('*')}{SUFFIX} is the plan in FP16"
            return f"{rounded}, which is part of its errors{other if to == BF16.format else ''}"
    return None
