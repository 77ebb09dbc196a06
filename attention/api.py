"""`attend` and `examine`: emulated attention as a user calls it.

Layout and signature follow `jax.nn.dot_product_attention`: q (B, T, N, H), k and v (B, S, G, H), N
a multiple of G.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from roundscope.attention.arguments import (
    check_forward_record,
    check_held_values,
    check_like_output,
    check_numbers,
    check_shapes,
    plan_given,
    plans_given,
    served_given,
    tell_of_tensors,
)
from roundscope.attention.engines.again import with_own_lse
from roundscope.attention.engines.protocol import Name as Engine
from roundscope.attention.engines.protocol import differentiable, examining
from roundscope.attention.errors import NotFused
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.alignment import Alignment
from roundscope.attention.inputs.scales import check_scales_of_backward, scaled
from roundscope.attention.places import check_forward
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.settings import (
    Options,
    check_delta_error,
    check_many,
    fused_heads,
    heads_given,
    mask_and_bias,
    mask_to_heads,
    notes_of,
    output_type,
    plan_of_heads,
    result_type,
    setup_of,
)
from roundscope.attention.sites import KEY_SITES, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals
from roundscope.attention.trace.parts import Part
from roundscope.attention.trace.summary import Trace, trace_of, with_existing
from roundscope.emu.arrays import Array, Result, is_traced
from roundscope.emu.backends.ops import Array as CarrierArray
from roundscope.emu.errors import known_arguments
from roundscope.events.plan import check_factors
from roundscope.events.recorder import Seen

if TYPE_CHECKING:
    from roundscope.attention.plans.traced import HeadPlans

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
        dbias: The gradient of bias, of its shape: the event DBIAS, summed in the same way over the
            axes along which the bias is broadcast. None without a bias or without `do`.
        notes: What is to be said of the call before its numbers: that it is causal or windowed with
            other numbers of queries and of keys, and that no `alignment` was given; that q, k and v
            are FP16, and that the plan rounds them to BF16, or the other way round; that entries of
            the bias are -inf.
        plan: The plan of the call, or those of its batch entries.
    """

    out: Result
    lse: Result
    dq: Result
    dk: Result
    dv: Result
    delta: Result
    trace: Trace
    dsinks: Result = None
    dbias: Result = None
    notes: tuple[str, ...] = ()
    plan: Plan | tuple[Plan, ...] | None = None

    def __repr__(self) -> str:
        """Return the plan, the shapes of the results, and the table of the trace."""
        arrays = ((f.name, getattr(self, f.name)) for f in fields(self))
        shapes = [f"{name} {tuple(x.shape)}" for name, x in arrays if hasattr(x, "shape")]
        first = f"Examined, {self.plan}: {', '.join(shapes)}"
        return "\n".join([first, *self.notes, repr(self.trace)])


