"""Programs compute what the same function computes on NumPy arrays, to the bit.

NumPy's operations are the reference: the judge and ml_dtypes check them (tests/emu/roundings), and
fractions check their sums (tests/emu/sums).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from roundscope.emu import Accumulator, Order, rounding
from roundscope.emu.backends.fused import program as programs
from roundscope.emu.backends.fused.graph import Untraceable
from roundscope.emu.backends.fused.narrow import OF_ROWS
from roundscope.emu.backends.fused.program import program
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.ops import Ops
from roundscope.emu.functions import exp2_64, exp64, log64, tanh64
from roundscope.emu.instructions.approximate import ex2, expf, lg2, rcp
from roundscope.emu.instructions.polynomials import poly_ex2
from roundscope.emu.sums.accumulator import accumulate

# numbers of random bits include signaling NaN
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
RNG = np.random.default_rng(27)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-130), 3e38, 1.0, -1.0, 65520.0, 448.0]
)


def _numbers(shape: tuple[int, ...], *, narrow: bool) -> np.ndarray:
    """Return numbers of all sizes, and special ones; binary32 numbers if `narrow`."""
    bits = RNG.integers(0, 2**32, shape, np.uint32).view(np.float32).astype(np.float64)
    near = RNG.normal(0, 8, shape).astype(np.float32)
    x = np.where(RNG.random(shape) < 0.5, near, bits)
    if not narrow:
        x = np.where(RNG.random(shape) < 0.5, x, x * (1 + RNG.random(shape) * 2.0**-30))
    x.flat[: SPECIAL.size] = SPECIAL.astype(np.float32)
    return x


def _agree(function: Callable[..., Any], *arrays: np.ndarray, narrow: bool = True) -> None:
    """Check that a program of function(ops, arrays) gives the bits that NumPy gives."""
    run, form = program(function, (arrays,), ((narrow,) * len(arrays),))
    results, void = run(1, [x[None] for x in arrays])
    assert not void.any()
    with np.errstate(all="ignore"):
        wanted = function(numpy_ops(), arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    got = form([x[0] for x in results])
    for a, b in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(np.asarray(b)[b == 0]))


@pytest.mark.parametrize("mode", ["ties-to-even", "ties-to-away", "toward-zero", "to-odd"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32", "e4m3fn", "e5m2fnuz", "e2m1fn", "e3m2fn"])
def test_roundings(name: str, mode: str) -> None:
    r = rounding(name, mode)
    for narrow in (True, False):
        x = _numbers((33, 37), narrow=narrow)
        _agree(lambda o, a: o.round(a[0], r, None), x, narrow=narrow)
    y = _numbers((33, 37), narrow=True)
    _agree(lambda o, a: o.round(o.multiply(a[0], a[1]), r, None), x.astype("f4").astype("f8"), y)


@pytest.mark.parametrize("function", [exp64, exp2_64, log64, tanh64, ex2, expf, lg2, rcp, poly_ex2])
def test_functions(function: Callable[..., Any]) -> None:
    x = _numbers((40, 31), narrow=True)
    x = np.abs(x) if function is log64 else x
    x = np.where((np.abs(x) < 2.0**-126) & (function is log64), 1.0, x)
    _agree(lambda o, a: function(o, a[0]), x)


def test_operations_that_are_rounded_at_once() -> None:
    x, y = (_numbers((17, 19), narrow=True) for _ in range(2))
    fp32 = rounding("fp32")

    def each(o: Ops, a: Any) -> Any:
        p, q = a
        return tuple(
            o.round(z, fp32, None)
            for z in (p + q, p - q, o.multiply(p, q), p / q, o.odd_sum(o.multiply(p, q), p))
        )

    _agree(each, x, y)


def _total(acc: Accumulator) -> Callable[..., Any]:
    """Return a + b c by an accumulator, as a function of the operations and of c, a and b."""

    def total(o: Ops, arrays: Any) -> Any:
        init, a, b = arrays
        return o.own_sum(acc, a, b, init) if o.own_sum else accumulate(o, acc, a.T, b, init)

    return total


@pytest.mark.parametrize("shape", [(16, 32, 48), (24, 16, 40), (8, 48, 7), (5, 64, 33)])
@pytest.mark.parametrize("step", ["fp32", "fp64", "bf16", "e4m3fn", "fp16:toward-zero"])
def test_ascending_sums(step: str, shape: tuple[int, int, int]) -> None:
    t, k, n = shape
    a, b, init = (RNG.normal(size=s).astype("f4").astype("f8") for s in ((t, k), (k, n), (t, n)))
    scales = 2.0 ** RNG.integers(-60, 60, (t, k))
    _agree(_total(Accumulator(step=rounding(*step.split(":")))), init, a * scales, b)


@pytest.mark.parametrize("operand", ["bf16", "fp16", "e4m3fn", "e5m2", "tf32"])
@pytest.mark.parametrize(("spread", "k"), [(0, 64), (12, 40), (60, 64)])
def test_sums_of_tensor_cores(operand: str, spread: int, k: int) -> None:
    acc = Accumulator.tensor_core("hopper", operand)
    f, o = rounding(operand, overflow="saturate"), numpy_ops()
    t, n = 24, 40
    a, b = (
        o.round(RNG.normal(size=s) * 2.0 ** RNG.integers(-spread, spread + 1, s), f, None)
        for s in ((t, k), (k, n))
    )
    a[RNG.random(a.shape) < 0.2] = 0.0
    a[3] = 0.0
    init = RNG.normal(size=(t, n)).astype("f4").astype("f8")
    init[:, :5] = 0.0
    _agree(_total(acc), init, a, b)


def test_the_largest_products_of_a_chunk_do_not_wrap_around() -> None:
    acc = Accumulator.tensor_core("hopper", "bf16")
    largest = 2.0 - 2.0**-7
    a, b = np.full((8, 32), largest), np.full((32, 16), -largest)
    init = np.full((8, 16), -(2.0 - 2.0**-23))
    _agree(_total(acc), init, a, b)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_program_says_where_it_has_no_result(bad: float, where: int) -> None:
    arrays = [np.ones((8, 16)), np.ones((8, 16)), np.ones((16, 16))]
    arrays[where][3, 5] = bad
    total = _total(Accumulator.tensor_core("hopper", "bf16"))
    run, _ = program(total, (tuple(arrays),), ((True,) * 3,))
    given = [x[None] for x in arrays]
    given[where] = np.stack(
        [np.ones_like(x) if n else x for n, x in enumerate([arrays[where]] * 3)]
    )
    results, void = run(3, given)
    assert void.tolist() == [True, False, False]  # the flag is of one run
    assert (results[0][1:] == 17.0).all()


def test_runs_of_a_call() -> None:
    """Each run has its own entries of an array, or shares the array with the others."""
    each, shared = RNG.normal(size=(5, 2, 16, 8)), RNG.normal(size=(16, 1))
    parts = each[:, 1]  # with gaps between the runs
    like = ((parts[0], shared),)
    run, form = program(lambda _, xs: (xs[0] * xs[1], xs[1] + 1.0), like, ((False, False),))
    results, void = run(5, [parts, shared[None]])
    products, sums = form(results)
    assert not void.any() and products.shape == (5, 16, 8) and sums.shape == (5, 16, 1)
    np.testing.assert_array_equal(products, parts * shared)
    np.testing.assert_array_equal(sums, np.broadcast_to(shared + 1.0, (5, 16, 1)))
    for x in run(5, [parts.astype("f4"), shared[None]])[0][:1]:  # copied into the right type
        np.testing.assert_array_equal(x, parts.astype("f4") * shared)


def test_row_sums() -> None:
    a = RNG.normal(size=(24, 48)).astype("f4").astype("f8")
    wide = RNG.normal(size=(24, 1)).astype("f4").astype("f8")
    for order in (*OF_ROWS, Order.ASCENDING, Order.HALVES):
        total = _total(Accumulator(order=order, chunk=4))
        _agree(lambda o, x, f=total: f(o, (x[1] * 1.1, x[0], o.xp.ones((48, 1)))), a, wide)
    coarse = _total(Accumulator(step=rounding("bf16")))
    _agree(lambda o, x: coarse(o, (x[1], x[0], o.xp.ones((48, 1)))), a, wide)


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "fp32"])
@pytest.mark.parametrize(
    "shape", [(9, 64), (32, 1), (6, 4), (4, 1024), (1, 16), (1, 12), (1, 13), (1, 1025)]
)
def test_statistics(shape: tuple[int, int], name: str) -> None:
    f = rounding(name).format
    x = _numbers((shape[0], shape[1]), narrow=False)
    y = numpy_ops().round(x, rounding(name), None)
    valid = RNG.random(shape) < 0.9

    def both(o: Ops, a: Any) -> Any:
        (some,) = o.stats([(a[0], a[1], f, a[2] > 0.0)])
        (none,) = o.stats([(a[0], a[1], f, a[2] > 2.0)])
        (exact,) = o.stats([(a[1], a[1], f, a[2] > 0.0)])
        return (*some, *none, *exact)

    _agree(both, x, y, valid.astype(float), narrow=False)


@pytest.mark.parametrize("kind", ["normal", "near ties", "nothing"])
def test_statistics_where_every_event_exists(kind: str) -> None:
    """A shortcut for normal numbers that is taken for others; an event without an error whose first
    place is lost.
    """
    f, nearly = rounding("e4m3fn").format, (0.5 - 2.0**-54) * 2.0**-9
    x = RNG.normal(size=(8, 16)) if kind == "normal" else np.zeros((8, 16))
    y = numpy_ops().round(x, rounding("e4m3fn"), None)
    if kind == "near ties":  # see `test_a_rounded_difference_is_no_tie`
        x[2:4, 3:9], y[2:4, 3:9] = nearly, 2.0**-9

    def both(o: Ops, a: Any) -> Any:
        there = o.xp.ones((8, 16), bool)
        some, exact = o.stats([(a[0], a[1], f, there), (a[1], a[1], f, there)])
        return (*some, *exact)

    _agree(both, x, y, narrow=False)


def test_summaries_are_one_record() -> None:
    """Fields of a record in other places than the program writes them to, names mixed up."""
    f, x = rounding("bf16").format, RNG.normal(size=(5, 16, 8))
    y = numpy_ops().round(x, rounding("bf16"), None)

    def summary(o: Ops, a: Any) -> Any:
        one, short = o.stats([(a[0], a[1], f, a[1] > 0.0), (a[0][:2], a[1][:2], f, a[1][:2] > 0.0)])
        return a[1] + 1.0, {"one": one, "other": a[0] * 2.0, "short": short}

    run, form = program(summary, ((x[0], y[0]),), ((False, False),))
    more, seen = form(run(5, [x, y])[0])
    np.testing.assert_array_equal(more, y + 1.0)
    np.testing.assert_array_equal(seen["other"], x * 2.0)
    assert seen.keys() == {("one", "short"), "other"}
    for record, before, after in zip(seen["one", "short"], x, y, strict=True):
        for number, rows in (("0", 16), ("1", 2)):
            b, a = before[:rows], after[:rows]
            wanted = numpy_ops().stats([(b, a, f, a > 0.0)])[0]
            for name, part in zip(record[number].dtype.names, wanted, strict=True):
                np.testing.assert_array_equal(record[number][name], part)


@pytest.mark.parametrize("columns", [1, 4, 5])
def test_statistics_of_a_row_that_is_filled_up(columns: int) -> None:
    """Events that do not exist and are counted, or that change the order of a sum."""
    f, x = rounding("bf16").format, RNG.normal(size=(1, columns))
    y = numpy_ops().round(x, rounding("bf16"), None)

    def both(o: Ops, a: Any) -> Any:
        there = o.xp.ones((1, columns), bool)
        some, exact = o.stats([(a[0], a[1], f, there), (a[1], a[1], f, there)])
        return (*some, *exact)

    _agree(both, x, y, narrow=False)


def test_a_program_that_is_kept_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that writes the code of every program, to find what it has compiled already."""
    x, table = RNG.normal(size=(6, 8)), RNG.normal(size=8)

    def made(held: np.ndarray) -> Any:
        run, form = program(lambda o, a: (a[0] * held,), ((x,),), ((False,),))
        return form([part[0] for part in run(1, [x[None]])[0]])[0]

    first, other = made(table), made(table + 1.0)  # nobody holds the programs any more
    monkeypatch.setattr(programs, "written", None)
    np.testing.assert_array_equal(made(table), first)
    np.testing.assert_array_equal(made(table + 1.0), other)
    assert not np.array_equal(first, other)
    with pytest.raises(TypeError):
        made(RNG.normal(size=8))


