"""Roundings in words in the functions of `emu`, and what no argument and no setting may do."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

from roundscope import emu
from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.testing import assert_rounds_as
from roundscope.experiments.cli.main import app

X = np.array(
    [0.0, -1.5, math.inf, -math.inf, math.nan, 1e-40, 3e38, 65520.0, 1e-8, 449.0], np.float32
)
WORDS = (
    "e5m10:saturate",
    "e4m3fn:toward-zero:inf",
    "fp16:saturate:to_odd",
    "bf16:STOCHASTIC",
    "e5m2:inf",
)


@pytest.mark.parametrize("text", [w for w in WORDS if w != "e4m3fn:toward-zero:inf"])
def test_words_are_those_of_plans(text: str) -> None:
    """`emu.round_to(x, "e5m10:saturate")` refused what every plan reads."""
    r = event_of(text)
    assert emu.rounding(text) == r
    np.testing.assert_array_equal(emu.round_to(X, text), emu.round_to(X, r))
    np.testing.assert_array_equal(emu.ulp_of(X, text), emu.ulp_of(X, r.format))


def test_an_argument_replaces_a_word() -> None:
    assert emu.rounding("fp16:saturate:to-odd", "toward-zero") == emu.rounding(
        "fp16", "toward-zero", overflow="saturate"
    )
    assert emu.rounding("fp16:saturate", overflow="nan") == emu.rounding("fp16", overflow="nan")


def test_blocks_in_words() -> None:
    f = emu.block_format("mxfp8_e4m3:rceil:stochastic", seed=3)
    assert f == emu.block_format("mxfp8_e4m3", "stochastic", rule="rceil", seed=3)
    x = X[:2].reshape(1, 2)
    y = emu.round_blocks(x, "mxfp4:toward-zero")
    assert np.array_equal(y, emu.round_blocks(x, "mxfp4", mode="toward-zero"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("e4m3fn:toward-zero:inf", "overflow=inf: e4m3fn has no infinity"),
        ("bf16:trunc", "unknown mode or overflow 'trunc'"),
        ("bf16:inf:nan", "'bf16:inf:nan': inf and nan both set the overflow"),
        ("bf16:", "'bf16:': a word is missing behind a colon; leave the colon out"),
        ("bf16:rceil", "'bf16:rceil': bf16 has no scale, so no rule"),
        ("b16:inf", "unknown format 'b16'; did you mean 'bf16'?"),
        ("mxfp4:rceil", "a block format"),
    ],
)
def test_wrong_words_are_named(text: str, told: str) -> None:
    with pytest.raises(ValueError) as error:
        emu.round_to(X, text)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_explain_reads_the_words() -> None:
    for asked in (["--to", "e5m10:saturate"], ["--to", "e5m10", "--overflow", "saturate"]):
        found = CliRunner().invoke(app, ["explain", "70000", *asked, "--json"])
        assert found.exit_code == 0 and '"overflow": "saturate"' in found.output
    wrong = CliRunner().invoke(app, ["explain", "1", "--to", "bf16:trunc"])
    assert wrong.exit_code != 0


def test_what_is_read_only_is_refused_in_one_line() -> None:
    """A page of Numba's errors."""
    held = np.zeros(X.shape, np.float32)
    held.flags.writeable = False
    calls = (
        lambda: emu.round_to(X, "bf16", out=held),
        lambda: emu.round_with_stats(X, "bf16", out=held),
        lambda: emu.round_blocks(X, "mxfp4", out=held),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"^out: is read-only; give an array") as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_setting_of_numpy_makes_a_result_an_error(dtype: str) -> None:
    """`np.errstate(all="raise")`, under which error_of, exp, ulp_of and stats_of raised."""
    signaling = np.array([0x7F80_0001], np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        x = np.concatenate([X, signaling]).astype(dtype)
    formats = ("bf16", "e4m3fn", "e2m1fn") + (("fp64", "e11m20") if dtype == "float64" else ())
    with np.errstate(all="raise"):
        for name in formats:
            y = np.asarray(emu.round_to(x, name))
            emu.round_with_stats(x, name)
            emu.error_of(x, name)
            emu.ulp_of(x, name)
            emu.exp(x, name)
            emu.stats_of(x, y, name)
        a, b = x[:10].reshape(2, 5), x[:10].reshape(5, 2)
        for order in ("ascending", "exact", "native"):
            emu.dot(a, b, emu.Accumulator(order=order))
            emu.sum(a, emu.Accumulator(order=order))
        for name in ("mxfp4", "fp8_1x128"):
            emu.from_blocks(emu.to_blocks(a, name))
            emu.round_blocks(a, name)
            emu.dot(emu.to_blocks(a, name, axis=1), emu.to_blocks(b, name, axis=0))
        assert_rounds_as(lambda v: np.asarray(emu.round_to(v, "bf16")), "bf16")
