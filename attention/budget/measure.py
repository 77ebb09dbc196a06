"""`error_budget`: measures what each rounding event contributes to the errors of a call."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention.api import Examined, examine
from roundscope.attention.arguments import check_shapes, injections_given, plans_given, served_given
from roundscope.attention.budget.parts import (
    INJECTED,
    Part,
    alone,
    exactly,
    is_narrow,
    on_tensor_core,
    rounding_parts,
    together,
    without,
)
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.events.recorder import Record
from roundscope.attention.injection import Injection
from roundscope.attention.plans.half import fitting, note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.emu.arrays import Array
from roundscope.emu.roundings.modes import RoundingMode

RESULTS = ("out", "dq", "dk", "dv")
SMALL = 0.01  # share of the squared error below which parts stay together in one line
NEGLIGIBLE = 1e-4  # share below which nothing is measured without a part
SCORES = 2**20  # number of scores that the heads of a budget have together, at most
Progress = Callable[[str], None]
Results = dict[str, np.ndarray]


def error_budget(
    q: Array,
    k: Array,
    v: Array,
    do: Array | None = None,
    *,
    plan: Plan | str | None = None,
    inject: Injection | str | Sequence[Injection | str] = (),
    heads: int | None = None,
    progress: Progress = lambda _: None,
    **options: Any,
) -> ErrorBudget:
    """Return which rounding event of a plan makes how much of the error of each result.

    Every event is measured in two ways: alone, with all else in binary64, and by its absence, with
    it alone in binary64. The runs are those of the NumPy engine, so the numbers are the same on
    every machine.

    Args:
        q: Queries (B, T, N, H).
        k: Keys (B, S, G, H).
        v: Values (B, S, G, Hv).
        do: The gradient of the output, (B, T, N, Hv). Without it only the output is measured.
        plan: The plan or the name of a preset. By default "fa2", or "fa2-fp16" if q, k or v is
            float16 and none of them bfloat16.
        inject: Injections, as in `attend`. Together they are one line of the budget.
        heads: Measure this many query heads (whole groups of the heads that read one key head),
            evenly chosen. Default: as many as have about a million scores together; all of them if
            `inject` is given or an event rounds stochastically.
        progress: A function that is called with the name of what runs next.
        options: Further arguments of `attend` other than engine: block_q, block_k, scale,
            is_causal, mask, window, softcap, sinks and alignment.

    Returns:
        An `ErrorBudget`. Its text is a table.

    Raises:
        TypeError: As `examine`.
        ValueError: As `examine`; or `heads` is below 1.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu, error_budget
        >>> x = np.random.default_rng(0).standard_normal((3, 1, 64, 2, 16))
        >>> q, k, v = emu.round_to(x, "bf16")
        >>> budget = error_budget(q, k, v, plan="fa2-bf16")
        >>> budget.largest("out").part.name
        'OUT'
    """
    if heads is not None and heads < 1:
        raise ValueError(f"heads={heads}: give 1 or more, or None for a choice that is quick")
    q, k, v = (np.asarray(x) for x in (q, k, v))
    check_shapes(q, k, v)
    served = options.pop("window", None), options.pop("softcap", None), options.get("sinks")
    types = [str(x.dtype) for x in (q, k, v)]
    (given,) = plans_given(fitting("fa2", types) if plan is None else plan)
    cast = note_on_types(given, types)
    plan = served_given(given, *served, q.shape[2])
    injected = injections_given(inject)
    heads_of_q, heads_of_k = _chosen(q, k, heads, whole=bool(injected) or _draws(plan))
    call = _Call(
        q=q[:, :, heads_of_q],
        k=k[:, :, heads_of_k],
        v=v[:, :, heads_of_k],
        do=None if do is None else np.asarray(do)[:, :, heads_of_q],
        exact=_exact(plan),
        inject=injected,
        options=_options(options, heads_of_q),
    )
    found = _measured(call, plan, progress, heads_of_q)
    return found if cast is None else replace(found, notes=(*found.notes, cast))


def _exact(plan: Plan) -> Plan:
    """Return binary64 attention of the same function: its window, softcap and sinks."""
    exact = Plan.preset("exact")
    return replace(exact, window=plan.window, softcap=plan.softcap, sinks=plan.sinks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What all runs share: the arrays of the chosen heads, and the plan of the exact results."""

    exact: Plan
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray | None
    inject: tuple[Injection, ...]
    options: dict[str, Any]

    def examine(self, plan: Plan, inject: tuple[Injection, ...], record: Record | None) -> Examined:
        """Run the call under a plan, in binary64 where the plan has it."""
        q, k, v = (x.astype(np.float64) for x in (self.q, self.k, self.v))
        do = None if self.do is None else self.do.astype(np.float64)
        how: Any = self.options | {"inject": inject, "record": record, "engine": "numpy"}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return examine(q, k, v, do, plan=plan, **how)

    def results(self, plan: Plan, inject: tuple[Injection, ...] = ()) -> Results:
        """Return out, dq, dk and dv under a plan, those that there are."""
        return _results(self.examine(plan, inject, None))


def _results(examined: Examined) -> Results:
    """Return the results of a call by name, in binary64."""
    return {
        name: np.asarray(x, np.float64)
        for name in RESULTS
        if (x := getattr(examined, name)) is not None
    }


