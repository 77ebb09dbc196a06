"""`Call`: the arrays and options of one call, to run it under many plans and injections."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention.api import Examined, examine
from roundscope.attention.injection import Injection
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.emu.roundings.modes import RoundingMode

RESULTS = ("out", "lse", "delta", "dq", "dk", "dv", "dsinks")
MEASURED = ("out", "dq", "dk", "dv")  # the results of which an error budget says something
Results = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of attention without its plan.

    q, k, v, do  arrays as in `examine`; do may be None
    inject       the injections of the call
    options      further arguments of `examine` other than engine, window and softcap, which
                 belong to the plan
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray | None
    inject: tuple[Injection, ...]
    options: dict[str, Any]

    def examine(
        self, plan: Plan, inject: Sequence[Injection] = (), record: Record | None = None
    ) -> Examined:
        """Run the call under a plan by the NumPy engine, on binary64 inputs."""
        q, k, v = (np.asarray(x, np.float64) for x in (self.q, self.k, self.v))
        do = None if self.do is None else np.asarray(self.do, np.float64)
        how: Any = self.options | {"inject": inject, "record": record, "engine": "numpy"}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return examine(q, k, v, do, plan=plan, **how)

    def results(
        self, plan: Plan, inject: Sequence[Injection] = (), names: Sequence[str] = RESULTS
    ) -> Results:
        """Return the results of the call under a plan by name, those that there are."""
        return results_of(self.examine(plan, inject), names)

    def of_heads(
        self, heads: np.ndarray, key_heads: np.ndarray, batch: Any = slice(None)
    ) -> "Call":
        """Return the call of some query heads and their key heads, of some batch entries."""
        options = dict(self.options)
        sinks = options.get("sinks")
        for name in ("mask", "bias"):
            x = options.get(name)
            if x is not None and np.ndim(x) > 2:
                x = np.asarray(x)
                x = x if x.ndim == 4 else x[None]
                x = x[batch] if x.shape[0] > 1 else x
                options[name] = x[:, heads] if x.shape[1] > 1 else x
        if sinks is not None:
            options["sinks"] = np.asarray(sinks)[heads]
        return replace(
            self,
            q=self.q[batch][:, :, heads],
            k=self.k[batch][:, :, key_heads],
            v=self.v[batch][:, :, key_heads],
            do=None if self.do is None else self.do[batch][:, :, heads],
            options=options,
        )

    def depends_on_head_number(self, plan: Plan) -> bool:
        """Return whether random bits or injections depend on the number of a head."""
        return bool(self.inject) or draws(plan)


def results_of(examined: Examined, names: Sequence[str] = RESULTS) -> Results:
    """Return the results of `examine` by name, in binary64, those that there are."""
    found = ((name, getattr(examined, name)) for name in names)
    return {name: np.asarray(x, np.float64) for name, x in found if x is not None}


def exact_of(plan: Plan) -> Plan:
    """Return binary64 attention of the same function: its window, softcap, sinks and bias."""
    served = ("window", "softcap", "sinks", "biased")
    return replace(Plan.preset("exact"), **{name: getattr(plan, name) for name in served})


def draws(plan: Plan) -> bool:
    """Return whether some event rounds stochastically, so that bits depend on a head's number."""
    steps = [a.step for a in plan.accumulators]
    return any(r.mode is RoundingMode.STOCHASTIC for r in (*plan.roundings, *steps))
