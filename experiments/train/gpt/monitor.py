"""What is monitored in a run, every n steps, on one sequence of the step's batch.

Monitoring is cheap, and outside the training step. Per arm, layer and head, over the sequence's T
rows:

    w_q_norm       ||W_Q,h||_2, by power iteration on its Gram matrix: G <- G^2 / ||G||, 8 times, is
                   256 iterations
    several_ones   share of rows in which several P are exactly 1
    gaps           rows by top1 - top2 of their scores (as the plan rounds them): 0, then up to
                   1e-3, 1e-2, 0.1, 1, 10, more
    v_skew         mean over features of |mean over tokens of sign V|: 1 if every feature of V keeps
                   one sign
    delta_sum      sum over rows of  x = delta - delta_exact,  delta_exact = rowsum(dO O) in
                   binary64 from the same rounded q, k, v, dO
    delta_square   sum of x^2
    drift          |R| / |dW_Q|, Frobenius norms: the share of W_Q's gradient that comes from rows
                   of dS that do not sum to zero, as they do in exact arithmetic:  r = rowsum(dS),
                   R = alpha sum over rows of r[t] X[t]^T (PK)[t],  where X is what W_Q reads and PK
                   is in binary64 from the same rounded q and k; dW_Q = X^T dQ of this sequence
                   alone (with qk_norm: after the norm)
    w_q_gradient   that |dW_Q|: where it is small, drift is large although R is small
    coherence      A = |sum x| / sqrt(sum x^2): about 1 for errors of random sign, sqrt(T) for
                   errors of one sign

and running_sum, running_coherence: the same over all rows monitored so far. An injected error
(`offset`) counts as one of delta's.

Every 10th time also the mean error of every event, in ulps: over 32 rows of one head of each layer
in turn, by the numpy engine; in a run with fused kernels over a sample of the tiles of every head
(`attention.tiles.sample`), by those kernels. Of the plans of real kernels fused kernels keep no
record: then there are w_q_norm, v_skew, drift and w_q_gradient (`gpt.by_kernels`), and in fused
FP32 w_q_norm alone.
"""

import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention import Record, Site, examine
from roundscope.attention.engines import xla as engine
from roundscope.attention.engines.again import with_own_lse
from roundscope.attention.inputs.hadamard import halvings
from roundscope.attention.plans.choices import ScaleOfGradient
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.traced import HeadPlans, structure
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Inputs, Residuals
from roundscope.emu.stats.summary import Stats
from roundscope.experiments.train.config import JAX, PALLAS, Config
from roundscope.experiments.train.gpt import by_kernels, model
from roundscope.experiments.train.gpt.linear import LinearPlans, linear_at
from roundscope.experiments.train.gpt.offset import Offset, error, readable
from roundscope.experiments.train.gpt.plans import Fixed, Plans, Tables
from roundscope.experiments.train.gpt.step import numbers_only, plans_at


def drift(
    scale: float, rows: Array, q: Array, k: Array, dq: Array, x: Array
) -> tuple[Array, Array]:
    """Return (|R|, |dW_Q|) of every head: the part of dW_Q from sums of dS's rows, and the whole.

    rows   (heads, T): the sums;  x (heads, T, D): what W_Q reads

    R = scale sum_t rows[t] x[t]^T PK[t].
    """
    pk = jnp.einsum("nts,nsh->nth", softmax(scale, q, k), k)
    made = jnp.einsum("nt,ntd,nth->ndh", scale * rows, x.astype(pk.dtype), pk)
    whole = jnp.einsum("ntd,nth->ndh", x.astype(pk.dtype), dq)
    return jnp.linalg.norm(made, axis=(1, 2)), jnp.linalg.norm(whole, axis=(1, 2))


def softmax(scale: float, q: Array, k: Array) -> Array:
    """Return causal P, (heads, T, T)."""
    s = scale * jnp.einsum("nth,nsh->nts", q, k)
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(s.shape[1:], bool)), s, -jnp.inf), axis=-1)


def exact_delta(scale: float, q: Array, k: Array, v: Array, do: Array) -> Array:
    """Return rowsum(dO O) of causal attention, (heads, T), in the arrays' own binary64."""
    return (jnp.einsum("nts,nsh->nth", softmax(scale, q, k), v) * do).sum(-1)


