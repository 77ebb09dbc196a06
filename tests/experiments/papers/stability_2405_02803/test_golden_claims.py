"""Verdicts on made-up results: a claim that holds, one that fails, NaN, one seed, nothing at
all.
"""

import math
import re
from dataclasses import replace

import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.stability_2405_02803 import claims
from roundscope.experiments.papers.stability_2405_02803.measuring import (
    BASELINE,
    CONTROLS,
    FORMATS,
    FULL,
    QUICK,
    at,
    biased,
    gathered,
    narrow,
)
from roundscope.experiments.papers.stability_2405_02803.study import answer, judged
from tests.experiments.papers.stability_2405_02803.synthetic import results, rows

S = QUICK


def one(verdicts, claim, case=""):
    """The verdict on a claim in a case, of which the first letters are given."""
    [found] = [v for v in verdicts if v.claim.startswith(claim) and v.case.startswith(case)]
    return found


YES, NO, OPEN, DEPENDS = Word.AGREES, Word.CONTRADICTS, Word.UNDECIDED, Word.DEPENDS


@pytest.mark.parametrize(
    ("values", "seeds", "word"),
    [
        ((1e-2, 1e-3, 1e-6, 1e-15), 4, YES),
        ((1e-3, 1e-2, 1e-1, 1.0), 4, NO),
        ((1e-3, 1e-2, 1e-6, 1e-15), 4, DEPENDS),
        ((1e-2, math.nan, 1e-6, 1e-15), 4, OPEN),
        ((1e-2, 1e-3, 1e-6, 1e-15), 1, OPEN),
    ],
)
def test_deviation_by_format(values, seeds, word):
    """Catches formats compared in the wrong direction, and one step that decides for all."""
    parts = [
        rows(at(f"ops:{f}", S.bench, S.tile), seeds, vs_unfused_max=x)
        for f, x in zip(FORMATS, values, strict=True)
    ]
    assert one(claims.figures_3_and_4(results(*parts), S), "largest", "ops").word is word


@pytest.mark.parametrize(
    ("over", "seeds", "word"),
    [(10.0, 4, YES), (1.2, 4, NO), (0.1, 4, NO), (math.nan, 4, OPEN), (10.0, 1, OPEN)],
)
def test_ten_times_unfused(over, seeds, word):
    """Catches a ratio the wrong way round, and a verdict from one seed."""
    r = results(
        rows(at("ops:bf16", S.bench, S.tile), seeds, max_abs=over, rms=1.0, unfused_rms=1.0)
    )
    for by_seed in r.cells.values():  # a baseline without spread: the pairs then have one
        for row in by_seed.values():
            row["unfused_max_abs"] = 1.0
    found = one(claims.figures_3_and_4(r, S), "in BF16", "ops:bf16 / unfused")
    assert found.word is word


def test_ten_times_against_pytorch_pairs_seeds():
    """Catches a ratio to the cell's own unfused deviation, and unpaired seeds, whose interval would
    be wider.
    """
    tiled = rows(at("sums:bf16", S.bench, S.tile), max_abs=9.0, unfused_max_abs=90.0, rms=1.0)
    r = results(tiled, rows(at(BASELINE, S.bench, S.bench[0]), max_abs=1.0, rms=1.0))
    found = one(claims.figures_3_and_4(r, S), "in BF16", f"sums:bf16 / {BASELINE}")
    assert (
        found.word is YES
        and found.estimate.mean == pytest.approx(9.0)
        and found.estimate.low == pytest.approx(9.0)
    )


def test_anywhere_finds_the_condition_and_names_it():
    """Catches a search that passes over a condition, and no words on what it depends."""
    plain = rows(at("ops:bf16", S.many, 64), max_abs=1.2, unfused_max_abs=1.0)
    sink = rows(at("ops:bf16", S.many, 16, "sink"), max_abs=11.0, unfused_max_abs=1.0)
    found = claims.anywhere(results(plain, sink), S)
    assert (
        found.word is DEPENDS
        and "1 within" in found.measured
        and "64 key tiles, sink, to its own unfused" in found.note
    )
    assert claims.anywhere(results(plain), S).word is NO
    assert claims.anywhere(results(), S).word is OPEN
    assert "64 key tiles or more (a sink)" in answer(
        results(plain, sink), S
    ) and "in no condition" in answer(results(plain), S)


@pytest.mark.parametrize(("power", "word"), [(0.5, YES), (-0.5, NO), (0.0, NO)])
def test_growth_with_length(power, word):
    """Catches a growth that is judged by its ends in the wrong order."""
    parts = [rows(at("ops:bf16", (t, S.heads(t)), S.tile), max_abs=t**power) for t in S.lengths]

    def of(parts):
        verdicts = [v for v in claims.figure_5(results(*parts), S) if "output" not in v.claim]
        return one(verdicts, "largest", "ops:bf16, gaussian")

    assert of(parts).word is word and of(parts).estimate.mean == pytest.approx(power, abs=1e-12)
    assert of(parts[:-1]).word is OPEN  # a length is missing


def test_mean_and_spread_of_the_deviation():
    """Catches a spread about the signed mean instead of the mean |deviation|."""
    parts = [
        rows(at("ops:bf16", (t, S.heads(t)), S.tile), mean_abs=3.0 * t, rms=5.0 * t, rel_rms=1.0)
        for t in S.lengths
    ]
    r = results(*parts)
    verdicts = [v for v in claims.figure_5(r, S) if "output" not in v.claim]
    assert one(verdicts, "mean and std", "ops:bf16, gaussian").word is YES
    point = at("ops:bf16", (128, S.heads(128)), S.tile)
    assert r.values(point, "std_abs")[1] == pytest.approx(4.0 * 128) and r.values(
        point, "rel_mean_abs"
    )[1] == pytest.approx(0.6)


