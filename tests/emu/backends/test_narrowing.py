"""Binary64 functions on narrower numbers: the same bits, and that they are narrower.

The machine models the instructions.
"""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu import round_to
from roundscope.emu.backends.kernels import marks
from roundscope.emu.backends.kernels.held import Held, held_as
from roundscope.emu.backends.kernels.marks import product, round_event
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import kernel_machine
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import BF16, BINARY32, E4M3, FP16, rounding
from tests.checks.engines import bits

DOWN = rounding("bf16", "toward-negative")


@pytest.fixture
def calls():
    return Counter()


@pytest.fixture
def machine(calls):
    """The interpreter's, counting what is done in binary64 and what by an instruction."""
    with jax.enable_x64(True):
        plain = kernel_machine(jnp.int64(0), {}, on_gpu=False)

        def combined(operation, a, b, to_odd):
            calls[f"{operation}{' to odd' if to_odd else ''}"] += 1
            return plain.combined(operation, a, b, to_odd)

        def combined16(operation, a, b, r):
            calls[f"{operation} of 16 bits"] += 1
            return plain.combined16(operation, a, b, r)

        def scaled16(a, b, r):
            calls["scaled"] += 1
            return plain.scaled16(a, b, r)

        def exp(x, name):
            calls[f"exp {name}"] += 1
            return plain.exp(x, name)

        def round_(x, r, random):
            calls["binary64"] += 1
            return plain.round(x, r, random)

        def divide(a, b):
            calls["quotient"] += 1
            return plain.divide(a, b)

        yield dataclasses.replace(
            plain,
            combined=combined,
            combined16=combined16,
            scaled16=scaled16,
            exp=exp,
            round=round_,
            divide=divide,
        )


