"""`attend` and `examine`: emulated attention as a user calls it.

Layout and signature follow `jax.nn.dot_product_attention`: q (B, T, N, H), k and v (B, S, G, H), N
a multiple of G.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roundscope.attention.arguments import (
    block_given,
    causal_given,
    check_forward_record,
    check_held_values,
    check_like_output,
    check_shapes,
    engine_given,
    injections_given,
    is_of_jax,
    is_traced,
    mask_given,
    plan_given,
    plans_given,
    record_given,
    scale_given,
    served_given,
)
from roundscope.attention.events.recorder import Record
from roundscope.attention.injection import FlipBit, Injection
from roundscope.attention.places import (
    Sizes,
    check_forward,
    check_injection,
    check_place,
    check_record,
)
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.plans.plan import Plan, check_factors
from roundscope.attention.sites import Site
from roundscope.attention.tiles.blocks import check_blocks
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.summary import Part, Trace, trace_of

if TYPE_CHECKING:
    from roundscope.attention.plans.traced import HeadPlans

Engine = Literal["numpy", "xla", "pallas"]
ENGINES = {
    "numpy": "roundscope.attention.engines.numpy",
    "xla": "roundscope.attention.engines.xla",
    "pallas": "roundscope.attention.engines.kernels.engine",
}
_SUMMARIES = Record()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What `examine` returns: results (B, T, N, H), lse and delta (B, T, N), dsinks (N,), gradients
    None without do.
    """

    out: Any
    lse: Any
    dq: Any
    dk: Any
    dv: Any
    delta: Any
    trace: Trace
    dsinks: Any = None


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    plan: "Plan | str | HeadPlans",
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    mask: Any = None,
    inject: Injection | str | Sequence[Injection | str] = (),
    record: Record | None = None,
    engine: Engine | None = None,
    delta_error: Any = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> Any:
    """Attention by the plan: softmax(scale Q K^T) V, tile by tile, every rounding event as the plan
    says.

    q          (B, T, N, H), k (B, S, G, H), v (B, S, G, Hv): float arrays; NumPy or JAX. Narrower
               types than float32 enter exactly.
    plan       a `Plan`, or the name of a preset; under JAX also
               `attention.plans.traced.head_plans(plans)`, a plan per head as data
    block_q, block_k   tile sizes; sizes that they do not divide are padded with entries that no
                       event counts
    scale      of the scores, 1 / sqrt(H) by default; rounded to binary32, a given one too, unless
               SCALED is wider
    is_causal  True or False: query t sees keys s <= t (as in jax.nn: both counted from the start;
               FlashAttention from 2.1 on counts from the end, which differs where T != S: pass such
               a mask)
    mask       boolean, broadcastable to (B, N, T, S); True where a query sees a key. A row without
               keys gives 0. Under xla it may be an argument of a jitted function, and gives the
               same bits
    inject     an injection or its text (docs/grammar.md), or several; each touches what it names
               and what depends on it, and must name what the call has
    record     if given, returns (out, Trace); a trace never changes an output bit. pallas keeps no
               steps, and no events of a sample
    engine     "numpy", "xla" or "pallas"; by default xla for JAX arrays. All give the same bits,
               unless the plan has a native accumulator. "pallas" runs forward and backward in fused
               kernels, on a GPU, for plans that fit (`attention.engines.kernels.fit.check`);
               elsewhere it is interpreted, slowly
    delta_error   under xla without a record, an error as data (`inject` is part of the program): e
               (B, T, N, H), added in binary64 to the output where delta reads it, before OD rounds.
               With OD in binary64 delta moves by rowsum(dO e), dQ by -scale rowsum(dO e) P K, and
               the output not at all. The derivative by e is 0
    window     how many keys a query sees, its own included: t - window < s <= t of a causal call,
               |t - s| < window of any other
    softcap    c > 0: scores are c tanh(scale Q K^T / c), by the events SS, CAP, TANH and SCALED,
               and SS_B to DTANH and DSC of the backward. window and softcap take the place of the
               plan's own
    sinks      (N,): a logit for each head that takes part in the softmax of every row, with a value
               of 0; a row without keys then gives 0 and L = sink. As the plan's `sinks` says, by
               SINK, or SINK, SX, SE and SL. Not fused, as window and softcap

    Returns (B, T, N, H), float64 for float64 input, else float32. Differentiable under JAX with
    respect to q, k, v and sinks: the backward is the emulated one. Under `jax.vmap` all mapped
    entries draw the same random bits; entries of the batch axis draw their own. Raises TypeError or
    ValueError naming the argument, its value and the repair.
    """
    heads = _head_plans(plan)
    check_shapes(q, k, v)
    like = served_given(
        plan_given(plan) if heads is None else _of_heads(heads, q, k, v, record, engine),
        window,
        softcap,
        sinks,
        q.shape[2],
    )
    setup, engine = _setup(
        q, k, v, like, block_q, block_k, scale, is_causal, mask, inject, record, engine
    )
    if heads is not None:
        setup, engine = replace(setup, scale=setup.whole_scale), "xla"
    else:
        check_factors(setup.plan)
        check_held_values(setup.inject, setup.plan)
    check_forward_record(setup.record)
    if delta_error is not None:
        _check_delta_error(delta_error, setup, engine, q, v)
    if record is None and engine != "numpy":
        from roundscope.attention.differentiable import attend_jax

        return attend_jax(_engine(engine), setup, heads, q, k, v, mask, delta_error, sinks)
    examined = _examine(setup, engine, q, k, v, None, mask, sinks)
    return examined.out if record is None else (examined.out, examined.trace)


