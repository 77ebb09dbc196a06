"""`roundscope reproduce fa4` against the errors that were published for FlashAttention-4 in FP8 on
a B300.
"""

import pytest

from roundscope.attention.plans.presets import PRESETS
from roundscope.experiments.papers.fa4 import (
    DEVIATIONS,
    PLANS,
    PUBLISHED,
    claims,
    errors,
    inputs,
    measured,
    rows,
)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_published_errors(part):
    """Mean errors of O beyond a tenth of the published ones; an O that does not shrink where P
    clips, or shrinks elsewhere.
    """
    x = inputs(0)
    for plan in PLANS:
        for i, deviation in list(enumerate(DEVIATIONS))[part::2]:
            _, off, gain = errors(plan, deviation, x)
            if plan in PUBLISHED:
                assert abs(off / PUBLISHED[plan][i] - 1) < 0.1, (plan, deviation, off)
            assert (gain < -0.15) == (plan == "fa4-fp8" and deviation > 1), (plan, deviation, gain)


def test_a_claim_for_each_published_error(monkeypatch):
    """A published number that nothing judges; a plan without its row."""
    monkeypatch.setattr("roundscope.experiments.papers.fa4.DEVIATIONS", DEVIATIONS[:1])
    points = list(measured(range(2)))
    assert [p.plan for p in points] == list(PLANS) == [
        name for name in PRESETS if name in PLANS
    ] and len(rows(points)) == 4
    assert [v.word for v in claims(points)] == ["agrees", "agrees"]
