"""Step 6: the known repairs as plans, a sham that changes as much, and what each does."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from roundscope.attention import DeltaFrom, Examined, Injection, Noise, Plan, Site, Stabilizer
from roundscope.attention.plans.presets import fa2_bf16, native
from roundscope.emu.api import round_to
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.tools.diagnose.tensors.accounts import SITES_OF
from roundscope.tools.diagnose.tensors.coherence import FEW, Bias, bias, flips
from roundscope.tools.diagnose.tensors.measured import (
    OUTPUT_SITES,
    WIDE,
    Measured,
    by_head,
    exact_twin,
    narrow,
    occurring,
    run,
    run_exactly,
)
from roundscope.tools.trace.run import Progress

PlansByHead = tuple[tuple[Plan, ...], ...]  # of the layers of a run, of each head
DELTAS = {"delta from P dP": DeltaFrom.P_DP, "delta centred": DeltaFrom.CENTRED}


def changes(plans: Sequence[Plan], origins: list[str]) -> dict[str, Callable[[Plan], Plan]]:
    """Return the known repairs as changes of every plan of a layer or a run.

    With origins there is also the change of all of them to FP32. A change that a plan cannot have
    is left out. Events that round in one of the plans are changed in all, so that their structures
    stay alike.
    """
    rounding, order = _low_in_some(plans, OUTPUT_SITES), production_order(plans[0])
    behind = (s for n in origins for s in SITES_OF[n])
    lifted = _low_in_some(plans, tuple(dict.fromkeys((*OUTPUT_SITES, *behind))))
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
    """Return whether all plans can have a change; some kernels' take no stabilizer."""
    try:
        for plan in plans:
            change(plan)
    except ValueError:
        return False
    return True


def _low_in_some(plans: Sequence[Plan], sites: tuple[Site, ...]) -> tuple[Site, ...]:
    return tuple(s for s in sites if any(s in narrow(plan, (s,)) for plan in plans))


def noise(plans: PlansByHead) -> PlansByHead | None:
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
    inputs = (Site.Q, Site.K, Site.V, Site.DO, Site.P)
    made = made.rounded({site: plan.event(site) for site in inputs})
    forward = tuple(s for s in Site if s.stage != "backward")
    own, its = ({s: p.event(s) for s in narrow(p, forward)} for p in (plan, made))
    same = made.pv_into_o == plan.pv_into_o and own == its
    return None if same else replace(made, name="production order")


# the largest change of the output in binary64 that counts as none, relative to its largest entry
INVARIANT = 1e-12
REPEATS = 2  # runs of which the faster is timed
SHAM = "sham: as much, no aim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One change: its plan and, for the sham, what is injected."""

    name: str
    plan: Plan
    inject: tuple[Injection, ...] = ()

    @property
    def is_sham(self) -> bool:
        """Return whether it is the control that removes nothing."""
        return bool(self.inject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an arm did at the head of steps 5 and 6.

    invariance   largest change of output and delta in binary64, relative to their largest entry;
                 None for the sham
    change       root mean square change of the output, over all heads
    after        the bias with the arm
    moved        95 % interval of the paired change of delta's error per token
    biased       the number of heads of the layer that are biased with the arm
    time         of the emulation, relative to the plan's
    """

    arm: Arm
    invariance: float | None
    change: float
    after: Bias
    moved: tuple[float, float]
    biased: int
    time: float

    @property
    def is_invariant(self) -> bool:
        """Return whether the arm changes nothing but roundings."""
        return self.invariance is not None and self.invariance <= INVARIANT


def arms(plan: Plan, origins: list[str]) -> list[Arm]:
    """Return the known repairs of one plan."""
    return [Arm(name=name, plan=change(plan)) for name, change in changes([plan], origins).items()]


def sham(m: Measured, repaired_out: np.ndarray, plan: Plan) -> Arm:
    """Return noise of fair sign at OUT, as large as the change that a repair makes to the output.

    Its root mean square is that of `repaired_out` minus the plan's output; where only OD rounds, so
    that the output is the same, it is at OD with that of its rounding.
    """
    out = np.asarray(m.low.out, np.float64)
    site, change = Site.OUT, np.asarray(repaired_out, np.float64) - out
    if not change.any():
        site, change = Site.OD, np.asarray(round_to(out, plan[Site.OD]), np.float64) - out
    f, size = plan[site].format, np.sqrt(np.mean(change**2))
    exponent = np.where(out == 0.0, f.emin, np.maximum(np.frexp(out)[1] - 1, f.emin))
    ulp = np.sqrt(np.mean(np.ldexp(1.0, exponent - f.precision + 1) ** 2))
    noise = Injection(site=site, what=Noise(ulps=float(size / ulp), seed=1))
    return Arm(name=SHAM, plan=plan, inject=(noise,))


def repair(
    m: Measured, head: int, origins: list[str], level: float, progress: Progress
) -> tuple[Outcome, list[Outcome]]:
    """Run step 6: return (the plan as it is, every arm); level: p of a biased head."""
    plan = m.request.plan
    reference = run_exactly(m.layer, m.request, m.scale, exact_twin(plan))
    base, seconds, _ = _tried(m, head, Arm(name="as it is", plan=plan), level, 0.0, reference)
    found: list[Outcome] = []
    for arm in arms(plan, origins):
        progress(f"{m.layer.name}: {arm.name}")
        outcome, _, out = _tried(m, head, arm, level, seconds, reference)
        found.append(outcome)
        if arm.name == "O in FP32":
            control = sham(m, out, plan)
    if narrow(plan, OUTPUT_SITES):
        progress(f"{m.layer.name}: sham")
        found.append(_tried(m, head, control, level, seconds, reference)[0])
    return base, found


def _tried(
    m: Measured, head: int, arm: Arm, level: float, seconds: float, reference: Examined
) -> tuple[Outcome, float, Any]:
    """Return (outcome, seconds of a run, output) of an arm."""
    took = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        seen = run(m.layer, m.request, m.scale, arm.plan, arm.inject)
        took.append(time.perf_counter() - start)
    error = by_head(np.asarray(seen.delta, np.float64) - m.exact.delta)
    moved = bias(error[head] - by_head(m.drift.error)[head])
    change = float(np.sqrt(np.mean((np.asarray(seen.out, np.float64) - m.low.out) ** 2)))
    outcome = Outcome(
        arm=arm,
        invariance=None if arm.is_sham else _invariance(m, arm, reference),
        change=change,
        after=bias(error[head]),
        moved=(moved.low, moved.high),
        biased=int((flips(error, FEW) < level).sum()),
        time=min(took) / (seconds or min(took)),
    )
    return outcome, min(took), seen.out


def _invariance(m: Measured, arm: Arm, reference: Examined) -> float:
    """Return the largest change that the arm makes when every rounding is exact."""
    twin_plan = exact_twin(arm.plan)
    if replace(twin_plan, name="") == replace(exact_twin(m.request.plan), name=""):
        return 0.0  # the arm changes roundings only: exactly, it is the same computation
    twin = run_exactly(m.layer, m.request, m.scale, twin_plan)
    pairs = ((twin.out, reference.out), (twin.delta, reference.delta))
    tiny = np.finfo(float).tiny
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), tiny)) for a, b in pairs)
