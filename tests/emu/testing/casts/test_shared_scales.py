"""Quantizers with one scale for a tensor, a token or a channel, or with a scale that is given.

They are written here in NumPy, in binary64, and share no code with `emu`.
"""

from functools import partial

import numpy as np
import pytest

from roundscope.emu.testing.casts import block_probes, examine_cast, shared_scales
from tests.emu.testing.casts.cast_planted import E4M3, F32, by_blocks, nearest

AXIS = {"tensor": None, "token": 1, "channel": 0}


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    """Fewer and shorter blocks, so that a test takes a second."""
    monkeypatch.setattr(shared_scales, "SIZE", 32)
    monkeypatch.setattr(block_probes, "BUDGET", 1 << 13)


def int8(
    x, axis, *, parts=True, whole=np.rint, least=0.0, top=127.0, end=127, low=None, narrow=False
):
    """k and the scale of k, or their product: symmetric INT8 with one scale along an axis."""
    bad = ~np.isfinite(x).all(axis, keepdims=True)
    y = np.where(bad, 0, x).astype(np.float64)
    largest = np.maximum(np.abs(y).max(axis, keepdims=True), least).astype(F32)
    s = np.maximum((largest.astype(np.float64) / top).astype(F32), F32(2.0**-149))
    q = (y.astype(F32) / s) if narrow else y / s
    k = np.clip(whole(q), -end if low is None else low, end)
    s = np.where(bad, np.nan, s)
    return (k.astype(np.int8), s) if parts else (k * s).astype(F32)


@pytest.mark.parametrize(
    ("scope", "parts"), [("tensor", True), ("token", True), ("token", False), ("channel", True)]
)
def test_a_right_quantizer_passes(scope, parts):
    """INT8 that cannot be asked about, or whose scales, 1 / 64 of ours, are called wrong."""
    report = examine_cast(partial(int8, axis=AXIS[scope], parts=parts), f"int8[{scope}]")
    assert report.passed, [(r.name, r.examples[:1]) for r in report.failed]
    assert report.sentence.startswith(f"int8[{scope}] with rule nearest as asked")


def test_int4_passes():
    """Integers of another width, read as codes of our own."""
    report = examine_cast(partial(int8, axis=1, top=7.0, end=7), "int4[token]")
    assert report.passed, [(r.name, r.examples[:1]) for r in report.failed]


FAULTS = [
    ({"whole": np.trunc}, "bias", "elements toward-zero"),
    ({"whole": lambda q: np.copysign(np.floor(np.abs(q) + 0.5), q)}, "ties", "ties-to-away"),
    ({"least": 1e-6}, "scales", "maxima of at least 1e-06"),
]


@pytest.mark.parametrize(("fault", "row", "words"), FAULTS)
def test_a_wrong_quantizer_fails_in_its_row(fault, row, words):
    """A fault of INT8 per token that passes, or that is called another."""
    report = examine_cast(partial(int8, axis=1, **fault), "int8[token]")
    assert row in {r.name for r in report.failed} and words in report.sentence, report.sentence


@pytest.mark.parametrize(
    ("whole", "low", "parts", "mode"),
    [
        (lambda q: np.floor(q + 0.5), -128, True, "floor(x + 1/2)"),
        (np.rint, -128, False, "ties-to-even"),
        (np.rint, -127, True, "ties-to-even"),
    ],
)
def test_integers_under_the_maximum_over_128_are_named(whole, low, parts, mode):
    """A common quantizer that is called a Hadamard transform, or whose rounding is not told."""
    function = partial(int8, axis=1, top=128.0, whole=whole, low=low, parts=parts)
    report = examine_cast(function, "int8[token]")
    assert report.instead == f"scales max / 128, elements {mode} from {low} to 127"


def test_scales_that_differ_by_one_factor_are_told_so_and_no_cause_is_made_up():
    """A cause that explains 1 % of the blocks, and no word of the factor 127 / 100."""
    report = examine_cast(partial(int8, axis=1, top=100.0, end=100), "int8[token]")
    assert "all scales are 127/100 of the asked ones" in report.sentence
    assert "nearest," not in report.sentence and not report.has_nearest


