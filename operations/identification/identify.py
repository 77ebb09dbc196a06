"""`identify`: which plan of an operation gives the numbers that a call returned.

The published plans of the operation are tried first, in the types of the call, then changes of the
nearest ones, one at a time: a choice, the order of a sum, the format of an event. That is done on
few rows, then on more; what gives every number there is compared in as many rows as a budget of
work allows. Of plans that the numbers cannot tell apart, all are named.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown
from roundscope.emu.stats.comparison import agree, lost
from roundscope.operations.identification.device import kind_of
from roundscope.operations.identification.given import Given, Score, calls_given, score_of, ulps_of
from roundscope.operations.identification.identified import Identified
from roundscope.operations.identification.plans_tried import (
    Tried,
    changed_plans,
    named_plans,
    type_of,
)
from roundscope.operations.identification.probing import telling
from roundscope.operations.operation import Operation
from roundscope.operations.run import operation_named, plan_of

WIDTH = 4  # how many of the nearest plans are changed
DEPTH = 4  # the most changes one after the other
KEPT = 24  # how many plans that differ go on to more rows
MORE = 2  # how many times more rows are compared next
FIRST = (2**15, 2**19)  # numbers of rows that are compared first; of a product, its products
WORK = (2**22, 2**28)  # in one comparison of all plans that are left
MOST = (2**20, 2**27)  # in the last comparison, of the nearest plan alone
BUDGET, LEAST_PLANS = 2**24, 32  # numbers of a search that cannot take part of the rows
OTHERS = {"eps": (0.0, 1e-5, 1e-6, 1e-8, 1e-12, 2.0**-23, 1e-3)}  # settings that are tried
PROBES = 3  # calls of a user's function
Ranked = list[tuple[Score, Tried]]


@known_arguments
def identify(
    name: Operation | str,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    outputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, Any] | None = None,
    call: Callable[[dict[str, Any]], Any] | None = None,
    depth: int = DEPTH,
    tell: Callable[[str], None] = lambda text: None,
    device: str = "",
) -> Identified:
    """Say which plan of an operation gives every bit that a call returned, and which ones tie.

    Args:
        name: An operation, or its name in `OPERATIONS`.
        inputs: Arrays by name in the types of the call, as `run` takes them; or a sequence of them,
            of several calls of one implementation.
        outputs: What the call returned, arrays by name in their types; or a sequence of them.
        settings: What differs from `Operation.settings`, such as eps.
        call: A function of inputs by name that returns the output, or outputs by name, as the
            implementation computes them. It is called up to three times, on up to 64 rows with the
            parameters of the (first) call, chosen such that the plans that tie give other results.
        depth: The most changes of a published plan that are made one after the other where none
            gives every bit; with 0 only single ones are tried.
        tell: Told what is tried, in words.
        device: Where the call ran, such as "cpu" or "cuda", if that is known: of plans that tie,
            those of libraries on such a device come first.

    Returns:
        The plan with its ties, or the nearest plan. Only forwards are compared. A large call is
        compared in a part of its rows, and the sentence says in how many numbers.

    Raises:
        ValueError: A name is unknown, an input is missing, or an output has another shape than the
            operation gives.
        TypeError: `call` returned neither an array nor arrays by name.

    Example:
        >>> import numpy as np
        >>> from roundscope.operations import run
        >>> x = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
        >>> given = {"x": x, "weight": np.linspace(0.5, 1.5, 256, dtype=np.float32)}
        >>> out = run("rms_norm", "liger-llama-fp32; SS.sum=pairwise", given).outputs["out"]
        >>> identify("rms_norm", given, {"out": out}).plan
        'liger-llama-fp32; SS.sum=pairwise'
    """
    own, told = operation_named(name), settings or {}
    pairs = calls_given(own, inputs, outputs, told)
    found = _search(pairs, depth, tell, kind_of(device))
    if not found.is_found:
        return _meaning(pairs, found, tell, kind_of(device)) if depth else found
    if call is None:
        return found
    many_in = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    many_out = [outputs] if isinstance(outputs, Mapping) else list(outputs)
    for seed in range(PROBES):
        given = telling(own, found.plans, many_in[0], told, seed)
        if given is None:
            break
        tell(f"{own.name}: probe {seed + 1} of {len(found.plans)} plans")
        many_in.append(given)
        many_out.append(_returned(own, call(dict(given))))
        found = _search(calls_given(own, many_in, many_out, told), depth, tell, kind_of(device))
        if not found.is_found:
            break
    return found


def _returned(own: Operation, out: Any) -> Mapping[str, Any]:
    """Return what a function of a user returned, as outputs by name."""
    if isinstance(out, Mapping):
        return out
    if not hasattr(out, "shape"):
        raise TypeError(f"call: it returned {shown(out)}; return an array, or arrays by name")
    return {own.outputs[0].name: np.asarray(out)}


def _search(
    calls: Sequence[Given], depth: int, tell: Callable[[str], None], device: str
) -> Identified:
    """Return the nearest plan and its ties."""
    first = calls[0]
    types = tuple(dict.fromkeys(t for call in calls for t in call.types))
    scores: dict[tuple[object, ...], tuple[Score, Tried]] = {}
    tried: set[tuple[object, ...]] = set()
    kind = 1 if first.own.by_result else 0
    work = start = FIRST[kind] // min(len(calls), 8)
    fixed = sum(c.within(work).work for c in calls if not c.by_rows)
    most = max(LEAST_PLANS, BUDGET // fixed) if fixed else sys.maxsize

    def judged(parts: Sequence[Given], plans: Iterable[Tried]) -> None:
        for plan in plans:
            if plan.key not in scores and (len(tried) < most or plan.key in tried):
                tried.add(plan.key)
                if (score := score_of(parts, plan.plan)) is not None:
                    scores[plan.key] = score, plan

    def ranked() -> Ranked:
        return sorted(scores.values(), key=lambda pair: (*pair[0].rank, len(pair[1].changes)))

    def exact() -> list[Tried]:
        return [t for s, t in ranked() if s.is_exact]

    def changes(of: Iterable[Tried], formats: Sequence[str]) -> Iterator[Tried]:
        for plan in of:
            yield from changed_plans(
                plan, lambda p: first.reached(p)[0], first.features, formats, first.outputs
            )

    plans: list[Tried] = named_plans(first.own, types, dict(first.outputs), device)
    expanded: set[tuple[object, ...]] = set()
    misses = 0
    while True:
        parts = [call.within(work) for call in calls]
        tell(f"{first.own.name}: {len(plans)} plans")
        scores.clear()
        judged(parts, plans)
        if not scores:
            raise ValueError(f"outputs: no plan of {first.own.name} runs on this call")
        for _ in range(depth):
            wide = [t for _, t in ranked()[:WIDTH] if t.key not in expanded]
            if exact() or not wide or len(tried) >= most:
                break
            expanded |= {t.key for t in wide}
            tell(f"{first.own.name}: changes of {wide[0].words}")
            judged(parts, changes(wide, ("fp32", *types, "bf16", "fp64")))
        known = [t for t in plans if t.key not in expanded] if work == start else []
        others = changes((*_first_of_bases(exact()), *known), ("fp32", *types))
        judged(parts, [t for t in others if t.key not in tried])
        found = exact()
        misses += not found
        plans = found + [t for s, t in ranked() if not s.is_exact][:KEPT]
        is_whole = all(own is call for own, call in zip(parts, calls, strict=True))
        if is_whole or misses > min(depth, 1) or len(found) * MORE * work > WORK[kind]:
            break
        work, expanded = work * MORE, set() if misses else expanded
    ties = _each_once(first, found) or [ranked()[0][1]]
    wholes = [call.within(MOST[kind]) for call in calls]
    sizes = [work * 4, work * 16, MOST[kind]]
    n = next((n for n, plan in enumerate(ties) if found and _holds(calls, plan, sizes)), 0)
    score = score_of(wholes, ties[n].plan)
    assert score is not None
    return replace(
        _answer(calls, wholes, score, ties[n], ties[n + 1 :] if found else [], len(tried)),
        compared_ties=sum(part.numbers for part in parts),
    )


def _holds(calls: Sequence[Given], plan: Tried, sizes: Sequence[int]) -> bool:
    """Return whether a plan gives every bit of larger and larger parts of calls."""
    scores = (score_of([call.within(size) for call in calls], plan.plan) for size in sizes)
    return all(score is not None and score.is_exact for score in scores)


def _each_once(call: Given, plans: Sequence[Tried]) -> list[Tried]:
    """Return plans without those that only differ in what the call does not read."""
    found: dict[tuple[object, ...], Tried] = {}
    for tried in plans:
        sites, choices = call.reached(tried.plan)
        key = (
            *(getattr(tried.plan, name) for name in choices),
            *((site, tried.plan.event(site)) for site in sites),
            *(tried.plan.accumulator(site) for site in tried.plan.PRODUCTS if site in sites),
        )
        found.setdefault(key, tried)
    return list(found.values())


def _first_of_bases(exact: Sequence[Tried]) -> list[Tried]:
    """Return the plans with the fewest changes, few of them, whose changes may tie."""
    if not exact:
        return []
    fewest = min(len(t.changes) for t in exact)
    return [t for t in exact if len(t.changes) == fewest][:2]


def _answer(
    calls: Sequence[Given],
    wholes: Sequence[Given],
    score: Score,
    best: Tried,
    exact: Sequence[Tried],
    tried: int,
) -> Identified:
    """Return what is said of the nearest plan and of those that tie with it."""
    events = {f"{site}=" for site in best.plan.SITES}
    more = {t: set(t.changes) - set(best.changes) for t in exact}
    free = [
        t
        for t in exact
        if t.base == best.base
        and len(t.changes) == len(best.changes) + 1
        and len(more[t]) == 1
        and any(w.startswith(e) for w in more[t] for e in events)
    ]
    first = wholes[0]
    own: list[np.ndarray] = []
    want: list[np.ndarray] = []
    kind = ""
    for call in wholes:
        found = call.found(best.plan) or {}
        for n, x in call.wanted.items():
            kind = type_of(x)
            own.append(found[n].reshape(-1))
            want.append(x.astype(np.float64).reshape(-1))
    a, b = np.concatenate(own), np.concatenate(want)
    apart = ~agree(a, b)
    return Identified(
        operation=first.own.name,
        plan=best.words,
        share=score.share,
        ties=tuple(t.words for t in exact if t not in free),
        free=tuple(next(iter(more[t])) for t in free),
        signs=score.signs,
        ulps=float(ulps_of(a[apart], b[apart], kind).max(initial=0.0)),
        lost=lost(b, a),
        type=kind,
        tried=tried,
        compared=sum(call.numbers for call in wholes),
        numbers=sum(call.numbers for call in calls),
    )


def _meaning(
    calls: Sequence[Given],
    found: Identified,
    tell: Callable[[str], None],
    device: str,
) -> Identified:
    """Return what explains the numbers if one setting is another one, or what was found."""
    own, told = calls[0].own, dict(calls[0].settings)
    parts = [call.within(FIRST[1 if own.by_result else 0]) for call in calls]
    plan = plan_of(own, found.plan)
    near = score_of(parts, plan)
    for name, values in OTHERS.items():
        for value in values if name in told else ():
            if told[name] == value:
                continue
            tell(f"{own.name}: {name} = {value}")
            settings = tuple({**told, name: value}.items())
            changed = [replace(call, settings=settings) for call in calls]
            score = score_of([call.within(FIRST[0]) for call in changed], plan)
            if score is None or near is None or score.rank >= near.rank:
                continue
            other = _search(changed, DEPTH, tell, device)
            if other.is_found:
                return replace(other, settings={name: value}, tried=other.tried + found.tried)
    return found
