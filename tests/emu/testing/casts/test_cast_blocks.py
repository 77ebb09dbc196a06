"""Judgment of quantizers: good ones pass, planted faults fail in their row and are named."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.testing.casts import CastReport, Status, block_probes, examine_cast
from roundscope.emu.testing.casts.block_probes import edge_blocks
from tests.emu.testing.casts.cast_planted import (
    PER_BLOCK,
    QUANTIZERS,
    Planted,
    by_blocks,
    mx,
    nvfp4,
    rceil,
)

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


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize(("name", "fault", "words"), PER_BLOCK, ids=lambda p: str(p)[:24])
def test_faults_of_scales_in_float32_are_named(name, fault, words) -> None:
    """A known fault of a kernel with FP32 scales for which no known rule is said to exist."""
    report = examine_cast(partial(by_blocks, **fault), "fp8_1x128")
    assert not report.passed
    assert words in report.sentence, (name, report.sentence, failures(report))


@pytest.mark.usefixtures("few_blocks")
def test_scales_are_not_blamed_for_a_quotient_in_float32() -> None:
    """An inferred scale one float32 number away from the one that the function has."""
    report = examine_cast(by_blocks, "fp8_1x128")
    scales = next(row for row in report.rows if row.name == "scales")
    assert scales.status is not Status.FAIL, (scales, report.sentence)


@pytest.mark.usefixtures("few_blocks")
def test_scales_of_numbers_that_fit_none_do_not_pass() -> None:
    """Numbers that are no elements times one scale, whose scales are said to be right."""
    report = examine_cast(lambda x: x * np.float32(1.01), "mxfp8_e4m3")
    scales = next(row for row in report.rows if row.name == "scales")
    assert scales.status is not Status.PASS, scales
    assert not report.passed and "fit no scale" in scales.note


@pytest.mark.thorough
@pytest.mark.usefixtures("few_blocks")
def test_a_random_rounding_of_blocks_is_judged_as_random() -> None:
    """Coins that are compared with the coins of another call, or judged by no law."""
    asked = event_of("mxfp8_e4m3:stochastic")
    seeds = iter(range(10**6))

    def drawn(x: np.ndarray) -> np.ndarray:
        r = replace(asked.element, seed=next(seeds))
        return np.asarray(emu.round_blocks(x, replace(asked, element=r)))

    report = examine_cast(drawn, asked)
    assert report.passed, failures(report)
    assert "lie beside the exact ones" in report.sentence
    status = {row.name: row.status for row in report.rows}
    assert status["blocks moved"] is Status.SKIPPED
    fixed = examine_cast(mx, asked)
    assert "bias" in {row.name for row in fixed.failed}
    assert "as asked" not in fixed.sentence.partition(":")[0]


@pytest.mark.usefixtures("few_blocks")
def test_blocks_that_move_have_an_example_and_coins_a_note() -> None:
    """A failure without any number, or of a random function without that word."""
    along = next(p for p in QUANTIZERS if p.name == "scale of the block before")
    report = examine_cast(along.function, event_of(along.asked))
    [moved] = [row for row in report.failed if row.name == "blocks moved"]
    assert moved.examples[0].got != moved.examples[0].expected and "moved to" in (
        moved.examples[0].where
    )
    noise = next(p for p in QUANTIZERS if p.name == "noise")
    report = examine_cast(noise.function, event_of(noise.asked))
    [moved] = [row for row in report.failed if row.name == "blocks moved"]
    assert "the function is random" in moved.note
