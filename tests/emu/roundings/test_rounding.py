"""The rule on both executors against ml_dtypes, the judge, and known answers; one body, many
cases.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu import round_to
from roundscope.emu.backends.numba import rounding as kernels
from roundscope.emu.backends.xla import rounding as xla
from roundscope.emu.backends.xla.rounding import narrow, widen
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import Rounding, RoundingMode, mode_named, rounding
from roundscope.emu.roundings.random import threefry2x32
from tests.checks.exhaustive import REFERENCES, different, documented, reference, rounder

USER_FORMATS = ("e5m10", "e4m3", "e2m1", "e3m4", "e8m16", "e11m20", "e6m40")
# one significand bit, where every kept bit is a leading one; in two, at a carrier's own lowest
# exponent
CORNERS = (
    Format(name="p1", precision=1, emin=-20, max_finite=2.0**20, inf=True, nan=True),
    Format(name="p1-low32", precision=1, emin=-126, max_finite=1.0, inf=False, nan=False),
    Format(name="p1-low64", precision=1, emin=-1022, max_finite=1.0, inf=False, nan=True),
    Format(name="p2-odd-top", precision=2, emin=-3, max_finite=1.0, inf=True, nan=False),
)
FORMATS = (*map(format_named, (*NAMED, *USER_FORMATS)), *CORNERS)
MODES = tuple(RoundingMode)
CARRIERS = (np.float32, np.float64)
LONG = ("e5m10", "e2m1", "e3m4", "e8m16", "e6m40")
# every format in every mode, its carriers in turn, each a program of XLA; `make thorough`: all
COMBINATIONS = [
    pytest.param(
        f,
        mode,
        dtype,
        marks=[pytest.mark.thorough] if f.name in LONG or (i + j + k) % 2 else [],
        id=f"{f.name}-{mode}-{dtype.__name__}",
    )
    for i, f in enumerate(FORMATS)
    for j, mode in enumerate(MODES)
    for k, dtype in enumerate(CARRIERS)
]


def on_numpy(x: np.ndarray, r: Rounding, random: np.ndarray | None = None) -> np.ndarray:
    return kernels.round_array(x, r, random)


def on_xla(x: np.ndarray, r: Rounding, random: np.ndarray | None = None) -> np.ndarray:
    """Compiled, as a user would: XLA may rewrite what it likes."""
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda x, random: xla.round_array(x, r, random))(x, random))


EXECUTORS: dict[str, Callable[..., np.ndarray]] = {"numpy": on_numpy, "xla": on_xla}
executors = pytest.mark.parametrize("executor", EXECUTORS)


def words(x: np.ndarray) -> np.ndarray:
    """The bits, with every NaN made one."""
    word = np.int32 if x.dtype == np.float32 else np.int64
    return np.where(np.isnan(x), 1 - 2 ** (x.itemsize * 8 - 1), x.view(word))


def hexed(value: np.floating) -> str:
    return float(value).hex()


def assert_same(got: np.ndarray, want: np.ndarray, x: np.ndarray) -> None:
    """Equal bits, any NaN like any other; the message shows the first difference."""
    assert got.dtype == want.dtype and got.shape == want.shape
    wrong = np.flatnonzero(words(got) != words(want))
    if wrong.size:
        i = wrong[0]
        pytest.fail(
            f"{wrong.size} of {x.size} differ; {hexed(x[i])} gives {hexed(got[i])}, expected"
            f" {hexed(want[i])}"
        )


# ------------------------------------------------------------------------------------- ml_dtypes


@cache
def stratified() -> np.ndarray:
    """2^22 binary32 numbers: every sign and exponent, every ten leading fraction bits, eight tails.

    Ten bits hold the kept part and the round bit of every format here but fp16, whose kept part
    they are; the tails are all its round and sticky cases: 0, 1, around one half, all ones, and two
    random ones.
    """
    tails = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    heads = np.arange(1 << 19, dtype=np.uint32) << 13
    random = np.random.default_rng(1).integers(0, 1 << 13, (1 << 19, 2), dtype=np.uint32)
    bits = heads[:, None] | np.hstack([np.broadcast_to(tails, (1 << 19, 6)), random])
    return bits.reshape(-1).view(np.float32)


@pytest.mark.parametrize("name", REFERENCES)
@executors
def test_nearest_even_is_ml_dtypes(name: str, executor: str) -> None:
    """A tie that goes to the odd neighbor, a number just beside a tie that goes the wrong way, an
    overflow or a subnormal number that is another than ml_dtypes'.
    """
    x = stratified()
    if name == "e8m0fnu" and executor == "numpy":
        x = x[~np.isnan(x)]
    got, want = rounder(name, executor)(x), reference(name)(x)
    at = different(got, want)
    known = documented(name, x[at], got[at], want[at])
    unknown = at[~np.logical_or.reduce(list(known.values()))]
    assert_same(got[unknown], want[unknown], x[unknown])
    classes = {label for label, mask in known.items() if mask.any()}
    assert classes == (
        {"NaN kept"}
        if not format_named(name).nan
        else {"above 2^-127"}
        if name == "e8m0fnu"
        else set()
    )


@executors
def test_e8m0fnu_between_its_two_smallest_is_the_judges(executor: str) -> None:
    """(2^-127, 2^-126) is where ml_dtypes always goes up; the midpoint is 1.5 2^-127."""
    patterns = np.arange(0x0040_0000, 0x0080_0001, 0x1111, dtype=np.uint32)
    middle = np.arange(0x0060_0000 - 3, 0x0060_0000 + 4, dtype=np.uint32)
    x = np.concatenate([patterns, middle]).view(np.float32)
    want = np.array([judge(float(v), rounding("e8m0fnu")) for v in x], np.float32)
    assert_same(EXECUTORS[executor](x, rounding("e8m0fnu")), want, x)
    assert set(want) == {np.float32(2.0**-127), np.float32(2.0**-126)}


# ------------------------------------------------------------------------------------- the judge


def boundaries(f: Format, dtype: type) -> np.ndarray:
    """Where a rounding can go wrong, as numbers of the carrier.

    Exponents from below the smallest number to beyond the largest; at each the first, second,
    middle and last codes; at each code the quarters of the gap above it, and one carrier ulp to
    either side of them.
    """
    p, low, high = f.precision, f.emin - f.precision, f.emax + 2
    exponents = {
        *range(low - 1, low + 3),
        *range(f.emin - 1, f.emin + 2),
        -1,
        0,
        1,
        *range(high - 3, high + 1),
    }
    top = 1 << (p - 1)
    codes = {top, top + 1, top + top // 2 + 1, max(top, 2 * top - 2), 2 * top - 1}
    quarters = [4 * k + q for k in codes for q in range(4)]
    limit = 1023 if dtype is np.float64 else 127
    scales = [e - p - 1 for e in exponents if e <= limit]
    kept = [f.max_finite, f.min_normal, f.min_positive, f.min_positive / 2, 0.0, math.inf]
    with np.errstate(all="ignore"):
        x = np.ldexp(np.array(quarters, np.float64), np.array(scales)[:, None]).reshape(-1)
        exact = np.concatenate([x, kept]).astype(dtype)
        around = [exact, np.nextafter(exact, dtype(0)), np.nextafter(exact, dtype(np.inf))]
    x = np.unique(np.concatenate(around))
    return np.concatenate(
        [x, -x, np.array([np.nan, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal], dtype)]
    )


def anything(f: Format, dtype: type, seed: int) -> np.ndarray:
    """Random bits of the carrier, and random significands at the format's own exponents; no NaN."""
    rng = np.random.default_rng(seed)
    word = np.uint32 if dtype is np.float32 else np.uint64
    bits = rng.integers(0, np.iinfo(word).max, 100, dtype=word).view(dtype)
    limits = (
        max(f.emin - f.precision - 1, -1074),
        min(f.emax + 1, 1023 if dtype is np.float64 else 127),
    )
    scaled = np.ldexp(
        rng.uniform(1, 2, 100) * rng.choice([-1, 1], 100), rng.integers(*limits, 100)
    ).astype(dtype)
    x = np.concatenate([bits, scaled])
    return x[~np.isnan(x)]


