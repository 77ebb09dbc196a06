"""Plans by name: presets, twins, all:FORMAT, and each of them on tensor cores or in FP16."""

from collections.abc import Iterable
from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import FACTORS, Site
from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import BF16, FP16, rounding
from roundscope.emu.shown import shown
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import architecture
from roundscope.events.plan import base_name, half

SUFFIX = "-fp16"  # of the name of a preset or a twin, for the same in FP16
FORMATS = {"bfloat16": BF16.format, "float16": FP16.format}
WIDE = ("float32", "float64")


def preset(name: str) -> Plan:
    """Return the plan of a name, as `Plan.preset` documents it.

    The name is that of a preset, or all:FORMAT for every event in one format, either of them with
    @ARCHITECTURE at its end for products on tensor cores; or that of a twin, whose products are on
    tensor cores already. A preset or a twin with -fp16 behind its name has FP16 in place of BF16.

    Raises:
        ValueError: There is no such name. The message has the nearest one.
        TypeError: The name is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"name={shown(name)}: give the name of a preset, such as 'fa2-bf16'")
    if "=" in name:
        first = name.replace(";", " ").split()[0]
        raise ValueError(
            f"preset '{name}': a name without changes; give them to"
            f" Plan.preset('{first}').changed('O=fp32'), or to attend as plan='{first}; O=fp32'"
        )
    plain, _, arch = name.partition("@")
    if arch:
        return on_tensor_cores(preset(plain), arch)
    if name.startswith("all:"):
        f = format_named(name.removeprefix("all:"))
        if not (f.zero and f.signed):
            raise ValueError(
                f"preset '{name}': {f.name} is a scale format without zero or sign; no event"
                " fits it"
            )
        return Plan.everywhere(name, rounding(f))
    if name in PRESETS:
        return PRESETS[name]()
    if name.endswith(SUFFIX):
        plain = name.removesuffix(SUFFIX)
        if (made := half(preset(plain))) == preset(plain):
            raise ValueError(f"preset '{name}': {plain} has no event in BF16; give {plain}")
        return replace(made, name=name)
    if name not in TWINS:
        repair = "or all:<format>; roundscope plans says what each is"
        listing = "roundscope plans lists all, and says what each is"
        raise ValueError(unknown("preset", name, (*PRESETS, *TWINS), repair, elsewhere=listing))
    return TWINS[name].plan


def on_tensor_cores(plan: Plan, arch: str) -> Plan:
    """Return the plan with its products of matrices on the tensor cores of an architecture.

    A product runs there if the architecture reads the formats of both factors. If these formats
    differ, both factors are read in one format: the first of their two formats, bf16 and fp16 that
    holds both. Sums of FP32 factors and delta are not changed, since they run elsewhere. Products
    of operands in blocks are not changed either, since their factors include the scales. The row
    sum is added by halves, in the order in which the lanes of a GPU reduce. (FlashAttention-3's own
    lanes first add their columns one after the other, over all tiles.)

    Args:
        plan: The plan to change.
        arch: Name of the architecture, such as "hopper".

    Raises:
        ValueError: The architecture is unknown.
    """
    operands, changed = architecture(arch).operands, plan
    for site, factors in FACTORS.items():
        formats = {plan[factor].format for factor in factors}
        fitting = [
            f
            for f in (*formats, BF16.format, FP16.format)
            if f.name in operands and all(map(f.holds, formats))
        ]
        if fitting and not any(map(plan.block, factors)):
            changed = changed.adding(site, Accumulator.tensor_core(arch, fitting[0].name))
    if changed is not plan and plan.accumulator(Site.ROWSUM).order is Order.ASCENDING:
        changed = changed.adding(
            Site.ROWSUM, replace(plan.accumulator(Site.ROWSUM), order=Order.HALVES)
        )
    return replace(changed, name=f"{plan.name}@{arch}")


def fitting(name: str, types: Iterable[str]) -> str:
    """Return the name of a preset in BF16, or of the same in FP16 where q, k and v have that type.

    types: the names of the types of q, k and v; FP16 fits if one of them is float16, none bfloat16.

    Example:
        >>> fitting("fa2", ["float16", "float8_e4m3fn", "float8_e4m3fn"])
        'fa2-fp16'
    """
    own = set(types)
    return name + SUFFIX if "float16" in own and "bfloat16" not in own else name


def note_on_types(plan: Plan, types: Iterable[str], *, wide: bool = False) -> str | None:
    """Return what to say of q, k and v of one 16-bit type that a plan rounds to the other, or None.

    types: the names of the types of q, k and v
    wide: whether to say it of float32 and float64 too, as of a model's, whose types are its own
    """
    for site, kind in zip((Site.Q, Site.K, Site.V), types, strict=False):
        to = plan[site].format
        is_wide = wide and kind in WIDE
        if (is_wide or kind in FORMATS) and to in FORMATS.values() and to != FORMATS.get(kind):
            rounded = (
                f"{str(site).lower()} is {kind}, and the plan {plan.name} rounds it to {to.name}"
            )
            tail = ""
            if is_wide:
                tail = "; autocast does so before the kernel, and the plan fp32 rounds to FP32"
            elif to == BF16.format:
                tail = f"; {base_name(plan.name)}{SUFFIX} is the plan in FP16"
            return f"{rounded}, which is part of its errors{tail}"
    return None
