"""`attend` and `examine`: emulated attention as a user calls it.

Layout and signature follow `jax.nn.dot_product_attention`: q (B, T, N, H), k and v (B, S, G, H), N
a multiple of G.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roundscope.attention.alignment import (
    Alignment,
    alignment_given,
    note_on,
    shift_of,
)
from roundscope.attention.arguments import (
    block_given,
    causal_given,
    check_forward_record,
    check_held_values,
    check_like_output,
    check_numbers,
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
from roundscope.attention.engines.layout import SIXTEEN_BITS
from roundscope.attention.events.recorder import Record
from roundscope.attention.injection import FlipBit, Injection
from roundscope.attention.places import (
    Sizes,
    check_forward,
    check_injection,
    check_place,
    check_record,
)
from roundscope.attention.plans.checks import check_factors
from roundscope.attention.plans.choices import DeltaFrom, Log2E
from roundscope.attention.plans.half import note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.tiles.blocks import check_blocks
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.summary import Part, Trace, trace_of
from roundscope.emu.arrays import Array, Result

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
    """What `examine` returns: the results of attention, and the trace of its rounding events.

    Results are float64 if an input is float64, else float32, also for inputs of a 16-bit type. This
    type holds every result exactly as its last event rounded it.

    Attributes:
        out: The output O, (B, T, N, Hv).
        lse: The logarithm of the row sums, (B, T, N): L = m + ln l, and m + log2 l in base 2 under
            a plan with `lse_base2`, as kernels that Triton compiles keep it ("flex",
            "triton-tutorial", "pallas-mha"; divide by log2 e to compare). The exponents of such a
            plan are in base 2 as well, so m is log2 e times the largest score.
        dq: The gradient of q, (B, T, N, H). Like dk, dv and delta, it is None without `do`.
        dk: The gradient of k, (B, S, G, H).
        dv: The gradient of v, (B, S, G, Hv).
        delta: rowsum(dO O), or what the plan computes instead (`DeltaFrom`), (B, T, N).
        trace: Counts, errors and biases of every event that the record asks for.
        dsinks: The gradient of sinks, (N,). It is the sum of the event DSINK over rows and the
            batch, added pairwise in binary64 and rounded once to the type of the result. None
            without sinks or without `do`.
        notes: What is to be said of the call before its numbers: that it is causal or windowed with
            other numbers of queries and of keys, and that no `alignment` was given; that q, k and v
            are FP16, and that the plan rounds them to BF16, or the other way round.
    """

    out: Result
    lse: Result
    dq: Result
    dk: Result
    dv: Result
    delta: Result
    trace: Trace
    dsinks: Result = None
    notes: tuple[str, ...] = ()


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    plan: Plan | str | HeadPlans,
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    mask: Array | None = None,
    inject: Injection | str | Sequence[Injection | str] = (),
    engine: Engine | None = None,
    delta_error: Array | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alignment: Alignment | None = None,
) -> Result:
    """Return softmax(scale Q K^T) V, tile by tile, with every rounding that the plan names.

    All engines return the same bits, unless the plan has a native accumulator, which adds in the
    order that the device chooses. Under JAX the call is differentiable with respect to q, k, v and
    sinks, and its derivative is the emulated backward. To see the rounding events as well, call
    `examine`.

    Args:
        q: Queries (B, T, N, H), with batch entries, queries, heads and features: a NumPy or JAX
            array of floats. Types narrower than float32 are converted exactly.
        k: Keys (B, S, G, H), where G divides N: heads of q share heads of k in groups, in order.
        v: Values (B, S, G, Hv).
        plan: A `Plan`, or the name of a preset, such as "fa2-bf16". Under JAX it can also be
            `roundscope.head_plans([...])`, which has one plan for each head as data. "pallas" is
            compiled for these plans and runs heads with equal plans together; there they may not
            be an argument of a jitted function.
        block_q: Query rows of a tile. If a tile size does not divide the number of tokens, the last
            tile is padded with entries that no event counts.
        block_k: Keys of a tile.
        scale: The factor of the scores, 1 / sqrt(H) by default. It is rounded to binary32, even if
            it is given, unless the plan's event SCALED has a wider format. Plans that keep the
            maximum of unscaled scores (log2_e=maximum, as in FlashAttention-2) take a negative
            scale in calls without masked scores only, in key tiles that divide S.
        is_causal: Whether query t sees only keys s <= t. Both are counted from the start unless
            `alignment` says otherwise.
        mask: Booleans that broadcast to (B, N, T, S), True where a query sees a key. A row that
            sees no key gives 0. Under engine "xla" and "numpy" it may be an argument of a
            jitted function.
        inject: An `Injection`, its text (docs/reference/grammar.md), such as "O:ulps=0.5", or
            several of them. Each causes its error at the events that it selects.
        engine: "numpy", "xla" or "pallas"; by default "numpy" for NumPy arrays. For JAX arrays the
            default is "xla", or on a CPU, where this is faster, NumPy's engine, which the JAX
            program calls (`attention.engines.host.is_faster`). Injections, random bits, formats in
            blocks and small calls are left to XLA, and all calls where JAX has several devices.
            Inside jit, "numpy" needs a CPU, and a program with it cannot be exported. "pallas" runs
            fused kernels on a GPU, for plans that `attention.engines.kernels.fit.check` accepts;
            elsewhere it is interpreted, slowly.
        delta_error: An error e (B, T, N, Hv), under engine "xla" only. Unlike `inject`, which is
            part of the compiled program, it is data. It is added in binary64 to the output that
            delta reads, before the event OD rounds it. With OD in binary64, delta changes by
            rowsum(dO e), dQ changes by -scale rowsum(dO e) P K, and the output does not change. Its
            derivative is 0.
        window: How many keys a query sees, its own included: query t sees keys t - window < s <= t
            of a causal call, and `|t - s|` < window of any other. It replaces the plan's window;
            None keeps it.
        softcap: A bound c > 0 of the scores, which become c tanh(scale Q K^T / c), by the events
            SS, CAP, TANH and SCALED, and SS_B to DTANH and DSC in the backward. It replaces the
            plan's softcap; None keeps it. A plan that does not compute attention with one refuses
            it, and the message names the field.
        sinks: One logit for each head, (N,), which takes part in the softmax of every row like the
            score of a key whose value is 0. A row that sees no key then has L = sink, and output 0
            if V is finite. The plan's field `sinks` chooses the events of the sink. A plan that
            does not compute attention with sinks refuses them. "pallas" runs neither sinks nor
            `window` nor `softcap`.
        alignment: Where the queries of a causal or windowed call stand if T is not S. "top-left"
            counts queries and keys from the first, as `jax.nn.dot_product_attention` and PyTorch's
            `scaled_dot_product_attention` do. "bottom-right" counts both from the last, so that
            query t sees keys s <= t + S - T, and the window moves along; FlashAttention does since
            version 2.1, and decoding needs it. Rows that see no key, of which there are some if
            T > S, give 0. None (default) is "top-left" too, and `examine`, `error_budget` and the
            commands note then that nothing says how such a call is aligned. "pallas" runs
            "bottom-right" only where T is S.

    Returns:
        The output (B, T, N, Hv), a JAX array for the engines "xla" and "pallas", else a NumPy
        array. It is float64 if an input is float64, else float32, with one exception. It is
        bfloat16 or float16 if q, k and v have this type, the type holds every number of the plan's
        event OUT, and nothing is injected there. The type always holds the result exactly. To get
        float32 from 16-bit tensors, pass q.astype("float32"). A plan with a fixed seed draws the
        same random bits at every call. Different entries of the batch axis draw different bits, but
        entries that `jax.vmap` maps over draw the same. Forward-mode derivatives (`jax.jvp`) are
        not supported.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or the plan, the engine and the other arguments
            do not fit together. Both messages name the argument, its value and how to fix it.

    Example:
        >>> import numpy as np
        >>> from roundscope import attend
        >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 2, 8), "f4")
        >>> out = attend(q, k, v, plan="fa2-bf16", is_causal=True)
        >>> out.shape, out.dtype
        ((1, 4, 2, 8), dtype('float32'))

        The first query sees only the first key, so its output is that value, rounded to BF16:

        >>> import ml_dtypes
        >>> bool((out[0, 0] == v[0, 0].astype(ml_dtypes.bfloat16)).all())
        True
    """
    heads = _head_plans(plan)
    check_numbers(q=q, k=k, v=v)
    check_shapes(q, k, v)
    like = plan_given(plan) if heads is None else _of_heads(heads, q, k, v, engine)
    like = served_given(like, window, softcap, sinks, q.shape[2])
    is_fused, asked = heads is not None and engine == "pallas", engine
    setup, engine = _setup(
        q,
        k,
        v,
        like,
        block_q,
        block_k,
        scale,
        is_causal,
        mask,
        inject,
        None,
        engine if heads is None else "xla",
        alignment=alignment,
    )
    if heads is not None:
        setup = replace(setup, scale=setup.whole_scale)
        if is_fused:
            engine = _fused_heads(setup, heads, q, k, v, mask)
    else:
        check_factors(setup.plan)
        check_held_values(setup.inject, setup.plan)
    if delta_error is not None:
        _check_delta_error(delta_error, setup, engine, q, v)
    dtype = (
        result_type(q, k, v)
        if heads is not None
        else output_type(setup.plan, setup.inject, q, k, v)
    )
    if engine == "numpy" and not any(map(is_traced, (q, k, v, mask, sinks))):
        return _examine(setup, engine, q, k, v, None, mask, sinks).out.astype(dtype, copy=False)
    from roundscope.attention.differentiable import attend_jax
    from roundscope.attention.engines import host

    is_open, has_heads = asked is None and delta_error is None, heads is not None
    if engine == "numpy":
        host.check()
    elif is_open and host.is_faster(setup, q.shape[0], has_head_plans=has_heads):
        engine = "numpy"
    run = host if engine == "numpy" else _engine(engine)
    return attend_jax(run, setup, heads, dtype, q, k, v, mask, delta_error, sinks)


def examine(
    q: Array,
    k: Array,
    v: Array,
    do: Array | None = None,
    *,
    plan: Plan | str | Sequence[Plan | str],
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    mask: Array | None = None,
    inject: Injection | str | Sequence[Injection | str] = (),
    record: Record | None = _SUMMARIES,
    engine: Engine | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alignment: Alignment | None = None,
) -> Examined:
    """Run attention, with its backward if `do` is given, and return the results and their trace.

    Arguments that are not listed are those of `attend`. Recording never changes a bit of a result.
    The call cannot be traced by `jax.jit`, `jax.grad` or `jax.vmap`.

    Args:
        q: Queries (B, T, N, H).
        k: Keys (B, S, G, H).
        v: Values (B, S, G, Hv).
        do: The gradient of the output, (B, T, N, Hv). The backward runs only if it is given.
        plan: A `Plan`, the name of a preset, or a sequence with one plan for each batch entry. With
            a sequence, each entry is computed as in a separate call. Under engine "xla" the plans
            of a sequence are data of one program, and under "pallas" data of the steps around the
            kernels. Their events may then differ only in formats, seeds and modes other than
            stochastic, and their sums only in the format and seed of the steps
            (`attention.plans.traced.structure`). No injection may then flip a bit.
        record: What the trace keeps; by default counts and sums of every event, and with None
            nothing. "pallas" does not keep steps, and does not keep single events with a sample
            (`Record.every` above 1).

    Returns:
        An `Examined` with the output, L, the gradients if `do` is given, and the trace.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or arguments do not fit together.

    Example:
        >>> import numpy as np
        >>> from roundscope import examine
        >>> q, k, v, do = np.random.default_rng(0).standard_normal((4, 1, 4, 2, 8), "f4")
        >>> examined = examine(q, k, v, do, plan="fa2-bf16")
        >>> examined.dq.shape
        (1, 4, 2, 8)
        >>> probabilities = examined.trace.stats["P"].total()  # 2 heads of 4 x 4
        >>> int(probabilities.n)
        32
    """
    check_numbers(q=q, k=k, v=v, do=do)
    check_shapes(q, k, v)
    plans, many, asked = plans_given(plan), not isinstance(plan, (Plan, str)), engine
    plans = [served_given(p, window, softcap, sinks, q.shape[2]) for p in plans]
    batch = 1 if many else None  # a batch entry with its own plan is a separate call
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
            alignment=alignment,
        )
        for p in plans
    ]
    for p in plans:
        check_factors(p)
        check_held_values(setups[0][0].inject, p)
    setup, engine = setups[0]
    notes = notes_of(setup, alignment, (q, k, v))
    if do is None:
        check_forward_record(setup.record)
    inside = any(map(is_traced, (q, k, v, do, mask, sinks)))
    if engine == "numpy" and inside:
        raise ValueError(
            "engine='numpy': examine has no numbers inside jit, grad or vmap; call it outside, or"
            " attend, which NumPy computes there too"
        )
    if many:
        _check_many(q, plans, setup.inject, engine)
    if do is not None:
        check_like_output("do", do, (*q.shape[:3], v.shape[3]))
    if engine == "xla" and asked is None and not (many or inside):
        from roundscope.attention.engines import host

        if host.is_faster(setup, q.shape[0]):
            found = host.of_jax(_examine(setup, "numpy", q, k, v, do, mask, sinks))
            return replace(found, notes=notes)
    found = _examine(
        tuple(s for s, _ in setups) if many else setup, engine, q, k, v, do, mask, sinks
    )
    return replace(found, notes=notes)


def _head_plans(plan: Any) -> HeadPlans | None:
    """The argument if it is `attention.plans.traced.HeadPlans`: who has made any has imported
    them.
    """
    module = sys.modules.get("roundscope.attention.plans.traced")
    made = getattr(module, "HeadPlans", None)  # another thread may just be importing it
    return plan if made is not None and isinstance(plan, made) else None


def _of_heads(plans: HeadPlans, q: Array, k: Array, v: Array, engine: Engine | None) -> Plan:
    """Return the plan that stands for all plans of heads while the program is compiled."""
    check_shapes(q, k, v)
    engine_given(engine)
    if plans.table.shape[0] != q.shape[2]:
        raise ValueError(
            f"plan: {plans.table.shape[0]} plans, must be one for each of the {q.shape[2]} heads"
            " of q"
        )
    if engine == "numpy":
        raise ValueError(
            "plan: a plan per head runs under xla or pallas, without a record; use examine with a"
            " single plan to trace"
        )
    return plans.like


def _fused_heads(
    setup: Setup, plans: HeadPlans, q: Any, k: Any, v: Any, mask: Any
) -> Literal["pallas"]:
    """Return the fused engine. Raises ValueError unless its kernels run the plans of all heads."""
    from roundscope.attention.engines.kernels.several import check_heads

    traced = any(map(is_traced, (q, k, v, mask)))
    check_heads(setup, plans, (q.shape[3], v.shape[3]), mask, traced)
    return "pallas"


def setup_of_heads(
    q: Any, k: Any, v: Any, plans: HeadPlans, block_q: int, block_k: int, is_causal: bool
) -> Setup:
    """Return the setup of a call whose plans per head are data."""
    like = served_given(_of_heads(plans, q, k, v, None), None, None, None, q.shape[2])
    setup, _ = _setup(q, k, v, like, block_q, block_k, None, is_causal, None, (), None, "xla")
    return replace(setup, scale=setup.whole_scale)


def notes_of(setup: Setup, alignment: Alignment | None, qkv: tuple[Array, ...]) -> tuple[str, ...]:
    """Return what is to be said of a call before its numbers (`Examined.notes`)."""
    call: dict[str, Any] = {"is_causal": setup.is_causal, "window": setup.plan.window}
    aligned = note_on(alignment, setup.queries, setup.keys, **call)
    notes = aligned, note_on_types(setup.plan, (str(x.dtype) for x in qkv))
    return tuple(note for note in notes if note is not None)


def _check_many(q: Any, plans: Sequence[Plan], inject: Sequence[Injection], engine: Engine) -> None:
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
    if engine in ("xla", "pallas") and any(isinstance(i.what, FlipBit) for i in inject):
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
    alignment: Alignment | None = None,
) -> tuple[Setup, Engine]:
    """Return the setup of a call after all checks, and the engine that runs it.

    batch  how many batch entries are numbered together, for random bits and places; None for all
    """
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
    alignment, is_causal = alignment_given(alignment), causal_given(is_causal)
    is_placed = is_causal or plan.window > 0
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
        is_causal=is_causal,
        shift=shift_of(alignment, q.shape[1], k.shape[1]) if is_placed else 0,
        inject=inject,
        record=record,
    )
    engine_given(engine)
    check_blocks(setup)
    _check_asked(setup, batch or q.shape[0], (q.shape[3], v.shape[3]), mask is not None)
    return setup, _engine_of(setup, q, k, v, mask, engine)


def _check_asked(setup: Setup, batch: int, features: tuple[int, int], has_mask: bool) -> None:
    """Raises ValueError for injections and records of what the call does not have, and for a
    negative scale that the plan does not take.
    """
    if setup.plan.scale_roots and setup.whole_scale < 0.0:
        raise ValueError(
            f"scale={setup.whole_scale:g}: {setup.plan.name} multiplies q and k with its root; give"
            " a positive scale"
        )
    if setup.of_scores < 0.0 and setup.plan.log2_e is Log2E.MAXIMUM and not setup.plan.softcap:
        is_missing = has_mask or setup.has_structure or setup.keys % setup.block_k
        if is_missing:
            raise ValueError(
                f"scale={setup.whole_scale:g}: {setup.plan.name} keeps the maximum of unscaled"
                " scores (log2_e=maximum), and a masked score, or one that pads a tile, -inf, is"
                " inf after a negative scale: its kernel returns NaN; give -q and a positive scale,"
                " or a plan with log2_e=scale"
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
    traced = any(map(is_traced, (q, k, v, mask)))
    if setup.record is not None and traced:
        raise ValueError(
            "record: inside jit, grad or vmap there are no numbers to look at; call examine"
            " outside, or attend, which records nothing"
        )
    if engine == "pallas":
        from roundscope.attention.engines.kernels.fit import check

        check(setup, (q.shape[3], v.shape[3]), mask, traced)
    return engine or ("xla" if traced or any(map(is_of_jax, (q, k, v))) else "numpy")


def _engine(name: Engine) -> Any:
    """The module that runs heads."""
    return importlib.import_module(ENGINES[name])


def _check_delta_error(error: Any, setup: Setup, engine: Engine, q: Any, v: Any) -> None:
    if engine != "xla":
        raise ValueError(
            "delta_error: an error as data needs engine='xla'; to trace an error, inject at OD"
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


def output_type(plan: Plan, inject: Sequence[Injection], q: Array, k: Array, v: Array) -> Any:
    """Return the dtype of `attend`'s output: that of 16-bit q, k, v where nothing is lost."""
    holder, made = SIXTEEN_BITS.get(np.dtype(q.dtype)), plan[Site.OUT].format
    is_kept = (
        holder is not None
        and k.dtype == q.dtype == v.dtype
        and holder.holds(made)
        and plan.block(Site.OUT) is None
        and all(injection.site is not Site.OUT for injection in inject)
    )
    return np.dtype(q.dtype) if is_kept else result_type(q, k, v)


def result_type(*arrays: Array) -> Any:
    """Return float64 if any input is, else float32."""
    return np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32


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