def cases(f: Format, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and random integers for the stochastic mode, the least and the greatest among
    them.
    """
    x = np.concatenate([boundaries(f, dtype), anything(f, dtype, 2)])
    random = np.random.default_rng(3).integers(0, 1 << 31, x.size, dtype=np.int32)
    random[::5], random[1::5] = 0, (1 << 31) - 1
    return x, random


def judged(x: np.ndarray, r: Rounding, random: np.ndarray) -> np.ndarray:
    """The judge's answers, in x's own carrier."""
    return np.array([judge(float(v), r, int(b)) for v, b in zip(x, random, strict=True)], x.dtype)


def within(x: np.ndarray, f: Format) -> np.ndarray:
    """Where the result is a number of x's own carrier: all of x, but for formats beyond it."""
    if x.dtype == np.float64 or f.fits_binary32 or f.name == "e8m0fnu":
        return np.full(x.shape, True)
    return np.abs(x) < 2.0 ** min(f.emax, 127)


@pytest.mark.parametrize(("f", "mode", "dtype"), COMBINATIONS)
def test_every_mode_and_format_is_the_judges(f: Format, mode: RoundingMode, dtype: type) -> None:
    r = rounding(f, mode)
    x, random = cases(f, dtype)
    held = within(x, f)
    x, random = x[held], random[held]
    want = judged(x, r, random)
    own = random if mode is RoundingMode.STOCHASTIC else None
    on_each = [execute(x, r, own) for execute in EXECUTORS.values()]
    for got in on_each:
        assert_same(got, want, x)


OVERFLOWS = [  # under NumPy all; under XLA every pair, and all with `make thorough`
    pytest.param(
        *(executor, name, overflow, mode),
        marks=[pytest.mark.thorough] if executor == "xla" and (i + j + k) % 2 else [],
    )
    for executor in EXECUTORS
    for i, name in enumerate(("bf16", "e5m2", "e4m3fn", "e4m3fnuz", "e8m0fnu"))
    for j, overflow in enumerate(("inf", "nan", "saturate"))
    for k, mode in enumerate(MODES)
    if overflow != "inf" or format_named(name).inf  # an error: test_errors_name_the_repair
]


@pytest.mark.parametrize(("executor", "name", "overflow", "mode"), OVERFLOWS)
def test_every_overflow_policy_is_the_judges(
    executor: str, name: str, overflow: str, mode: RoundingMode
) -> None:
    r = rounding(name, mode, overflow=overflow)
    top = r.format.max_finite
    step = math.ldexp(1.0, r.format.emax - r.format.precision)  # half an ulp of the largest number
    x = np.array(
        [
            top,
            top + step / 2,
            top + step,
            math.nextafter(top + step, 0),
            top + 2 * step,
            top * 8,
            math.inf,
        ]
    )
    x = np.concatenate([x, -x])
    random = np.resize(np.array([0, 1 << 30, (1 << 31) - 1], np.int32), x.size)
    assert_same(EXECUTORS[executor](x, r, random), judged(x, r, random), x)


@pytest.mark.parametrize("name", ["bf16", "e2m1fn", "e3m2fn"])
@pytest.mark.parametrize("policy", ["keep", "zero"])
@executors
def test_nan_policy(name: str, policy: str, executor: str) -> None:
    """NaN stays NaN where the format has it or the policy keeps it; else it is zero."""
    got = EXECUTORS[executor](np.array([np.nan], np.float32), rounding(name, nan=policy))
    assert got[0] == 0 if policy == "zero" and not format_named(name).nan else np.isnan(got[0])


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize("name", ["fp32", "bf16", "e4m3fnuz", "e3m2fn", "fp64"])
def test_executors_agree_on_the_bits_of_nan(name: str, dtype: type) -> None:
    word = np.int32 if dtype is np.float32 else np.int64
    x = np.array([np.nan, -np.nan], dtype)
    assert np.array_equal(
        *(execute(x, rounding(name)).view(word) for execute in EXECUTORS.values())
    )


# ------------------------------------------------------------------------------------ widths and
# shapes


@executors
def test_binary64_is_rounded_once(executor: str) -> None:
    """Through binary32, 1 + 2^-8 + 2^-40 would become a tie and then 1."""
    got = EXECUTORS[executor](np.array([1 + 2.0**-8 + 2.0**-40]), rounding("bf16"))
    assert got[0] == 1.0078125


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (2, 3, 5), (300_000,)])
@executors
def test_shapes(shape: tuple[int, ...], executor: str) -> None:
    """Any shape, more than one thread's piece included, is the flat rounding in that shape."""
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    got = EXECUTORS[executor](x, rounding("e4m3fn"))
    assert got.shape == shape and got.dtype == x.dtype
    assert_same(got.reshape(-1), reference("e4m3fn")(x).reshape(-1), x.reshape(-1))


