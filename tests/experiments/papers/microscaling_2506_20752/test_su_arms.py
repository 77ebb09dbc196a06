"""Who runs: shams that differ in one step, arms that share their beginning, launches that lose
none.
"""

from dataclasses import replace

import pytest

from roundscope.experiments.papers.microscaling_2506_20752 import measurements
from roundscope.experiments.papers.microscaling_2506_20752 import measurements as arms
from roundscope.experiments.papers.microscaling_2506_20752.measurements import (
    FULL,
    QUICK,
    Setting,
    varied,
)
from roundscope.experiments.train.mx import GROUPS, Site
from roundscope.experiments.train.student.arms import MATRICES, UNCHANGED, Config, key, plan_of
from tests.experiments.papers.microscaling_2506_20752.made import of_arm

FIRST = 40


@pytest.mark.parametrize("scale", [QUICK, FULL], ids=lambda s: s.name)
def test_what_parts_shares_its_beginning_and_has_a_name_of_its_own(scale):
    """Two arms under one key, of which one would be the other's result; an arm that differs before
    the parting; a paper's arm left out.
    """
    config = arms.config_of(scale.base, scale.rate)
    found = arms.parted(scale, 3, FIRST)
    keys = {
        key(config, a) for a in (*found, *arms.parted(scale, 3, FIRST + 1), arms.base_arm(scale, 3))
    }
    assert len(keys) == 2 * len(found) + 1 and len({a.name for a in found}) == len(found)
    before = {plan_of(config, a.texts(FIRST - 1)) for a in found}
    assert len(before) == 1 and found[0].name == UNCHANGED and {a.seed for a in found} == {3}
    missing = {ours for ours in arms.PAPER.values() if ours not in {a.name for a in found}}
    assert missing <= ({"bump"} if "e4m3" not in scale.mx else set())  # a rule of E4M3 alone
    assert len({a.name for a in found if a.name.startswith(arms.SHAM)}) == scale.shams


def test_a_sham_differs_in_one_gradient_of_one_step():
    """A sham that stays changed, or that changes what an arm may change."""
    config = arms.config_of(QUICK.base, QUICK.rate)
    base = arms.base_arm(QUICK, 0)
    places = set()
    for sham in arms.shams(QUICK, base, FIRST):
        plans = [plan_of(config, sham.texts(step)) for step in (FIRST - 1, FIRST, FIRST + 1)]
        assert plans[0] == plans[2] == plan_of(config, base.texts(0))
        differ = {
            (layer, matrix, site)
            for layer in range(config.depth)
            for m, matrix in enumerate(MATRICES)
            for i, site in enumerate(Site)
            if plans[0].formats[layer][m][i] != plans[1].formats[layer][m][i]
        }
        assert len(differ) == 1 and {site for _, _, site in differ} == {Site.DW}
        places |= differ
    assert len(places) == QUICK.shams


def test_changes_of_ln_from_the_first_step_are_one_each():
    """The published confound again: an arm of LN's precision that also trains the shift, or the
    other way round.
    """
    config = arms.config_of(QUICK.base)
    base, *found = (
        plan_of(config, tuple(t for _, t in arms.changes_of(f)))
        for f in (QUICK.mx, *arms.changed(QUICK.mx))
    )
    sites = [
        {s for i, s in enumerate(Site) if p.formats[0][0][i] != base.formats[0][0][i]}
        for p in found
    ]
    assert [p.beta for p in found] == [False, True, False, True, True] and sites[:3] == [
        set(),
        set(GROUPS["norm"]),
        set(GROUPS["norm"]),
    ]
    assert sites[3:] == [{*GROUPS["norm"], *GROUPS["activations"]}, set(GROUPS["backward"])]


def test_launches_hold_every_arm_once_and_no_more_than_they_may():
    """An arm that is lost between launches or run twice; a launch that is too large for the time of
    one.
    """
    config = Config(depth=1, width=32, batch=32)
    scale = replace(
        QUICK,
        settings=varied(
            Setting(name="base", config=config, rates=(QUICK.rate, 0.2, 0.3)),
            no_LN=({"norm": False}, (0.01,)),
        ),
        arms=5,
    )
    found = [
        each
        for each in (*measurements.base(scale), *measurements.others(scale))
        if not each.config.measure_every
    ]

    def of(i, setting):
        return arms.trained(setting, scale.few if i else scale.formats, scale.seeds)

    wanted = {(s.config.norm, a) for i, s in enumerate(scale.settings) for a in of(i, s)}
    wanted |= {
        (True, a)
        for a in arms.trained(scale.at_rate, arms.changed(scale.mx), scale.seeds[: scale.parted])
    }
    assert sorted(map(str, ((each.config.norm, a) for each in found for a in each.arms))) == sorted(
        map(str, wanted)
    )
    assert max(len(each.arms) for each in found) <= scale.arms
    alone = [
        each.arms
        for each in measurements.base(scale)
        if any((a.name, a.lr) == (scale.mx, scale.rate) for a in each.arms)
    ]
    assert [len(own) for own in alone] == [1] * len(
        scale.seeds
    )  # the executable of a beginning, whose bits they have to be
    watched = measurements.epsilon(scale)
    assert [
        [a.seed for a in part]
        for part in (watched.arms[: scale.parted], watched.arms[scale.parted :])
    ] == [[0, 1, 2]] * 2


def test_interventions_leave_runs_that_fail_where_fp32_does_not():
    """An intervention in a run that FP32 does not survive either, or before its first step."""
    scale = replace(QUICK, leads=(100, 20))
    steps = {0: 400, 1: None, 2: 500, 3: 10, 4: 450}
    base = [of_arm(arms.base_arm(scale, seed), step) for seed, step in steps.items()]
    exact = [
        of_arm(replace(r.condition, name="fp32", changes=()), 600 if r.seed == 4 else None)
        for r in base
    ]
    found = measurements.leaving(scale, base, exact)
    assert found == [(seed, lead, steps[seed] - lead) for lead in scale.leads for seed in (0, 2)]
    made = measurements.interventions(scale, found)
    assert {each.first for each in made} == {first for _, _, first in found}
    assert sum(len(each.arms) for each in made) == sum(
        len(arms.parted(scale, seed, first)) for seed, _, first in found
    )