def test_a_row_of_one_number() -> None:
    total = _total(Accumulator())
    a, wide = (RNG.normal(size=(8, 1)).astype("f4").astype("f8") for _ in range(2))
    _agree(lambda o, x: total(o, (x[1] * 1.1, x[0], o.xp.ones((1, 1)))), a, wide)


def test_views_and_rows() -> None:
    x = _numbers((24, 40), narrow=True)

    def views(o: Ops, a: Any) -> Any:
        (p,) = a
        lanes = p.reshape(24, 5, 4, 2).transpose(0, 2, 1, 3).reshape(96, 10)
        joined = o.xp.concatenate([p[:, :3], p[:, 5:]], axis=1)
        return lanes, joined, o.xp.max(p, axis=1), p.T[1:3], o.xp.where(p > p[:, :1], p, 0.0)

    _agree(views, x)


def test_what_depends_on_numbers_is_not_traced() -> None:
    with pytest.raises(Untraceable, match="a decision"):
        program(lambda o, a: a[0] if a[0] > 0 else -a[0], ((np.ones(3),),), ((True,),))


def test_equal_operations_share_a_program() -> None:
    """A program of another constant, shape, type or result in place of the right one."""

    def made(
        function: Callable[..., Any], shape: tuple[int, ...] = (3, 4), narrow: Any = True
    ) -> Any:
        return program(function, ((np.ones(shape),),), ((narrow,),))

    first, _ = made(lambda _, a: a[0] + 0.0)
    again, form = made(lambda _, a: {"sum": a[0] + 0.0})
    assert again is first and form([5]) == {"sum": 5}
    others = [
        made(lambda _, a: a[0] + -0.0),
        made(lambda _, a: a[0] + True),
        made(lambda _, a: (a[0] + 0.0, a[0])),
        made(lambda _, a: (a[0], a[0] + 0.0)),
        made(lambda _, a: a[0] + 0.0, (4, 3)),
        made(lambda _, a: a[0] + 0.0, narrow=False),
    ]
    assert len({id(found) for found, _ in (*others, (first, None))}) == 7