@pytest.mark.parametrize("name", ["bf16", "e8m0fnu"])
def test_out_and_views(name: str) -> None:
    """`out` may be the input or a strided view, and a strided input is read as it stands."""
    x = np.random.default_rng(5).uniform(1, 100, (8, 6)).astype(np.float32)
    r, want = rounding(name), reference(name)(x)
    assert np.array_equal(kernels.round_array(x.T, r), want.T)
    wide = np.zeros((8, 12), np.float32)
    assert kernels.round_array(x, r, out=wide[:, ::2]).base is not None
    assert np.array_equal(wide[:, ::2], want) and not wide[:, 1::2].any()
    assert kernels.round_array(x, r, out=x) is x
    assert np.array_equal(x, want)


# ----------------------------------------------------------------------------------------- widths


def binary32_samples() -> np.ndarray:
    """Every exponent with its boundary significands, both signs; subnormals, infinities, quiet
    NaN.
    """
    fractions = np.array(
        [0, 1, 2, 0x2A_AAAA, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFE, 0x7F_FFFF], np.uint32
    )
    bits = ((np.arange(512, dtype=np.uint32) << 23)[:, None] | fractions).reshape(-1)
    x = bits.view(np.float32)
    return np.where(np.isnan(x), (bits | 0x40_0000).view(np.float32), x)


