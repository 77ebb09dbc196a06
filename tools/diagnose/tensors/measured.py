"""A layer under a plan and under exact arithmetic: the data of every step of the diagnosis."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention import DeltaFrom, Examined, Injection, Plan, Record, Site, Stabilizer
from roundscope.attention.budget.call import results_of
from roundscope.attention.budget.not_finite import NotFinite
from roundscope.attention.places import occurs
from roundscope.attention.plans.presets import exact as exact_plan
from roundscope.tools.errors import bad
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.analysis.consequences import DeltaDrift, delta_drift
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.run import Progress, call, lost_numbers

# the roundings between P V and the output as delta reads it, in order
OUTPUT_SITES = (Site.PV, Site.AO, Site.O, Site.OUT, Site.OD)
WIDE = 24  # bits of FP32's significand


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results of one layer.

    low, exact   under the plan, and exactly, in binary64 throughout
    drift        delta(plan) - delta(exact)
    x            what W_Q reads, (B, T, D); None where it is not known
    heads        names of the heads
    not_finite   the numbers of the results under the plan that are infinite or NaN; None if there
                 are none
    """

    layer: Layer
    request: Request
    scale: float
    low: Examined
    exact: Examined
    drift: DeltaDrift
    x: np.ndarray | None
    heads: list[str]
    not_finite: NotFinite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What to examine: a layer, or some heads of one, under one plan.

    x and heads are as in `Measured`.
    """

    layer: Layer
    request: Request
    x: np.ndarray | None = None
    numbers: tuple[int, ...] | None = None

    @property
    def heads(self) -> list[str]:
        """The names of the heads: their numbers in the model."""
        return [str(n) for n in self.numbers or range(self.layer.q.shape[2])]


def measure(subject: Subject, progress: Progress) -> Measured:
    """Run a layer's forward and backward, twice. Raises UsageError without do."""
    layer, request = subject.layer, subject.request
    if layer.do is None:
        repair = "add do to the file, or see the forward alone with `roundscope trace`"
        raise bad("layer", layer.name, f"has no do, so no delta; {repair}")
    scale = layer.scale if layer.scale is not None else layer.q.shape[3] ** -0.5
    progress(f"{layer.name}: {request.plan.name}")
    low = run(layer, request, scale, request.plan)
    progress(f"{layer.name}: exactly")
    exact = run_exactly(layer, request, scale, request.against)
    both = results_of(low), results_of(exact)
    return Measured(
        layer=layer,
        request=request,
        scale=scale,
        low=low,
        exact=exact,
        drift=delta_drift(low.delta, exact.delta, low.out, exact.out, layer.do),
        x=subject.x,
        heads=subject.heads,
        not_finite=lost_numbers(layer, request, scale, *both, progress),
    )


def run(
    layer: Layer,
    request: Request,
    scale: float,
    plan: Plan,
    inject: tuple[Injection, ...] = (),
    record: Record | None = None,
) -> Examined:
    """Run the layer under a plan."""
    return call(
        layer.q, layer.k, layer.v, layer.do, request, plan, scale, record=record, inject=inject
    )


def run_exactly(layer: Layer, request: Request, scale: float, plan: Plan) -> Examined:
    """Run the layer under a plan whose every event is binary64; its results are not rounded."""
    wide: tuple[Any, ...] = tuple(
        None if x is None else x.astype(np.float64) for x in (layer.q, layer.k, layer.v, layer.do)
    )
    q, k, v, do = wide
    return call(q, k, v, do, request, plan, scale)


def one_head(m: Measured, b: int, n: int) -> Layer:
    """Return the layer reduced to one sequence and query head, and its key head."""
    g = n * m.layer.k.shape[2] // m.layer.q.shape[2]

    def own(x: Any, i: int) -> Any:
        return x[b : b + 1, :, i : i + 1]

    x = m.layer
    return replace(x, q=own(x.q, n), k=own(x.k, g), v=own(x.v, g), do=own(x.do, n))


def by_head(x: Any) -> np.ndarray:
    """Return (B, T, N, ...) as (N, B T, ...), binary64: a head has all sequences' tokens."""
    x = np.asarray(x, dtype=np.float64)
    return np.ascontiguousarray(np.moveaxis(x, 2, 0)).reshape(x.shape[2], -1, *x.shape[3:])


def exact_twin(plan: Plan) -> Plan:
    """Return the plan's algorithm with every rounding exact, in binary64.

    It has the same sums, operands, shift of the maximum and order. The exponential is the correct
    one, since those of GPUs round by themselves. The stabilizer keeps the window of the plan's P,
    so that the same rows are shifted as under the plan.
    """
    s = plan.stabiliser
    if s is not None and s.window is None:
        s = Stabilizer(beta=s.beta, window=plan[Site.P].format.tie_window)
    names = ("pv_into_o", "normalise_first", "row_sum_of", "delta_from", "key_order")
    kept: dict[str, Any] = {name: getattr(plan, name) for name in names}
    return replace(exact_plan(), name=f"{plan.name} exactly", stabiliser=s, **kept)


def narrow(plan: Plan, sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Return those of the sites that the plan rounds to fewer bits than FP32 has."""
    return tuple(s for s in occurring(plan, sites) if plan[s].format.precision < WIDE)


def occurring(plan: Plan, sites: Iterable[Site] = Site) -> tuple[Site, ...]:
    """Return those of the sites that the plan reaches."""
    found = []
    for site in sites:
        try:
            occurs(plan, site)
        except ValueError:
            continue
        if site is not Site.OD or plan.delta_from in (DeltaFrom.OUT, DeltaFrom.WIDE_O):
            found.append(site)
    return tuple(found)