def test_a_nan_that_is_lost_is_in_the_sentence():
    """A quotient in float32, and no word of the NaN that became 0."""

    def lost(x):
        k, s = int8(x, 1, narrow=True)
        return k, np.where(np.isnan(s), F32(1), s)

    sentence = examine_cast(lost, "int8[token]").sentence
    assert sentence.startswith("int8[token] with rule nearest as asked, but elements divided in")
    count = sentence.rpartition("NaN fails: ")[2]
    assert count.endswith(" became 0.") and count.split()[0] == count.split()[2] != "0"


def test_a_scale_of_another_axis_is_refused_or_fails():
    """One scale for each channel that passes as one for each token."""
    with pytest.raises(ValueError, match="scales: shape"):
        examine_cast(partial(int8, axis=0), "int8[token]")
    assert not examine_cast(partial(int8, axis=0, parts=False), "int8[token]").passed


def given(x, scale, *, element=nearest, narrow=False, out="numbers"):
    """E4M3 of x over a scale that is given, in binary64 or float32."""
    q = (x / F32(scale)).astype(np.float64) if narrow else x.astype(np.float64) / scale
    p = np.where(np.isfinite(q), element(q), np.where(np.isnan(q), np.nan, np.copysign(448, q)))
    if out == "codes":
        return p.astype(F32).astype(E4M3).view(np.uint8)
    return (p * scale).astype(F32) if out == "numbers" else p.astype(F32).astype(E4M3)


CALIBRATED = float(F32(1 / 27))  # of 24 significand bits


@pytest.mark.parametrize("out", ["numbers", "codes", "elements"])
def test_a_given_scale(out):
    """A calibrated scale that cannot be told, or whose product's rounding is called a fault."""
    exact = partial(given, scale=CALIBRATED, out=out)
    report = examine_cast(exact, "e4m3fn", tensor_scale=CALIBRATED)
    # binary64 quotients are cast through float32 by ml_dtypes alone, which `nearest` is
    assert {r.name for r in report.failed} <= {"beside ties", "subnormals"}
    assert report.behaves_as in (
        "e4m3fn:ties-to-even:saturate",
        "e4m3fn:ties-to-even:saturate divided in float32",
    )


def test_another_scale_than_the_given_one_fails():
    """A scale that nobody uses, and a pass."""
    report = examine_cast(partial(given, scale=0.04), "e4m3fn", tensor_scale=CALIBRATED)
    assert not report.passed and "No known rounding" in report.sentence


def test_a_quotient_in_float32_is_named():
    """What every kernel does, called unknown."""
    report = examine_cast(
        partial(given, scale=CALIBRATED, narrow=True), "e4m3fn", tensor_scale=CALIBRATED
    )
    assert report.behaves_as == "e4m3fn:ties-to-even:saturate divided in float32"


def test_the_scales_of_numbers_are_right_under_a_quotient_in_float32():
    """A scale that is inferred beside the function's own, because of a number beside a tie."""
    report = examine_cast(by_blocks, "fp8_1x128")
    assert report.instead == "rule nearest, elements divided in float32"
    assert not {"scales", "smallest blocks"} & {r.name for r in report.failed}


def test_a_quotient_in_float32_can_be_asked_for():
    """What kernels do, which nobody could ask for; or a pass of what divides exactly."""
    report = examine_cast(by_blocks, "fp8_1x128", divided="float32")
    assert report.passed and "elements divided in float32 as asked" in report.sentence
    exact = examine_cast(partial(by_blocks, narrow=False), "fp8_1x128", divided="float32")
    assert not exact.passed and exact.instead == "rule nearest"
    with pytest.raises(ValueError, match="did you mean 'float32'"):
        examine_cast(by_blocks, "fp8_1x128", divided="float23")


def test_a_floor_of_the_maximum_and_a_quotient_in_float32_together():
    """DeepSeek's two lines, each known, and no word of both."""
    report = examine_cast(partial(by_blocks, least=1e-6), "fp8_1x128")
    assert "elements divided in float32, maxima of at least 1e-06" in report.sentence


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_a_scale_that_is_none_is_refused(scale):
    """A division by 0 in place of one line."""
    with pytest.raises(ValueError, match="tensor_scale"):
        examine_cast(lambda x: x, "e4m3fn", tensor_scale=scale)