@pytest.mark.parametrize("compiled", [False, True])
def test_widen_and_narrow_are_exact(compiled: bool) -> None:
    x = binary32_samples()
    with jax.enable_x64(True):
        wide = (jax.jit(widen) if compiled else widen)(jnp.asarray(x))
        back = (jax.jit(narrow) if compiled else narrow)(wide)
    assert np.array_equal(np.asarray(wide).view(np.int64), x.astype(np.float64).view(np.int64))
    assert np.array_equal(np.asarray(back).view(np.int32), x.view(np.int32))


def test_narrow_of_zero_and_of_a_signed_zero() -> None:
    with jax.enable_x64(True):
        got = narrow(jnp.asarray(np.array([0.0, -0.0])))
    assert np.asarray(got).view(np.uint32).tolist() == [0, 1 << 31]


# ----------------------------------------------------------------------------------------- errors

ERRORS = [
    (lambda: rounding("bf61"), "did you mean 'bf16'"),
    (lambda: rounding("E4M3FN"), "did you mean 'e4m3fn'"),
    (lambda: rounding("e12m3"), "exponent bits run from 2 to 11"),
    (lambda: rounding("bf16", "stochastik"), "did you mean 'stochastic'"),
    (lambda: mode_named("to-even"), "did you mean"),
    (lambda: rounding("e4m3fn", overflow="inf"), "e4m3fn has no infinity; use overflow='saturate'"),
    (lambda: rounding("e2m1fn", overflow="nan"), "e2m1fn has no NaN; use overflow='saturate'"),
    (lambda: rounding("bf16", overflow="saturated"), "did you mean 'saturate'"),
    (lambda: rounding("bf16", nan="keeps"), "did you mean 'keep'"),
    (lambda: rounding("bf16", seed=-1), "a seed is a whole number"),
    (lambda: rounding("bf16", seed=1 << 32), "a seed is a whole number"),
    (
        lambda: Format(name="f", precision=54, emin=0, max_finite=1.0, inf=False, nan=False),
        "1 to 53",
    ),
    (
        lambda: Format(name="f", precision=3, emin=0, max_finite=math.inf, inf=False, nan=False),
        "max_finite=inf",
    ),
]


