"""The assertion on casts: it accepts correct ones, and finds and names wrong ones."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.judge import judge, neighbours
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding, without_saturation
from roundscope.emu.testing import assert_rounds_as
from roundscope.emu.testing.given import carrier_named
from roundscope.emu.testing.probes import CLASSES, classes_of, probes_of
from tests.checks.exhaustive import REFERENCES

Cast = Callable[[np.ndarray], np.ndarray]
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
STOCHASTIC = RoundingMode.STOCHASTIC


def words(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def judged(r: Rounding) -> Cast:
    """Return a cast of the judge, which rounds in exact fractions."""
    return lambda x: np.array([judge(v, r) for v in x.tolist()])


def message_of(*args, **named) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_rounds_as(*args, **named)
    return str(caught.value)


def counts_in(message: str) -> dict[str, tuple[int, int]]:
    """Return how many of how many probes of each class a message counts as wrong."""
    found = re.findall(r"^  ([\w ]+?) +([\d,]+) of +([\d,]+)   ", message, re.MULTILINE)
    return {n: (int(a.replace(",", "")), int(b.replace(",", ""))) for n, a, b in found}


# ------------------------------------------------------------------------------- correct casts


@pytest.mark.parametrize("carrier", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "e8m0fnu"])
def test_casts_of_ml_dtypes_pass(name: str, carrier: str) -> None:
    """A probe whose expected value is wrong: ml_dtypes and NumPy share no code with the rule."""
    assert_rounds_as(
        lambda x: x.astype(REFERENCES[name]), without_saturation(rounding(name)), carrier=carrier
    )


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((n, m) for n in ("e2m1fn", "e3m2") for m in RoundingMode if m is not STOCHASTIC),
        ("e4m3fn", RoundingMode.TO_ODD),
        ("e8m0fnu", RoundingMode.TIES_TO_EVEN),
    ],
)
def test_the_judge_passes_in_every_mode(name: str, mode: RoundingMode) -> None:
    """A mode that is tested as another: with the mode's own judge alone no probe may differ."""
    assert_rounds_as(judged(rounding(name, mode)), name, mode)


def test_casts_of_other_libraries_pass() -> None:
    """Results in JAX arrays, tensors and wider types that are not read as they are."""
    torch = pytest.importorskip("torch")
    assert_rounds_as(lambda x: torch.from_numpy(x).to(torch.bfloat16), "bf16")
    assert_rounds_as(lambda x: torch.from_numpy(x).half().double(), "fp16")
    assert_rounds_as(lambda x: jnp.asarray(x).astype("float16"), "fp16", carrier="bfloat16")
    assert_rounds_as(lambda x: x.astype(np.float32), "fp32", carrier="float64")
    assert_rounds_as(lambda x: x.astype(np.float16), "fp16", carrier="float64")
    assert_rounds_as(lambda x: x, "fp64", carrier="float64")


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2", "e2m1fn"])
def test_rounding_binary64_through_binary32_is_found(name: str) -> None:
    """Two roundings that agree with one on every float32 number, which ml_dtypes 0.5 makes too."""
    r = without_saturation(rounding(name))
    message = message_of(
        lambda x: x.astype(np.float32).astype(REFERENCES[name]), r, carrier="float64"
    )
    wrong = {n for n, (bad, _) in counts_in(message).items() if bad}
    assert {"beside ties", "double rounding"} <= wrong
    assert not wrong & {"numbers", "ties", "between", "beside numbers"}
    assert "after rounding to fp32\n" in message


def test_a_wide_format_is_probed_too() -> None:
    """TF32 by integers; and the same without the sticky bits below the 21st fraction bit."""

    def tf32(x: np.ndarray) -> np.ndarray:
        w = words(x)
        rounded = (w + np.uint32(0xFFF) + ((w >> 13) & 1)) & np.uint32(0xFFFFE000)
        return np.where(np.isfinite(x), rounded.view(np.float32), x)

    assert_rounds_as(tf32, "tf32")
    cut = message_of(lambda x: tf32((words(x) & np.uint32(0xFFFFFFFC)).view(np.float32)), "tf32")
    wrong = counts_in(cut)
    assert {name for name, (bad, _) in wrong.items() if bad} == {"beside ties", "subnormals"}


