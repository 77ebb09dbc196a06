"""Runs a layer under a plan and under the plan it is compared with, and keeps what a report needs.

The heads are run a few at a time, as memory allows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roundscope.attention import (
    ErrorBudget,
    Examined,
    Injection,
    Plan,
    Record,
    Site,
    Trace,
    attend,
    error_budget,
    examine,
)
from roundscope.attention.budget.not_finite import NotFinite
from roundscope.attention.budget.origin import not_finite
from roundscope.attention.errors import NotFused
from roundscope.attention.inputs.alignment import shift_of
from roundscope.attention.places import in_traces
from roundscope.attention.sites import BACKWARD, Axes
from roundscope.attention.trace.parts import site_of
from roundscope.emu.stats.summary import Stats
from roundscope.events.plan import base_name, check_factors
from roundscope.tools.compile_cache import keep_compilations
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.focus import (
    Distinct,
    Focus,
    by_argument,
    existing,
    focus,
    merged,
    of_heads,
    ones_of,
)
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.served import options, settled, visible

FOCUS = (Site.P, Site.PV, Site.O, Site.OUT)
INPUTS = (Site.Q, Site.K, Site.V, Site.DO)
RESULTS = ("out", "lse", "delta", "dq", "dk", "dv")
CHUNK_BYTES = 128 << 20  # size of the events that are held at once
HEAD_BYTES = 2 << 30  # size of one head's events beyond which P is not kept
LARGE = 2 << 30  # bytes that a trace takes beyond which it says so
SLOWER = (
    "--engine xla compiles before it runs; for one trace on a CPU, --engine numpy (the default)"
    " gives the same bits two to three times as fast"
)
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was observed of one layer.

    results    out, lse, delta, dq, dk, dv under the plan; None for gradients of a layer without do
    reference  the same under the plan that it is compared with
    beside     the same under the plan that stands beside; None if there is none, or if it is the
               plan itself
    cast       the reference on inputs that are cast as the plan casts them; None where that changes
               no input, or where the reference is not exact
    budget     which event makes how much of the errors against exact attention; None if not asked
    not_finite  the numbers of the results that are infinite or NaN, where they begin and what
               avoids them; None if all are finite
    trace      statistics and row sums of every site; events of the sites asked for
    focus      reduced errors of P, PV, O and OUT, where they occur
    ones       (B, N, tiles, T): the number of P equal to 1 in each row and key tile; None if P was
               too large to keep
    exists     whether a row has events in a key tile, (tiles, T), or (B or 1, N or 1, tiles, T)
    held       (before, after) of the sites of FOCUS, if all heads fitted into memory at once
    """

    layer: Layer
    request: Request
    scale: float
    results: dict[str, Any]
    reference: dict[str, Any]
    beside: dict[str, Any] | None
    cast: dict[str, Any] | None
    budget: ErrorBudget | None
    not_finite: NotFinite | None
    trace: Trace
    focus: dict[str, Focus]
    ones: np.ndarray | None
    exists: np.ndarray
    held: dict[str, tuple[np.ndarray, np.ndarray]]


