"""The study of casts toward zero: its builds, what it measures of a call, its verdicts."""

import pytest

from roundscope.attention import Plan, Site
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.questions.truncation import builds, static, study
from roundscope.tools.results.run import Run

RATE = 1e-2
CAST = {site for sites in builds.CASTS.values() for site in sites}


def modes_of(words):
    plan = Plan.preset(builds.BASE).changed(words)
    return {str(s): plan[s].mode for s in Site if plan[s].format.name == "bf16"}


def test_builds_are_what_their_names_say():
    """A cast that no build names, a build that also cuts another cast or an input."""
    inputs = {"Q", "K", "V", "DO"}
    assert set(modes_of(builds.whole(builds.ZERO))) == CAST | inputs
    for (cast, mode), words in static.builds().items():
        cut = {site for site, own in modes_of(words).items() if own == builds.ZERO}
        if mode in builds.REMEDIES:
            assert cut == CAST - ({"OUT"} if mode == builds.KEPT else set())
        elif mode == builds.ZERO:
            assert cut == (CAST if cast == builds.ALL else set(builds.CASTS[cast]))
        else:
            assert not cut
        away = {site for site, own in modes_of(words).items() if own == builds.AWAY}
        assert not away & inputs and bool(away) == (mode == builds.AWAY)


def test_a_cut_output_is_short_by_half_an_ulp(monkeypatch):
    """A gain of another result, or with another sign; rows that are not those of dS."""
    monkeypatch.setattr(static, "TOKENS", 64)
    static.calls.cache_clear()
    static._exact.cache_clear()
    near = static.point(builds.whole(builds.NEAREST), "Gaussian", 2)
    cut = static.point(builds.alone("output", builds.ZERO), "Gaussian", 2)
    both = static.point(builds.remedied(builds.CENTRED), "a sink", 1)
    sunk = static.point(builds.whole(builds.ZERO), "a sink", 1)
    static.calls.cache_clear()
    static._exact.cache_clear()
    # half an ulp is 2^-8 of a number just above a power of two, and 2^-9 of one just below
    assert all(-(2.0**-8) < cut.gain["out"][n] < -(2.0**-9) for n in (0, 1))
    assert all(abs(near.gain["out"][n]) < 2.0**-11 for n in (0, 1))
    assert cut.gain["dv"] == near.gain["dv"] and cut.error["dq"] != near.error["dq"]
    assert both.rows[0] < 1e-2 < sunk.rows[0] and both.error["dq"][0] < sunk.error["dq"][0]


def test_a_stream_of_norms_loses_what_its_casts_cut(monkeypatch):
    """A stream that is measured against itself."""
    monkeypatch.setattr(static, "CALLS", 6)
    monkeypatch.setattr(static, "FEATURES", 512)
    words = static.NORMS
    cut = static.lost(words["the stream toward zero"], 0)
    assert 6 * 2.0**-12 < cut < 6 * 2.0**-8
    assert static.lost(words["all casts, ties away"], 0) < -(2.0**-12)
    assert abs(static.lost(words["all casts to nearest"], 0)) < 2.0**-12


def runs(casts, diverged, losses):
    return [
        Run(
            condition=study.Condition(casts=casts, rate=RATE, seed=seed),
            steps=100,
            diverged=step,
            loss=loss,
            curve=((0, 3.0), (100, loss)),
        )
        for seed, (step, loss) in enumerate(zip(diverged, losses, strict=True))
    ]


def made(zero, away, centred):
    calm = [None] * 5
    low = [2.0, 2.1, 2.05, 2.02, 2.08]
    return {
        (casts, RATE): runs(casts, gone or calm, [x + more for x in low])
        for casts, gone, more in (
            (builds.NEAREST, None, 0.0),
            (builds.ZERO, zero, 0.0),
            (builds.AWAY, None, away),
            (builds.CENTRED, centred, 0.001),
        )
    }


def words_of(found):
    return {v.claim.split(":")[0]: v.word for v in study.claims(found)}


def test_claims_say_what_they_claim():
    """Sides that are swapped, a loss that is not finite counted as low."""
    dead = [90, 80, 70, 60, 50]
    zero, away, centred = (study.NAMES[x] for x in (builds.ZERO, builds.AWAY, builds.CENTRED))
    found = words_of(made(dead, 0.0, None))
    assert found == {zero: Word.AGREES, away: Word.AGREES, centred: Word.AGREES}
    found = words_of(made([None] * 5, 0.3, dead))
    assert found == {zero: Word.UNDECIDED, away: Word.CONTRADICTS, centred: Word.CONTRADICTS}
    lost = made(dead, 0.0, None)
    lost[builds.AWAY, RATE] = runs(builds.AWAY, [None] * 5, [2.0, 2.1, float("nan"), 2.0, 2.1])
    assert words_of(lost)[away] is Word.UNDECIDED
    lines = {row[0]: row for row in study.rows(lost)}
    assert lines[away][3].startswith("1 of 5 not finite; ")
    assert lines[zero][2].startswith("5 of 5 [48%, 100%]") and study.draw(lost) is not None


def test_every_training_is_a_condition_of_its_own():
    """Two conditions with one key, so that one is never trained."""
    for scale in (study.QUICK, study.FULL):
        arms = study.arms_of(scale)
        names = {(arm.changes, arm.lr, arm.seed) for arm in arms.values()}
        assert len(names) == len(arms) == sum(map(len, scale.arms.values())) * scale.seeds


@pytest.mark.thorough
@pytest.mark.pictures
def test_the_picture_has_a_panel_for_each_input(monkeypatch):
    monkeypatch.setattr(static, "TOKENS", 32)
    found = static.points(lambda done: None, True)
    assert len(static.picture(found).axes) == 4
    assert len(list(static.verdicts(found))) == static.parts(True)