def test_the_stochastic_mode_has_the_bits_of_its_seed() -> None:
    """A seed that is ignored; the judge's random integers are counted from the seed's stream."""
    from roundscope import emu

    x = np.linspace(1, 2, 500).astype(np.float32)

    def cast(seed: int) -> Cast:
        return lambda x: emu.round_to(x, "bf16", "stochastic", seed=seed)

    assert_rounds_as(cast(3), "bf16", "stochastic", seed=3, inputs=x)
    message = message_of(cast(4), "bf16", "stochastic", seed=3, inputs=x)
    assert "because" not in message and "no known rounding explains all" in message


# --------------------------------------------------------------------------------- wrong casts


def keep_nan(cast: Cast) -> Cast:
    return lambda x: np.where(np.isnan(x), x, cast(x))


def ties_away(x: np.ndarray) -> np.ndarray:
    return ((words(x) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def flushed(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float16)
    return np.where(np.abs(y) < 2.0**-14, np.copysign(np.float16(0), y), y)


def nan_lost(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf).astype(BF16)


def early_overflow(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) > 65504, np.copysign(np.inf, x), x.astype(np.float16))


def odd_ties(x: np.ndarray) -> np.ndarray:
    """Round ties to the odd neighbor, as a wrong mask of the last bit does."""
    w = words(x)
    return ((w + np.uint32(0x8000) - ((w >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def noisy(x: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 1 << 16, x.size, np.uint32)
    return np.where(
        np.isfinite(x), ((words(x) + noise) & np.uint32(0xFFFF0000)).view(np.float32), x
    )


INEXACT = {"ties", "beside ties", "double rounding", "between", "beside numbers", "subnormals"}
WRONG: dict[str, tuple[Cast, Rounding, set[str], str]] = {
    "cut to bf16": (
        lambda x: (words(x) & np.uint32(0xFFFF0000)).view(np.float32),
        rounding("bf16"),
        INEXACT | {"overflow"},
        "it behaves as bf16 toward-zero",
    ),
    "ties away": (
        keep_nan(ties_away),
        rounding("bf16"),
        {"ties", "subnormals"},
        "it behaves as bf16 ties-to-away, overflow=inf",
    ),
    "ties to odd": (
        keep_nan(odd_ties),
        rounding("bf16"),
        {"ties", "subnormals", "overflow"},
        "no known rounding explains all results; the nearest explains ",
    ),
    "through bf16": (
        lambda x: x.astype(BF16).astype(E4M3),
        rounding("e4m3fn", overflow="nan"),
        {"beside ties", "double rounding", "subnormals", "overflow"},
        "it behaves as e4m3fn ties-to-even, overflow=nan after rounding to bf16",
    ),
    "through fp16": (
        lambda x: x.astype(np.float16).astype(E5M2),
        rounding("e5m2", overflow="inf"),
        {"beside ties", "double rounding", "subnormals", "overflow"},
        "it behaves as e5m2 ties-to-even, overflow=inf after rounding to fp16",
    ),
    "sticky bit lost": (
        lambda x: (words(x) & np.uint32(0xFFFF8000)).view(np.float32).astype(BF16),
        rounding("bf16"),
        {"beside ties", "double rounding", "beside numbers", "subnormals"},
        "it behaves as bf16 ties-to-even, overflow=inf after a cut to 9 significant bits",
    ),
    "subnormal results flushed": (
        flushed,
        rounding("fp16"),
        {"subnormals"},
        "it behaves as fp16 ties-to-even, overflow=inf with subnormal results flushed to zero",
    ),
    "subnormal inputs flushed": (
        lambda x: np.where(np.abs(x) < 2.0**-14, np.copysign(0, x), x).astype(np.float16),
        rounding("fp16"),
        {"subnormals"},
        "it behaves as fp16 ties-to-even, overflow=inf with subnormal inputs flushed to zero",
    ),
    "NaN in place of saturation": (
        lambda x: x.astype(E4M3),
        rounding("e4m3fn"),
        {"overflow", "infinities"},
        "it behaves as e4m3fn ties-to-even, overflow=nan",
    ),
    "saturation in place of NaN": (
        lambda x: np.clip(x, -448, 448).astype(E4M3),
        rounding("e4m3fn", overflow="nan"),
        {"overflow", "infinities"},
        "it behaves as e4m3fn ties-to-even, overflow=saturate",
    ),
    "infinity where a number still fits": (
        early_overflow,
        rounding("fp16"),
        {"overflow"},
        ":\n  fp16 ties-to-even, overflow=inf\n",
    ),
    "NaN made zero": (nan_lost, rounding("bf16"), {"NaN"}, "no known rounding"),
    "sign of zero lost": (
        lambda x: (x + np.float32(0)).astype(BF16),
        rounding("bf16"),
        {"zeros"},
        "no known rounding",
    ),
    "stochastic": (noisy, rounding("bf16"), INEXACT | {"overflow"}, "no known rounding explains"),
    "no rounding": (
        lambda x: x,
        rounding("bf16"),
        INEXACT | {"overflow"},
        "it behaves as no rounding: it returns its input",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_cast_is_found_classed_and_named(fault: str) -> None:
    """A fault that no probe shows, that is counted in a class that is right, or is misnamed."""
    cast, r, classes, name = WRONG[fault]
    message = message_of(cast, r)
    wrong = counts_in(message)
    assert {n for n, (bad, _) in wrong.items() if bad} == classes
    assert name in message
    total = sum(bad for bad, _ in wrong.values())
    probes = sum(count for _, count in wrong.values())
    assert f"{total:,} of {probes:,} probes differ" in message.splitlines()[0]
    for part in ("  before", "  actual", "  expected", "  distance", "because", "result"):
        assert part in message
    assert max(map(len, message.splitlines())) <= 104  # of which 4 indent the drawing


@pytest.mark.parametrize("mode", ["ties-to-away", "toward-positive", "to-odd", "away-from-zero"])
def test_another_mode_is_named(mode: str) -> None:
    """A cast in one mode, tested against nearest even, which is called by another mode's name."""
    message = message_of(judged(rounding("e2m3fn", mode)), "e2m3fn")
    assert f"it behaves as e2m3fn {mode}\n" in message


def test_a_single_wrong_number_is_the_example() -> None:
    """A message that shows a number which is right."""
    below = np.nextafter(np.float32(1.1875), np.float32(0))

    def cast(x: np.ndarray) -> np.ndarray:
        return np.where(x == below, np.float32(1.25), x.astype(E4M3).astype(np.float32))

    message = message_of(cast, "e4m3fn", overflow="nan")
    assert "1 of " in message.splitlines()[0]
    rows = {row.split()[0]: row.split() for row in message.splitlines() if row.startswith("  ")}
    assert rows["before"][1:3] == ["1.1874998807907104", "0x1.2ffffep+0"]
    assert rows["actual"][1:] == ["1.25", "0x1.4p+0", "0|0111|010"]
    assert rows["expected"][1:] == ["1.125", "0x1.2p+0", "0|0111|001"]
    assert rows["distance"][1:4] == ["1", "ulp", "of"]


# -------------------------------------------------------------------------------------- probes


def in_fractions(x: float, f, carrier: np.dtype) -> str:
    """Return the class of a probe from exact fractions, but for double rounding."""
    if math.isnan(x) or math.isinf(x) or x == 0:
        return "NaN" if math.isnan(x) else "infinities" if math.isinf(x) else "zeros"
    if abs(x) > f.max_finite or abs(x) < f.min_normal:
        return "overflow" if abs(x) > 1 else "subnormals"

    def place(value: float) -> Fraction:
        if not math.isfinite(value):
            return Fraction(1, 3)
        below, above = neighbours(value, f)
        return (Fraction(value) - below) / (above - below) if above > below else Fraction(0)

    v = np.array(x).astype(carrier)
    beside = {place(float(np.nextafter(v, np.array(s * np.inf).astype(carrier)))) for s in (1, -1)}
    at = place(x)
    if at == 0 or at == Fraction(1, 2):
        return "numbers" if at == 0 else "ties"
    half = "beside ties" if Fraction(1, 2) in beside else ""
    return half or ("beside numbers" if Fraction(0) in beside else "between")


@pytest.mark.parametrize("carrier", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["e4m3fn", "e2m1fn"])
def test_probes_and_their_classes_from_fractions(name: str, carrier: str) -> None:
    """A midpoint that is not among the probes, or a class that is decided wrongly."""
    f, dtype = format_named(name), carrier_named(carrier)
    x = probes_of(f, dtype)
    values = x.astype(np.float64).tolist()
    names = list(CLASSES)
    for value, kind in zip(values, classes_of(x, f).tolist(), strict=True):
        want = in_fractions(value, f, dtype)
        assert names[kind] == want or (
            names[kind] == "double rounding" and want in ("between", "beside numbers")
        ), value
    codes = np.arange(256, dtype=np.uint8).view(REFERENCES[name]).astype(np.float64)
    numbers = sorted({v for v in codes.tolist() if math.isfinite(v)})
    middles = [(a + b) / 2 for a, b in pairwise(numbers)]
    assert {*numbers, *middles} <= set(values)
    threshold = f.max_finite + (numbers[-1] - numbers[-2]) / 2
    assert {threshold, -threshold, math.inf, -math.inf} <= set(values)
    assert f.nan == any(math.isnan(v) for v in values)
    assert sorted(math.copysign(1, v) for v in values if v == 0) == [-1, 1]


def test_every_number_and_midpoint_of_bfloat16_is_probed() -> None:
    """A selection where all are meant: 65,280 finite codes, and 65,278 midpoints between them."""
    x = probes_of(format_named("bf16"), np.dtype(np.float32))
    w = np.unique(words(x[np.isfinite(x)]))
    assert (w & 0xFFFF == 0).sum() == 2 * 0x7F80
    assert (w & 0xFFFF == 0x8000).sum() == 2 * 0x7F80  # the threshold of overflow included
    assert w.size == np.isfinite(x).sum()


# --------------------------------------------------------------------------------- the arguments


def test_inputs_replace_the_probes() -> None:
    """Inputs that are rounded on their way to the cast, or lose their place."""
    seen: list[np.ndarray] = []

    def cast(x: np.ndarray) -> np.ndarray:
        seen.append(x.copy())
        return x.astype(BF16)

    inputs = np.array([[1.0, 1.00390625], [3.0, np.nan]], np.float32)
    assert_rounds_as(cast, "bf16", inputs=inputs)
    assert np.array_equal(seen[0], inputs.ravel(), equal_nan=True) and seen[0].dtype == np.float32
    message = message_of(lambda x: np.full(x.shape, 2.0), "bf16", inputs=[2.0, 3.0, 2.0])
    assert "1 of 3 probes" in message and "at index 1:" in message
    with pytest.raises(ValueError, match=r"inputs: 0\.1 is not a number of float32"):
        assert_rounds_as(cast, "bf16", inputs=[0.5, 0.1])


def test_a_cast_that_writes_into_its_input_is_found() -> None:
    """A cast in place, after which the expected values would be those of its own results."""

    def cast(x: np.ndarray) -> np.ndarray:
        x[...] = (words(x) & np.uint32(0xFFFF0000)).view(np.float32)
        return x

    assert "toward-zero" in message_of(cast, "bf16")


def test_what_the_cast_returns_is_checked() -> None:
    """A result that NumPy would broadcast, or codes that would be compared as numbers."""
    assert "returns shape (1,)" in message_of(lambda x: x[:1], "bf16")
    with pytest.raises(TypeError, match="what the cast returns: dtype uint32"):
        assert_rounds_as(words, "bf16")
    with pytest.raises(ValueError, match="carrier 'float8'"):
        assert_rounds_as(words, "bf16", carrier="float8")
    with pytest.raises(ValueError, match="does not fit a float32 array"):
        assert_rounds_as(words, "fp64")
