"""Tensor cores: against a judge in fractions, against MMA-Sim's stored results, one executor
against the other, and the odd values.
"""

import math
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import Accumulator, round_to, to_blocks
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.judge import judge
from roundscope.emu.sums.aligned import Alignment
from roundscope.emu.sums.tensor_cores import ARCHITECTURES
from tests.emu.sums.mma_sim import KINDS, PATH

EVERY = [
    (arch, name, total)
    for arch, own in ARCHITECTURES.items()
    if arch != "rtx_blackwell" and not arch.startswith("cdna")  # test_matrix_cores.py has these
    for name in own.operands
    if not name.endswith("fp4")
    for total in (("fp32",) if name in ("bf16", "tf32") else ("fp32", "fp16"))
]
SOME = [
    ("hopper", "bf16", "fp32"),
    ("hopper", "e4m3fn", "fp32"),
    ("ampere", "tf32", "fp32"),
    ("volta", "fp16", "fp16"),
]
RNG = np.random.default_rng(2511)


def exponent(x, emin):
    """floor(log2 |x|), at least emin, from the fraction's own digits."""
    n, d = abs(x).numerator, abs(x).denominator
    e = n.bit_length() - d.bit_length()
    return max(e if Fraction(2) ** e <= abs(x) else e - 1, emin)


def judged(a, b, c, acc):
    """The sum of one entry, as the docstring of emu.sums.aligned has it, in fractions; finite
    numbers.
    """
    kept, f = acc.alignment, acc.step.format
    first, second = kept.operands
    a, b, c = [*map(Fraction, a)], [*map(Fraction, b)], Fraction(c)
    missing = -len(a) % acc.chunk
    a, b = a + [Fraction(0)] * missing, b + [Fraction(0)] * missing
    for lo in range(0, len(a), acc.chunk):
        terms = [
            (
                x * y,
                (exponent(x, first.emin) + exponent(y, second.emin) if x * y else kept.zero),
            )
            for x, y in zip(a[lo : lo + acc.chunk], b[lo : lo + acc.chunk], strict=True)
        ]
        terms.append((c, exponent(c, f.emin) if c else kept.zero))
        unit = Fraction(2) ** (max(e for _, e in terms) - kept.bits)
        total = sum(math.trunc(t / unit) for t, _ in terms) * unit
        if abs(total) >= Fraction(2) ** (f.emax + 1):
            return math.copysign(math.inf, total)
        c = Fraction(judge(float(total), acc.step)) if total else Fraction(0)
    return float(c)


def numbers(kind, shape, f):
    """Numbers of a format: ordinary, over many binades, about its smallest, mostly 0."""
    x = RNG.standard_normal(shape)
    x = x * {
        "normal": 1.0,
        "wide": 2.0 ** RNG.integers(-9, 6, shape),
        "sparse": RNG.random(shape) < 0.3,
    }.get(kind, 2.0**f.emin)
    return round_to(x, f)


def factors(kind, rows, k, columns, f, second=None):
    """(rows, K) and (K, columns); tiny ones meet ordinary ones, so that sums are about the smallest
    normal number.
    """
    return numbers(kind, (rows, k), f), numbers(
        "normal" if kind == "tiny" else kind, (k, columns), second or f
    )


@pytest.mark.parametrize("names", ["e4m3fn*e5m2", "e5m2*e4m3fn"])
@pytest.mark.parametrize("on", [np.asarray, jnp.asarray])
def test_sums_of_two_formats_are_the_judges(names, on):
    """The exponent of a subnormal number of one format where the other's stands."""
    acc, (f, g) = Accumulator.tensor_core("hopper", names), map(format_named, names.split("*"))
    for kind in ("normal", "wide", "tiny"):
        a, b = factors(kind, 2, acc.chunk + 3, 3, f, g)
        want = [[judged(a[i], b[:, j], 0.0, acc) for j in range(3)] for i in range(2)]
        found = emu.dot(*(on(x.astype(np.float32)) for x in (a, b)), acc)
        assert np.array_equal(found, want), kind


def test_two_formats_that_no_core_reads():
    """A format of another width, one format twice, three formats."""
    for wrong in ("e4m3fn*bf16", "e4m3fn*e4m3fn", "e4m3fn*e5m2*e4m3fn", "e4m3fn*"):
        with pytest.raises(ValueError, match="operand="):
            Accumulator.tensor_core("hopper", wrong)