def numbers(name, seed, scale=1.0):
    """Of a format, of mixed sizes: sums of two are ties, and a little off ties, of narrower
    ones.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 64)) * 2.0 ** rng.integers(-12, 12, (64, 64)) * scale
    x[0, :8] = [0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 2.0**-126, 2.0**100]
    return round_to(x, rounding(name))


def held(x, name):
    return Held(array=jnp.asarray(x), format=name)


def run(machine, f, formats, *args):
    found, nothing = narrowed(machine, lambda *x: (tuple(jax.tree.leaves(f(*x))), {}), formats)(
        *args
    )
    assert nothing == {}
    return [np.asarray(x) for x in found]


OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
WRITTEN = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": product}


@pytest.mark.parametrize("r", [BINARY32, BF16, FP16], ids=str)
@pytest.mark.parametrize(
    "formats",
    [("bf16", "bf16"), ("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp16", "fp16")],
    ids="-".join,
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_instruction_rounds_as_binary64_and_once(machine, calls, operation, formats, r):
    """Two roundings in a row; the wrong one of the two instructions."""
    a, b = (numbers(name, n) for n, name in enumerate(formats))
    with np.errstate(invalid="ignore", over="ignore"):
        want = round_to(OPERATIONS[operation](a, b), r)
    (got,) = run(
        machine,
        lambda x, y: round_event(WRITTEN[operation](x, y), r),
        [r.format.name],
        held(a, formats[0]),
        held(b, formats[1]),
    )
    assert np.array_equal(bits(got), bits(want))
    if set(formats) == {r.format.name}:
        assert calls == {operation if r == BINARY32 else f"{operation} of 16 bits": 1}
    elif r == BINARY32:
        assert calls == {operation: 1}
    elif operation == "mul" and r.format.name == formats[1]:
        assert calls == {"scaled": 1}
    else:
        assert calls == {"mul to odd" if operation == "mul" else "binary64": 1}


@pytest.mark.parametrize(
    ("r", "x", "y", "want"),
    [
        (BF16, 1 + 2.0**-8, 2.0**-60, 1.0),
        (BF16, 257.0, 2.0**-50, 256.0),
        (FP16, 2.0**-25, 2.0**-90, 0.0),
    ],
)
def test_a_sum_has_53_bits_before_it_is_narrowed(machine, r, x, y, want):
    """An instruction that rounds the exact sum to odd would see what binary64 has dropped beside a
    tie.
    """
    a, b = (held(np.full((2, 2), v), "fp32") for v in (x, y))
    (got,) = run(machine, lambda a, b: round_event(a + b, r), ["fp32"], a, b)
    assert np.array_equal(got, np.full((2, 2), want))


def test_a_number_of_16_bits_times_a_constant(machine, calls):
    """The scale of scores is such a number, or it is not."""
    x = held(numbers("bf16", 3), "bf16")
    for scale in (0.125, float(np.float32(0.3))):
        (got,) = run(
            machine, lambda x, scale=scale: round_event(product(x, scale), BF16), ["bf16"], x
        )
        assert np.array_equal(bits(got), bits(round_to(np.asarray(x.array) * scale, BF16)))
    assert calls == {"mul of 16 bits": 1, "mul to odd": 1}


def test_constants_keep_their_shape(machine):
    """Two arrays of one number each: the numbers alone have none."""
    ones = np.ones((4, 4))

    def f():
        total = round_event(jnp.full((4, 4), 0.5) + jnp.full((4, 4), 1.0), BF16)
        return total, jnp.max(total, axis=1)

    total, largest = run(machine, f, ["bf16", "bf16"])
    assert np.array_equal(total, 1.5 * ones)
    assert np.array_equal(largest, 1.5 * ones[0])


def test_what_has_no_instruction_runs_in_binary64(machine, calls):
    """Other modes, formats and operations, wide numbers, a sum of a sum that nobody rounded."""
    a, b = numbers("fp32", 1), numbers("bf16", 2)

    def f(x, y):
        total = (x + y) + y
        return (
            round_event(x + y, DOWN),
            round_event(x + y, E4M3),
            round_event(total, BF16),
            round_event(x / y, E4M3),
            round_event(x / y, BINARY32),  # one instruction, as 53 >= 2 * 24 + 2
        )

    with np.errstate(all="ignore"):
        want = (
            round_to(a + b, DOWN),
            round_to(a + b, E4M3),
            round_to((a + b) + b, BF16),
            round_to(a / b, E4M3),
            round_to(a / b, BINARY32),
        )
    for x, y in zip(
        run(machine, f, ["fp64"] * 5, held(a, "fp32"), held(b, "bf16")), want, strict=True
    ):
        assert np.array_equal(bits(x), bits(y))
    assert calls == {"binary64": 4, "quotient": 1, "div": 1}


def test_exp_knows_what_it_reads(machine, calls):
    """The short series for bfloat16 numbers alone, and neither for another rounding of the
    result.
    """
    x = np.minimum(numbers("fp32", 5), 80.0)
    y = round_to(x, BF16)

    def f(x, y):
        return [
            round_event(marks.function(exp64, v), r)
            for v, r in ((x, BINARY32), (y, BINARY32), (x, BF16))
        ]

    got = run(machine, f, ["fp32", "fp32", "bf16"], held(x, "fp32"), held(y, "bf16"))
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.longdouble))
    assert np.array_equal(got[0].astype(np.float32), want.astype(np.float32), equal_nan=True)
    assert np.array_equal(bits(got[2]), bits(round_to(want.astype(float), BF16)))
    assert calls == {"exp fp32": 1, "exp bf16": 1, "binary64": 1}


def test_what_moves_stays_narrow(machine):
    """A mask, a maximum, an axis more, a constant that every format holds: still bfloat16 or
    binary32.
    """
    x = held(numbers("bf16", 6), "bf16")
    seen = []

    def f(x):
        m = jnp.max(x, axis=1)
        m = round_event(m, BF16)
        m = jnp.where(m == -jnp.inf, 0.0, m)[:, None]
        return round_event(x - m, BF16)

    watched = dataclasses.replace(
        machine, combined16=lambda *a: seen.append(a[3]) or machine.combined16(*a)
    )
    (got,) = run(watched, f, ["bf16"], x)
    a = np.asarray(x.array)
    m = a.max(axis=1)
    with np.errstate(invalid="ignore"):
        want = round_to(a - np.where(m == -np.inf, 0.0, m)[:, None], BF16)
    assert np.array_equal(bits(got), bits(want))
    assert seen == [BF16]


def test_a_rounding_that_waits_for_its_reader(machine):
    """As bfloat16 for a matrix unit and as binary32 for a sum: the same numbers."""
    x = Held(array=None, wider=jnp.asarray(numbers("fp32", 8)), format="bf16")
    want = round_to(np.asarray(x.wider), BF16)
    for name in ("bf16", "fp32", "fp64"):
        assert np.array_equal(bits(np.asarray(held_as(machine, x, name))), bits(want))


def test_what_is_seen_beside_the_numbers(machine, calls):
    """An event that had nothing to round is one array before and after; what nobody asks for is not
    computed.
    """
    x = held(numbers("bf16", 7), "bf16")

    def f(x):
        y = round_event(x, BINARY32)
        round_event(x, DOWN)
        return (y,), {
            "exact": (x, y),
            "rounded": (x + 1.0, round_event(x + 1.0, BF16)),
            "flag": x > 0.0,
        }

    _, seen = narrowed(machine, f, ["fp32"])(x)
    before, after = seen["exact"]
    assert before is after and before.dtype == jnp.float64
    assert not np.array_equal(*seen["rounded"])
    assert seen["flag"].dtype == bool
    assert calls == {"add of 16 bits": 1}
