"""NaN, infinities and signs in the steps of a sum, by every `NanPolicy`.

The expected sums are a fold of Python's floats and the judge, order by order as `Order` documents
them; the numbers are so short that every sum before its rounding is exact in binary64.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import Accumulator, Format, Order, Rounding, rounding
from roundscope.emu.backends.fused.program import program
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.roundings.judge import judge
from roundscope.emu.sums.accumulator import accumulate
from tests.emu.sums.folds import on_numpy, on_xla, same
from tests.some import some

NAN = math.nan
TERMS = (NAN, -NAN, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.0, 100.0)
PAIRS = tuple(itertools.product(TERMS, (NAN, -NAN, -math.inf, -0.0, 2.0)))
ORDERS = tuple(
    Accumulator(order=order, chunk=chunk)
    for order, chunk in (
        (Order.ASCENDING, 1),
        (Order.PAIRWISE, 1),
        (Order.HALVES, 1),
        (Order.CHUNKED, 1),
        (Order.CHUNKED, 2),
        (Order.EXACT, 1),
        (Order.STRIDED, 2),
        (Order.OCTETS, 2),
        (Order.OCTET_PAIRS, 2),
        (Order.WARPS, 2),
        (Order.QUAD_WARPS, 2),
        (Order.OCTET_WARPS, 2),
        (Order.QUAD_STRIDES, 2),
        (Order.OCTET_STRIDES, 2),
        (Order.BLOCK, 2),
        (Order.CASCADE, 2),
        (Order.LEVELS, 1),
    )
)
WIDE = Format(name="wide", precision=6, emin=-1000, max_finite=1.5, inf=False, nan=False)
FNUZ = Format(
    name="plain", precision=3, emin=-3, max_finite=7.0, inf=False, nan=False, negative_zero=False
)
STEPS = tuple(
    rounding(f, mode, nan=nan)
    for f in ("e2m1fn", "e3m2fn", "e4m3fn", WIDE, FNUZ)
    for mode in ("ties-to-even", "toward-negative")
    for nan in ("keep", "zero")
)
ON_XLA = rounding("e2m1fn", nan="zero"), rounding(WIDE, nan="zero")


def folded(acc: Accumulator, terms: tuple[float, ...], init: float) -> float:
    """Return init and one or two terms added by an accumulator, with the judge as its step."""

    def r(x: float) -> float:
        return judge(x, acc.step)

    a, b = (*terms, None)[:2]
    if acc.order is Order.ASCENDING:
        return r(r(init + a) + b) if b is not None else r(init + a)
    if acc.order is Order.EXACT:
        return r(init + a) if b is None else r(init + a + b)
    if acc.order in (Order.PAIRWISE, Order.HALVES):
        return r(init + (a if b is None else r(a + b)))
    if acc.order is Order.CHUNKED:
        chunks = [[a, b]] if acc.chunk == 2 and b is not None else [[x] for x in terms]
        for chunk in chunks:
            part = 0.0
            for x in chunk:
                part = r(part + x)
            init = r(init + part)
        return init
    if acc.order is Order.STRIDED:  # a lane for each term
        return r(init + (r(a) if b is None else r(r(a) + r(b))))
    if acc.order in (
        Order.OCTETS,
        Order.OCTET_PAIRS,
    ):  # one lane: it begins with its first number, rounded
        lane = r(a)
        for x in (*terms[1:], *[0.0] * (8 - len(terms))):
            lane = r(lane + x)
        return r(init + lane)
    if acc.order is Order.CASCADE:  # each term a lane from +0; the lanes are added from +0
        total = 0.0
        for x in terms:
            total = r(total + r(0.0 + x))
        return r(init + total)
    if acc.order in (Order.QUAD_WARPS, Order.OCTET_WARPS):  # one thread of 32 has other than +0
        total = r(a)
        for x in (*terms[1:], *[0.0] * ((4 if acc.order is Order.QUAD_WARPS else 8) - len(terms))):
            total = r(total + x)
        for _ in range(5):
            total = r(total + 0.0)
        return r(init + total)
    if acc.order in (Order.QUAD_STRIDES, Order.OCTET_STRIDES):  # a thread for each term
        two = [r(a), 0.0 if b is None else r(b)]
        for _ in range(4):
            two = [r(x + 0.0) for x in two]
        return r(init + r(two[0] + two[1]))
    if acc.order is Order.BLOCK:  # a thread for each term, and three sums of +0 in each
        threads = [r(0.0 + x) for x in terms]
        for _ in range(3):
            threads = [r(x + 0.0) for x in threads]
        return r(init + (threads[0] if b is None else r(threads[0] + threads[1])))
    if acc.order is Order.LEVELS:
        total = r(0.0 + a)
        return r(init + (total if b is None else r(total + b)))
    assert acc.order is Order.WARPS
    total = r(a + (0.0 if b is None else b))
    for _ in range(5):  # 32 threads by halves: all others have +0
        total = r(total + 0.0)
    return r(init + total)


def columns(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[float, ...]]]:
    """Return factors (count, T), ones (count, 1), starts (T, 1), and the terms of each row."""
    rows: list[tuple[float, ...]] = [(x,) for x in TERMS] if count == 1 else list(PAIRS)
    a = np.array(rows).T
    init = np.resize([0.0, -0.0, NAN, 1.0, math.inf], (len(rows), 1))
    return a, np.ones((count, 1)), init, rows


def with_step(acc: Accumulator, r: Rounding) -> Accumulator:
    return Accumulator(order=acc.order, chunk=acc.chunk, step=r)


def told(r: Rounding) -> str:
    return f"{r}-{r.nan}"


def assert_folded(acc: Accumulator, count: int, run: Callable[..., Any]) -> None:
    a, b, init, rows = columns(count)
    found = np.asarray(run(acc, a, b, init))[:, 0]
    for terms, start, got in zip(rows, init[:, 0].tolist(), found.tolist(), strict=True):
        want = folded(acc, terms, start)
        assert same(got, want), f"{acc}, {acc.step.nan}: {start} + {terms}: {got}, not {want}"


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_numpy_obeys_the_policy_at_every_step(order: Accumulator) -> None:
    """A -NaN that became -0 in ascending sums, where every other order and round_to gave +0."""
    for r, count in itertools.product(STEPS, (1, 2)):
        assert_folded(with_step(order, r), count, lambda *x: on_numpy(*x)[0])


@pytest.mark.parametrize(
    ("order", "r"),
    some((o, ON_XLA[(i + j) % 2]) for i, o in enumerate(ORDERS) for j in (0, 1)),
    ids=lambda x: told(x) if isinstance(x, Rounding) else str(x),
)
def test_xla_obeys_the_policy_at_every_step(order: Accumulator, r: Rounding) -> None:
    """Steps by two additions, which left a NaN that the policy makes zero."""
    assert_folded(with_step(order, r), 2, lambda *x: on_xla(*x)[0])


@pytest.mark.parametrize("r", [r for r in STEPS if r.mode == "ties-to-even"], ids=told)
def test_programs_obey_the_policy(r: Rounding) -> None:
    """The graph of a program with a rule of its own for the sign of a zero."""
    a, _, init, rows = columns(2)
    ones = np.ones((2, 8))
    acc = Accumulator(step=r)

    def total(o: Any, arrays: Any) -> Any:
        return o.own_sum(acc, arrays[0], arrays[1], arrays[2])

    starts = np.repeat(init, 8, axis=1)
    run, form = program(total, ((a.T, ones, starts),), ((True,) * 3,))
    found = form([x[0] for x in run(1, [x[None] for x in (a.T.copy(), ones, starts)])[0]])
    firsts = init[:, 0].tolist()
    want = [folded(acc, terms, start) for terms, start in zip(rows, firsts, strict=True)]
    assert all(same(x, y) for x, y in zip(np.asarray(found)[:, 3].tolist(), want, strict=True))


def test_a_value_in_an_attention_call() -> None:
    """The call of the report: one NaN in v, and steps of P V that make it zero."""
    from roundscope import Plan, attend

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 4, 1, 4)).astype(np.float32) for _ in range(3))
    v[0, 0, 0, 0] = np.nan
    step = rounding("e2m1fn", nan="zero")
    plan = Plan.preset("fa2-bf16").adding("PV", Accumulator(step=step))
    ours, theirs = (np.asarray(attend(q, k, v, plan=plan, engine=e)) for e in ("numpy", "xla"))
    assert np.isfinite(ours).all() and np.array_equal(ours, theirs)
    assert np.array_equal(np.signbit(ours), np.signbit(theirs))


@pytest.mark.parametrize("name", some(["mxfp8_e4m3", "mxfp4", "nvfp4", "mxint8", "fp8_1x128"]))
@pytest.mark.parametrize("nan", ["keep", "zero"])
def test_a_block_with_a_nan_is_nan(name: str, nan: str) -> None:
    """Executors that differ in a block with a NaN, whose scale is NaN whatever the elements' policy
    is, or in the sign of a zero of the next block.
    """
    import jax.numpy as jnp

    from roundscope.emu.blocks.xla import is_even, round_even, round_row, row_of

    base = emu.block_format(name)
    f = emu.BlockFormat(
        element=rounding(base.element, nan=nan),
        size=8,
        scale=base.scale,
        rule=base.rule,
        tensor=base.tensor,
    )
    x = np.array([[NAN] + [-1e-6] * 7, [-NAN] * 8, [math.inf] + [1.0] * 7, [1.0, *[-1e-6] * 7]])
    x = x.astype(np.float32)
    found = [emu.round_blocks(x, f), np.asarray(emu.round_blocks(jnp.asarray(x), f))]
    found.append(emu.from_blocks(emu.to_blocks(x, f)))
    if f.power_of_two:
        row = jnp.asarray(row_of(f))
        found.append(np.asarray(round_row(jnp.asarray(x), row, 8, 1)))
        if is_even(f):
            found.append(np.asarray(round_even(jnp.asarray(x), row, 8, 1)))
    for y in found:
        assert np.isnan(y[:3]).all() and np.isfinite(y[3]).all()
        assert np.array_equal(y[3], found[0][3])
        zeros = y[3] == 0
        assert (np.signbit(y[3][zeros]) == f.element.format.negative_zero).all()


@pytest.mark.parametrize("nan", ["keep", "zero"])
def test_a_rounding_without_blocks_as_a_row(nan: str) -> None:
    """`round_row` of a `Rounding`, whose NaN is no block's."""
    import jax.numpy as jnp

    from roundscope.emu.blocks.xla import round_row, row_of

    r = rounding("e2m1fn", nan=nan)
    x = np.array([[NAN, -NAN, -math.inf, -0.0, -1e-9, 1.0, 7.0, -2.5]], np.float32)
    y = np.asarray(round_row(jnp.asarray(x), jnp.asarray(row_of(r)), 8, 1))
    assert all(same(float(a), judge(float(b), r)) for a, b in zip(y[0], x[0], strict=True))


