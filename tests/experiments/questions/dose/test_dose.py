"""`roundscope dose`: the arms, when one has diverged, the verdicts' rules, what is kept, and the
command.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.cli.main import main
from roundscope.experiments.framework.counts import time_of
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.questions.dose import doses as scales
from roundscope.experiments.questions.dose import results, study
from roundscope.experiments.train.gpt.plans import base
from roundscope.experiments.train.groups import plans_at
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run
from tests.tools.databases import database

EVEN, ZERO, RANDOM = RoundingMode.TIES_TO_EVEN, RoundingMode.TOWARD_ZERO, RoundingMode.STOCHASTIC
OUTWARD = RoundingMode.AWAY_FROM_ZERO
TINY = [
    "layers=1",
    "heads=2",
    "width=8",
    "context=8",
    "batch=2",
    "warmup=2",
    "data=sink",
    "steps=30",
]


def dose(mode=ZERO, bits=2, seed=0, site=Site.OD, rate=1e-2, steps=2000):
    return scales.Dose(site=site, mode=mode, bits=bits, rate=rate, steps=steps, seed=seed)


def outcomes(mode, bits, times, rate=1e-2, steps=2000, loss=1.0, grown=8.0):
    """Runs of one point whose ||W_Q|| grows from 1 to `grown` by step 100."""
    curve = ((0, math.nan, 1.0), (100, 2.0, grown))
    site = None if mode is None else Site.OD
    own = [
        dose(mode or EVEN, bits, i, site=site, rate=rate, steps=steps) for i in range(len(times))
    ]
    own = [d.exact if mode is None else d for d in own]
    return [
        Run(condition=d, steps=steps, diverged=t, loss=loss, curve=curve, extra={"shares": ()})
        for d, t in zip(own, times, strict=True)
    ]


def exact(rate=1e-2, steps=2000):
    return outcomes(None, 24, [None] * 3, rate=rate, steps=steps, grown=2.0)


def verdict(found, text):
    return next(v for v in study.judged(results.Results(found)) if text in v.claim)


def test_an_arm_differs_from_exact_in_one_event_of_every_head():
    """A dose that also changes another event, misses a head, or has one bit too many."""
    config = scales.QUICK.config
    wanted = [dose(bits=3), dose(mode=RANDOM, bits=8, seed=2), dose().exact]
    settings = scales.settings_of(config, wanted)
    for one, arm in zip(wanted, settings.arms, strict=True):
        for layer in plans_at(settings, arm, 0):
            for plan in layer:
                changed = [s for s in Site if plan[s] != base(config)[s]]
                assert changed == ([] if one.site is None else [one.site])
                assert all(
                    plan[s].format.precision == one.bits and plan[s].mode == one.mode
                    for s in changed
                )
                assert all(plan[s].format.emax == 127 for s in changed)
    assert [(arm.lr, arm.seed) for arm in settings.arms] == [(1e-2, 0), (1e-2, 2), (1e-2, 0)]


def test_quick_is_two_launches_and_each_has_its_exact_arms():
    """Arms that miss their control, a control run twice, or an executable for each mode."""
    wanted = scales.doses_of(scales.QUICK)
    groups = scales.launches(scales.QUICK.config, wanted)
    assert [len(g) for g in groups] == [5 * (1 + 3 * 3), 5 * 3]
    assert all(d.mode is RANDOM for d in groups[1])
    assert len(set(wanted)) == len(wanted) and {d.exact for d in wanted} <= set(wanted)


def test_full_is_one_launch_for_each_structure_and_number_of_steps():
    """A stray exact arm of a study that shares its rate and steps with another, or stochastic
    events that cannot share a structure.
    """
    groups = scales.launches(scales.FULL.config, scales.doses_of(scales.FULL))
    assert sorted((len(g), g[0].steps) for g in groups) == [
        (35, 2000),
        (35, 6000),
        (5 * (1 + 28 + 20), 2000),
    ]


def test_the_key_names_all_that_decides_a_run():
    """A result taken for that of another model, seed or mode; or lost because a field without
    effect changed.
    """
    config = scales.QUICK.config
    other = [
        replace(config, width=64),
        replace(config, warmup=1),
        replace(config, data="sink"),
        replace(config, data_seed=3),
    ]
    doses = [
        dose(),
        dose(mode=EVEN),
        dose(bits=3),
        dose(seed=1),
        dose(steps=10),
        dose(rate=1.0),
        dose(site=Site.O),
    ]
    keys = [scales.key(c, dose()) for c in other] + [scales.key(config, d) for d in doses]
    assert len(set(keys)) == len(keys)
    assert scales.key(replace(config, checkpoint_every=7, lr=0.5), dose()) == scales.key(
        config, dose()
    )


def test_divergence_of_four_kinds_and_of_none():
    """A censored arm counted, a jump that stays overlooked, a spike that passes counted, or a NaN
    that spoils its neighbours.
    """
    steps = np.arange(400)
    noise = 0.01 * np.random.default_rng(0).standard_normal((400, 5))
    losses = 2.0 + noise
    losses[200:, 1] = np.nan
    losses[:, 2] += (
        19 * noise[:, 2] + np.maximum(0, steps - 150) * 0.004
    )  # within the noise: no spike, but a rise
    losses[250:, 3] = 5.0
    losses[250:300, 4] = 5.0
    follow = Follow(5)
    for step, loss in enumerate(losses):
        follow.update(step, loss)
    first = follow.first
    assert first[0] == -1 and first[1] == 200 and first[3] == 250 and first[4] == -1
    assert (
        150 + 125 < first[2] < 150 + 125 + 100
    )  # 0.5 above after 125 steps; the median of 100 follows 50 steps behind
    assert np.isnan(follow.final()[1]) and follow.final()[0] == pytest.approx(
        losses[-50:, 0].mean()
    )


def test_time_of_censored_seeds():
    """A median taken over the seeds that diverged alone."""
    t = time_of(outcomes(ZERO, 2, [100, None, 300]))
    assert (t.middle, t.low, t.high, t.diverged, t.runs) == (300, 100, math.inf, 2, 3)
    assert t.words == "2 of 3, median 300 [100, > 2000]"
    assert time_of(outcomes(ZERO, 2, [None] * 3)).words == "0 of 3 in 2000 steps"


def test_verdict_of_sign_and_size():
    """A verdict that compares errors of different size, or says agrees where nearest-even dies as
    well.
    """
    zero = outcomes(ZERO, 3, [100, 200, 300])
    good, bad = outcomes(EVEN, 2, [None] * 3), outcomes(EVEN, 2, [90, 80, 70])
    assert verdict(exact() + zero + good, "sign").word is Word.AGREES
    assert verdict(exact() + zero + bad, "sign").word is Word.CONTRADICTS
    assert (
        verdict(exact() + outcomes(ZERO, 3, [100, None, None]) + good, "sign").word
        is Word.UNDECIDED
    )
    assert (
        verdict(exact() + outcomes(ZERO, 2, [100, 200, 300]) + good, "sign").word
        is Word.NOT_TESTABLE
    )
    assert study.answer(results.Results(exact() + zero + good)).startswith("The sign: ")
    assert study.answer(results.Results(exact() + zero + bad)).startswith("Here not the sign alone")
    assert study.answer(results.Results(exact() + outcomes(ZERO, 3, [None] * 3) + good)).startswith(
        "Not decided"
    )


def test_errors_of_the_other_sign_stand_beside_the_verdict_of_the_sign():
    """Away from zero that kills nothing, left out where toward zero is said to kill by its sign."""
    rows = outcomes(ZERO, 3, [100, 200, 300]) + outcomes(EVEN, 2, [None] * 3)
    found = verdict(exact() + rows + outcomes(OUTWARD, 3, [None] * 3), "sign")
    assert "the other sign): p = 3: 0 of 3" in found.note
    assert "other sign" not in verdict(exact() + rows, "sign").note


def test_verdict_of_nearest_even():
    """Harmless by loss alone although runs diverged, or by the runs that did not although the loss
    is higher.
    """
    assert (
        verdict(exact() + outcomes(EVEN, 2, [None] * 3, loss=1.01), "harmless").word is Word.AGREES
    )
    assert (
        verdict(exact() + outcomes(EVEN, 2, [None] * 3, loss=1.2), "harmless").word
        is Word.CONTRADICTS
    )
    assert verdict(exact() + outcomes(EVEN, 2, [5, 5, None]), "harmless").word is Word.CONTRADICTS
    assert verdict(exact() + outcomes(EVEN, 2, [5, None, None]), "harmless").word is Word.UNDECIDED
    assert (
        verdict(exact() + outcomes(EVEN, 3, [None] * 3), "harmless").word is Word.UNDECIDED
    )  # p = 2 was not run


def test_verdict_of_toward_zero():
    """One p that survives must not be averaged away, and short runs cannot contradict."""
    text, bad = "toward zero diverges", [None] * 3
    every = outcomes(ZERO, 2, [9, 8, 7]) + outcomes(ZERO, 6, [900, 800, 700])
    assert verdict(exact() + every + outcomes(ZERO, 7, bad), text).word is Word.AGREES
    assert verdict(exact() + every + outcomes(ZERO, 5, bad), text).word is Word.CONTRADICTS
    short = exact(steps=500) + outcomes(ZERO, 5, bad, steps=500)
    assert verdict(short, text).word is Word.UNDECIDED
    assert (
        verdict(exact(rate=3e-2) + outcomes(ZERO, 2, [5] * 3, rate=3e-2), text).word
        is Word.NOT_TESTABLE
    )
    assert verdict(exact() + every, "away from zero").word is Word.NOT_TESTABLE


def test_verdict_of_away_from_zero():
    """A verdict that reads another p or another mode."""
    text, lower = "away from zero", outcomes(OUTWARD, 7, [5] * 3) + outcomes(ZERO, 8, [5] * 3)
    assert (
        verdict(exact() + lower + outcomes(OUTWARD, 8, [900, 1900, 20]), text).word is Word.AGREES
    )
    assert (
        verdict(exact() + lower + outcomes(OUTWARD, 8, [None] * 3), text).word is Word.CONTRADICTS
    )
    assert (
        verdict(exact() + lower + outcomes(OUTWARD, 8, [900, None, 20]), text).word
        is Word.UNDECIDED
    )
    assert verdict(exact() + lower, text).word is Word.NOT_TESTABLE


def test_norms_are_read_before_divergence():
    """A norm read after the loss was gone, or not against the exact arm."""
    found = exact() + outcomes(ZERO, 2, [150, 160, 170]) + outcomes(ZERO, 3, [50, None, 120])
    r = results.Results(found)
    assert [study.ahead(r, run) for run in r.series(Site.OD, ZERO, 1e-2)[3]] == [None, None, 4.0]
    assert verdict(found, "grows without limit").word is Word.AGREES


@pytest.mark.pictures
def test_pictures_of_censored_and_of_lost_runs():
    """A picture that fails where nothing diverged or where a loss is not finite."""
    found = exact() + outcomes(ZERO, 2, [9, 8, None], loss=math.nan) + outcomes(EVEN, 2, [None] * 3)
    for _, draw, _ in results.PICTURES:
        assert len(draw(results.Results(found)).axes) == 1


@pytest.mark.parametrize(
    "word",
    [
        "p=1",
        "p=two",
        "lr=0",
        "steps=0",
        "site=XX",
        "mode=sideways",
        "width=7",
        "plan=fp33",
        "schedule=1",
        "p",
    ],
)
def test_bad_words_name_themselves(word):
    """A setting that is wrong and runs for minutes before it says so."""
    with pytest.raises((UsageError, ValueError), match=word.split("=")[0]):
        scales.scale([word], quick=True, seeds=None)


@pytest.mark.thorough
def test_an_arm_that_is_lost_spoils_no_other():
    """A NaN that crosses arms: its neighbours' curves must be those of a launch where all are
    well.
    """
    config = scales.scale(TINY, quick=True, seeds="0").config
    calm, wild = dose(bits=2, rate=1e-3, steps=30), dose(bits=3, rate=1e30, steps=30)
    with_wild = scales.launch(config, [calm, wild], lambda done: None)
    without = scales.launch(config, [calm, dose(bits=3, rate=1e-3, steps=30)], lambda done: None)
    assert with_wild[1].diverged is not None and math.isnan(with_wild[1].loss)
    assert repr(with_wild[0]) == repr(without[0])
    assert [step for step, _, _ in without[0].curve] == [0, 25, 30]


def test_the_command_trains_and_repeats_to_the_bit(tmp_path, capsys):
    """A run that cannot be repeated, or a command that breaks between training and report."""
    found = []
    for name in ("a", "b"):  # the same shapes as above: compiled once
        main_of(
            [
                "dose",
                "--quick",
                "--out",
                str(tmp_path / name),
                "--seeds",
                "0",
                *TINY,
                "p=2",
                "mode=toward-zero",
                "--json",
            ]
        )
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["points"] == found[1]["points"] and len(found[0]["points"]) == 2
    assert (tmp_path / "a" / "report.html").is_file()


def test_the_command_resumes_by_launch(tmp_path, capsys, monkeypatch):
    """A dose that is run again though it is there, one that is lost with a later one, or a file
    that lacks what was asked.
    """
    ran = []
    monkeypatch.setattr(
        scales, "launch", lambda config, doses, progress, ties: ran.append(doses) or fake(doses)
    )
    out = tmp_path / "d"
    asked = ["dose", "--quick", "--out", str(out), "--seeds", "0-1", *TINY, "p=2,3", "--json"]
    main_of(asked)
    first = json.loads(capsys.readouterr().out)
    assert first["run"]["ran"] == 2 and len(first["points"]) == 1 + 4 * 2
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 3 and "Not decided" in page
    with database(out / "dose.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2 * 9,)
        connection.execute(
            "DELETE FROM runs WHERE condition ->> 'mode' = 'stochastic' AND seed = 1"
        )
    main_of(asked)
    again = json.loads(capsys.readouterr().out)
    assert again["run"]["ran"] == 1 and again["points"] == first["points"]
    assert [(dose.mode, dose.seed, dose.bits) for dose in ran[2]] == [
        (RANDOM, 1, 2),
        (RANDOM, 1, 3),
    ] and len(ran) == 3


def test_an_interrupt_keeps_the_launches_before(tmp_path, monkeypatch):
    """Results that are written at the end alone."""

    def launch(config, doses, progress, ties):
        if doses[0].mode is RANDOM:
            raise KeyboardInterrupt
        return fake(doses)

    monkeypatch.setattr(scales, "launch", launch)
    with pytest.raises(SystemExit) as end:
        main(["dose", "--quick", "--out", str(tmp_path), *TINY, "p=2,3"])
    assert end.value.code == 130
    with database(tmp_path / "dose.sqlite") as connection:
        assert connection.execute(
            "SELECT count(*), max(condition ->> 'mode' = 'stochastic') FROM runs"
        ).fetchone() == (5 * (1 + 3 * 2), 0)


def fake(doses):
    curve = ((0, math.nan, 1.0), (25, 1.0, 2.0))
    return [
        Run(
            condition=d,
            steps=d.steps,
            diverged=None,
            loss=1.0 + d.seed,
            curve=curve,
            extra={"shares": ()},
        )
        for d in doses
    ]


def main_of(words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code


def test_a_foreign_file_is_left_alone(tmp_path):
    """Results written into another program's database."""
    with database(tmp_path / "dose.sqlite") as connection:
        connection.execute("CREATE TABLE own (x)")
    with pytest.raises(UsageError, match="another program"), opened(tmp_path, "dose"):
        pass