# the classes of gaps: rows with a gap up to each of these, and one more class for the rest
EDGES = (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0)
SITES_EVERY, ROWS = 10, 32
TILES = 2  # the most tiles per side that fused kernels examine of a head
OF_LAYERS = ("several_ones", "v_skew", "delta_sum", "delta_square", "drift", "w_q_gradient")
MEASURED = ("w_q_norm", *OF_LAYERS)


def look(
    config: Config,
    params: Any,
    tokens: Any,
    plans: Tables | None,
    step: int,
    offset: Offset | None = None,
    linears: LinearPlans | None = None,
    sole: Fixed | None = None,
) -> tuple[dict[str, np.ndarray], Any]:
    """Return the numbers above, and q, k, v, dO of the sequence.

    The numbers are (A, L, N) each, gaps with a last axis of classes; the tensors are (A, L, 1, T,
    N, H). With plan = "jax" there is only w_q_norm, and None; None too where fused kernels keep no
    record.

    params   of arms, (A, ...);  tokens (1, T + 1), or (A, 1, T + 1);  plans of arms
    offset   the error of what delta reads, of arms; noise has the distribution of the step's, but
             not its signs;  linears: of arms
    sole     the plan that is part of the step, or those of its layers, where there is one
    """
    found = {"w_q_norm": np.asarray(query_norms(params["layers"]["qkv"]))}
    if config.plan == JAX or plans is None:
        return found, None
    fused = () if sole is None or config.engine != PALLAS else _each(config, sole)
    if fused and all(map(by_kernels.is_wide, fused)):
        return found, None
    seen, wrong, x = _reading(numbers_only(config), sole)(
        params, tokens, plans, np.int32(step), offset, linears
    )
    if any(plan.is_of_kernel for plan in fused):
        return found | by_kernels.drift_of(numbers_only(config), fused, seen, x), None
    with jax.enable_x64(True):
        now = _at(plans, np.int32(step))
        if isinstance(now, HeadPlans):
            return found | _of_layers(config, now, *seen, wrong, x), seen
        each = []
        for n, own in enumerate(now):
            alone = (None if a is None else a[:, n : n + 1] for a in (*seen, wrong, x))
            each.append(_of_layers(config, HeadPlans(own.like, own.table[:, None]), *alone))
    measured = {name: np.concatenate([own[name] for own in each], axis=1) for name in each[0]}
    return found | measured, seen


@jax.jit
def query_norms(qkv: Array) -> Array:
    """Return ||W_Q,h||_2, (A, L, N), of the weights (A, L, D, 3, N, H)."""
    w = qkv[:, :, :, 0].swapaxes(2, 3)  # (A, L, N, D, H)
    gram = jnp.einsum("alndh,alndg->alnhg", w, w, precision="highest")
    power = gram
    for _ in range(8):
        power = power / jnp.maximum(
            jnp.linalg.norm(power, axis=(-2, -1), keepdims=True), jnp.float32(1e-30)
        )
        power = jnp.matmul(power, power, precision="highest")
    column = jnp.argmax(jnp.linalg.norm(power, axis=-2), axis=-1)
    v = jnp.take_along_axis(power, column[..., None, None], axis=-1)[..., 0]
    wv = jnp.einsum("alndh,alnh->alnd", w, v, precision="highest")
    length = jnp.maximum(jnp.linalg.norm(v, axis=-1), jnp.float32(1e-30))
    return jnp.asarray(jnp.linalg.norm(wv, axis=-1) / length)


def coherence(total: Any, squares: Any) -> np.ndarray:
    """Return A = |sum x| / sqrt(sum x^2), 0 where all x are 0."""
    squares = np.asarray(squares, float)
    return np.asarray(np.abs(total) / np.sqrt(np.where(squares > 0.0, squares, np.inf)))


def sites(
    config: Config, seen: Any, plans: list[Plans | None], turn: int, fused: Fixed | None = None
) -> list[dict[str, tuple[float, float]]]:
    """Return per arm: event -> (mean error, mean |error|), in ulps, of one head or a sample."""
    if fused is not None:
        return _of_a_sample(config, seen, fused)
    head = turn % config.heads
    q, k, v, do = (np.asarray(x[:, :, 0, :, head]) for x in seen)  # (A, L, T, H)
    rows = slice(max(0, q.shape[2] - ROWS), None)
    mask = (np.arange(q.shape[2])[None, :] <= np.arange(q.shape[2])[rows, None])[None, None]
    means = []
    for a, own in enumerate(plans):
        if own is None:
            continue
        q_a, k_a, v_a, do_a = (x[a][:, :, None] for x in (q, k, v, do))
        of_head = [layer[head] for layer in own]
        args = q_a[:, rows], k_a, v_a, do_a[:, rows]
        means.append(_site_means(of_head, mask, config.tile, *args))
    return means