def _measured(call: _Call, plan: Plan, progress: Progress, heads: np.ndarray) -> ErrorBudget:
    """Return the budget of a call of the chosen heads."""
    progress("all events")
    whole = call.examine(plan, call.inject, Record())
    full, exact = _results(whole), call.results(call.exact)
    assert whole.trace is not None
    inexact = {name for name, s in whole.trace.stats.items() if int(s.inexact.sum())}
    total = {name: _relative(full[name] - exact[name], exact[name]) for name in exact}
    lines = []
    for part in _parts(call, plan, inexact):
        lines += _lines(call, plan, part, full, exact, total, progress)
    rest = _other_than_rounding(call, plan, exact)
    return ErrorBudget(
        plan=plan.name,
        total=total,
        gain={name: _gain(full[name] - exact[name], exact[name]) for name in exact},
        lines=tuple(sorted(lines, key=lambda x: -max(x.share(n, total) for n in total))),
        functions=rest,
        heads=tuple(int(h) for h in heads),
        notes=whole.notes,
    )


def _other_than_rounding(call: _Call, plan: Plan, exact: Results) -> dict[str, float]:
    """Return the error that is left where nothing rounds, as that of approximate functions."""
    left = call.results(exactly(plan))
    return {name: _relative(left[name] - exact[name], exact[name]) for name in exact}


def _parts(call: _Call, plan: Plan, inexact: set[str]) -> Iterator[Part]:
    """Yield the parts that are measured first: what is in binary32 stays together, unless it is
    found to matter.
    """
    if call.inject:
        yield INJECTED
    parts = rounding_parts(plan, inexact, call.do is not None)
    cores = [p for p in parts if on_tensor_core(plan, p)]
    narrow = [p for p in parts if p not in cores and is_narrow(plan, p)]
    wide = [p for p in parts if p not in cores and p not in narrow]
    yield from narrow
    for group, what in ((wide, "events in fp32"), (cores, "sums")):
        if group:
            yield together(group, what) if len(group) > 1 else group[0]


def _lines(
    call: _Call,
    plan: Plan,
    part: Part,
    full: Results,
    exact: Results,
    total: dict[str, float],
    progress: Progress,
) -> list[Line]:
    """Return the line of a part, or those of its members if they matter."""
    progress(part.name)
    line = _line(call, plan, part, full, exact, total)
    if len(part.places) < 2 or max((line.share(n, total) for n in total), default=0.0) < SMALL:
        return [line] if any(line.alone.values()) else []
    names = part.formula.split()
    members = [p for p in rounding_parts(plan, names, call.do is not None) if p.name in names]
    measured = []
    for member in members:
        progress(member.name)
        measured.append(_line(call, plan, member, full, exact, total))
    large = [x for x in measured if max(x.share(n, total) for n in total) >= SMALL / 4]
    small = [x.part for x in measured if x not in large and any(x.alone.values())]
    if len(small) > 1:
        small = [together(small, part.name.partition(" ")[2])]
    return large + [_line(call, plan, p, full, exact, total) for p in small]


def _line(
    call: _Call, plan: Plan, part: Part, full: Results, exact: Results, total: dict[str, float]
) -> Line:
    """Measure one part, alone and by its absence."""
    inject = () if part is INJECTED else call.inject
    absent: Results | None = None
    is_change = on_tensor_core(plan, part)
    if is_change:
        absent = call.results(without(plan, part), inject)
        off = {name: full[name] - absent[name] for name in exact}
    else:
        own = call.results(alone(plan, part), call.inject if part is INJECTED else ())
        off = {name: own[name] - exact[name] for name in exact}
    sizes = {name: _relative(off[name], exact[name]) for name in exact}
    matters = any(sizes[n] ** 2 > NEGLIGIBLE * total[n] ** 2 for n in exact)
    if matters and absent is None:
        absent = call.results(without(plan, part), inject)
    return Line(
        part=part,
        alone=sizes,
        gain={name: _gain(off[name], exact[name]) for name in exact},
        without=None
        if absent is None
        else {name: _relative(absent[name] - exact[name], exact[name]) for name in exact},
        is_change=is_change,
    )


def _finite(off: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(off), off, 0.0)


def _relative(off: np.ndarray, exact: np.ndarray) -> float:
    """Return the rms of an error over that of the exact result; 0 where that is 0."""
    size = float(np.square(_finite(exact)).sum())
    return float(np.sqrt(np.square(_finite(off)).sum() / size)) if size else 0.0


def _gain(off: np.ndarray, exact: np.ndarray) -> float:
    """Return <error, exact> / |exact|^2, the part of its length by which a result is too long."""
    size = float(np.square(_finite(exact)).sum())
    return float((_finite(off) * _finite(exact)).sum() / size) if size else 0.0


def _draws(plan: Plan) -> bool:
    """Return whether some event rounds stochastically, so that bits depend on a head's number."""
    steps = [a.step for a in plan.accumulators]
    return any(r.mode is RoundingMode.STOCHASTIC for r in (*plan.roundings, *steps))


def _chosen(
    q: np.ndarray, k: np.ndarray, heads: int | None, whole: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the query heads and of the key heads that are measured."""
    (batch, queries, n, _), (_, keys, g, _) = q.shape, k.shape
    group = n // g
    wanted = heads if heads is not None else SCORES // max(batch * queries * keys, 1)
    count = g if whole and heads is None else min(max(wanted // group, 1), g)
    of_keys = np.unique(np.linspace(0, g - 1, count).round().astype(int))
    return (of_keys[:, None] * group + np.arange(group)).reshape(-1), of_keys


def _options(options: dict[str, Any], heads: np.ndarray) -> dict[str, Any]:
    """Return the options with the mask and the sinks of the chosen heads."""
    mask, sinks = options.get("mask"), options.get("sinks")
    if mask is not None and np.ndim(mask) == 4 and np.shape(mask)[1] > 1:
        mask = np.asarray(mask)[:, heads]
    sinks = None if sinks is None else np.asarray(sinks)[heads]
    return options | {"mask": mask, "sinks": sinks}
