"""The next step of a trace: the smallest change of the plan that repairs an error, tried.

A biased event gets the smallest repair first: nearest rounding in place of a directed one, a scale
of its blocks that clips no number, the same for the other tensors of its format. More bits come
last. The first that repairs is taken; its results are those of one more call.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roundscope.attention.budget.parts import Part, promotion, repair
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.plans.plan import Plan
from roundscope.emu.stats.comparison import relative_rms
from roundscope.tools.trace.analysis.consequences import Gain, gain
from roundscope.tools.trace.biased import culprit
from roundscope.tools.trace.results import WITH_GAIN, Result
from roundscope.tools.trace.run import Observed, call
from roundscope.tools.trace.served import options

WORTH = 0.95  # the part of an error that a promotion may leave and be worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change of the plan that was tried.

    words     the change, in the words of --set, of which all are needed
    line      the line of the budget that it is about;  result: the result that it is for
    is_wider  whether it gives an event more bits
    error     the relative rms error of the result with it;  gain: its gain with it
    """

    words: tuple[str, ...]
    line: Line
    result: str
    is_wider: bool
    error: float
    gain: Gain | None


def best_repair(seen: Observed, results: list[Result], budget: ErrorBudget | None) -> Repair | None:
    """Return the smallest change that repairs a result, or that which leaves least of its fault.

    Where a result is biased it is the one furthest off, else the one whose error a wider event
    makes least. It is None if there is no budget, or nothing is worth a change. Where an injected
    error makes most of an error there is none.
    """
    if budget is None or not budget.lines or not budget.lines[0].part.places:
        return None
    biased = [r for r in results if r.is_biased]
    if biased:
        furthest = max(biased, key=lambda r: abs(r.gain.mean) if r.gain else 0.0)
        line = culprit(budget, furthest)
        if line is not None and len(line.part.places) == 1:
            return _least_biased(seen, furthest, line)
    chosen = _to_promote(budget)
    if chosen is None:
        return None
    line, name = chosen
    result = next(r for r in results if r.name == name)
    return _tried(seen, result, line, tuple(promotion(seen.request.plan, line.part)), True)


def _least_biased(seen: Observed, result: Result, line: Line) -> Repair:
    """Return the first repair after which a result is not biased, else that of the least gain."""
    tried = []
    for words, is_wider in changes(seen.request.plan, line.part):
        tried.append(_tried(seen, result, line, words, is_wider))
        own = tried[-1].gain
        if own is not None and np.isfinite(own.mean) and not own.is_biased:
            return tried[-1]

    def left(x: Repair) -> float:
        known = x.gain is not None and np.isfinite(x.gain.mean)
        return abs(x.gain.mean) if x.gain is not None and known else np.inf

    return min(tried, key=left)


def changes(plan: Plan, part: Part) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the changes that may repair a part, the smallest first, and whether bits are added."""
    every = tuple(repair(plan, part))
    own = tuple(w for w in every if w.partition("=")[0] in {str(s) for s, _ in part.places})
    found = dict.fromkeys((words, False) for words in (own, every) if words)
    yield from found
    yield tuple(promotion(plan, part)), True


def _to_promote(budget: ErrorBudget) -> tuple[Line, str] | None:
    """Return the event whose promotion makes the error of some result least, and that result."""
    names = [n for n, x in budget.total.items() if x > 0.0 and np.isfinite(x)]
    choices = [
        (line.without[name] / budget.total[name], line, name)
        for line in budget.lines
        if line.without is not None and len(line.part.places) == 1
        for name in names
    ]
    best = min(choices, key=lambda x: x[0], default=None)
    return None if best is None or best[0] > WORTH else best[1:]


def _tried(
    seen: Observed, result: Result, line: Line, words: tuple[str, ...], is_wider: bool
) -> Repair:
    """Return what a change of the plan makes of a result: the layer is run once more."""
    layer, asked, name = seen.layer, seen.request, result.name
    if asked.engine == "pallas":  # whose kernels may lack the changed plan
        asked = replace(asked, engine="xla")
    found = call(
        *(layer.q, layer.k, layer.v, layer.do),
        asked,
        asked.plan.changed(*words),
        seen.scale,
        inject=asked.inject,
        **options(layer),
    )
    own, want = (np.asarray(x, np.float64) for x in (getattr(found, name), seen.reference[name]))
    tests = sum(seen.results[n] is not None for n in WITH_GAIN)
    return Repair(
        words=words,
        line=line,
        result=name,
        is_wider=is_wider,
        error=relative_rms(own, want),
        gain=gain(own, want, layer.k.shape[2], tests) if result.gain is not None else None,
    )