def test_formats_as_data_obey_the_policy() -> None:
    """A row of numbers for which the two additions served, though its NaN becomes zero."""
    import jax
    import jax.numpy as jnp

    from roundscope.emu.backends.xla.ops import rounded
    from roundscope.emu.backends.xla.traced import kind_of, rounding_in, rounding_of, row_of

    x = np.array(TERMS)
    for r in (rounding("e2m1fn", nan="zero"), rounding("fp64", overflow="saturate")):
        row = row_of(r)
        with jax.enable_x64(True):
            y = rounded(jnp.asarray(x), rounding_of(jnp.asarray(row), kind_of(r)), None)
        assert all(same(a, judge(b, r)) for a, b in zip(np.asarray(y).tolist(), x, strict=True))
        back = rounding_in(tuple(row.tolist()))
        assert np.array_equal(row_of(back), row)


def test_numpy_ops_in_a_sum_of_a_kept_nan() -> None:
    """What the policies change is NaN alone: without NaN both give the same bits."""
    rng = np.random.default_rng(3)
    a, b, init = rng.normal(size=(5, 4)), rng.normal(size=(5, 3)), np.zeros((4, 3))
    for order in ORDERS:
        kept, zero = (
            accumulate(
                numpy_ops(), with_step(order, rounding("e2m1fn", nan=nan)), a, b, init.copy()
            )
            for nan in ("keep", "zero")
        )
        assert np.array_equal(kept, zero) and np.array_equal(np.signbit(kept), np.signbit(zero))