@pytest.mark.parametrize(("wrong", "says"), ERRORS, ids=[says for _, says in ERRORS])
def test_errors_name_the_repair(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError) as error:
        wrong()
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["fp64", "e11m52", "e8m30", "e9m24"])
@executors
def test_binary32_in_a_wider_format_is_unchanged(name: str, executor: str) -> None:
    """Such a format holds every binary32 number, so nothing rounds."""
    x = binary32_samples()
    assert_same(EXECUTORS[executor](x, rounding(name)), x, x)


def test_a_width_that_holds_no_format_is_an_error() -> None:
    """The rule's own guard: a binary32 target for a format beyond binary32."""
    from roundscope.emu.roundings.rule import C32, target_of

    with pytest.raises(ValueError, match="format fp64 does not fit a float32 array; pass float64"):
        target_of(rounding("fp64"), C32)


# ----------------------------------------------------------------------------- the public function


def raises(error: tuple[type[Exception], ...], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False


def one(value: float) -> np.ndarray:
    return np.array([value], np.float32)


SIGNALLING = np.array([0x7F80_0001], np.uint32).view(np.float32)
WRONG = (TypeError, ValueError)
PROMISES = {
    "a signalling NaN is silent in formats beyond binary32": lambda: np.isnan(
        on_numpy(SIGNALLING, rounding("e8m0fnu"))
    )[0],
    "float32 in a format beyond binary32 is an error": lambda: raises(
        WRONG, lambda: round_to(one(3.4e38), "e6m40")
    ),
    "a 0-d array stays 0-d": lambda: round_to(np.array(1.3, np.float32), "bf16").shape == (),
    "a number becomes a 0-d float64": lambda: round_to(1.3, "bf16").dtype == np.float64,
    "integers are an error (numpy)": lambda: raises(WRONG, lambda: round_to(np.arange(4), "bf16")),
    "integers are an error (xla)": lambda: raises(WRONG, lambda: round_to(jnp.arange(4), "bf16")),
    "float16 enters as float32": (
        lambda: round_to(np.ones(4, np.float16), "bf16").dtype == np.float32
    ),
    "an out of another type is an error": lambda: raises(
        WRONG, lambda: round_to(one(1.3), "bf16", out=np.zeros(1))
    ),
    "an out of another shape is an error": lambda: raises(
        WRONG, lambda: round_to(one(1.3), "bf16", out=np.zeros(2, np.float32))
    ),
    "threefry takes NumPy scalars": (
        lambda: int(threefry2x32(*[np.uint32(2**32 - 1)] * 4)[0][0]) == 0x1CB9_96FC
    ),
    "a NaN that becomes zero has no sign": lambda: (
        not np.signbit(round_to(one(-np.nan), "e3m2fn", nan="zero"))[0]
    ),
    "nor on XLA": lambda: (
        not np.signbit(np.asarray(round_to(jnp.array([-np.nan]), "e3m2fn", nan="zero")))[0]
    ),
    "a format that binary64 lacks is an error": lambda: raises(
        WRONG,
        lambda: Format(name="f", precision=5, emin=-1100, max_finite=1.0, inf=False, nan=False),
    ),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_promises_of_the_public_function(promise: str) -> None:
    """Faults found while testing, each held by the call that showed it; warnings are errors
    here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PROMISES[promise]()
