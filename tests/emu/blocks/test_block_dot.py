"""Sums of products of blocked matrices against exact arithmetic, every accumulator, both
executors.
"""

from dataclasses import replace
from fractions import Fraction

import jax
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import BLOCK_NAMED, Accumulator, Order, dot, from_blocks, rounding, to_blocks
from roundscope.emu.roundings.judge import judge

RNG = np.random.default_rng(15)
A = (RNG.standard_normal((3, 70)) * np.exp2(RNG.integers(-3, 4, (3, 70)))).astype(np.float32)
B = RNG.standard_normal((70, 4)).astype(np.float32)
STOCHASTIC = Accumulator(step=rounding("bf16", "stochastic", seed=3))
ACCUMULATORS = (
    Accumulator(),
    Accumulator(order=Order.PAIRWISE),
    Accumulator(order=Order.CHUNKED, chunk=32),
    Accumulator(order=Order.EXACT),
    Accumulator(step=rounding("bf16")),
    Accumulator(step=rounding("tf32", "toward-zero")),
    STOCHASTIC,
)
DEEPSEEK = replace(BLOCK_NAMED["fp8_1x128"], size=16)
SMALL = {**BLOCK_NAMED, "fp8_1x16": DEEPSEEK, "fp8_2x16": replace(DEEPSEEK, rows=2)}


def both(name: str) -> tuple[emu.Blocked, emu.Blocked]:
    return to_blocks(A, SMALL[name], axis=1), to_blocks(B, SMALL[name], axis=0)


def on_xla(name: str, *rest: object) -> np.ndarray:
    """Quantised and added up in one compiled function."""
    f = SMALL[name]
    return np.asarray(
        jax.jit(lambda a, b: dot(to_blocks(a, f, axis=1), to_blocks(b, f, axis=0), *rest))(A, B)
    )


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4", "mxint8"])
def test_mx_is_the_sum_of_its_numbers(name: str, acc: Accumulator) -> None:
    """A scale left out, applied twice, or rounded away; init that is not where the sum starts."""
    a, b = both(name)
    init = RNG.standard_normal((3, 4)).astype(np.float32)
    want = dot(from_blocks(a), from_blocks(b), acc, init)
    np.testing.assert_array_equal(dot(a, b, acc, init), want)
    np.testing.assert_array_equal(dot(from_blocks(a), b, acc, init), want)
    if name == "mxfp8_e4m3":
        np.testing.assert_array_equal(on_xla(name, acc, init), want)


def test_exact_order_is_the_rounded_exact_sum() -> None:
    """OCP MX 1.0, 6.2: the sum over blocks of X(A) X(B) times the sum of P(A) P(B), in
    fractions.
    """
    for name in ("mxfp8_e5m2", "mxfp6_e3m2", "mxfp4"):
        a, b = both(name)
        got = dot(a, b, Accumulator(order=Order.EXACT))
        for t in range(3):
            for n in range(4):
                total = Fraction(0)
                for j in range(3):
                    part = slice(32 * j, 32 * j + 32)
                    inner = sum(
                        Fraction(float(p)) * Fraction(float(q))
                        for p, q in zip(a.elements[t, part], b.elements[part, n], strict=True)
                    )
                    total += (
                        Fraction(float(a.scales[t, j])) * Fraction(float(b.scales[j, n])) * inner
                    )
                assert got[t, n] == judge(total, emu.BINARY32)  # type: ignore[arg-type]


def test_nvfp4_multiplies_by_both_tensor_scales_at_the_end() -> None:
    """The exact sum of E2M1 x E4M3 numbers, rounded; times binary32(T_A T_B), rounded; plus init,
    rounded.
    """
    a, b = both("nvfp4")
    init = RNG.standard_normal((3, 4)).astype(np.float32)
    one = np.float32(1)
    sums = dot(
        from_blocks(replace(a, tensor=one)),
        from_blocks(replace(b, tensor=one)),
        Accumulator(order=Order.EXACT),
    )
    alpha = np.float32(a.tensor) * np.float32(b.tensor)
    want = (sums.astype(np.float32) * alpha) + init
    np.testing.assert_array_equal(dot(a, b, Accumulator(order=Order.EXACT), init), want)
    np.testing.assert_array_equal(on_xla("nvfp4", Accumulator(order=Order.EXACT), init), want)