def observe(layer: Layer, request: Request, progress: Progress = lambda _: None) -> Observed:
    """Run forward and, with do, backward of a layer; the bits are those of one call of `examine`.

    The layer's mask, bias, window, softcap and sinks take part, and its causality if the request
    has none. progress: called with a text that says what runs now.
    """
    request = settled(request, layer)
    scale = request.scale if request.scale is not None else layer.scale
    scale = layer.q.shape[3] ** -0.5 if scale is None else scale
    held: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    parts = []
    for heads, seen in _chunks(layer, request, scale, progress):
        held = seen.trace.events if heads == layer.k.shape[2] else {}
        parts.append(_reduced(request, seen))
    trace = _joined([p[0].trace for p in parts], 1)
    progress(f"{layer.name}: {request.against.name}")
    reference = _under(request.against, layer, request, scale)
    results = {n: _joined([getattr(p[0], n) for p in parts], 2) for n in RESULTS}
    keys, queries, plan = layer.k.shape[1], layer.q.shape[1], request.beside
    block_q, block_k = blocks(layer, request)
    beside = budget = None
    if plan is not None and (plan != replace(request.plan, name=plan.name) or request.inject):
        progress(f"{layer.name}: {plan.name}")
        beside = _under(plan, layer, request, scale)
    cast = _cast(layer, request, scale, trace, progress)
    if request.budget:
        budget = error_budget(
            layer.q,
            layer.k,
            layer.v,
            layer.do,
            plan=request.plan,
            inject=request.inject,
            heads=request.budget_heads,
            progress=lambda part: progress(f"{layer.name}: error budget, {part}"),
            **_call(layer, request, scale),
        )
    return Observed(
        layer=layer,
        request=request,
        scale=scale,
        results=results,
        reference=reference,
        beside=beside,
        cast=cast,
        budget=budget,
        not_finite=lost_numbers(layer, request, scale, results, reference, progress),
        trace=trace,
        ones=_joined([p[2] for p in parts], 1),
        focus={name: of_heads([p[1][name] for p in parts]) for name in parts[0][1]},
        exists=existing(
            queries,
            keys,
            block_q,
            block_k,
            bool(request.causal),
            visible(layer, request),
            shift_of(request.alignment, queries, keys),
        ),
        held=held,
    )


def check_engine(layer: Layer, request: Request) -> None:
    """Raise UsageError if the fused kernels do not run here, or do not run this request."""
    if request.engine != "pallas":
        return
    import jax

    if jax.default_backend() != "gpu":
        repair = "needs a GPU, and JAX sees none; give --engine xla, which gives the same bits"
        raise bad("--engine", "pallas", repair)
    request = settled(request, layer)
    q, k, v = (jax.ShapeDtypeStruct(x.shape, np.float32) for x in (layer.q, layer.k, layer.v))
    more: dict[str, Any] = options(layer) | {
        "block_q": request.block_q,
        "block_k": request.block_k,
        "is_causal": request.causal,
        "alignment": request.alignment,
    }
    check_factors(request.plan)

    def fused(*x: Any) -> Any:
        return attend(*x, plan=request.plan, inject=request.inject, engine="pallas", **more)

    try:
        jax.eval_shape(fused, q, k, v)
    except (ValueError, NotImplementedError) as error:
        reason = error.spelled("--engine xla") if isinstance(error, NotFused) else error
        raise UsageError(f"--engine pallas, {layer.name}: {reason}") from None


def slower(request: Request) -> str | None:
    """Return what to say of a request for the XLA engine on a CPU; None if there is nothing."""
    if request.engine != "xla":
        return None
    import jax

    return SLOWER if jax.default_backend() == "cpu" else None


def memory_note(layers: list[Layer], request: Request) -> str | None:
    """Return what to say of the memory that the largest layer takes; None if it is little."""
    largest = max(layers, key=lambda layer: bytes_needed(layer, request))
    needed = bytes_needed(largest, request)
    if needed < LARGE:
        return None
    return (
        f"{largest.name} needs about {needed / 1e9:.1f} GB of memory, by its"
        f" {largest.q.shape[1]} queries and {largest.k.shape[1]} keys; half of both need a quarter"
    )


def blocks(layer: Layer, request: Request) -> tuple[int, int]:
    """Return the tile's (queries, keys): at most the layer's, all keys if P is normalized first."""
    keys = layer.k.shape[1]
    block_k = keys if request.plan.normalise_first else min(request.block_k, keys)
    return min(request.block_q, layer.q.shape[1]), block_k


