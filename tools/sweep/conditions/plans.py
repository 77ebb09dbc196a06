"""The plan of a cell: a preset, and the changes that its parameters make, in a fixed order."""

import functools
from dataclasses import replace

from roundscope.attention.grammar.edits import KINDS, apply
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import site_named
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.tools.sweep.conditions.cell import OF_CALL, Value

Settings = tuple[tuple[str, Value], ...]
# values that leave the plan as it is; but stabiliser=none changes it
UNCHANGED = ("preset", "all", "none", False)
# a call has these beside its plan, whatever the plan says
ORDER = tuple(kind for kind in KINDS if kind not in OF_CALL)


def settings_of(parameters: dict[str, Value]) -> Settings:
    """Return the parameters that make up the plan.

    The preset comes first, then those that change it, in the order in which they apply.
    """
    changes = [
        (name, value)
        for name, value in parameters.items()
        if name.partition(".")[0] in ORDER and changes_plan(name, value)
    ]
    changes.sort(key=lambda c: (ORDER.index(c[0].partition(".")[0]), "." in c[0]))
    return (("preset", parameters["preset"]), *changes)


def changes_plan(name: str, value: Value) -> bool:
    """Return False for a parameter whose value means "as the preset says"."""
    return value not in UNCHANGED or (name, value) == ("stabiliser", "none")


@functools.lru_cache(maxsize=4096)
def plan_of(settings: Settings, seed: int) -> Plan:
    """Return the plan of `settings_of`, its stochastic roundings seeded with `seed`.

    Raises ValueError for settings that no plan can have.
    """
    plan = _built(settings)
    stochastic = any(r.mode == RoundingMode.STOCHASTIC for r in _roundings(plan))
    return plan.seeded(seed) if stochastic else plan


@functools.lru_cache(maxsize=4096)
def _built(settings: Settings) -> Plan:
    plan = preset = Plan.preset(str(settings[0][1]))
    for name, value in settings[1:]:
        kind, _, site = name.partition(".")
        plan = apply(plan, kind, str(value), (site_named(site),) if site else ())
    return plan if plan == preset else replace(plan, name=f"{preset.name}*")


def _roundings(plan: Plan) -> list[Rounding]:
    return [*plan.roundings, *(a.step for a in plan.accumulators)]
