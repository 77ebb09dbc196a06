"""`error_budget`: measures what each rounding event contributes to the errors of a call."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.attention.arguments import (
    check_like_output,
    check_numbers,
    check_shapes,
    injections_given,
    mask_given,
    plans_given,
    served_given,
    tell_of_tensors,
)
from roundscope.attention.budget.call import MEASURED, Call, Results, draws, exact_of, results_of
from roundscope.attention.budget.origin import found_in
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
from roundscope.attention.injection import Injection
from roundscope.attention.plans.named import fitting, note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.emu.arrays import Array
from roundscope.emu.numbers import check_whole
from roundscope.emu.shown import shown
from roundscope.emu.stats.comparison import gain, relative_rms
from roundscope.events.injection import AddUlps, FlipBit, Noise

SMALL = 0.01  # share of the squared error below which parts stay together in one line
NEGLIGIBLE = 1e-4  # share below which nothing is measured without a part
SCORES = 2**20  # number of scores that the heads of a budget have together, at most
IN_UNITS = (AddUlps, Noise, FlipBit)  # injected errors whose size is that of the event's format
Progress = Callable[[str], None]


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

    A result with infinite or NaN numbers where exact attention has others has an infinite error.
    No event has a share of it; what can be said is which events alone make it infinite, and without
    which it becomes finite (`Line.rescues`). The text begins with these numbers (`not_finite`).

    Args:
        q: Queries (B, T, N, H).
        k: Keys (B, S, G, H).
        v: Values (B, S, G, Hv).
        do: The gradient of the output, (B, T, N, Hv). Without it only the output is measured.
        plan: The plan or the name of a preset. By default "fa2", or "fa2-fp16" if q, k or v is
            float16 and none of them bfloat16.
        inject: Injections, as in `attend`. Together they are one line of the budget, measured by
            their absence: what the results of the plan change by when they are taken away.
        heads: Measure this many query heads (whole groups of the heads that read one key head),
            evenly chosen. Default: as many as have about a million scores together; all of them if
            `inject` is given or an event rounds stochastically.
        progress: A function that is called with the name of what runs next.
        options: Further arguments of `attend` other than engine: block_q, block_k, scale,
            is_causal, mask, window, softcap, sinks, bias and alignment.

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
    if heads is not None:
        check_whole("heads", heads, "it is the number of query heads, such as 2")
    if heads is not None and not 1 <= heads < 2**31:
        raise ValueError(
            f"heads={shown(heads)}: give 1 or more, or None for a choice that is quick"
        )
    if "engine" in options:
        raise TypeError(
            "engine: error_budget runs NumPy's, for the same numbers everywhere; leave it out"
        )
    if options.get("mask") is not None:
        options["mask"] = mask_given(options["mask"])
    check_numbers(q=q, k=k, v=v, do=do)
    check_shapes(q, k, v)
    tell_of_tensors(q, k)
    q, k, v = (np.asarray(x) for x in (q, k, v))
    if do is not None:
        check_like_output("do", do, (*q.shape[:3], v.shape[3]))
    served = options.pop("window", None), options.pop("softcap", None), options.get("sinks")
    biased = options.get("bias")
    types = [str(x.dtype) for x in (q, k, v)]
    (given,) = plans_given(fitting("fa2", types) if plan is None else plan)
    cast = note_on_types(given, types)
    plan = served_given(given, *served, q.shape[2], biased)
    injected = injections_given(inject)
    heads_of_q, heads_of_k = _chosen(q, k, heads, whole=bool(injected) or draws(plan))
    do = None if do is None else np.asarray(do)
    call = Call(q=q, k=k, v=v, do=do, inject=injected, options=options)
    call = call.of_heads(heads_of_q, heads_of_k)
    found = _measured(call, plan, progress, heads_of_q, heads_of_k)
    return found if cast is None else replace(found, notes=(*found.notes, cast))


def _measured(
    call: Call, plan: Plan, progress: Progress, heads: np.ndarray, key_heads: np.ndarray
) -> ErrorBudget:
    """Return the budget of a call of the chosen heads."""
    progress("all events")
    whole = call.examine(plan, call.inject, Record())
    reference = exact_of(plan)
    full, exact = results_of(whole, MEASURED), call.results(reference, (), MEASURED)
    assert whole.trace is not None
    changing = {
        name
        for name, s in whole.trace.stats.items()
        if any(int(x.sum()) for x in (s.inexact, s.overflow, s.nan))
    }
    total = {name: relative_rms(full[name], exact[name]) for name in exact}
    lines = []
    for part in _parts(call, plan, changing):
        lines += _lines(call, plan, part, full, exact, total, progress)
    rest = call.results(exactly(plan), (), MEASURED)  # approximate functions, which do not round
    found = found_in(call, plan, reference, full, exact)
    return ErrorBudget(
        plan=plan.name,
        total=total,
        gain={name: gain(full[name], exact[name]) for name in exact},
        lines=tuple(sorted(lines, key=lambda x: -x.weight(total))),
        functions={name: relative_rms(rest[name], exact[name]) for name in exact},
        heads=tuple(int(h) for h in heads),
        notes=whole.notes,
        not_finite=None if found is None else found.numbered(heads, key_heads),
    )


def _parts(call: Call, plan: Plan, changing: set[str]) -> Iterator[Part]:
    """Yield the parts that are measured first: what is in binary32 stays together, unless it is
    found to matter.
    """
    if call.inject:
        yield INJECTED
    parts = rounding_parts(plan, changing, call.do is not None)
    cores = [p for p in parts if on_tensor_core(plan, p)]
    narrow = [p for p in parts if p not in cores and is_narrow(plan, p)]
    wide = [p for p in parts if p not in cores and p not in narrow]
    yield from narrow
    for group, what in ((wide, "events in fp32"), (cores, "sums")):
        if group:
            yield together(group, what) if len(group) > 1 else group[0]


def _lines(
    call: Call,
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
    if len(part.places) < 2 or line.weight(total) < SMALL:
        return [line] if any(line.alone.values()) else []
    names = part.formula.split()
    members = [p for p in rounding_parts(plan, names, call.do is not None) if p.name in names]
    measured = []
    for member in members:
        progress(member.name)
        measured.append(_line(call, plan, member, full, exact, total))
    large = [x for x in measured if x.weight(total) >= SMALL / 4]
    small = [x.part for x in measured if x not in large and any(x.alone.values())]
    if len(small) > 1:
        small = [together(small, part.name.partition(" ")[2])]
    return large + [_line(call, plan, p, full, exact, total) for p in small]


def _line(
    call: Call, plan: Plan, part: Part, full: Results, exact: Results, total: dict[str, float]
) -> Line:
    """Measure one part, alone and by its absence.

    Injected errors are measured by their absence: an ulp is that of the plan's format, so they
    have no size where all else is in binary64. For the same reason an event into which ulps or
    flipped bits are injected has no absence.
    """
    is_change = part is INJECTED or on_tensor_core(plan, part)
    inject = () if part is INJECTED else call.inject
    own, want, absent = full, exact, None
    if is_change:
        absent = want = call.results(without(plan, part), inject, MEASURED)
    else:
        own = call.results(alone(plan, part), (), MEASURED)
    sizes = {n: relative_rms(own[n], want[n], exact[n]) for n in exact}
    matters = any(sizes[n] ** 2 > NEGLIGIBLE * total[n] ** 2 for n in exact)
    matters = matters or not all(map(math.isfinite, total.values()))
    if matters and absent is None and not _is_in_units(part, inject):
        absent = call.results(without(plan, part), inject, MEASURED)
    return Line(
        part=part,
        alone=sizes,
        gain={n: gain(own[n], want[n], exact[n]) for n in exact},
        without=None if absent is None else {n: relative_rms(absent[n], exact[n]) for n in exact},
        is_change=is_change,
    )


def _is_in_units(part: Part, inject: Sequence[Injection]) -> bool:
    """Return whether an error is injected into a part whose size is that of the part's format."""
    events = [site for site, step in part.places if not step]
    return any(i.site in events and isinstance(i.what, IN_UNITS) for i in inject)


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