def shared_arguments(seen: Observed, sites: list[str]) -> dict[str, Distinct]:
    """Return, by site, the distinct arguments of all heads and the summed signed ulps of each.

    This is `tools.trace.focus.by_argument`. Sites whose events are not held are run again.
    """
    plan, layer = seen.request.plan, seen.layer

    def count(events: Mapping[str, Any], s: str) -> Distinct:
        before, after = events[s]
        return by_argument(before, after, plan[site_of(s)].format, by_error=s == Site.LSE)

    parts = {s: [count(seen.held, s)] if s in seen.held else [] for s in sites}
    again = [s for s in sites if not parts[s]]
    # the events of large heads are held for one site at a time
    large = _bytes_of_a_head(layer, seen.request) > HEAD_BYTES
    for some in [[s] for s in again] if large else [again] if again else []:
        forward = all(site_of(s) not in BACKWARD for s in some)
        inject = tuple(i for i in seen.request.inject if not (forward and i.site in BACKWARD))
        asked = replace(
            seen.request, record=Record(events=tuple(site_of(s) for s in some)), inject=inject
        )
        needed = replace(layer, do=None) if forward else layer
        for _, part in _chunks(needed, asked, seen.scale, lambda _: None, focused=False):
            for s in some:
                parts[s].append(count(part.trace.events, s))
    return {s: merged(p) for s, p in parts.items()}