@pytest.mark.parametrize("name", ["fp8_1x16", "fp8_2x16"])
def test_binary32_scales_multiply_each_block_sum(name: str) -> None:
    """Block sums in binary32 order, each times binary32(X X'), fused into the total; the last block
    is short.
    """
    a, b = both(name)
    rows = SMALL[name].rows
    total = np.zeros((3, 4))
    for j in range(5):
        part = slice(16 * j, min(16 * j + 16, 70))
        block = np.zeros((3, 4))
        for k in range(part.start, part.stop):
            block = (
                (block + a.elements[:, k, None].astype(float) * b.elements[k].astype(float))
                .astype(np.float32)
                .astype(float)
            )
        x = np.repeat(a.scales[:, j], rows)[:3, None] * np.repeat(b.scales[j], rows)[:4]
        total = (total + block * x.astype(float)).astype(np.float32).astype(float)
    np.testing.assert_array_equal(dot(a, b), total)
    np.testing.assert_array_equal(on_xla(name), total)


@pytest.mark.thorough
def test_every_accumulator_takes_binary32_scales_alike_on_both_executors() -> None:
    """An order lost on the way; random bits that depend on the executor."""
    for acc in ACCUMULATORS:
        got = dot(*both("fp8_1x16"), acc)
        if acc in (Accumulator(), STOCHASTIC):
            np.testing.assert_array_equal(got, on_xla("fp8_1x16", acc))
        assert np.abs(got - dot(*both("fp8_1x16"))).max() < 0.3 * np.abs(got).max()
    assert not np.array_equal(
        dot(*both("fp8_1x16"), STOCHASTIC),
        dot(*both("fp8_1x16"), Accumulator(step=rounding("bf16"))),
    )


def test_stochastic_block_sums_draw_their_own_bits() -> None:
    """Random bits of one block used again in the next: equal blocks would then all have equal
    sums.
    """
    x = np.tile(RNG.standard_normal((1, 16)), (64, 4)).astype(np.float32)
    a, b = to_blocks(x, DEEPSEEK), to_blocks(x.T, DEEPSEEK, axis=0)
    steps: list = []
    dot(a, b, STOCHASTIC, steps=steps)
    blocks = [after[-1] for _, after in steps if after.shape[0] == 16]
    assert len(blocks) == 4
    assert not any(np.array_equal(blocks[0], later) for later in blocks[1:])


def test_native_order_and_plain_operands() -> None:
    a = both("fp8_1x16")[0]
    close = from_blocks(a).astype(float) @ B.astype(float)
    np.testing.assert_allclose(dot(a, B), close, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        dot(*both("mxfp8_e4m3"), Accumulator(order=Order.NATIVE)),
        dot(*both("mxfp8_e4m3")),
        rtol=1e-5,
        atol=1e-5,
    )


def test_steps_are_every_addition() -> None:
    """(before, after) of each addition, those of the scales too: after is the rounding of
    before.
    """
    for name, count in (("mxfp4", 70), ("fp8_1x16", 70 + 5), ("nvfp4", 70 + 2)):
        steps: list = []
        got = dot(*both(name), init=np.ones((3, 4)), steps=steps)
        before, after = (np.concatenate([s[i] for s in steps]) for i in (0, 1))
        assert before.shape == (count, 3, 4)
        np.testing.assert_array_equal(before.astype(np.float32), after)
        np.testing.assert_array_equal(after[-1], got)


def test_what_does_not_fit_is_refused() -> None:
    a, b = both("mxfp4")
    for call, word in (
        (lambda: dot(b.T.T, b), "shapes"),
        (lambda: dot(a, to_blocks(B, "mxfp4", axis=1)), "axis=0"),
        (lambda: dot(to_blocks(A, SMALL["fp8_1x16"]), b), "one size"),
        (lambda: dot(a, b, init=np.zeros(3)), "init"),
        (lambda: to_blocks(A[None], "mxfp4").T, "matrix"),
    ):
        with pytest.raises(ValueError, match=word):
            call()
    np.testing.assert_array_equal(dot(b.T, a.T), dot(a, b).T)
