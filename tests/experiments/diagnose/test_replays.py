"""Replays of a made-up model: what is kept, when they stop, where they begin, what is said of them,
how long they still take.
"""

import numpy as np
import pytest

from roundscope.attention import Site
from roundscope.experiments.diagnose.gpt.units import FAMILY, Unit
from roundscope.experiments.train.spikes import growth
from roundscope.tools.diagnose.replay import replayer as replaying
from roundscope.tools.diagnose.replay.replayer import Clock, Replayer, Trial, spell
from roundscope.tools.diagnose.replay.start import Cause, Own, replayed
from roundscope.tools.diagnose.replay.store import Store
from roundscope.tools.diagnose.report import words_run

UNITS = frozenset(Unit(i, n, s) for i in range(2) for n in range(2) for s in (Site.O, Site.OD))
CULPRIT = frozenset(Unit(0, n, Site.OD) for n in range(2))


class Case:
    """What a made-up run says of itself."""

    failed, until, longest, starts, about = 60, 100, 400, (40, 0), {"device": "here"}


class Judge:
    """A loss above 1 is a failure."""

    def __init__(self, arms):
        self.failed = [None] * arms

    def update(self, first, losses, norms):
        for step, row in enumerate(losses, start=first):
            for arm, loss in enumerate(row):
                if self.failed[arm] is None and loss > 1.0:
                    self.failed[arm] = step

    def end(self, steps):
        """Nothing."""


class Window:
    """Replays whose failures a function of (first step, units that are exact, repeat) decides."""

    as_it_was, company = frozenset(), 0

    def __init__(self, first, fails):
        self.first, self.fails, self.launches = first, fails, []

    def group(self, trial):
        return "one"

    def name(self, trial):
        return f"{self.first} {sorted(map(str, trial.change))} {trial.repeat}"

    def judge(self, arms):
        return Judge(arms)

    def run(self, trials, until):
        self.launches.append(trials)
        when = [self.fails(self.first, t.change, t.repeat) for t in trials]
        for start in range(self.first, until, 10):
            steps = np.arange(start, min(start + 10, until))
            losses = np.stack(
                [np.where((at is not None) & (steps >= (at or 0)), 2.0, 0.5) for at in when], axis=1
            )
            yield losses, losses


class Model:
    """As `replay.start` wants one."""

    case = Case()
    units = UNITS
    family = FAMILY
    place = " in attention"
    others = "The rate."
    rule = "its loss"
    is_random, same_device = False, True

    def __init__(self, fails):
        self.fails, self.windows = fails, []

    def own(self):
        return Own(first=0, losses=np.ones(61), norms=np.ones(61), again=True)

    def failed(self, own):
        return 60

    def window(self, start):
        self.windows.append(Window(start, self.fails))
        return self.windows[-1]

    def exactly(self, units):
        return frozenset(units)

    def alike(self, own):
        return 61, 61

    def repair(self, units, first):
        return (
            f"roundscope train --resume run --from {first} --arm 'run={FAMILY.change(units)}' --out"
            " run-repaired"
        )


@pytest.fixture(autouse=True)
def four_at_once(monkeypatch):
    monkeypatch.setattr(replaying, "limit", lambda: 4)


def silent(*_):
    """No progress bar."""


def replayer(tmp_path, fails, until=100):
    return Replayer(
        window=Window(40, fails), until=until, store=Store(tmp_path), clock=Clock(silent)
    )


def culprit(first, exact, repeat):
    """OD of layer 0 kills at step 60 or so, in every repeat."""
    return None if exact >= CULPRIT else 60 + repeat % 5


def test_a_launch_ends_when_all_its_sets_are_decided(tmp_path):
    """Catches 40 steps of a run that is dead, and shams of such a launch counted: only those that
    fail early would be known.
    """
    r = replayer(tmp_path, culprit)
    [fate] = r([Trial(frozenset())])
    assert fate.failed == 60 and len(fate.losses) == 30 and r.shams == []
    [fate] = r([Trial(CULPRIT)])
    assert (
        fate.failed is None
        and len(fate.losses) == 60
        and [f.failed is None for f in r.shams] == [False] * 3
    )


