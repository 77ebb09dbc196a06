"""AMD's matrix cores, RTX Blackwell and FP4 in blocks: against a judge in fractions and against
MMA-Sim's stored results, and one executor against the other.
"""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu import Accumulator
from roundscope.emu.roundings.judge import judge
from tests.checks.other_hardware import (
    KINDS,
    PATH,
    SIDE,
    block_cases,
    equal,
    forgotten,
    given,
    ours,
    plain_cases,
)
from tests.emu.sums.test_aligned import exponent

CASES = {case.name: case for case in (*plain_cases(), *block_cases())}
STORED = dict(np.load(PATH))
R = emu.rounding("fp32")
AMD = [
    ("cdna1", "fp16"),
    ("cdna1", "bf16"),
    ("cdna2", "bf16"),
    ("cdna3", "fp16"),
    ("cdna3", "tf32"),
    ("cdna3", "e5m2fnuz"),
    ("cdna3", "e4m3fnuz*e5m2fnuz"),
]


@pytest.mark.parametrize("name", CASES)
def test_sums_are_mma_sims(name):
    """What the authors of arXiv 2511.10909 found to be the hardware's, signs of zeros too."""
    case, rng = CASES[name], np.random.default_rng(2511)
    for kind, wanted in zip(KINDS, STORED[name], strict=True):
        x = given(rng, case, kind, SIDE)
        found = ours(case, x)
        assert (equal(found, wanted) | forgotten(case, x, found)).all(), kind


def floor(x, unit):
    return math.floor(x / unit) * unit


def step(x, flushed=False):
    """One rounding of an exact number, in which subnormal results may become 0."""
    y = Fraction(judge(x, R)) if x else Fraction(0)
    return Fraction(0) if flushed and abs(y) < Fraction(2) ** -126 else y


def judged(arch, a, b, c, chunk, formats, groups=1):
    """The sum of one entry, as the docstring of emu.sums.matrix_cores has it; finite numbers."""
    emins = [emu.format_named(f).emin for f in formats]
    if arch == "cdna2":
        small = [Fraction(2) ** e for e in (*emins, -126)]
        a, b = ([x if abs(x) >= s else 0 for x in v] for v, s in zip((a, b), small, strict=False))
        c = c if abs(c) >= small[2] else Fraction(0)
    for lo in range(0, len(a), chunk):
        pairs = list(zip(a[lo : lo + chunk], b[lo : lo + chunk], strict=True))
        p = [x * y for x, y in pairs]
        if arch == "cdna1":
            c = step(c + sum(p))
        elif arch == "cdna2":
            q = [step(x, True) for x in p]
            while len(q) > 1:
                q = [step(q[n] + q[n + 1], True) for n in range(0, len(q), 2)]
            c = step(c + q[0], True)
        else:
            e = [
                sum(map(exponent, pair, emins)) if x else None
                for pair, x in zip(pairs, p, strict=True)
            ]
            sums, tops = [], []
            for g in range(groups):
                own = [(x, n) for x, n in zip(p[g::groups], e[g::groups], strict=True) if x]
                tops.append(max((n for _, n in own), default=-999))
                unit = Fraction(2) ** (tops[-1] - 24)
                sums.append(sum(math.trunc(x / unit) for x, _ in own) * unit)
            top = max(tops)
            total = sum(floor(s, Fraction(2) ** (top - 24)) for s in sums)
            most = max(top, exponent(c, -126) if c else -999)
            lost = groups == 2 and abs(c) < Fraction(2) ** (most - 25)
            own = Fraction(0) if lost else floor(c, Fraction(2) ** (most - 24))
            c = step(floor(total, Fraction(2) ** (most - 31)) + own)
    return float(c)