def examine(
    q: Any,
    k: Any,
    v: Any,
    do: Any = None,
    *,
    plan: Plan | str | Sequence[Plan | str],
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    mask: Any = None,
    inject: Injection | str | Sequence[Injection | str] = (),
    record: Record = _SUMMARIES,
    engine: Engine | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> Examined:
    """Forward, and backward if `do` (B, T, N, H) is given, with the trace of every site.

    Arguments as `attend`.

    dsinks is the sum of DSINK over rows and the batch, in binary64 by halves, rounded once to the
    type of the result.

    plan  may be a sequence, one plan per batch entry: each entry is then computed as if it were
          called alone. Under xla the plans are data of one executable: of events they may differ in
          formats, seeds and modes, but for stochastic ones, of sums in the format and seed of their
          steps (`attention.plans.traced.structure`). No injection may flip a bit then.
    """
    check_shapes(q, k, v)
    plans, many = plans_given(plan), not isinstance(plan, (Plan, str))
    plans = [served_given(p, window, softcap, sinks, q.shape[2]) for p in plans]
    batch = 1 if many else None  # with a plan of its own, a batch entry is a call of its own
    setups = [
        _setup(
            q,
            k,
            v,
            p,
            block_q,
            block_k,
            scale,
            is_causal,
            mask,
            inject,
            record,
            engine,
            batch=batch,
        )
        for p in plans
    ]
    for p in plans:
        check_factors(p)
        check_held_values(setups[0][0].inject, p)
    setup, engine = setups[0]
    if do is None:
        check_forward_record(setup.record)
    if many:
        _check_many(q, plans, setup.inject, engine)
    if do is not None:
        check_like_output("do", do, (*q.shape[:3], v.shape[3]))
    return _examine(
        tuple(s for s, _ in setups) if many else setup, engine, q, k, v, do, mask, sinks
    )


def _head_plans(plan: Any) -> "HeadPlans | None":
    """The argument if it is `attention.plans.traced.HeadPlans`: who has made any has imported
    them.
    """
    module = sys.modules.get("roundscope.attention.plans.traced")
    return plan if module is not None and isinstance(plan, module.HeadPlans) else None


def _of_heads(
    plans: "HeadPlans", q: Any, k: Any, v: Any, record: Record | None, engine: Engine | None
) -> Plan:
    """What is static of a plan per head."""
    check_shapes(q, k, v)
    if plans.table.shape[0] != q.shape[2]:
        raise ValueError(
            f"plan: {plans.table.shape[0]} plans, must be one for each of the {q.shape[2]} heads"
            " of q"
        )
    if record is not None or engine in ("numpy", "pallas"):
        raise ValueError(
            "plan: a plan per head runs under xla without a record; use examine with a single plan"
            " to trace"
        )
    return plans.like


def setup_of_heads(
    q: Any, k: Any, v: Any, plans: "HeadPlans", block_q: int, block_k: int, is_causal: bool
) -> Setup:
    """What is fixed of a call by a plan per head."""
    like = served_given(_of_heads(plans, q, k, v, None, None), None, None, None, q.shape[2])
    setup, _ = _setup(q, k, v, like, block_q, block_k, None, is_causal, None, (), None, "xla")
    return replace(setup, scale=setup.whole_scale)


def _check_many(q: Any, plans: Sequence[Plan], inject: Sequence[Injection], engine: Engine) -> None:
    if engine == "pallas":
        raise ValueError(
            "plan: the fused kernel takes one plan; use engine='xla', or a call for each"
        )
    if len(plans) != q.shape[0]:
        raise ValueError(
            f"plan: {len(plans)} plans, must be one for each of the {q.shape[0]} batch entries of q"
        )
    for n, p in enumerate(plans):
        if (p.pv_into_o, p.normalise_first) != (plans[0].pv_into_o, plans[0].normalise_first):
            raise ValueError(
                f"plan: entries 0 and {n} have different events (pv_into_o, normalise_first); call"
                " them separately"
            )
    if engine == "xla" and any(isinstance(i.what, FlipBit) for i in inject):
        raise ValueError("inject: FlipBit needs one format; give a single plan, or engine='numpy'")


def _setup(
    q: Any,
    k: Any,
    v: Any,
    plan: Any,
    block_q: int,
    block_k: int,
    scale: float | None,
    is_causal: bool,
    mask: Any,
    inject: Any,
    record: Record | None,
    engine: Engine | None,
    *,
    batch: int | None = None,
) -> tuple[Setup, Engine]:
    """What is fixed of a call, checked; batch: entries that are numbered together, if not all."""
    check_shapes(q, k, v)
    plan = plan_given(plan)
    block_q, block_k = block_given("block_q", block_q), block_given("block_k", block_k)
    if plan.fused_without_mask and mask is None and not is_causal and not plan.window:
        plan = replace(plan, fused_exponent=True)
    if plan.normalise_first:
        block_k = max(block_k, k.shape[1])  # softmax before P V needs the whole row
    inject, record = injections_given(inject), record_given(record)
    scale, whole_scale = scale_given(
        scale, q.shape[3], is_wide=plan[Site.SCALED].format.precision > 24
    )
    setup = Setup(
        plan=plan,
        queries=q.shape[1],
        keys=k.shape[1],
        block_q=min(block_q, q.shape[1]),
        block_k=min(block_k, k.shape[1]),
        heads=q.shape[2],
        key_heads=k.shape[2],
        scale=scale,
        whole_scale=whole_scale,
        is_causal=causal_given(is_causal),
        inject=inject,
        record=record,
    )
    engine_given(engine)
    check_blocks(setup)
    _check_asked(setup, batch or q.shape[0], (q.shape[3], v.shape[3]))
    return setup, _engine_of(setup, q, k, v, mask, engine)


def _check_asked(setup: Setup, batch: int, features: tuple[int, int]) -> None:
    """Raises ValueError for injections and records of what the call does not have, and for a scale
    without a root where that is needed.
    """
    if setup.plan.scale_roots and setup.whole_scale < 0.0:
        raise ValueError(
            f"scale={setup.whole_scale:g}: {setup.plan.name} multiplies q and k with its root; give"
            " a positive scale"
        )
    sizes = Sizes(
        batch,
        setup.queries,
        setup.keys,
        setup.heads,
        setup.key_heads,
        *features,
        setup.block_q,
        setup.block_k,
    )
    for injection in setup.inject:
        check_injection(injection, setup.plan)
        try:
            check_place(injection, sizes)
        except ValueError as error:
            raise ValueError(f"inject {error}") from None
    if setup.record is not None:
        check_record(setup.record, setup.plan)


def _engine_of(setup: Setup, q: Any, k: Any, v: Any, mask: Any, engine: Engine | None) -> Engine:
    """The engine asked for, or that of the arrays. Raises ValueError for what it does not run."""
    arrays = {"q": q, "k": k, "v": v, "mask": mask}
    traced = [name for name, x in arrays.items() if is_traced(x)]
    if setup.record is not None and traced:
        raise ValueError(
            "record: inside jit, grad or vmap there are no numbers to look at; call examine"
            " outside, or give record=None"
        )
    if engine == "numpy" and traced:
        raise ValueError(
            f"{traced[0]}: has no numbers inside jit, grad or vmap, which engine='numpy' needs; use"
            " engine='xla'"
        )
    if engine == "pallas":
        from roundscope.attention.engines.kernels.fit import check

        check(setup, (q.shape[3], v.shape[3]), mask, bool(traced))
    return engine or ("xla" if traced or any(map(is_of_jax, (q, k, v))) else "numpy")


def _engine(name: Engine) -> Any:
    """The module that runs heads."""
    return importlib.import_module(ENGINES[name])


def _check_delta_error(error: Any, setup: Setup, engine: Engine, q: Any, v: Any) -> None:
    if engine != "xla" or setup.record is not None:
        raise ValueError(
            "delta_error: an error as data needs engine='xla' without a record; to trace one,"
            " inject at OD"
        )
    if setup.plan.delta_from not in (DeltaFrom.OUT, DeltaFrom.WIDE_O):
        raise ValueError(
            f"delta_error: delta_from={setup.plan.delta_from} reads no output; use delta_from=OUT"
            " or O"
        )
    check_like_output("delta_error", error, (*q.shape[:3], v.shape[3]))


def _examine(
    setups: Setup | tuple[Setup, ...],
    engine: Engine,
    q: Any,
    k: Any,
    v: Any,
    do: Any,
    mask: Any,
    sinks: Any,
) -> Examined:
    run = _engine(engine)
    setup, each = run.prepare(setups)
    if do is None:
        check_forward(setup.inject)
    dtype = result_type(q, k, v)
    b, (n, g) = q.shape[0], (q.shape[2], k.shape[2])
    inputs = {Site.Q: q, Site.K: k, Site.V: v} | ({} if do is None else {Site.DO: do})
    rounded, parts = {}, []

    def part(heads: int, whole: Any, tiles: Any = None, backward: bool = False) -> Part:
        return Part(
            (b, heads),
            heads if isinstance(setups, tuple) else b * heads,
            whole or {},
            tiles or {},
            backward,
        )

    for site, x in inputs.items():
        heads = run.enter(x, setup.block_k if site in (Site.K, Site.V) else setup.block_q)
        rounded[site], seen = run.round_inputs(setup, site, heads, each)
        parts.append(part(x.shape[2], seen))
    heads_mask = mask_to_heads(setup, mask, b, n)
    qkv = rounded[Site.Q], rounded[Site.K], rounded[Site.V]
    more = () if sinks is None else (run.enter_sinks(sinks, b),)
    (out, wide, lse), seen = run.forward(setup, *qkv, heads_mask, each, *more)
    parts.append(part(n, seen["whole"], seen["tiles"]))
    gradients: tuple[Any, ...] = (None, None, None, None)
    dsinks = None
    if do is not None:
        keys = qkv[1]
        if setup.plan.scaled_keys:
            keys, seen = run.round_inputs(setup, Site.KC, keys, each)
            parts.append(part(g, seen))
        (dq, dk, dv, delta), seen = run.backward(
            setup, qkv[0], keys, qkv[2], heads_mask, out, wide, lse, rounded[Site.DO], each, *more
        )
        parts += [part(n, seen["whole"], seen["tiles"], backward=True), part(g, seen["keys"])]
        if more:
            dsinks, seen = run.sink_gradients(setup, *more, lse, delta, each)
            dsinks = run.leave_sinks(dsinks, b, dtype)
            parts.append(part(n, seen, backward=True))
        sizes = setup.queries, setup.keys, setup.keys, setup.queries
        gradients = tuple(
            run.leave(x, b, size, dtype) for x, size in zip((dq, dk, dv, delta), sizes, strict=True)
        )
    trace = trace_of(setup, parts, (k.shape[3], v.shape[3]))
    out, lse = (run.leave(x, b, setup.queries, dtype) for x in (out, lse))
    dq, dk, dv, delta = gradients
    return Examined(out=out, lse=lse, dq=dq, dk=dk, dv=dv, delta=delta, trace=trace, dsinks=dsinks)


def result_type(q: Any, k: Any, v: Any) -> Any:
    """float64 if any input is, else float32."""
    return np.float64 if any(x.dtype == np.float64 for x in (q, k, v)) else np.float32


def mask_to_heads(setup: Setup, mask: Any, batch: int, heads: int) -> Any:
    """A mask broadcastable to (B, N, T, S) -> (B N, T, S), padded to whole tiles with False: NumPy,
    or JAX where it is traced.
    """
    if mask is None:
        return None
    mask = mask_given(mask)
    xp = mask.__array_namespace__()
    shape = (batch, heads, setup.queries, setup.keys)
    try:
        full = xp.broadcast_to(mask, shape).reshape(-1, *shape[2:])
    except ValueError:
        raise ValueError(
            f"mask: shape {mask.shape}, must broadcast to (batch, heads, queries, keys) = {shape}"
        ) from None
    rows, keys = setup.query_tiles * setup.block_q, setup.key_tiles * setup.block_k
    return xp.pad(full, ((0, 0), (0, rows - setup.queries), (0, keys - setup.keys)))
