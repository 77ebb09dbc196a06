"""`roundscope reproduce two-level`, on fewer keys."""

import pytest

from roundscope.experiments.papers.two_level import (
    FP32,
    KEYS,
    ONE_SIGNED,
    VALUES,
    answer,
    claims,
    measured,
    picture,
    plans,
    rows,
)


@pytest.fixture(scope="module")
def points():
    """Return the points of 1,024 keys alone, in place of those of all numbers of keys."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("roundscope.experiments.papers.two_level.KEYS", KEYS[:1])
        return list(measured(range(2)))


def test_sums_of_one_sign_are_too_short_and_flushing_repairs_most_of_it(points):
    """Sums that do not shrink where all terms have one sign; an accumulator that is flushed and
    shrinks as much; FP32 that shrinks.
    """
    gain = {p.sums: min(p.gain.values()) for p in points if p.values == ONE_SIGNED}
    assert (
        gain["never"]
        < -0.012
        < gain["every 4 tiles"]
        < -0.007
        < gain["every tile"]
        < gain[FP32]
        < 0
    )
    assert gain["never"] == gain["every 16 tiles"]  # which 1,024 keys do not have


def test_every_point_has_its_row_and_every_claim_its_verdict(points, monkeypatch):
    """A kind of values that nothing judges."""
    monkeypatch.setattr("roundscope.experiments.papers.two_level.KEYS", KEYS[:1])
    assert len(rows(points)) == len(points) == len(VALUES) * len(plans())
    assert [v.case for v in claims(points)] == 3 * list(VALUES)
    assert "1,024 keys" in answer(points) and picture(points) is not None
