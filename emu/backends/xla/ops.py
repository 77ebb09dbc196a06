"""`Ops` on JAX arrays under XLA; 64-bit types must be enabled while its functions are traced."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from roundscope.emu.backends.ops import EXACT_PRODUCT, Event, Ops
from roundscope.emu.backends.xla.rounding import round_wide, widen
from roundscope.emu.backends.xla.traced import TracedRounding
from roundscope.emu.blocks.layout import round_blocks
from roundscope.emu.blocks.xla import quantise
from roundscope.emu.roundings.modes import BINARY32, Rounding, RoundingMode
from roundscope.emu.roundings.nearest import nearest_even, takes_nearest_even
from roundscope.emu.roundings.rule import C64, Target, target_of
from roundscope.emu.stats.classify import SUMS, Judged, build_classify, judged
from roundscope.emu.sums.aligned import Factors, aligned
from roundscope.emu.sums.odd import build_odd_sum, sum_to_round

# the number of additions fused into one pass over the sums: a GPU is short of bandwidth, whereas a
# CPU keeps a tile in its cache
_UNROLL = {"gpu": 16, "cuda": 16}
IN_A_WORD = 3  # the number of counts that share an integer if a row has fewer than 2^21 columns
BITS = 21  # the number of bits of each such count
# the bits of 2^-500, below which the numbers of a deep format are raised to be classified, and the
# exponent by which they are
TINY, RAISED = (1023 - 500) << 52, 512


def bits_of(x: Array) -> Array:
    """Return the bits of a float64 array as int64 numbers."""
    return lax.bitcast_convert_type(x, jnp.int64)


def number_of(b: Array) -> Array:
    """Return the float64 array that has the bits b."""
    return lax.bitcast_convert_type(b, jnp.float64)


_odd_sum = build_odd_sum(jnp.where, bits_of, number_of)
_classify = build_classify(jnp.where, lambda e: number_of(e << 52), lambda f: f)


@jax.custom_batching.custom_vmap
def opaque_zero(x: Array) -> Array:
    """Return an int64 zero that no compiler can see through.

    It is the answer, always false, to a question about the elements: whether the largest is smaller
    than the first or, if there is only one element, whether a square is 2 modulo 3. The elements
    are compared as integers, since XLA's maximum of an array with a NaN may be any of its numbers.
    Under `jax.vmap` all mapped entries share one zero.
    """
    if not x.size:
        return jnp.zeros((), jnp.int64)
    flat = lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}").reshape(-1)
    if x.size == 1:
        # compilers see that one number is its own maximum, but not that no square is 2 modulo 3
        word = flat[0].astype(jnp.int64) & 0xFFFF
        return (word * word % 3 == 2).astype(jnp.int64)
    return (jnp.max(flat) < flat[0]).astype(jnp.int64)


@opaque_zero.def_vmap
def _opaque_zero_of_all(size: int, mapped: list[bool], x: Array) -> tuple[Array, bool]:
    with jax.enable_x64(True):  # vmap may call this after the caller has left its own context
        return opaque_zero(x), False


def xla_ops(zero: Array) -> Ops:
    """Return the `Ops` record for JAX arrays.

    zero: an `opaque_zero`. XORed into the bits of a product, it keeps LLVM from fusing the product
    with a following addition.
    """
    return Ops(
        xp=jnp,
        round=partial(_round, zero),
        round_blocks=partial(round_blocks, jnp, quantise, widen),
        transposed=lambda x: x.T,
        odd_sum=_odd_sum,
        multiply=partial(guarded, zero),
        hidden=lambda x: number_of(bits_of(x) ^ zero),
        divide=partial(_divided, zero),
        bits=bits_of,
        from_bits=number_of,
        scan=_scan,
        when=_when,
        call=lambda function, x: _call(function, zero, x),
        aligned=_aligned,
        # with less precision, a GPU drops bits of the operands (TF32)
        native=partial(jnp.matmul, precision=lax.Precision.HIGHEST),
        ascending=partial(_ascending, zero),
        stats=_stats,
    )


def guarded(zero: Array, a: Array, b: Array) -> Array:
    """Return a * b, which no compiler fuses with a following addition."""
    return number_of(bits_of(a * b) ^ zero)


def _divided(zero: Array, a: Array, b: Array) -> Array:
    """Return a / b, rounded once.

    If XLA sees that an array is divided by one number, it multiplies by the reciprocal, which
    rounds twice. Here the divisor also depends on the bits of the dividend, so XLA cannot see that.
    """
    return a / number_of(bits_of(b) ^ (bits_of(a) & zero))


def _round(zero: Array, x: Array, r: Rounding | TracedRounding, random: Array | None) -> Array:
    if r.is_identity:
        return x
    if isinstance(r, TracedRounding):
        by_row: Array = _round_traced(x, r.target, random, r.mode)
        return by_row
    once: Array = _round_static(zero, x, random, r)
    return once


@partial(jax.jit, static_argnums=3)
def _round_traced(x: Array, t: Target, random: Array | None, mode: RoundingMode | None) -> Array:
    # a rounding reads neither the format nor the seed
    r = TracedRounding(mode, None, t, None)  # type: ignore[arg-type]
    return rounded(x, r, random)


@partial(jax.jit, static_argnums=3)
def _round_static(zero: Array, x: Array, random: Array | None, r: Rounding) -> Array:
    return _once(zero, lambda: rounded(x, r, random), x)


def rounded(x: Array, r: Rounding | TracedRounding, random: Array | None) -> Array:
    """Return a float64 array rounded once; 64-bit types must be enabled."""
    return _step(r)(x) if random is None else round_wide(x, r, random)


@partial(jax.jit, static_argnums=0)
def _call(function: Callable[..., Array], zero: Array, x: Array) -> Array:
    return _once(zero, lambda: function(xla_ops(zero), x), x)


def _scan(body: Callable[..., Any], carry: Any, xs: tuple[Array, ...]) -> tuple[Any, Any]:
    k = jnp.arange(xs[0].shape[0])
    return lax.scan(lambda c, kx: body(c, kx[0], kx[1]), _mapped_with(xs[0], carry), (k, xs))


def _mapped_with(x: Array, carry: Any) -> Any:
    """Return the carry, mapped over by `vmap` wherever x is.

    If `vmap` finds only after the first turn of a loop that the carry is mapped over, it traces the
    loop again, and twice for each loop around it. So the carry is made to depend on x by a choice
    between equal values, which XLA removes.
    """
    if not x.size:
        return carry
    some = x.reshape(-1)[0] == 0
    return jax.tree.map(lambda c: jnp.where(some, c, c), carry)


def _when(active: Array, compute: Callable[[], tuple[Any, Any]], state: Any) -> tuple[Any, Any]:
    shapes = jax.eval_shape(lambda: compute()[1])
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    new: tuple[Any, Any] = lax.cond(active, compute, lambda: (state, nothing))
    return new


def _once(zero: Array, compute: Callable[[], Array], like: Array) -> Array:
    """Return the array that `compute` returns, computed once for all its readers.

    The array has the shape and type of `like`. XLA on a CPU copies a chain of cheap operations,
    even an exp of 40 operations, into each fusion that reads it, and an `optimization_barrier` does
    not prevent that. It cannot copy the result of a conditional, so the computation is inside one.
    """
    if jax.default_backend() != "cpu":
        return compute()
    once: Array = lax.cond(zero == 0, compute, lambda: jnp.zeros_like(like))
    return once


def _ascending(
    zero: Array, a: Array, b: Array, init: Array, r: Rounding | TracedRounding, product_bits: int
) -> Array:
    fold = _fold if isinstance(r, TracedRounding) else _fold_compiled
    total: Array = fold(zero, a, b, init, r, product_bits)
    return total


def _fold(
    zero: Array, a: Array, b: Array, init: Array, r: Rounding | TracedRounding, product_bits: int
) -> Array:
    # an exact product may be fused with the addition; a sum of two binary32 numbers may round to
    # binary64 first, which does not change its rounding to binary32 (53 >= 2 * 24 + 2)
    nearest = _step(r)
    multiply = partial(guarded, zero) if product_bits > EXACT_PRODUCT else jnp.multiply
    rounds_once = product_bits <= BINARY32.format.precision and r == BINARY32
    add = jnp.add if rounds_once else partial(sum_to_round, _exact_ops(), r.format.precision)

    def step(total: Array, ab: tuple[Array, Array]) -> tuple[Array, None]:
        return nearest(add(total, multiply(ab[0][:, None], ab[1][None, :]))), None

    unroll = _UNROLL.get(jax.default_backend(), 1)
    total: Array = lax.scan(step, _mapped_with(a, init), (a, b), unroll=unroll)[0]
    return total


_fold_compiled = partial(jax.jit, static_argnums=(4, 5))(_fold)


def _aligned(a: Factors, b: Factors, init: Array, acc: Any) -> Array:
    """Return the sum of `emu.sums.aligned`.

    Every operation of this sum except the rounding is exact, so nothing has to be hidden from the
    compiler.
    """
    run = _aligned_compiled if isinstance(acc.step, Rounding) else _aligned_traced
    total: Array = run(acc, a, b, init)
    return total


def _aligned_traced(acc: Any, a: Factors, b: Factors, init: Array) -> Array:
    total: Array = aligned(_exact_ops(), a, b, init, acc)
    return total


_aligned_compiled = partial(jax.jit, static_argnums=0)(_aligned_traced)


def _exact_ops() -> Ops:
    return xla_ops(jnp.int64(0))


def _step(r: Rounding | TracedRounding) -> Callable[[Array], Array]:
    """Return a function that rounds without random bits, by two additions where possible."""
    if isinstance(r, TracedRounding):
        target = r.target if r.mode is RoundingMode.TIES_TO_EVEN else None
    else:
        target = target_of(r, C64) if takes_nearest_even(r) else None
    return partial(round_wide, r=r) if target is None else partial(nearest_even, t=target)


def _stats(events: Sequence[Event]) -> list[Any]:
    """Return the statistics of events.

    All events of the same shape share one reduction, since XLA needs seconds to compile each.
    """
    results: dict[int, Any] = {}
    for shape in dict.fromkeys(before.shape for before, *_ in events):
        alike = [n for n, event in enumerate(events) if event[0].shape == shape]
        before, after, formats, valid = zip(*(events[n] for n in alike), strict=True)
        judges = jax.tree.map(
            lambda *numbers: jnp.stack([jnp.asarray(n, jnp.int64) for n in numbers]),
            *map(judged, formats),
        )
        # where nothing is rounded, an ulp is asked for nothing
        deep = (f.is_deep and x is not y for x, y, f in zip(before, after, formats, strict=True))
        summarize = partial(judged_stats, has_deep=any(deep))
        x, y, there = map(jnp.stack, (before, after, valid))
        summaries = jax.vmap(summarize)(x, y, judges, there)
        for i, n in enumerate(alike):
            results[n] = jax.tree.map(lambda part, i=i: part[i], summaries)
    return [results[n] for n in range(len(events))]


def judged_events(
    before: Array, after: Array, f: Judged, valid: Array, *, has_deep: bool
) -> tuple[list[Array], list[Array]]:
    """Return the flags of each event in the order of COUNTS, and its terms in the order of SUMS.

    For events that are not valid, the flag `n` is False and the terms are 0. `has_deep` says
    whether a format may be deep (`Format.is_deep`). Then an event of tiny numbers is classified
    as if its numbers and its format were multiplied by 2^RAISED, since a CPU flushes subnormal
    numbers. The error itself is flushed where it is one.
    """
    x, y = (jnp.where(valid, v, 0.0) for v in (before, after))
    a, b = (bits_of(v) & C64.magnitude for v in (x, y))
    if has_deep:
        is_tiny = (a < TINY) & (b < TINY)
        x, y = (jnp.where(is_tiny, _raised(v), v) for v in (x, y))
        a, b = (bits_of(v) & C64.magnitude for v in (x, y))
        up: Any = jnp.where(is_tiny, RAISED, 0)
        largest: Any = jnp.where(is_tiny, jnp.minimum(f.largest, TINY) + (up << 52), f.largest)
        f = Judged(f.precision, f.emin + up, largest, f.min_normal + (up << 52))
    *flags, error, ulps = _classify(x, y, a, b, f)
    if has_deep:
        error = error * jnp.where(is_tiny, 2.0**-RAISED, 1.0)
    return [valid, *flags], [error, jnp.abs(error), error * error, ulps, jnp.abs(ulps), ulps * ulps]


def _raised(x: Array) -> Array:
    """Return x 2^RAISED for |x| < TINY, without arithmetic on subnormal numbers."""
    b = bits_of(x)
    a = b & C64.magnitude
    # a subnormal number is a 2^-1074
    small = bits_of(a.astype(jnp.float64)) - ((1074 - RAISED) << 52)
    magnitude = jnp.where(a < 1 << 52, jnp.where(a == 0, 0, small), a + (RAISED << 52))
    return number_of(magnitude | (b & ~C64.magnitude))


@partial(jax.jit, static_argnames="has_deep")
def judged_stats(
    before: Array, after: Array, f: Judged, valid: Array, *, has_deep: bool = True
) -> tuple[Array, ...]:
    """Return the statistics of a tile of rows.

    They are the counts (11,), the sums (6,), the peak, its place, and the sum of signed ulps of
    each row. One reduction over many operands computes them, because separate reductions would each
    classify every event again.
    """
    flags, sums = judged_events(before, after, f, valid, has_deep=has_deep)
    size = jnp.where(valid, sums[SUMS.index("abs_ulps")], -1.0)
    row, column = (lax.broadcasted_iota(jnp.int64, before.shape, axis) for axis in (0, 1))
    place = row * before.shape[1] + column
    counts, parts, peak, place = row_stats([flag & valid for flag in flags], sums, size, place)
    worst = jnp.argmax(peak)
    place = jnp.where(peak[worst] < 0.0, -1, place[worst])
    return (
        jnp.stack(counts).sum(axis=1),
        jnp.stack(parts).sum(axis=1),
        jnp.maximum(peak[worst], 0.0),
        place,
        parts[3],
    )


def row_stats(
    flags: Sequence[Array], sums: Sequence[Array], size: Array, place: Array
) -> tuple[list[Array], list[Array], Array, Array]:
    """Return counts, sums, the largest size and its first place of each row, the last axis."""
    shared = IN_A_WORD if size.shape[-1] < 2**BITS else 1
    words = [_word(flags[n : n + shared]) for n in range(0, len(flags), shared)]
    *added, peak, place = events_reduced([*words, *sums], size, place, (size.ndim - 1,))
    counted, parts = added[: len(words)], added[len(words) :]
    if shared > 1:
        counted = [word >> BITS * k & 2**BITS - 1 for word in counted for k in range(shared)]
    return counted[: len(flags)], parts, peak, place


def _word(flags: Sequence[Array]) -> Array:
    """Return up to three flags in separate bits of one number, so that one sum counts them all."""
    return sum((flag.astype(jnp.int64) << BITS * k for k, flag in enumerate(flags)), jnp.int64(0))


def events_reduced(
    added: Sequence[Array], size: Array, place: Array, axes: Sequence[int]
) -> list[Array]:
    """Return the sums of every array in `added`, and the largest size with its first place.

    One reduction along these axes computes them all.
    """

    def combine(left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
        first = (left[-2] > right[-2]) | ((left[-2] == right[-2]) & (left[-1] < right[-1]))
        return (
            *(p + q for p, q in zip(left[:-2], right[:-2], strict=True)),
            jnp.where(first, left[-2], right[-2]),
            jnp.where(first, left[-1], right[-1]),
        )

    operands = (*added, size, place)
    zeros = (*(jnp.zeros((), v.dtype) for v in added), jnp.float64(-2.0), jnp.int64(2**62))
    return list(lax.reduce(operands, zeros, combine, axes))
