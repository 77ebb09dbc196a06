"""The known repairs as changes of a plan, and the sham of a replay."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from roundscope.attention import DeltaFrom, Plan, Site, Stabilizer
from roundscope.attention.plans.presets import fa2_bf16, native
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.tools.diagnose.tensors.accounts import SITES_OF
from roundscope.tools.diagnose.tensors.measured import OUTPUT_SITES, WIDE, narrow, occurring

Plans = tuple[tuple[Plan, ...], ...]  # of each layer, of each head
DELTAS = {"delta from P dP": DeltaFrom.P_DP, "delta centred": DeltaFrom.CENTRED}


def changes(plans: Sequence[Plan], origins: list[str]) -> dict[str, Callable[[Plan], Plan]]:
    """Return the known repairs as changes of every plan of a layer or a run.

    With origins there is also the change of all of them to FP32. A change that a plan cannot have
    is left out. Events that round in one of the plans are changed in all, so that their structures
    stay alike.
    """
    rounding, order = _low_in_some(plans, OUTPUT_SITES), production_order(plans[0])
    lifted = _low_in_some(
        plans, tuple(dict.fromkeys((*OUTPUT_SITES, *(s for n in origins for s in SITES_OF[n]))))
    )
    found: dict[str, Callable[[Plan], Plan]] = {}
    if rounding:
        found["O in FP32"] = lambda plan: in_fp32(plan, rounding)
    found |= {
        name: partial(replace, delta_from=source)
        for name, source in DELTAS.items()
        if plans[0].delta_from is not source
    }
    if plans[0].stabiliser is None:
        found["stabilised softmax"] = partial(replace, stabiliser=Stabilizer())
    if rounding:
        found["stochastic rounding of O"] = lambda plan: stochastic(plan, rounding)
    if order is not None:
        found["production order"] = lambda plan: production_order(plan) or plan
    if origins and set(lifted) != set(rounding):
        found["all origins in FP32"] = lambda plan: in_fp32(plan, lifted)
    return {name: change for name, change in found.items() if _possible(change, plans)}


def _possible(change: Callable[[Plan], Plan], plans: Sequence[Plan]) -> bool:
    """Return whether all plans can have a change.

    Those of some kernels cannot: the stabilizer, for one, shifts scores in base e only.
    """
    try:
        for plan in plans:
            change(plan)
    except ValueError:
        return False
    return True


def _low_in_some(plans: Sequence[Plan], sites: tuple[Site, ...]) -> tuple[Site, ...]:
    return tuple(s for s in sites if any(s in narrow(plan, (s,)) for plan in plans))


def noise(plans: Plans) -> Plans | None:
    """Return the sham of a replay: noise of fair sign after the output's roundings.

    It is about their size or more, and their bias stays. It is stochastic rounding to p - 1 bits, p
    those of the output's coarsest rounding: at OD, where half the arguments then lie between two
    numbers (root mean square 0.7 ulp of p bits, against 0.29 to nearest and 0.58 toward zero);
    where OD rounds itself, at DELTA. None where the output does not round, where p is 2, and where
    DELTA rounds too.
    """
    flat = [plan for row in plans for plan in row]
    low = _low_in_some(flat, OUTPUT_SITES)
    site = Site.DELTA if Site.OD in low or Site.OD not in occurring(flat[0]) else Site.OD
    if not low or _low_in_some(flat, (site,)) or min(_noise_bits(plan) for plan in flat) < 2:
        return None
    return tuple(
        tuple(plan.at(site, f"e8m{_noise_bits(plan) - 1}", "stochastic", seed=1) for plan in row)
        for row in plans
    )


def _noise_bits(plan: Plan) -> int:
    """Return p - 1 of the sham; FP32's where the output does not round."""
    return min((plan[s].format.precision - 1 for s in narrow(plan, OUTPUT_SITES)), default=WIDE)


def in_fp32(plan: Plan, sites: tuple[Site, ...]) -> Plan:
    """Return the plan with some sites in FP32."""
    for site in sites:
        plan = plan.at(site, "fp32")
    return plan


def stochastic(plan: Plan, sites: tuple[Site, ...]) -> Plan:
    """Return the plan with some sites rounded stochastically, in their own formats."""
    for site in sites:
        plan = plan.at(site, plan.event(site), RoundingMode.STOCHASTIC, seed=0)
    return plan


def production_order(plan: Plan) -> Plan | None:
    """Return FlashAttention-2's roundings (fa2-bf16) with this plan's formats of the inputs and P.

    None if the plan has them already: if it rounds the same forward events to fewer bits than FP32
    has, in the same way, and the same events together.
    """
    made = fa2_bf16()
    if not plan.is_reproducible:
        made = native(made)
    made = made.rounded(
        {site: plan.event(site) for site in (Site.Q, Site.K, Site.V, Site.DO, Site.P)}
    )
    forward = tuple(s for s in Site if s.stage != "backward")
    own, its = ({s: p.event(s) for s in narrow(p, forward)} for p in (plan, made))
    same = made.pv_into_o == plan.pv_into_o and own == its
    return None if same else replace(made, name="production order")
