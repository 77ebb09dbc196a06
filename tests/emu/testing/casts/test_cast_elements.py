"""Judgment of casts: good ones pass, planted faults fail in their row and are named."""

import ml_dtypes
import numpy as np
import pytest

from roundscope import emu
from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.testing.casts import Status, examine_cast
from roundscope.emu.testing.casts.elements import classes_of, finite_probes, magnitudes, midpoints
from tests.emu.testing.casts.cast_planted import CASTS, Planted

GOOD = {
    "e4m3fn:nan": ml_dtypes.float8_e4m3fn,
    "e5m2:inf": ml_dtypes.float8_e5m2,
    "e4m3fnuz:nan": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz:nan": ml_dtypes.float8_e5m2fnuz,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e3m4": ml_dtypes.float8_e3m4,
}


@pytest.mark.parametrize("asked", GOOD)
@pytest.mark.parametrize("codes", [False, True])
def test_casts_of_ml_dtypes_pass(asked: str, codes: bool) -> None:
    """A probe whose expected result is wrong, or codes that are decoded wrongly."""
    dtype = np.dtype(GOOD[asked])

    def cast(x: np.ndarray) -> np.ndarray:
        y = x.astype(dtype)
        return y.view(f"u{dtype.itemsize}") if codes else y

    report = examine_cast(cast, event_of(asked))
    assert report.passed, [(row.name, row.examples[:1]) for row in report.failed]
    assert report.behaves_as is not None and "as asked" in report.sentence


@pytest.mark.parametrize("mode", emu.RoundingMode)
def test_every_mode_is_told_from_the_others(mode: emu.RoundingMode) -> None:
    """Two modes that the probes do not tell apart, or a mode under the name of another."""
    for other in emu.RoundingMode:
        report = examine_cast(
            lambda x, other=other: emu.round_to(x, "e5m2", other, seed=3),
            emu.rounding("e5m2", mode),
        )
        assert report.passed == (mode is other), (mode, other, report.failed)
        if other is not emu.RoundingMode.STOCHASTIC:
            assert report.behaves_as == f"e5m2:{other}:saturate"


@pytest.mark.parametrize("planted", CASTS, ids=lambda p: p.name)
def test_a_planted_fault_fails_in_its_row(planted: Planted) -> None:
    """A wrong cast that passes, or whose known behavior is not named."""
    report = examine_cast(planted.function, event_of(planted.asked))
    assert planted.row in {row.name for row in report.failed}
    assert planted.words in report.sentence
    row = next(row for row in report.rows if row.name == planted.row)
    assert row.agree < row.of or planted.row in ("bias", "second call", "input kept")


def test_a_fault_in_one_row_fails_no_other() -> None:
    """Rows that overlap, so that one fault hides where it is."""
    only = {"NaN overflows": {"NaN"}, "-0 lost": {"signed zeros"}, "NaN lost": {"NaN"}}
    for planted in CASTS:
        if planted.name in only:
            report = examine_cast(planted.function, event_of(planted.asked))
            assert {row.name for row in report.failed} == only[planted.name]


def test_torch_casts() -> None:
    """The overflow of PyTorch's own casts: E5M2 and BF16 become infinite, E4M3 saturates in PyTorch
    2.13 and becomes NaN in 2.11.
    """
    torch = pytest.importorskip("torch")
    is_finite = torch.tensor(500.0).to(torch.float8_e4m3fn).float().isfinite()
    for asked, dtype in (
        ("e4m3fn:saturate" if is_finite else "e4m3fn:nan", torch.float8_e4m3fn),
        ("e5m2:inf", torch.float8_e5m2),
        ("bf16", torch.bfloat16),
    ):
        report = examine_cast(lambda x, d=dtype: torch.from_numpy(x).to(d), event_of(asked))
        finite = {row.name for row in report.failed} - {"infinities"}
        assert not finite and report.behaves_as is not None, (asked, report.sentence)


def test_probes_hold_every_number_and_every_tie() -> None:
    """A class of probes that is empty or incomplete; counts are from the format's definition."""
    f = emu.format_named("e4m3fn")
    q = finite_probes(f).astype(np.float64)
    found = {name: set(q[mask]) for name, mask in classes_of(q, emu.rounding("e4m3fn")).items()}
    table = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    table = table[np.isfinite(table) & (table != 0)]
    assert set(table) == found["round trip"]
    positive = np.sort(table[table > 0])
    ties = (positive[:-1] + positive[1:]) / 2
    normal = ties[ties > 2.0**-6]
    assert {*normal, *-normal} <= found["ties"] and {*(-ties), *ties} <= set(q)
    assert {464.0, np.nextafter(np.float32(464), np.float32(500)).item()} <= found["overflow"]


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1fn", "e5m2fnuz"])
def test_magnitudes(name: str) -> None:
    """Numbers of a format that are left out, and midpoints that are no midpoints."""
    f = emu.format_named(name)
    m = magnitudes(f)
    assert m[0] == 0 and m[-1] == f.max_finite and (np.diff(m) > 0).all()
    assert (midpoints(f)[:-1] == (m[:-1] + m[1:]) / 2).all()


def test_a_function_that_cannot_be_asked_is_refused() -> None:
    """A traceback of the user's function in place of one line, or a wrong shape that passes."""
    with pytest.raises(ValueError, match="raised ZeroDivisionError"):
        examine_cast(lambda x: 1 / 0, "bf16")
    with pytest.raises(ValueError, match=r"result: shape \(3,\), must be"):
        examine_cast(lambda x: x[:3], "bf16")
    with pytest.raises(ValueError, match="fewer significand bits"):
        examine_cast(lambda x: x, "fp32")


def test_a_function_that_refuses_nan_is_asked_the_rest() -> None:
    """A cast that checks its input, for which nothing was reported."""

    def strict(x: np.ndarray) -> np.ndarray:
        if not np.isfinite(x).all():
            raise ValueError("not finite")
        return x.astype(ml_dtypes.bfloat16)

    report = examine_cast(strict, "bf16")
    status = {row.name: row.status for row in report.rows}
    assert status["NaN"] is Status.SKIPPED and status["infinities"] is Status.SKIPPED
    assert report.passed
