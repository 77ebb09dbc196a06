"""The public functions of emu: the same bits from NumPy and JAX arrays, and what their docstrings
promise.
"""

import math
import os
import subprocess
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.roundings.judge import judge

TENSOR_CORE = emu.Accumulator.tensor_core("hopper", "bf16")
RNG = np.random.default_rng(0)
X = np.concatenate(
    [RNG.standard_normal(997), np.ldexp(RNG.standard_normal(200), RNG.integers(-149, 120, 200))]
).astype(np.float32)
FORMATS = ("bf16", "fp16", "e4m3fn", "e5m2", "e2m1fn", "e5m10", "tf32")


def bits(x: object) -> np.ndarray:
    x = np.asarray(x)
    return x.view(np.int64 if x.dtype == np.float64 else np.int32)


@pytest.mark.parametrize("mode", emu.RoundingMode)
@pytest.mark.parametrize("name", FORMATS)
def test_numpy_and_jax_round_alike_and_keep_type_and_shape(name: str, mode: str) -> None:
    """An executor that lost the stream's index, a shape, or 64-bit types."""
    x = X.reshape(3, 7, -1)
    ours = emu.round_to(x, name, mode, seed=5)
    theirs = emu.round_to(jnp.asarray(x), name, mode, seed=5)
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape == x.shape
    assert np.array_equal(bits(ours), bits(theirs))


def test_stochastic_pieces_round_as_the_whole() -> None:
    """A stream that depended on how the array was cut; seeds that did not matter."""
    whole = emu.round_to(X, "e4m3fn", "stochastic", seed=9)
    cut = [
        emu.round_to(X[:101], "e4m3fn", "stochastic", seed=9),
        emu.round_to(X[101:], "e4m3fn", "stochastic", seed=9, first=101),
    ]
    assert np.array_equal(bits(whole), bits(np.concatenate(cut)))
    assert not np.array_equal(whole, emu.round_to(X, "e4m3fn", "stochastic", seed=10))


