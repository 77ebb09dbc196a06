"""A layer under a plan and under exact arithmetic: what every step of the diagnosis looks at."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention import Examined, Injection, Plan, Record, Site, Stabiliser
from attention.presets import exact as exact_plan
from experiments.consequences import DeltaDrift, delta_drift
from experiments.errors import bad
from experiments.tensors import Layer
from experiments.trace_options import Request
from experiments.trace_run import Progress, call

OUTPUT_SITES = (Site.PV, Site.AO, Site.O, Site.OUT)  # the roundings between P V and the output, in the order of the algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One layer: results under the plan (low) and exactly, in binary64 throughout; drift: delta(plan) - delta(exact)."""

    layer: Layer
    request: Request
    scale: float
    low: Examined
    exact: Examined
    drift: DeltaDrift

    @property
    def heads(self) -> list[str]:
        """Names of the (batch, head), the last axis fastest: '3', or '0/3' where there are several sequences."""
        batch, _, heads, _ = self.layer.q.shape
        return [f"{b}/{n}" if batch > 1 else str(n) for b in range(batch) for n in range(heads)]

    def place(self, head: int) -> tuple[int, int]:
        """(batch, head) of a flat index."""
        return divmod(head, self.layer.q.shape[2])


def measure(layer: Layer, request: Request, progress: Progress) -> Measured:
    """Forward and backward of a layer, twice. Raises UsageError if it has no do, for delta needs it."""
    if layer.do is None:
        raise bad("layer", layer.name, "has no do, so no delta; add do to the file, or see the forward alone with `roundscope trace`")
    scale = layer.scale if layer.scale is not None else layer.q.shape[3] ** -0.5
    progress(f"{layer.name}: {request.plan.name}")
    low = run(layer, request, scale, request.plan)
    progress(f"{layer.name}: exactly")
    exact = run_exactly(layer, request, scale, request.against)
    drift = delta_drift(low.delta, exact.delta, low.out, exact.out, layer.do)
    return Measured(layer=layer, request=request, scale=scale, low=low, exact=exact, drift=drift)


def run(
    layer: Layer, request: Request, scale: float, plan: Plan, inject: tuple[Injection, ...] = (), record: Record | None = None
) -> Examined:
    """The layer under a plan."""
    return call(layer.q, layer.k, layer.v, layer.do, request, plan, scale, record, inject)


def run_exactly(layer: Layer, request: Request, scale: float, plan: Plan) -> Examined:
    """The layer under a plan whose every event is binary64; its results leave unrounded."""
    wide: tuple[Any, ...] = tuple(None if x is None else x.astype(np.float64) for x in (layer.q, layer.k, layer.v, layer.do))
    q, k, v, do = wide
    return call(q, k, v, do, request, plan, scale, None)


def one_head(m: Measured, head: int) -> Layer:
    """The layer cut down to one (batch, query head) and its key head."""
    b, n = m.place(head)
    g = n * m.layer.k.shape[2] // m.layer.q.shape[2]
    own = lambda x, i: x[b : b + 1, :, i : i + 1]  # noqa: E731
    x = m.layer
    return replace(x, q=own(x.q, n), k=own(x.k, g), v=own(x.v, g), do=own(x.do, n))


def by_head(x: Any) -> np.ndarray:
    """(B, T, N, ...) as (B N, T, ...), binary64."""
    x = np.asarray(x, dtype=np.float64)
    return np.ascontiguousarray(np.moveaxis(x, 2, 1)).reshape(-1, x.shape[1], *x.shape[3:])


def exact_twin(plan: Plan) -> Plan:
    """The plan's algorithm with every rounding exact: same sums, operands, shift of the maximum and order, in binary64.

    The stabiliser keeps the window of the plan's P, so that the same rows are shifted as under the plan.
    """
    s = plan.stabiliser
    if s is not None:
        s = Stabiliser(beta=s.beta, window=plan[Site.P].format.tie_window if s.window is None else s.window)
    return replace(
        exact_plan(), name=f"{plan.name} exactly", pv_into_o=plan.pv_into_o, normalise_first=plan.normalise_first,
        row_sum_of=plan.row_sum_of, delta_from=plan.delta_from, stabiliser=s, exp=plan.exp, key_order=plan.key_order,
    )  # fmt: skip


def narrow(plan: Plan, sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Those of the sites that the plan rounds to fewer bits than FP32 has."""
    occurring = [s for s in sites if not (s is Site.PV and plan.pv_into_o)]
    return tuple(s for s in occurring if plan[s].format.precision < 24)
