"""Conditions: they build, none is there twice by accident, and there are not too many."""

import pytest

from roundscope.experiments.papers.stability_2405_02803.measuring import (
    EVENTS,
    FORMATS,
    FULL,
    QUICK,
    REAL,
    STUDIES,
    cells,
    emulation,
    place_of,
)
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.measuring.measure import group
from roundscope.tools.sweep.running.dry_run import work

UNIT = 4 * 256 * 256 * 64  # a cell of N = 4, T = 256, H = 64


def unique(scale, engine):
    return {cell.key: cell for study in cells(scale, engine).values() for cell in study}


def test_quick_is_quick():
    """Catches a study that grows: 5,000 units are about 5 minutes on two cores."""
    found = unique(QUICK, "numpy")
    assert 1000 < len(found) < 2000 and sum(map(work, found.values())) / UNIT < 5000


def test_full_needs_few_compilations():
    """Catches shapes that multiply, and lengths that nobody can wait for."""
    found = unique(FULL, "xla").values()
    assert len({group(cell) for cell in found}) <= 45 and sum(map(work, found)) / UNIT < 100_000
    assert max(int(cell["T"]) for cell in found) == 4096


@pytest.mark.parametrize("scale", [QUICK, FULL])
def test_different_points_are_different_places_and_cells(scale):
    """Catches two conditions that results could not tell apart."""
    for study in STUDIES.values():
        points = list(study(scale))
        places = {place_of(point) for point in points}
        distinct = {tuple(sorted(point.items())) for point in points}
        assert len(places) == len(distinct)
    keys = {
        place_of(p): cell_of({**p, "seed": 0}).key
        for study in STUDIES.values()
        for p in study(scale)
    }
    assert len(set(keys.values())) == len(keys)


def test_every_maximum_is_over_equally_many_entries():
    """Catches a length study in which the maximum grows because more numbers are looked at."""
    for scale in (QUICK, FULL):
        assert {t * scale.heads(t) for t in scale.lengths} == {scale.entries}


def test_emulations():
    """Catches formats in which sums stay narrower than the events."""
    assert emulation("ops:fp64") == emulation("sums:fp64") == {"preset": "exact"}
    assert emulation("ops:fp32") == emulation("sums:fp32") == {"preset": "fp32"}
    plans = [
        cell_of({**emulation(f"{kind}:{form}"), "seed": 0}).plan
        for kind in ("ops", "sums")
        for form in FORMATS
    ]
    steps = [str(plan.accumulators[0].step.format) for plan in plans]
    assert (
        steps == [steps[2], steps[2], steps[2], steps[3], steps[4], steps[5], steps[2], steps[3]]
        and len(set(steps)) == 4
    )


def test_real_tensors_are_one_draw():
    """Catches one draw counted as many."""
    for study in cells(QUICK, "numpy").values():
        assert {cell["seed"] for cell in study if cell["input"] == REAL} <= {0}


def test_all_forward_events_are_attributed():
    """Catches a site that is added to the algorithm and left out here."""
    assert {"S", "M", "X", "P", "DM", "ALPHA", "AL", "L", "AO", "PV", "O", "INV", "OUT"} <= set(
        EVENTS
    )