def test_what_was_replayed_is_not_replayed_again(tmp_path):
    """Catches a diagnosis that starts anew after it was stopped, and results of one window taken
    for those of a longer one.
    """

    def stops(first, exact, repeat):
        if repeat == 9:
            raise KeyboardInterrupt
        return culprit(first, exact, repeat)

    trials = [Trial(frozenset(), n) for n in range(8)]
    with pytest.raises(KeyboardInterrupt):
        replayer(tmp_path, stops)([*trials, Trial(CULPRIT, 9)])
    again = replayer(tmp_path, culprit)
    fates = again([*trials, Trial(CULPRIT, 9)])
    assert [f.failed for f in fates] == [60 + n % 5 for n in range(8)] + [None]
    assert [t.repeat for launch in again.window.launches for t in launch if t.repeat < 1000] == [9]
    third = replayer(tmp_path, culprit)
    third.recall()
    assert (
        len(third.shams) == len(again.shams) == 3
        and third([Trial(CULPRIT, 9)])[0].failed is None
        and not third.window.launches
    )
    longer = replayer(tmp_path, culprit, until=200)
    assert longer([Trial(CULPRIT, 9)])[0].failed is None and len(longer.window.launches) == 1
    assert longer([Trial(frozenset(), 3)])[0].failed == 63 and len(longer.window.launches) == 1


def diagnosis(tmp_path, fails):
    return replayed(Model(fails), tmp_path, Clock(silent))


def test_the_set_is_found_from_the_latest_state_with_counts(tmp_path):
    """Catches a first line without events, counts or repair, a count left out, and `are` for one
    event.
    """
    r = diagnosis(tmp_path, culprit)
    assert (
        r.cause is Cause.ROUNDING
        and r.guilty.found == CULPRIT
        and r.holds
        and r.replayer.first == 40
    )
    assert (
        r.replayer.until == 60 + 3 + 1 + 12
    )  # the last of the four failures, and the least number of steps behind it
    line = words_run.first_line(r)
    assert line.startswith(
        "rounding in attention; OD in layer 0 is at fault: exact, 8 of 8 replays survive, as it was"
        " 0 of "
    )
    assert line.endswith(
        "Repair: roundscope train --resume run --from 40 --arm 'run=layer=0 head=0,1 site=OD ->"
        " fp32' --out run-repaired"
    )
    said = words_run.ending(r)
    assert (
        "if OD in layer 0 is exact" in said
        and "Low alone, with all else exact, it survives in 0 of 3." in said
    )
    assert "8 of 8 replays, against 0 of" in said and "not the only one" not in said


def test_another_set_that_would_do_is_named_with_its_count(tmp_path):
    """Catches one layer blamed alone where another alone, exact, keeps the run alive as well."""
    other = frozenset(Unit(1, n, Site.OD) for n in range(2))
    r = diagnosis(
        tmp_path, lambda first, exact, repeat: None if exact >= CULPRIT or exact >= other else 60
    )
    said = words_run.ending(r)
    left = next(iter({0, 1} - {u.layer for u in r.guilty.found}))
    assert (
        r.holds
        and "It is not the only one: with " in said
        and f"OD in layer {left} (1 of 1)" in said
    )
    assert "Low alone, with all else exact, it survives in 3 of 3." in said


def test_a_longer_window_is_tried_before_nothing_is_decided(tmp_path):
    """Catches "a matter of luck" of a run that dies in all repeats, only later than the first
    window ends in three of four.
    """

    def late(first, exact, repeat):
        return None if exact >= CULPRIT else (90, 150, 210, 270)[repeat % 4]

    r = diagnosis(tmp_path, late)
    assert [(s.first, s.until, s.low.failures) for s in r.sanity] == [
        (40, 100, 1),
        (0, 100, 1),
        (40, 400, 4),
    ]
    assert r.cause is Cause.ROUNDING and r.guilty.found == CULPRIT


def test_where_nothing_decides_all_that_was_tried_is_said(tmp_path):
    """Catches a word like luck, "as often as not" for 1 of 4, and counts that are left out."""
    r = diagnosis(tmp_path, lambda first, exact, repeat: 60 if repeat == 0 and not exact else None)
    said = words_run.ending(r)
    assert r.cause is Cause.UNDECIDED and "luck" not in said and "as often as not" not in said
    assert (
        len(r.sanity) == 4
        and said.count(
            "1 of 4 replays with other last bits fail as it was and 0 of 4 with everything exact"
        )
        == 4
    )
    assert "to 400" in said and words_run.first_line(r).endswith(
        "as it was 3 of 4 replays survive, with everything exact 4 of 4"
    )