def _chunks(
    layer: Layer, request: Request, scale: float, progress: Progress, *, focused: bool = True
) -> Iterator[tuple[int, Examined]]:
    """Yield (number of key heads, `examine` of them), as many at a time as memory allows.

    All heads are taken at once where the request depends on their numbers. focused: whether to
    record the sites of FOCUS too, and the errors away from zero.
    """
    n, g, per_head = layer.q.shape[2], layer.k.shape[2], _bytes_of_a_head(layer, request)
    fitting = [x for x in FOCUS if x is not Site.P or per_head <= HEAD_BYTES] if focused else []
    sites = [x for x in fitting if in_traces(request.plan, x)]
    events = tuple(dict.fromkeys((*request.record.events, *sites)))
    record = replace(request.record, events=events, away=focused)
    groups = g
    if not request.depends_on_head_number:
        groups = max(1, min(g, CHUNK_BYTES * g // (per_head * n)))
    for lo in range(0, g, groups):
        hi = min(lo + groups, g)
        first, end = lo * n // g, hi * n // g
        which = f", heads {first} to {end - 1} of {n}" if groups < g else ""
        progress(f"{layer.name}: {request.plan.name}{which}")
        q, do = (None if x is None else x[:, :, first:end] for x in (layer.q, layer.do))
        k, v = layer.k[:, :, lo:hi], layer.v[:, :, lo:hi]
        own = options(layer, first, end) | {"record": record, "inject": request.inject}
        yield hi - lo, call(q, k, v, do, request, request.plan, scale, **own)


def _bytes_of_a_head(layer: Layer, request: Request) -> int:
    """Return the size of the events of one query head that a trace holds at once.

    Before and after, 8 bytes each, which the engine holds twice while it puts tiles together.
    """
    (b, t, _, _), (_, s, _, hv) = layer.q.shape, layer.v.shape
    return int(b * (t * s * 32 + 2 * -(-s // request.block_k) * t * hv * 16))


def bytes_needed(layer: Layer, request: Request) -> int:
    """Return about what memory a layer's trace takes, fitted to a head of 64 features."""
    head = _bytes_of_a_head(layer, request)
    return max(head, CHUNK_BYTES) * 3 // 2 + 20 * (layer.q.nbytes + layer.k.nbytes)


def call(
    q: Any,
    k: Any,
    v: Any,
    do: Any,
    request: Request,
    plan: Plan,
    scale: float,
    *,
    record: Record | None = None,
    inject: tuple[Injection, ...] = (),
    **own: Any,
) -> Examined:
    """Call `examine` with a plan on the engine, and with the tiles, of the request.

    record: the events to keep; inject: the injections; own: the layer's mask, bias and sinks
    (`served.options`), whose window and softcap are those of the plan.
    """
    if request.engine != "numpy":
        keep_compilations()
        import jax.numpy as jnp

        q, k, v, do = (None if x is None else jnp.asarray(x) for x in (q, k, v, do))
    more: dict[str, Any] = {"record": record, "engine": request.engine}
    return examine(
        q,
        k,
        v,
        do,
        plan=plan,
        block_q=request.block_q,
        block_k=request.block_k,
        scale=scale,
        is_causal=bool(request.causal),
        alignment=request.alignment,
        inject=inject,
        **more,
        **own,
    )


def _under(plan: Plan, layer: Layer, request: Request, scale: float) -> dict[str, Any]:
    """Return a layer's results under another plan, without injections; of `exact` unrounded."""
    q, k, v, do = layer.q, layer.k, layer.v, layer.do
    engine = "xla" if request.engine == "pallas" else request.engine  # kernels may lack this plan
    if base_name(plan.name) == "exact":
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        do, engine = None if do is None else do.astype(np.float64), "numpy"
    asked = replace(request, engine=engine)
    results = call(q, k, v, do, asked, plan, scale, **options(layer))
    return {name: getattr(results, name) for name in RESULTS}


def _cast(
    layer: Layer, request: Request, scale: float, trace: Trace, progress: Progress
) -> dict[str, Any] | None:
    """Return the exact results of the inputs that the plan casts, if it changes some."""
    changed = [s for s in INPUTS if s in trace.stats and int(trace.stats[s].inexact.sum())]
    if not changed or request.against.name != "exact":
        return None
    progress(f"{layer.name}: exact, of the cast inputs")
    plan = request.against.rounded({s: request.plan.event(s) for s in changed})
    return _under(plan, layer, request, scale)


def lost_numbers(
    layer: Layer,
    request: Request,
    scale: float,
    own: dict[str, Any],
    want: dict[str, Any],
    progress: Progress,
) -> NotFinite | None:
    """Return the numbers of a layer's results that are infinite or NaN; None if there are none.

    own, want: the results under the plan of the request, and under that which it is compared with.
    """
    progress(f"{layer.name}: numbers that are not finite")
    return not_finite(
        layer.q,
        layer.k,
        layer.v,
        layer.do,
        plan=request.plan,
        inject=request.inject,
        against=request.against,
        own={name: x for name, x in own.items() if x is not None},
        want={name: x for name, x in want.items() if x is not None},
        **_call(layer, request, scale),
    )


def _call(layer: Layer, request: Request, scale: float) -> dict[str, Any]:
    """Return the arguments of a call beside its arrays, plan and injections."""
    return {
        "block_q": request.block_q,
        "block_k": request.block_k,
        "scale": scale,
        "is_causal": bool(request.causal),
        "alignment": request.alignment,
        **options(layer),
    }


def _reduced(
    request: Request, seen: Examined
) -> tuple[Examined, dict[str, Focus], np.ndarray | None]:
    """Return (call, reduced errors by site, counts of P = 1 or None) of some heads."""
    events, plan = seen.trace.events, request.plan
    kept = {str(s): events[str(s)] for s in request.record.events if str(s) in events}
    focused = {}
    for site in (s for s in FOCUS if str(s) in events):
        before, after = events[str(site)]
        how: Any = {"f": plan[site].format, "per_feature": site.axes is Axes.TH}
        heads = (slice(h, h + 1) for h in range(before.shape[1]))  # whose numbers fit into a cache
        focused[str(site)] = of_heads([focus(before[:, h], after[:, h], **how) for h in heads])
    keys = events["P"][1].shape[3] if "P" in events else 1
    block_k = keys if plan.normalise_first else min(request.block_k, keys)
    ones = ones_of(events["P"][1], block_k) if "P" in events else None
    trace = replace(seen.trace, events=kept, exists={})
    arrays: dict[str, Any] = {
        n: None if getattr(seen, n) is None else np.asarray(getattr(seen, n)) for n in RESULTS
    }
    return Examined(**arrays, trace=trace), focused, ones


def _joined(parts: list[Any], axis: int) -> Any:
    """Return the arrays of different heads as one, also those in records and mappings."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _joined([p[name] for p in parts], axis) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(p), axis) for p in zip(*parts, strict=True))
    if isinstance(first, Trace | Stats):
        names = (f.name for f in fields(first))
        return type(first)(**{n: _joined([getattr(p, n) for p in parts], axis) for n in names})
    if first is None:
        return None
    return np.asarray(first) if len(parts) == 1 else np.concatenate(parts, axis=axis)