@pytest.mark.parametrize(("arch", "name", "total"), EVERY)
def test_sums_are_the_judges(arch, name, total):
    """A cut in the wrong place or direction, a chunk of the wrong size, a subnormal's or a zero's
    exponent, for every type there is.
    """
    acc, f = Accumulator.tensor_core(arch, name, total), format_named(name)
    for kind in ("normal", "wide", "tiny", "sparse"):
        a, b = factors(kind, 2, acc.chunk + 3, 3, f)
        c = round_to(
            RNG.standard_normal((2, 3))
            * 2.0 ** (acc.step.format.emin if kind == "tiny" else 0)
            * (RNG.random((2, 3)) < 0.7),
            acc.step.format,
        )
        want = [[judged(a[i], b[:, j], c[i, j], acc) for j in range(3)] for i in range(2)]
        assert np.array_equal(emu.dot(a, b, acc, c), want), kind


@pytest.mark.parametrize("zero", [-40, 0, 3])
def test_a_zero_has_its_exponent_in_any_alignment(zero):
    """The zeros that pad a chunk have no part in the common exponent. In the known tensor cores a
    sum of normal numbers hides that, since `zero` is below their exponents.
    """
    bf16 = format_named("bf16")
    acc = Accumulator(
        order="aligned",
        step=emu.rounding("fp32", "toward-zero"),
        chunk=4,
        alignment=Alignment(bits=8, zero=zero, operand=bf16),
    )
    a, b = (round_to(RNG.uniform(0.5, 1.0, s) * 2.0**-4, bf16) for s in ((2, 7), (7, 3)))
    c = round_to(RNG.uniform(0.5, 1.0, (2, 3)) * 2.0**-8, "fp32")
    want = [[judged(a[i], b[:, j], c[i, j], acc) for j in range(3)] for i in range(2)]
    assert np.array_equal(emu.dot(a, b, acc, c), want)


@cache
def stored():
    with np.load(PATH) as file:
        return {name: file[name] for name in file.files}


def entries(a, b, c, acc):
    """Each row of a with the row of b beside it."""
    return np.concatenate(
        [emu.dot(a[i : i + 1], b[i : i + 1].T, acc, c[i : i + 1, None])[0] for i in range(len(a))]
    )


CASES = sorted({tuple(name.split()[:3]) for name in np.load(PATH).files})


@pytest.mark.parametrize(("arch", "name", "total"), CASES)
def test_sums_are_mma_sims(arch, name, total):
    """What the authors of arXiv 2511.10909 found to be the hardware's: random codes too, with
    infinities and NaN.
    """
    acc = Accumulator.tensor_core(arch, name, total)
    with np.errstate(invalid="ignore"):  # signalling NaN among the codes
        for kind in KINDS:
            a, b, c, d = (
                stored()[f"{arch} {name} {total} {kind} {part}"].astype(np.float64)
                for part in "abcd"
            )
            found = entries(a, b, c, acc)
            assert np.array_equal(found, d, equal_nan=True), kind
            assert not np.signbit(found[found == 0.0]).any()


@pytest.mark.parametrize(("arch", "name", "total"), SOME)
def test_both_executors_agree(arch, name, total):
    """A fused or flushed operation; K that no chunk divides; infinities, NaN, and sums that leave
    the format.
    """
    acc, f = Accumulator.tensor_core(arch, name, total), format_named(name)
    for kind in ("wide", "tiny"):
        a, b = factors(kind, 5, 45, 7, f)
        c = round_to(
            RNG.standard_normal((5, 7)) * 2.0 ** (acc.step.format.emin if kind == "tiny" else 0),
            acc.step.format,
        )
        if kind == "wide":
            a[0, 3], a[1, 40], b[2, 2], c[3, 3] = np.nan, f.max_finite, f.max_finite, np.inf
            a[2, :] = f.max_finite
            b[:, 4] = f.max_finite
        one = emu.dot(a, b, acc, c)
        other = np.asarray(
            emu.dot(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32), acc, c)
        )
        assert np.array_equal(
            one.view(np.int64)[~np.isnan(one)], other.view(np.int64)[~np.isnan(one)]
        )
        assert np.array_equal(np.isnan(one), np.isnan(other)) and (
            kind != "wide" or np.isnan(one[0]).all()
        )
    assert np.isinf(
        emu.dot(
            *(np.full(s, format_named("fp16").max_finite) for s in ((1, 64), (64, 1))),
            Accumulator.tensor_core("hopper", "fp16", "fp16"),
        )
    )


def test_threads_and_blocks_of_columns_change_nothing():
    """A row or column that another piece of the work writes."""
    acc = Accumulator.tensor_core("hopper", "bf16")
    a, b = (round_to(RNG.standard_normal(s), "bf16") for s in ((70, 96), (96, 530)))
    whole = emu.dot(a, b, acc)
    assert all(
        np.array_equal(whole[i : i + 1], emu.dot(a[i : i + 1], b, acc)) for i in (0, 34, 35, 69)
    )
    assert all(
        np.array_equal(whole[:, j : j + 1], emu.dot(a, b[:, j : j + 1], acc))
        for j in (0, 255, 256, 529)
    )