def test_exact_arithmetic_that_fails_too_is_not_tried_longer(tmp_path):
    """Catches rounding blamed for what exact arithmetic does, and hours of windows that cannot
    change it.
    """
    r = diagnosis(tmp_path, lambda first, exact, repeat: 60)
    assert r.cause is Cause.OTHER and r.guilty is None and [s.until for s in r.sanity] == [73, 73]
    assert "4 of 4 with everything exact" in words_run.ending(r)


def test_gradient_norms_that_grow_for_good():
    """Catches a spike taken for growth, a fall at the beginning, and an alarm that comes late: half
    of twenty norms above ten times.
    """
    calm = 0.5 + 0.1 * np.sin(np.arange(300.0))
    spike, grown, broken, falling = (calm.copy() for _ in range(4))
    spike[100:109] *= 1e4
    grown[150:] *= 1e3
    broken[200:] = np.nan
    falling[:60] = 40.0
    assert growth(np.stack([calm, spike, grown, broken, falling], axis=1)) == [
        None,
        None,
        159,
        209,
        None,
    ]
    assert growth(calm[:20, None]) == [None]
    slow = 0.5 * 1.02 ** np.arange(400.0)
    medians = [np.median(slow[n - 20 : n]) for n in range(20, 401)]
    first = next(n for n in range(1, 381) if medians[n] > 10 * min(medians[:n])) + 19
    assert growth(slow[:, None]) == [first]


def test_the_time_left_is_that_of_the_replays_to_come():
    """Catches a constant, a rate with compilations in it, and replays that were there counted as
    time.
    """
    told = []
    clock = Clock(lambda step, text: told.append(text))
    clock.says(2, "the search")
    assert clock.left is None
    clock.expects(10, 30)
    clock.done(5, 0.0)
    assert clock.left is None
    clock.done(4, 20.0)
    assert clock.left == (5.0, 105.0) and told[-1].endswith("1 to 21 replays to come, 5 s to 2 min")
    clock.done(25, 125.0)
    assert clock.left == (0.0, 0.0)
    assert [spell(s) for s in (3.2, 600, 9000)] == ["3 s", "10 min", "2.5 h"]


def test_a_later_state_that_is_less_clear_is_not_preferred(tmp_path):
    """Catches a search from a state where replays differ between repeats, though from an earlier
    one they do not.
    """

    def unclear(first, exact, repeat):
        return None if exact >= CULPRIT or (first == 40 and repeat == 2) else 60

    r = diagnosis(tmp_path, unclear)
    assert (
        [(s.first, s.low.failures) for s in r.sanity] == [(40, 3), (0, 4)]
        and r.replayer.first == 0
        and r.guilty.repeats == 1
    )


@pytest.mark.pictures
def test_the_page_and_the_data_of_steps_1_and_2(tmp_path):
    """Catches a page, a picture or a JSON of either model's steps 1 and 2 that cannot be made, and
    counts that differ between them.
    """
    from roundscope.tools.diagnose.report import data as diagnosed
    from roundscope.tools.diagnose.report import pictures
    from roundscope.tools.diagnose.report.diagnosis import Diagnosis, report
    from roundscope.tools.diagnose.report.steps import replay_step, search_step
    from roundscope.tools.report.html import page

    r = diagnosis(tmp_path, culprit)
    made = [
        replay_step(
            words_run.replayed(r),
            pictures.losses([(n, 0.5) for n in range(60)], r, [(60, "red", "fails")], 1.0),
            "losses",
        ),
        search_step(r, words_run.searched(r)),
    ]
    said = Diagnosis(
        name="made up",
        title="Why?",
        about="a run",
        first_line=words_run.first_line(r),
        kind=r.verdict,
        headline=words_run.ending(r),
        steps=made,
        links=words_run.links(r),
        unseen=["much"],
        said=[],
        how=[],
        machine=["none"],
        data={"steps": diagnosed.search(r, r.guilty)},
        seconds=1.0,
    )
    made_of_it = report(said, "asked")
    data, html = made_of_it.data, page(made_of_it)
    assert html.count("<svg ") == 3 and "OD in layer 0 is at fault" in html
    assert (
        data["steps"]["found"] == [[0, 0, "OD"], [0, 1, "OD"]]
        and data["steps"]["confirmed"]["failed"] == [None] * 8
    )
    assert (
        data["steps"]["repair"] in data["verdict"]["first_line"]
        and diagnosed.replay(r)["cause"] == "rounding in attention"
    )
    assert [link["name"] for link in data["verdict"]["links"]] == [
        "replay",
        "rounding",
        "set",
        "controls",
    ]
