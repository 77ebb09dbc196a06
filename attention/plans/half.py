"""Plans of BF16 kernels as the same kernels run in FP16."""

from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import FACTORS, Site
from roundscope.emu.roundings.modes import BF16, FP16
from roundscope.emu.sums.tensor_cores import tensor_core


def half(plan: Plan) -> Plan:
    """Return a plan with FP16 in place of BF16 everywhere, on tensor cores of FP16."""
    halved = plan.rounded({site: FP16 for site in Site if plan[site] == BF16})
    for site in FACTORS:
        if (kept := halved.accumulator(site)).alignment is not None:
            core = replace(tensor_core("hopper", "fp16"), chunk=kept.chunk)
            halved = halved.adding(site, core)
    return replace(halved, name=plan.name)