def test_growth_by_tiling():
    """Catches growth that one key tile shows too being blamed on tiles."""
    tiled = [rows(at("ops:bf16", (t, S.heads(t)), S.tile), mean_abs=t**0.5) for t in S.lengths]

    def whole(power):
        return [rows(at("ops:bf16", (t, S.heads(t)), t), mean_abs=t**power) for t in S.lengths]

    assert claims.by_tiling(results(*tiled, *whole(0.1)), S).word is YES
    assert claims.by_tiling(results(*tiled, *whole(0.5)), S).word is NO


def test_swapped_sides_depend_on_which_was_the_keys():
    """Catches a verdict from one direction only, and sides that are mixed up."""
    few, many = (
        rows(at("ops:bf16", S.many, keys, block_q=q), max_abs=x)
        for q, keys, x in ((32, 128, 1.0), (128, 32, 1.5))
    )

    def swapped(*parts):
        verdicts = [v for v in claims.figure_6(results(*parts), S) if "swapping" in v.claim]
        return verdicts[S.swaps.index((32, 128))]

    found = swapped(few, many)
    assert found.word is DEPENDS and "32x128 to 128x32 (queries x keys): 1.5x" in found.measured
    same = rows(at("ops:bf16", S.many, 32, block_q=128), max_abs=1.0)
    assert swapped(few, same).word is NO


def test_queries_per_tile_are_compared_to_the_bit():
    """Catches a comparison within a tolerance, and one of nothing that agrees."""
    parts = [
        rows(at("ops:bf16", S.many, k, block_q=q), max_abs=1.0 / k)
        for q, k in ((32, 128), (64, 128), (128, 128))
    ]
    assert claims.queries_only(results(*parts), S).measured.startswith("8 of 8 cells")
    parts[0][0][2]["max_abs"] *= 1 + 2**-52
    found = claims.queries_only(results(*parts), S)
    assert found.word is NO and found.measured.startswith("7 of 8 cells")
    assert claims.queries_only(results(), S).word is OPEN


@pytest.mark.parametrize(("power", "word"), [(-0.3, YES), (0.0, NO), (0.4, NO)])
def test_larger_tiles(power, word):
    """Catches an exponent of the number of tiles instead of their size, and a flat line that
    agrees.
    """
    r = results(*(rows(at("qiu-yao", S.many, k), max_abs=k**power) for k in S.tiles))
    assert one(claims.figure_6(r, S), "larger tiles", "qiu-yao").word is word


def test_the_cause_is_what_removes_it():
    """Catches a control compared with the wrong base, and an effect of 2 % taken for the cause."""
    parts = [rows(narrow(S, "sink"), rms=12.0, unfused_rms=1.0, rescales=0.0)]
    for what, rms in zip(claims.CAUSES, (11.8, 11.9, 1.1, 0.8), strict=True):
        parts.append(rows(narrow(S, "sink", **CONTROLS[what]), rms=rms, unfused_rms=0.1))
    verdicts = list(claims.cause(results(*parts), S))
    found = [one(verdicts, claim, f"{what}, sink") for what, claim in claims.CAUSES.items()]
    assert [v.word for v in found] == [NO, NO, YES, YES]
    assert one(verdicts, "no excess without rescales").word is NO
    alone = results(rows(narrow(S, "sink"), rms=1.0, unfused_rms=1.0, rescales=0.0))
    assert one(claims.cause(alone, S), "no excess without rescales").word is YES


def test_bias_and_magnitude_are_told_apart():
    """Catches signs lost on the way, sites' numbers from the wrong event, and a bias within its
    interval called one.
    """
    last, name = S.counts[-1], "repeated-maximum"

    def event(x):
        return {"PV": {"mean_ulps": x}, "O": {"mean_ulps": 9.0}}

    parts = [
        rows(biased(S, name, 1, "none"), mean_ulps=-0.1, sites=event(-0.01)),
        rows(
            biased(S, name, last, "none"),
            mean_ulps=-0.4,
            rms=2.0,
            unfused_rms=1.0,
            sites=event(-0.1),
        ),
        rows(
            biased(S, name, last, "2"), mean_ulps=-0.1, rms=2.0, unfused_rms=1.0, sites=event(0.001)
        ),
    ]
    r = results(*parts)
    found, untiled = list(claims.bias(r, S)), "the bias is there without any tiling"
    assert one(found, untiled).word is YES and "-0.1" in one(found, untiled).measured
    assert one(found, "tiling makes the bias larger").estimate.mean == pytest.approx(4.0)
    removed = [v.word for v in found if v.claim == "the stabilizer removes the bias of PV"]
    assert removed == [OPEN, YES]  # with one key tile, and with the most
    cells, _ = rows(biased(S, name, 1, "none"), mean_ulps=1.0)
    for row, x in zip(cells, (-1.0, 1.0, -1.1, 1.1), strict=True):
        row["mean_ulps"] = x
    assert one(claims.bias(gathered(cells), S), untiled).word is OPEN


@pytest.mark.parametrize("scale", [QUICK, FULL, replace(QUICK, seeds=1, fewer=1)])
def test_nothing_measured_decides_nothing(scale):
    """Catches a claim that fails on an empty file, or is decided by it."""
    found = judged(results(), scale)
    assert {v.word for v in found} == {OPEN, Word.NOT_TESTABLE}
    assert all(re.match(r"SELECT seed, ", q) for v in found for q in v.queries)
    assert answer(results(), scale)
