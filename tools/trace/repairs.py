"""The next step of a trace: the smallest change of the plan that repairs an error, tried.

A biased event gets the smallest repair first: nearest rounding in place of a directed one, a scale
of its blocks that clips no number, the same for the other tensors of its format. More bits come
last. The first that repairs is taken; its results are those of one more call.

Where no result is biased, the repair is of the one that is worst in units of one rounding to its
own format. If the few events that make most of its error have a repair of as many bits, such as a
scale rule that cuts nothing off, that comes first if it helps, and more bits second. The
last rounding of a result that is already about as good as its format allows is none of them: what a
wider result buys there is gone when it is stored in its format again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roundscope.attention.budget.parts import Part, promotion, repair, together
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.plans.plan import Plan
from roundscope.emu.stats.comparison import relative_rms
from roundscope.tools.trace.analysis.consequences import Gain, gain
from roundscope.tools.trace.biased import culprit
from roundscope.tools.trace.results import CLOSE, EVENT, FEW, WITH_GAIN, Result
from roundscope.tools.trace.run import Observed, call
from roundscope.tools.trace.served import options

WORTH = 0.95  # the part of an error that a promotion may leave and be worth a word
MOST = 3  # events that one step promotes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change of the plan that was tried.

    words     the change, in the words of --set, of which all are needed
    line      the line of the budget that it is about, the first if several are
    result    the result that it is for;  is_wider: whether it gives an event more bits
    error     the relative rms error of the result with it;  gain: its gain with it
    newly     the other results that are biased with it and were not, each with its gain
    second    the change to more bits that was tried too, if this one adds none
    """

    words: tuple[str, ...]
    line: Line
    result: str
    is_wider: bool
    error: float
    gain: Gain | None
    newly: tuple[tuple[str, Gain], ...] = ()
    second: "Repair | None" = None


def best_repair(seen: Observed, results: list[Result], budget: ErrorBudget | None) -> Repair | None:
    """Return the smallest change that repairs a result, or that which leaves least of its fault.

    Where results are biased it is the one furthest off, else the one that is worst in units of one
    rounding to its format. It is None if there is no budget, no result is far from the least error
    of its format, or nothing is worth a change. Where an injected error makes most of an error
    there is none.
    """
    if budget is None or not budget.lines or not budget.lines[0].part.places:
        return None
    biased = [r for r in results if r.is_biased]
    if biased:
        furthest = max(biased, key=lambda r: abs(r.gain.mean) if r.gain else 0.0)
        line = culprit(budget, furthest)
        if line is not None and len(line.part.places) == 1:
            return _least_biased(seen, furthest, line)
    for result in sorted((r for r in results if r.is_far), key=lambda r: -r.times):
        if lines := to_promote(budget, result):
            part = together([line.part for line in lines], "events")
            tried = [
                _tried(seen, result, lines[0], words, is_wider)
                for words, is_wider in (
                    (tuple(repair(seen.request.plan, part)), False),
                    (tuple(promotion(seen.request.plan, part)), True),
                )
                if words
            ]
            if good := [x for x in tried if x.error <= WORTH * result.error]:
                return replace(good[0], second=good[1]) if len(good) > 1 else good[0]
    return None


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


def to_promote(budget: ErrorBudget, result: Result) -> list[Line]:
    """Return the fewest events, MOST at most, without which a result is no longer far off.

    They are taken by the error that is left without each, and their number by their shares of the
    squared error, which add up where errors do not depend on each other. The first is worth a
    change by itself; else the list is empty.
    """
    name, total = result.name, budget.total.get(result.name, 0.0)
    if not (total > 0.0 and np.isfinite(total)):
        return []
    left = {
        line.part.name: line.without[name] / total
        for line in budget.lines
        if line.without is not None and len(line.part.places) == 1
        if not (result.times < CLOSE and line.part.places == ((EVENT[name], False),))
    }
    lines = [line for line in budget.lines if left.get(line.part.name, np.inf) <= WORTH]
    lines.sort(key=lambda line: left[line.part.name])
    limit = CLOSE if name == "out" else FEW
    rest, chosen = result.times**2, []
    for line in lines[:MOST]:
        if rest <= limit**2:
            break
        chosen.append(line)
        rest -= budget.share(line, name) * result.times**2
    return chosen


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
    there = [n for n in WITH_GAIN if seen.results[n] is not None]
    heads, tests = layer.k.shape[2], len(there)
    gains = {n: gain(getattr(found, n), seen.reference[n], heads, tests) for n in there}
    before = {n: gain(seen.results[n], seen.reference[n], heads, tests) for n in there}
    return Repair(
        words=words,
        line=line,
        result=name,
        is_wider=is_wider,
        error=relative_rms(own, want),
        gain=gains.get(name),
        newly=tuple((n, x) for n, x in gains.items() if x.is_biased and not before[n].is_biased),
    )