@pytest.mark.parametrize("on", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_error_of_is_the_exact_difference(on: object) -> None:
    """A difference that was rounded, or flushed where it is subnormal."""
    got = np.asarray(emu.error_of(on(X), "bf16"))  # type: ignore[operator]
    want = [float(Fraction(judge(float(v), emu.BF16)) - Fraction(float(v))) for v in X]
    assert np.array_equal(got, np.array(want, np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_ulp_of_is_the_distance_of_neighbours(name: str) -> None:
    f = emu.format_named(name)
    want = [
        (
            math.ldexp(1.0, max(math.frexp(float(v))[1] - 1, f.emin) - f.precision + 1)
            if v
            else f.min_positive
        )
        for v in X
    ]
    assert np.array_equal(emu.ulp_of(X, name), want)
    assert np.array_equal(np.asarray(emu.ulp_of(jnp.asarray(X), name)), want)
    assert np.isnan(emu.ulp_of([np.inf, np.nan], name)).all()


def test_dot_and_sum_are_alike_on_both_and_match_matmul_when_exact() -> None:
    """A transposed operand, a forgotten init, an axis summed for another."""
    a = RNG.integers(-8, 9, (5, 12)).astype(np.float32)
    b = RNG.integers(-8, 9, (12, 7)).astype(np.float32)
    init = RNG.integers(-8, 9, (5, 7)).astype(np.float32)
    for order in emu.Order:
        accumulator = (
            TENSOR_CORE
            if order is emu.Order.ALIGNED
            else emu.Accumulator(
                order=order, chunk=4 if order in (emu.Order.WARPS, emu.Order.BLOCK) else 5
            )
        )
        assert np.array_equal(emu.dot(a, b, accumulator, init), a @ b + init)
        if order in ("ascending", "exact", "aligned"):  # the others: test_accumulate.py
            assert np.array_equal(
                np.asarray(emu.dot(jnp.asarray(a), jnp.asarray(b), accumulator, init)), a @ b + init
            )
    x = RNG.integers(-8, 9, (3, 4, 5)).astype(np.float32)
    for axis in (0, 1, 2, -1):
        assert np.array_equal(emu.sum(x, axis=axis), x.sum(axis))
        assert np.array_equal(np.asarray(emu.sum(jnp.asarray(x), axis=axis)), x.sum(axis))


def test_stochastic_steps_are_alike_on_both() -> None:
    """A step index that one executor counted otherwise."""
    a, b = (RNG.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((5, 40), (40, 7)))
    for order in (emu.Order.ASCENDING, emu.Order.PAIRWISE):  # the others: test_accumulate.py
        accumulator = emu.Accumulator(order=order, step=emu.rounding("bf16", "stochastic", seed=3))
        assert np.array_equal(
            emu.dot(a, b, accumulator),
            np.asarray(emu.dot(jnp.asarray(a), jnp.asarray(b), accumulator)),
        )


def test_exp_is_correctly_rounded_and_alike() -> None:
    x = np.linspace(-100, 80, 4001, dtype=np.float32)
    for name in ("fp32", "bf16"):
        ours = emu.exp(x, name)
        assert np.array_equal(bits(ours), bits(emu.exp(jnp.asarray(x), name)))
        want = [
            judge(math.exp(float(v)), emu.rounding(name)) for v in x
        ]  # libm's binary64 exp, rounded once by the judge
        assert np.array_equal(ours, np.array(want, np.float32))


def test_stats_of_counts_alike() -> None:
    y = emu.round_to(X, "e4m3fn", overflow="saturate")
    ours = emu.stats_of(X, y, "e4m3fn").as_dict()
    theirs = emu.stats_of(jnp.asarray(X), jnp.asarray(y), "e4m3fn").as_dict()
    for name, value in ours.items():
        assert theirs[name] == pytest.approx(value, rel=1e-12, abs=1e-300), name
    assert ours["n"] == X.size
    assert ours["inexact"] == int((y != X).sum())


ERRORS = {
    "x: dtype int64": lambda: emu.round_to(np.arange(3), "bf16"),
    "did you mean 'bf16'": lambda: emu.round_to(X, "bf61"),
    "does not fit a float32 array; pass float64": lambda: emu.round_to(X, "fp64"),
    "immutable": lambda: emu.round_to(jnp.asarray(X), "bf16", out=X),
    "must be (T, K) and (K, N)": lambda: emu.dot(X, X),
    "init: shape (2,)": lambda: emu.dot(X[:4].reshape(2, 2), X[:4].reshape(2, 2), init=X[:2]),
    "after: shape (3,)": lambda: emu.stats_of(X, X[:3], "bf16"),
    "chunk=0": lambda: emu.Accumulator(chunk=0),
    "'mxfp8_e4m3': a block format of e4m3fn numbers that share a scale; emu.round_blocks": (
        lambda: emu.round_to(X, "mxfp8_e4m3")
    ),
    "format=nvfp4: a block format of e2m1fn numbers that share a scale; emu.round_blocks": (
        lambda: emu.round_to(X, emu.BLOCK_NAMED["nvfp4"])  # type: ignore[arg-type]
    ),
    "29 bits or fewer": lambda: emu.Accumulator(order=emu.Order.EXACT, step=emu.BINARY64),
}


@pytest.mark.parametrize("says", ERRORS)
def test_errors_are_one_line_with_the_repair(says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        ERRORS[says]()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_importing_emu_imports_neither_numba_nor_jax() -> None:
    code = "import sys, emu, attention; assert not {'jax', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rounding_works_inside_jit_with_64_bit_types_off_and_on() -> None:
    for on in (False, True):
        with jax.enable_x64(on):
            got = jax.jit(lambda x: emu.round_to(x, "bf16", "stochastic", seed=2))(jnp.asarray(X))
        assert np.array_equal(bits(got), bits(emu.round_to(X, "bf16", "stochastic", seed=2)))


@pytest.mark.parametrize("mode", ["ties-to-even", "stochastic"])
def test_round_with_stats_is_both_at_once(mode: str) -> None:
    """A piece counted twice, a peak's index local to its piece, an `out` read after it was
    written.
    """
    x = np.resize(X, 300_001)
    y, seen = emu.round_with_stats(x, "e4m3fn", mode, seed=4)
    assert np.array_equal(bits(y), bits(emu.round_to(x, "e4m3fn", mode, seed=4)))
    apart = emu.stats_of(x, y, "e4m3fn").as_dict()
    for name, value in seen.as_dict().items():
        assert value == pytest.approx(apart[name], rel=1e-12, abs=1e-12 * x.size), name
    z = x.copy()
    assert emu.round_with_stats(z, "e4m3fn", mode, seed=4, out=z)[1].as_dict() == seen.as_dict()
    assert np.array_equal(bits(z), bits(y))


FORKED = """
import os
import numpy as np
from roundscope.emu import round_to

x = np.ones(1 << 22, np.float32)
round_to(x, "bf16")
child = os.fork()
if child == 0:
    round_to(x, "bf16")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own():
    """A worker of a data loader that waits forever for threads of its parent."""
    run = [sys.executable, "-W", "ignore", "-c", FORKED]
    subprocess.run(run, check=True, timeout=60, env={**os.environ, "NUMBA_NUM_THREADS": "2"})