def test_steps_are_the_chunks():
    """A trace of other sums than those that were added, or with what was cut left out of the
    error.
    """
    acc = Accumulator.tensor_core("hopper", "e4m3fn")
    a, b = (round_to(RNG.standard_normal(s), "e4m3fn") for s in ((3, 96), (96, 2)))
    steps = []
    total = emu.dot(a, b, acc, None, steps)
    ((before, after),) = steps
    assert before.shape == after.shape == (3, 3, 2) and np.array_equal(after[-1], total)
    assert np.allclose(before[0], a[:, :32] @ b[:32], rtol=1e-13) and np.allclose(
        before[1], after[0] + a[:, 32:64] @ b[32:64], rtol=1e-13
    )
    assert (abs(before - after) > 0).any()


def test_blackwell_reads_blocks():
    """The exponent of a scale left out of the alignment, or put where it changes a subnormal
    element's.
    """
    acc = Accumulator.tensor_core("blackwell", "e4m3fn")
    a, b = (RNG.standard_normal(s) * 2.0 ** RNG.integers(-12, 12, s) for s in ((4, 96), (96, 5)))
    x, y = to_blocks(a, "mxfp8_e4m3", axis=1), to_blocks(b, "mxfp8_e4m3", axis=0)
    want, emin = np.zeros((4, 5)), acc.alignment.operand.emin
    for j in range(3):
        part = slice(32 * j, 32 * j + 32)
        for i in range(4):
            for n in range(5):
                pairs = [
                    (Fraction(float(p)), Fraction(float(q)))
                    for p, q in zip(x.elements[i, part], y.elements[part, n], strict=True)
                ]
                scale = Fraction(float(x.scales[i, j])) * Fraction(float(y.scales[j, n]))
                terms = [
                    (p * q * scale, exponent(p, emin) + exponent(q, emin) + exponent(scale, -300))
                    for p, q in pairs
                    if p * q
                ]
                c = Fraction(want[i, n])
                terms.append((c, exponent(c, -126) if c else acc.alignment.zero))
                unit = Fraction(2) ** (max(e for _, e in terms) - 25)
                want[i, n] = judge(
                    float(sum(math.trunc(t / unit) for t, _ in terms) * unit), acc.step
                )
    assert np.array_equal(emu.dot(x, y, acc), want)
    with pytest.raises(ValueError, match="takes blocks of e4m3fn"):
        emu.dot(to_blocks(a, "mxfp8_e5m2", axis=1), y, acc)


def test_the_hardware_leans_toward_zero():
    """All terms positive: no cut and no rounding can make a sum larger."""
    a, b = (round_to(RNG.random(s), "bf16") for s in ((8, 256), (256, 8)))
    exact = a @ b
    for arch in ("ampere", "hopper"):
        assert (emu.dot(a, b, Accumulator.tensor_core(arch, "bf16")) <= exact).all()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("pascal", "fp16"), "unknown architecture 'pascal'"),
        (("hoper", "bf16"), "did you mean 'hopper'"),
        (("volta", "bf16"), "the tensor core of volta takes fp16"),
        (("hopper", "bf16", "fp16"), "sums of bf16 are kept in fp32"),
        (("hopper", "fp16", "bf16"), "kept in fp32 or fp16"),
    ],
)
def test_what_does_not_exist_is_named(words, named):
    with pytest.raises(ValueError, match=named):
        Accumulator.tensor_core(*words)


def test_a_factor_that_it_cannot_read_is_named():
    acc = Accumulator.tensor_core("hopper", "bf16")
    with pytest.raises(ValueError, match=r"b: .*0.1.* is no bf16 number"):
        emu.dot(np.ones((1, 1)), np.full((1, 1), 0.1), acc)


def test_no_sums_no_products():
    assert np.array_equal(
        emu.dot(np.ones((2, 0)), np.ones((0, 3)), Accumulator.tensor_core("hopper", "bf16")),
        np.zeros((2, 3)),
    )


def test_it_can_be_traced():
    """Under jit the factors are not known yet."""
    acc = Accumulator.tensor_core("hopper", "bf16")
    a, b = (round_to(RNG.standard_normal(s), "bf16").astype(np.float32) for s in ((2, 20), (20, 3)))
    assert np.array_equal(
        np.asarray(jax.jit(lambda a, b: emu.dot(a, b, acc).astype("float32"))(a, b)),
        emu.dot(a, b, acc),
    )
