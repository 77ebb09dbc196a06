"""Judgment of quantizers: good ones pass, planted faults fail in their row and are named."""

from functools import partial

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.testing.casts import CastReport, block_probes, examine_cast
from roundscope.emu.testing.casts.block_probes import edge_blocks
from tests.emu.testing.casts.cast_planted import QUANTIZERS, Planted, mx, nvfp4, rceil

NAMES = ["mxfp8_e4m3", "mxfp8_e5m2:ceil", "mxfp6_e2m3:even", "mxfp4:rceil", "mxint8", "nvfp4"]


@pytest.fixture
def few_blocks(monkeypatch):
    """An eighth of the blocks, drawn at random, which is enough for the planted faults."""
    monkeypatch.setattr(block_probes, "BUDGET", block_probes.BUDGET // 8)


def failures(report: CastReport) -> list[object]:
    return [(row.name, row.agree, row.of, row.examples[:1]) for row in report.failed]


def parts(x: np.ndarray, format: emu.BlockFormat) -> tuple[np.ndarray, ...]:
    """Elements and scales as codes, and the scale of the array where there is one."""
    c = emu.codes_of(emu.to_blocks(x, format))
    found = (c.elements.view(np.uint8), c.scales.view(np.uint8))
    return (*found, c.tensor) if format.tensor else found


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("asked", [*NAMES, "mxfp8_e5m2:toward-zero", "fp8_1x128"])
def test_our_own_blocks_pass(asked: str) -> None:
    """Scales that are inferred wrongly from the numbers alone."""
    f = event_of(asked)
    report = examine_cast(partial(emu.round_blocks, format=f), f)
    assert report.passed, failures(report)
    assert report.scales[0].name == f"rule {f.rule}" and not report.exceptions


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("asked", ["mxfp8_e5m2:rceil", "mxfp4", "mxint8:even", "nvfp4"])
def test_elements_and_scales_as_codes_pass(asked: str) -> None:
    """Codes of elements or scales that are decoded wrongly."""
    f = event_of(asked)
    report = examine_cast(partial(parts, format=f), f)
    assert report.passed, failures(report)
    assert "scales: codes (uint8)" in report.returned


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (mx, "mxfp8_e4m3"),
        (partial(mx, parts=True), "mxfp8_e4m3"),
        (partial(mx, exponent=rceil), "mxfp8_e4m3:rceil"),
        (nvfp4, "nvfp4"),
    ],
)
def test_independent_quantizers_pass(function, asked: str) -> None:
    """Expected results that only our own code agrees with."""
    report = examine_cast(function, event_of(asked))
    assert report.passed, failures(report)


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("planted", QUANTIZERS, ids=lambda p: p.name)
def test_a_planted_fault_fails_in_its_row(planted: Planted) -> None:
    """A wrong quantizer that passes, or whose known behavior is not named."""
    report = examine_cast(planted.function, event_of(planted.asked))
    assert planted.row in {row.name for row in report.failed}, failures(report)
    assert planted.words in report.sentence


def test_a_wrong_rule_is_not_blamed_on_the_elements() -> None:
    """Elements judged under the asked scale in place of the one that the quantizer used."""
    report = examine_cast(mx, event_of("mxfp8_e4m3:rceil"))
    assert {row.name for row in report.failed} == {"scales"}
    assert report.scales[0].name == "rule floor"
    assert report.scales[0].agree == report.scales[0].of


@pytest.mark.usefixtures("few_blocks")
def test_wrong_elements_are_not_blamed_on_the_scales() -> None:
    """Scales inferred under the asked rounding, which a double rounding then seems to change."""
    planted = next(p for p in QUANTIZERS if p.name == "double rounding")
    report = examine_cast(planted.function, event_of(planted.asked))
    assert not {"scales", "smallest blocks", "round trip", "ties"} & {r.name for r in report.failed}


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4"])
def test_edge_blocks_reach_every_exponent_and_threshold(name: str) -> None:
    """Maxima that leave out a rule's threshold, or the ends of float32's range."""
    f = emu.block_format(name)
    top = np.abs(edge_blocks(f).reshape(-1, 32)).max(axis=1)
    significand, exponent = np.frexp(top.astype(np.float64))
    assert set(exponent - 1) == set(range(-149, 128))
    ordinary = set((2 * significand)[exponent > -100])
    edge = f.element.format.max_finite / 2.0**f.element.format.emax
    for threshold in (1.0, edge, 2 - 2.0**-f.element.format.precision):
        around = np.float32(threshold).view(np.int32) + np.arange(-4, 5, dtype=np.int32)
        wanted = [s for s in around.view(np.float32).astype(np.float64) if s >= 1]
        assert set(wanted) <= ordinary, threshold


@pytest.mark.usefixtures("few_blocks")
def test_tiles_of_two_axes_pass() -> None:
    """Blocks of 128 x 128 taken for blocks along a row."""
    report = examine_cast(partial(emu.round_blocks, format="fp8_128x128"), "fp8_128x128")
    assert report.passed, failures(report)


def test_a_scale_array_of_another_shape_is_refused() -> None:
    """Scales that are reshaped although some are missing."""
    with pytest.raises(ValueError, match="scales: shape"):
        examine_cast(lambda x: (x, np.ones(3, np.float32)), "mxfp8_e4m3")
    with pytest.raises(ValueError, match="a tuple of 4"):
        examine_cast(lambda x: (x, x, x, x), "mxfp8_e4m3")