@pytest.mark.parametrize(("arch", "factors"), AMD)
def test_sums_are_the_judges(arch, factors):
    """A cut of other bits or in another direction, a pair or a group of other products, a subnormal
    number that is kept or flushed, an expansion that overlaps.
    """
    case = CASES[f"{arch} {factors} fp32"]
    rng = np.random.default_rng(69)
    for kind in ("wide", "tiny", "cancelling"):
        x = given(rng, case, kind, 3)
        found = ours(case, x)
        for i, j in np.ndindex(found.shape):
            a, b, c = (
                [*map(Fraction, map(float, v))]
                for v in (x["a"][i], x["b"][j], x["c"][i, j : j + 1])
            )
            groups = 2 if "fnuz" in factors else 1
            want = judged(arch, a, b, c[0], case.acc.chunk, case.types, groups)
            assert found[i, j] == want, kind


@pytest.mark.parametrize(
    "name", ["cdna1 bf16", "cdna2 fp16", "cdna3 e5m2fnuz", "blackwell e2m1fn[16]*e4m3fn"]
)
def test_both_executors_agree(name):
    """A fused or flushed operation; K that no chunk divides; infinities and NaN."""
    case = CASES[f"{name} fp32"]
    rng = np.random.default_rng(70)
    x = given(rng, case, "codes" if case.block else "wide", 5)
    if not case.block:
        x = {key: v[:, :-1] if key in "ab" else v for key, v in x.items()}
        x["a"][0, 3], x["c"][2, 2], x["c"][4, 4] = np.nan, np.inf, -np.inf
    one = ours(case, x)
    if case.block:
        f, unit = emu.block_format(case.block), jnp.float32(1.0)
        a, b = (
            emu.Blocked(
                elements=jnp.asarray(x[n]), scales=jnp.asarray(x[s]), tensor=unit, format=f, axis=1
            )
            for n, s in (("a", "sa"), ("b", "sb"))
        )
        other = emu.dot(a, b.T, case.acc, jnp.asarray(x["c"]))
    else:
        other = emu.dot(jnp.asarray(x["a"]), jnp.asarray(x["b"].T), case.acc, jnp.asarray(x["c"]))
    assert equal(one, np.asarray(other)).all()


def test_cdna3_leans_downward_whatever_the_sign():
    """A cut toward zero in place of the floor: the two sums below would be 0."""
    rng = np.random.default_rng(71)
    a, b = (emu.round_to(rng.standard_normal((16, 256)), "fp16") for _ in "ab")
    both = {}
    for arch in ("cdna3", "cdna1", "hopper"):
        core = Accumulator.tensor_core(arch, "fp16")
        both[arch] = emu.dot(a, b.T, core) + emu.dot(-a, b.T, core)
    assert both["cdna3"].mean() < 0 and (both["cdna3"] <= 0).mean() > 0.9
    assert not both["cdna1"].any() and not both["hopper"].any()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cdna4", "bf16"), "did you mean 'cdna"),
        (("cdna2", "e4m3fnuz"), "the tensor core of cdna2 takes fp16 bf16"),
        (("cdna3", "fp16", "fp16"), "sums of fp16 are kept in fp32"),
        (("blackwell", "nvfp4", "fp16"), "sums of nvfp4 are kept in fp32"),
        (("cdna3", "e4m3fn"), "takes fp16 bf16 tf32 e4m3fnuz e5m2fnuz"),
    ],
)
def test_what_does_not_exist_is_named(words, said):
    with pytest.raises(ValueError, match=said):
        Accumulator.tensor_core(*words)


def test_blocks_of_other_scales_are_refused():
    """NVFP4 read as MXFP4, whose scales have other exponents."""
    one, f = np.ones((2, 64), np.float32), emu.block_format("mxfp4")
    x = emu.Blocked(elements=one, scales=one[:, :2], tensor=np.float32(1), format=f, axis=1)
    with pytest.raises(ValueError, match="takes nvfp4, blocks of e2m1fn with scales in e4m3fn"):
        emu.dot(x, x.T, Accumulator.tensor_core("blackwell", "nvfp4"))