@known_arguments
def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    plan: Plan | str | HeadPlans | None = None,
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
    scales: Mapping[str, Array | float] | None = None,
    bias: Array | None = None,
) -> Result:
    """Return softmax(scale Q K^T) V, tile by tile, with every rounding that the plan names.

    All engines return the same bits, unless the plan has a native accumulator, which adds in the
    order that the device chooses. Under JAX the call is differentiable with respect to q, k, v,
    sinks and bias, and its derivative is the emulated backward. To see the rounding events as well,
    call `examine`.

    Args:
        q: Queries (B, T, N, H), with batch entries, queries, heads and features: a NumPy or JAX
            array of floats. Types narrower than float32 are converted exactly.
        k: Keys (B, S, G, H), where G divides N: heads of q share heads of k in groups, in order.
        v: Values (B, S, G, Hv).
        plan: A `Plan`, or the name of a preset, such as "fa2-bf16". It must be given: the default
            None raises a TypeError that says what to give. Under JAX it can also be
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
        scales: The scales of a call in FP8, by name. "descale_q", "descale_k" and "descale_v" are
            what q, k and v are to be multiplied by: positive numbers, or arrays with one for each
            key head, (G,) or (B, G), of which descale_q may also have one for each query head. The
            plan's field `descales` says where they enter: in q, k and v, each product rounded to
            binary32 (default; a KV cache that vLLM's Triton kernel dequantizes), or in the scores
            and the output (FlashAttention-3, cuDNN), which "pallas" does not run and which has no
            backward here. "scale_s" multiplies P before its cast, a power of two that replaces the
            plan's `offset`, and "scale_o" the output before its cast; the output is then that of
            the cast, and has no backward here either. All are rounded to binary32. They are data,
            except scale_s.
        bias: Numbers B of floats that broadcast to (B, N, T, S), which are added to the scaled
            scores, behind a softcap: softmax(scale Q K^T + B) V, as the position biases of T5 and
            ALiBi are, and the float masks of `torch`. The events are BIAS, the cast of B, and
            BIASED, the sum; the backward has BIASED_B and the gradient DBIAS. Where B is -inf the
            query does not see the key, as by `mask`. Plans that multiply the scores by scale log2 e
            in one step (log2_e=scale or maximum, such as "fa2" and "cudnn") refuse it, and the
            message says what to take. "pallas" does not run it.

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
    heads = heads_given(plan)
    check_numbers(q=q, k=k, v=v)
    check_shapes(q, k, v)
    tell_of_tensors(q, k)
    like = plan_given(plan) if heads is None else plan_of_heads(heads, q, k, v, engine)
    like = served_given(like, window, softcap, sinks, q.shape[2], bias)
    mask, bias = mask_and_bias(mask, bias, (*q.shape[:3:2], q.shape[1], k.shape[1]))
    if heads is not None and scales is not None:
        raise ValueError("scales: a plan for each head takes none; give one plan")
    like, q, k, v, factors = scaled(like, q, k, v, scales)
    options = Options(
        block_q=block_q,
        block_k=block_k,
        scale=scale,
        is_causal=is_causal,
        mask=mask,
        inject=inject,
        engine=engine if heads is None else "xla",
        alignment=alignment,
    )
    setup, name = setup_of(q, k, v, like, options)
    if heads is not None:
        setup = replace(setup, scale=setup.whole_scale)
        if engine == "pallas":
            name = fused_heads(setup, heads, q, k, v, mask)
    else:
        check_factors(setup.plan)
        check_held_values(setup.inject, setup.plan)
    if delta_error is not None:
        check_delta_error(delta_error, setup, name, q, v)
    dtype = (
        result_type(q, k, v)
        if heads is not None
        else output_type(setup.plan, setup.inject, q, k, v)
    )
    inputs = Inputs(q, k, v, mask, sinks, *factors, bias=bias)
    _check_factors(name, inputs)
    if name == "numpy" and not any(map(is_traced, inputs)):
        return _examine(setup, name, inputs, None).out.astype(dtype, copy=False)
    from roundscope.attention.differentiable import attend_jax
    from roundscope.attention.engines import host

    is_open, has_heads = engine is None and delta_error is None, heads is not None
    if name == "numpy":
        host.check()
    elif is_open and host.is_faster(setup, q.shape[0], has_head_plans=has_heads):
        name = "numpy"
    return attend_jax(differentiable(name), setup, heads, dtype, inputs, delta_error)


@known_arguments
def examine(
    q: Array,
    k: Array,
    v: Array,
    do: Array | None = None,
    *,
    plan: Plan | str | Sequence[Plan | str] | None = None,
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
    scales: Mapping[str, Array | float] | None = None,
    bias: Array | None = None,
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
    tell_of_tensors(q, k)
    plans, many = plans_given(plan), not isinstance(plan, (Plan, str))
    own = tuple(plans) if many else plans[0]
    plans = [served_given(p, window, softcap, sinks, q.shape[2], bias) for p in plans]
    given_bias = bias
    mask, bias = mask_and_bias(mask, bias, (*q.shape[:3:2], q.shape[1], k.shape[1]))
    if many and scales is not None:
        raise ValueError("scales: several plans take none; give a single plan")
    plan, q, k, v, factors = scaled(plans[0], q, k, v, scales)
    plans = [plan, *plans[1:]]
    options = Options(
        block_q=block_q,
        block_k=block_k,
        scale=scale,
        is_causal=is_causal,
        mask=mask,
        inject=inject,
        record=record,
        engine=engine,
        alignment=alignment,
    )
    batch = 1 if many else None  # a batch entry with its own plan is a separate call
    setups = [setup_of(q, k, v, p, options, batch) for p in plans]
    for p in plans:
        check_factors(p)
        check_held_values(setups[0][0].inject, p)
    setup, name = setups[0]
    notes = notes_of(setup, alignment, (q, k, v), given_bias)
    if do is None:
        check_forward_record(setup.record)
    inputs = Inputs(q, k, v, mask, sinks, *factors, bias=bias)
    _check_factors(name, inputs)
    inside = any(map(is_traced, (*inputs, do)))
    if name == "numpy" and inside:
        raise ValueError(
            "engine='numpy': examine has no numbers inside jit, grad or vmap; call it outside, or"
            " attend, which NumPy computes there too"
        )
    if many:
        check_many(q, plans, setup.inject, name)
    if do is not None:
        check_like_output("do", do, (*q.shape[:3], v.shape[3]))
        check_scales_of_backward(inputs)
    if name == "xla" and engine is None and not (many or inside):
        from roundscope.attention.engines import host

        if host.is_faster(setup, q.shape[0]):
            found = host.of_jax(_examine(setup, "numpy", inputs, do))
            return replace(found, notes=notes, plan=own)
    found = _examine(tuple(s for s, _ in setups) if many else setup, name, inputs, do)
    return replace(found, notes=notes, plan=own)


def _check_factors(engine: Engine, inputs: Inputs) -> None:
    """Raise ValueError for factors of the scores or of the output where kernels are fused."""
    if engine == "pallas" and (inputs.of_scores is not None or inputs.of_output is not None):
        raise NotFused("scales: the fused kernel has no scale_o and no descales=products")


def _examine(
    setups: Setup | tuple[Setup, ...], engine: Engine, given: Inputs, do: Array | None
) -> Examined:
    """Return the results of a call and its trace; given: the arrays of the caller."""
    run = examining(engine)
    setup, plans = run.prepare(setups)
    if do is None:
        check_forward(setup.inject)
    q, k, v, mask, sinks, *of_heads, bias = given
    dtype = result_type(q, k, v)
    b, (n, g) = q.shape[0], (q.shape[2], k.shape[2])
    parts: list[Part] = []

    def keep(heads: int, whole: Seen, tiles: Seen | None = None, *, backward: bool = False) -> None:
        number = heads if isinstance(setups, tuple) else b * heads
        parts.append(Part((b, heads), number, whole, tiles or {}, backward))

    def rounded(site: Site, x: Array) -> CarrierArray:
        block = setup.block_k if site in KEY_SITES else setup.block_q
        heads, seen = run.round_inputs(setup, site, run.enter(x, block), plans)
        keep(x.shape[2], seen)
        return heads

    own_q, own_k, own_v = rounded(Site.Q, q), rounded(Site.K, k), rounded(Site.V, v)
    own_do = None if do is None else rounded(Site.DO, do)
    sink = None if sinks is None else run.enter_sinks(sinks, b)
    of_scores, of_output = (None if x is None else run.enter_sinks(x, 1) for x in of_heads)
    own_bias = None if bias is None else run.enter_bias(setup, bias, b)
    heads_mask = mask_to_heads(setup, mask, b, n)
    inputs = Inputs(own_q, own_k, own_v, heads_mask, sink, of_scores, of_output, own_bias)
    results, seen = run.forward(setup, inputs, plans)
    keep(n, seen["whole"], seen["tiles"])
    gradients: dict[str, Any] = dict.fromkeys(Gradients._fields)
    dsinks = None
    if do is not None:
        if setup.plan.scaled_keys:
            keys, of_keys = run.round_inputs(setup, Site.KC, inputs.k, plans)
            inputs = inputs._replace(k=keys)
            keep(g, of_keys)
        if setup.plan.inputs_again:
            own_q, own_k, own_v = rounded(Site.QB, q), rounded(Site.KB, k), rounded(Site.VB, v)
            inputs = inputs._replace(q=own_q, k=own_k, v=own_v)
        read = with_own_lse(run, setup, Residuals(inputs, results), plans)
        found, seen = run.backward(setup, read, own_do, plans)
        keep(n, seen["whole"], seen["tiles"], backward=True)
        keep(g, seen["keys"])
        if sink is not None:
            own_sinks, of_sinks = run.sink_gradients(setup, sink, results.lse, found.delta, plans)
            dsinks = run.leave_sinks(own_sinks, b, dtype)
            keep(n, of_sinks, backward=True)
        sizes = setup.queries, setup.keys, setup.keys, setup.queries
        left = (run.leave(x, b, size, dtype) for x, size in zip(found[:4], sizes, strict=True))
        dbias = found.dbias
        if bias is not None:
            dbias = run.leave_bias(setup, dbias, b, bias.shape, dtype)
        gradients = dict(zip(Gradients._fields, (*left, dbias), strict=True))
    trace = trace_of(setup, parts, (k.shape[3], v.shape[3]))
    trace = with_existing(trace, setup, mask)
    out, lse = (run.leave(x, b, setup.queries, dtype) for x in (results.out, results.lse))
    return Examined(out=out, lse=lse, trace=trace, dsinks=dsinks, **gradients)