def _site_means(
    plans: list[Plan], mask: np.ndarray, tile: int, *args: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Return the means over layers, each a batch entry beside those of its structure."""
    found = []
    for layers in _alike([structure(plan) for plan in plans]):
        own: dict[str, Any] = {"plan": [plans[n] for n in layers], "mask": mask}
        own |= {"block_q": tile, "block_k": tile, "engine": "numpy"}
        found.append(examine(*(a[layers] for a in args), **own).trace.stats)
    return _means(found)


def _of_a_sample(config: Config, seen: Any, plans: Fixed) -> list[dict[str, tuple[float, float]]]:
    """Return the means over layers, each a batch entry, and heads, by the same tiles."""
    tiles = -(-config.context // config.tile)
    each = _each(config, plans)
    options: dict[str, Any] = {"is_causal": True, "engine": "pallas"}
    options |= {"block_q": config.tile, "block_k": config.tile}
    options["record"] = Record(every=-(-tiles // TILES))

    def stats(arm: Any, layers: list[int]) -> dict[str, Stats]:
        x = (leaf[np.asarray(layers), 0] for leaf in arm)
        return examine(*x, plan=each[layers[0]], **options).trace.stats

    arms = zip(*seen, strict=True)
    return [_means([stats(arm, layers) for layers in _alike(each)]) for arm in arms]


def _each(config: Config, plans: Fixed) -> tuple[Plan, ...]:
    return plans if isinstance(plans, tuple) else (plans,) * config.layers


def _alike(each: Sequence[Plan]) -> list[list[int]]:
    """Return the numbers of layers, those with equal plans together."""
    return [[n for n, own in enumerate(each) if own == plan] for plan in dict.fromkeys(each)]


def _means(found: Sequence[dict[str, Stats]]) -> dict[str, tuple[float, float]]:
    total: dict[str, list[float]] = {}
    for stats in found:
        for name, s in stats.items():
            own = [float(x.sum()) for x in (s.n, s.ulps, s.abs_ulps)]
            before = total.get(name)
            total[name] = own if before is None else [*map(operator.add, before, own)]
    return {name: (ulps / n, absolute / n) for name, (n, ulps, absolute) in total.items() if n}


@lru_cache(64)
def _reading(config: Config, sole: Fixed | None) -> Any:
    """Return a function of the arms' weights and a sequence that returns what is read there.

    It returns q, k, v and dO, (A, L, 1, T, N, H); the error of the output as delta reads it, or
    None; and what W_Q reads, (A, L, 1, T, D).
    """

    def one(params: Any, tokens: Array, plans: Tables, step: Any, more: Any) -> Any:
        offset, linears = more
        offset = offset and offset._replace(step=step)
        own = sole or plans_at(plans, step)
        do, seen = model.read(params, tokens, own, config, offset, linear_at(linears, step))
        wrong = offset and jax.vmap(partial(error, offset))(
            jnp.arange(config.layers), seen.q, seen.k, seen.v
        )
        return (seen.q, seen.k, seen.v, do), wrong, seen.x

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any, *more: Any) -> Any:
        axes = 0, 0 if tokens.ndim == 3 else None, 0, None, 0
        return jax.vmap(one, in_axes=axes)(params, tokens, plans, step, more)

    return jax.jit(all_arms)


@jax.jit
def _at(plans: Tables, step: Any) -> Tables:
    seeded = jax.vmap(plans_at, in_axes=(0, None))(plans, step)
    assert seeded is not None
    return seeded


def _of_layers(config: Config, plans: HeadPlans, *seen: Any) -> dict[str, np.ndarray]:
    """Return the numbers of layers that share a structure."""
    *tensors, wrong, x = seen
    wrong = wrong if readable(plans.like) else None
    t, scale = config.context, config.head_width**-0.5
    setup = Setup(
        plan=plans.like,
        queries=t,
        keys=t,
        block_q=config.tile,
        block_k=max(config.tile, t) if plans.like.normalise_first else config.tile,
        heads=1,
        key_heads=1,
        scale=scale,
        whole_scale=scale,
        is_causal=True,
        record=Record(ones=(Site.P,), events=(Site.SCALED, Site.DS)),
    )
    found = _measured(setup, plans.table, *tensors, wrong, x)
    return {name: np.asarray(value) for name, value in found.items()}


@partial(jax.jit, static_argnums=0)
def _measured(
    setup: Setup, table: Array, q: Array, k: Array, v: Array, do: Array, wrong: Any, x: Array
) -> dict[str, Array]:
    """Return the numbers of every (arm, layer, head), each a batch entry of one head."""
    lead, (t, features) = (*q.shape[:2], q.shape[4]), (q.shape[3], q.shape[5])

    def entry(x: Array) -> Array:
        return x[:, :, 0].swapaxes(2, 3).reshape(-1, t, 1, features)

    entries = [entry(x) for x in (q, k, v, do)]
    each = engine.Each(table.reshape(-1, *table.shape[3:]), np.arange(entries[0].shape[0]))
    tiles = (setup.block_q, setup.block_k, setup.block_k, setup.block_q)

    def rounded(*sites: Site) -> Iterator[Array]:
        for site, x, block in zip(sites, entries, tiles, strict=False):
            yield engine.round_inputs(setup, site, engine.enter(x, block), each)[0]

    q, k, v, do = rounded(Site.Q, Site.K, Site.V, Site.DO)
    inputs = Inputs(q, k, v)
    results, seen = engine.forward(setup, inputs, each)
    read = results if wrong is None else engine.moved(setup, results, entry(wrong))
    if setup.plan.inputs_again:
        inputs = Inputs(*rounded(Site.QB, Site.KB, Site.VB))
    given = with_own_lse(engine, setup, Residuals(inputs, read), each)
    back, seen_back = engine.backward(setup, given, do, each)
    dq, delta = back.dq, back.delta
    off = (delta - exact_delta(setup.whole_scale, q, k, v, do))[:, :t]
    ones = seen["tiles"]["P.ones"].sum(2).reshape(-1, q.shape[1])[:, :t]
    scores = seen["tiles"]["SCALED.events"][1]  # (heads, query tiles, key tiles, rows, keys)
    gaps = _gaps(scores.swapaxes(2, 3).reshape(scores.shape[0], q.shape[1], -1)[:, :t, :t])
    ds = seen_back["tiles"]["DS.events"][1]  # (heads, key tiles, query tiles, rows, keys)
    ds = ds.transpose(0, 2, 3, 1, 4).reshape(ds.shape[0], q.shape[1], -1)[:, :t, :t]
    rows = jnp.where(jnp.tril(jnp.ones((t, t), bool)), ds, 0.0).sum(-1)
    each_head = jnp.repeat(x[:, :, 0].reshape(-1, t, x.shape[-1]), lead[2], axis=0)
    if setup.plan.gradient_scale in (ScaleOfGradient.PROBABILITY, ScaleOfGradient.REGISTER):
        rows = rows / setup.whole_scale  # the scale is in DS already
    made, whole = drift(setup.whole_scale, rows, q[:, :t], k[:, :t], dq[:, :t], each_head)
    if setup.plan.hadamard:  # k is turned, and times 2^-b where a turn alone has 1 / sqrt H
        made = made * (2.0 ** halvings(features, of_keys=True) * features**-0.5)
    numbers = (
        (ones > 1).mean(1),
        jnp.abs(jnp.sign(v[:, :t]).mean(1)).mean(1),
        off.sum(1),
        (off * off).sum(1),
        jnp.where(whole > 0.0, made / whole, 0.0),
        whole,
    )
    found = dict(zip(OF_LAYERS, numbers, strict=True))
    return {name: y.reshape(lead) for name, y in found.items()} | {"gaps": gaps.reshape(*lead, -1)}


def _gaps(scores: Array) -> Array:
    """Return (heads, classes): how many rows but the first have top1 - top2 in each class."""
    seen = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -jnp.inf)[:, 1:]
    top = seen.max(-1)
    again = jnp.where(jnp.arange(seen.shape[-1]) == seen.argmax(-1)[..., None], -jnp.inf, seen).max(
        -1
    )
    kind = jnp.searchsorted(jnp.asarray(EDGES), top - again)
    return (kind[..., None] == jnp.arange(len(EDGES) + 1, dtype=kind.dtype)).sum(1)
