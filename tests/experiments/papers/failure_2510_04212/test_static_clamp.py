"""The released repair as a function, its clamp, and where tied rows stand, against closed forms."""

import math

import numpy as np
import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.failure_2510_04212.static import clamp as static_clamp
from roundscope.experiments.papers.failure_2510_04212.static.clamp import (
    LIMIT,
    TIED,
    Tied,
    released,
    softmax,
)


def scores(top, t=8, rest=-1.0):
    """Two scores at `top` in every row, the others at `rest`."""
    s, v = np.full((t, t), rest), np.random.default_rng(0).standard_normal((t, 3))
    s[:, :2] = top
    return s, v


def test_without_a_clamp_it_is_softmax():
    """A rescaling of O or l by the wrong maximum, a masked score that weighs: for ties above and
    below 0, any tiles.
    """
    for top in (9.0, -9.0, 0.0):
        for bucket in (2, 3, 8):
            s, v = scores(top, rest=top - 2.0)
            run = released(s, v, beta=7.0, clamp=0.0, bucket=bucket)
            assert np.abs(run.out - softmax(s, v)).max() < 1e-14
            lse = [np.log(np.exp(row[: t + 1]).sum()) for t, row in enumerate(s)]
            assert run.lse == pytest.approx(lse, abs=1e-12)
    assert (
        np.abs(softmax(*scores(3.0))[0] - scores(3.0)[1][0]).max() == 0.0
    )  # the first row sees one key


def test_softmax_by_hand():
    """A mask off by one: row 1 sees keys 0 and 1 with scores 0 and ln 3."""
    s = np.zeros((3, 3))
    s[1, 1] = math.log(3.0)
    assert softmax(s, np.array([[1.0], [2.0], [40.0]]))[1] == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("shift", "left"),
    [(10.0, 1.0), (20.0, 0.97631), (22.0, 0.84799), (30.0, 0.00093576), (60.0, 1.7513e-16)],
)
def test_what_the_clamp_leaves(shift, left):
    """A clamp of the whole row sum instead of each tile's: 2 e^-shift / (max(2 e^-shift, c) + c)
    for two tiles, c = 1e-10.
    """
    own = 2.0 * math.exp(-shift)
    assert left == pytest.approx(own / (max(own, 1e-10) + 1e-10), rel=1e-4)
    assert static_clamp.left_of(np.array([shift]))[0] == pytest.approx(left, rel=1e-4)
    for beta in (2.0, 7.0):
        assert static_clamp.left_over(shift, beta) == pytest.approx(left, rel=1e-3)


def test_masked_tiles_tie():
    """Masked scores left out of maxima: in the code a tile without any key sets a negative maximum
    to 0.
    """
    s = np.random.default_rng(1).uniform(-31.0, -29.0, (8, 8))
    v = np.random.default_rng(2).standard_normal((8, 2))
    computed, skipped = (
        released(s, v, beta=2.0, bucket=4, skip_masked=skip) for skip in (False, True)
    )
    assert computed.lse[0] == pytest.approx(
        math.log(1.0 * math.exp(s[0, 0]) + 1e-10), abs=1e-9
    )  # m 0, the row's sum and the masked tile's clamp
    assert np.abs(skipped.out[:4] - softmax(s, v)[:4]).max() < 1e-12
    assert np.abs(computed.out[:4] - softmax(s, v)[:4]).max() > 0.1


def test_tied_rows_are_those_with_several_scores_at_the_top():
    """A tie beyond 1e-3 counted, masked ones counted, the first row counted."""
    s, v = scores(5.0)
    s[3, 0] += 2e-3
    s[4, 0] += 5e-4
    assert list(released(s, v, beta=2.0).tied) == [False, True, True, False, True, True, True, True]


def test_the_table():
    """A case that is wrong by chance, and a sham that is not the sham."""
    found = static_clamp.outcomes()
    wrong = [o.wrong[1e-10, False] for o in found[: len(TIED)]]
    assert wrong == [
        1023 if (beta - 1.0) * top >= 20.0 else 0 for top, beta in TIED
    ]  # PAPERS 1.7-A
    assert all(o.ours == 0 and o.wrong[0.0, False] == 0 for o in found)
    assert [v.word for v in static_clamp.judged(found)] == [Word.AGREES] * 5
    for o in found[: len(TIED)]:
        rest = 2.0 * math.exp(-(o.beta - 1.0) * o.top)
        least = rest / (max(rest, 1e-10) + 1e-10)
        others = (
            1024 * math.exp(0.81**2 / 2 - o.top) / 2
        )  # what all other keys weigh, at most, in times of the two
        assert 0.999 * least <= o.left <= 1.001 * min(1.0, least * (1.0 + others))
        assert (o.to_gate < 0.01) == ((o.beta - 1.0) * o.top > LIMIT)


def test_tied_rows_by_hand():
    """Scores that are not rounded to BF16 before they are compared, a mask, the scale, beta of
    negative maxima.
    """
    q, k = np.zeros((1, 4, 1, 2)), np.zeros((1, 4, 1, 2))
    q[0, :, 0, 0] = [1.0, 8.0, 16.0, -16.0]
    k[0, :, 0, 0] = [1.0, 1.0, 0.5, 1.0]
    found = static_clamp.tied_rows("x", q, k, scale=0.5, causal=True)
    # row 0 sees one key; rows 1, 2 tie at 4 and 8; row 3 has its largest score, -4, once
    assert found.rows == 4 and list(found.r_m) == [4.0, 8.0] and found.share == 0.5
    assert (
        list(found.shift(7.0)) == [24.0, 48.0]
        and found.clamped(7.0) == 1.0
        and found.clamped(2.0) == 0.0
    )
    negative = Tied(name="x", rows=2, r_m=np.array([-24.0, 1e-3]))
    assert (
        list(negative.shift(2.0)) == [24.0, 1e-3]
        and negative.clamped(2.0) == 0.5
        and negative.unmoved(2.0) == 0.5
    )


def test_scores_tie_by_rounding_to_bf16():
    """8.01 and 8.02 are one BF16 number, 8; without that rounding they would be two."""
    q, k = np.full((1, 2, 1, 1), 1.0), np.array([8.0, 8.02]).reshape(1, 2, 1, 1)
    assert static_clamp.tied_rows("x", q, k, scale=1.0, causal=True).r_m.tolist() == [8.0]
    assert static_clamp.tied_rows("x", q, k + 0.1, scale=1.0, causal=True).r_m.tolist() == [8.125]
    assert (
        static_clamp.tied_rows(
            "x", q, k * np.array([1.0, 1.1]).reshape(1, 2, 1, 1), scale=1.0, causal=True
        ).r_m.size
        == 0
    )


def test_verdicts_on_the_clamp():
    """A stable run that is taken for evidence although its tied rows are switched off."""
    far = Tied(name="far", rows=9, r_m=np.array([30.0, 40.0]))
    near = Tied(name="near", rows=9, r_m=np.array([5.0, 1e-4]))

    def word(found):
        return [v.word for v in static_clamp.judged_shifts(found)]

    assert word([near]) == [Word.CONTRADICTS, Word.DEPENDS, Word.DEPENDS, Word.DEPENDS]
    assert word([near, far])[0] is Word.DEPENDS and word([far])[3] is Word.CONTRADICTS
    assert word([Tied(name="x", rows=9, r_m=np.array([1.0]))]) == [
        Word.CONTRADICTS,
        Word.CONTRADICTS,
        Word.AGREES,
        Word.AGREES,
    ]


def test_a_short_training_has_tied_rows(monkeypatch):
    """Arms read in the wrong order or with the wrong axes: equal tokens without positions have
    equal keys.
    """
    short = static_clamp.replace(
        static_clamp.SMALL, steps=60, layers=1, heads=1, width=8, context=16, batch=2
    )
    monkeypatch.setattr(static_clamp, "SMALL", short)
    found = static_clamp.trained("repeat")
    assert [x.name for x in found] == ["repeat, lr 0.003", "repeat, lr 0.01"]
    assert all(x.rows == 2 * 16 and x.share > 0.5 for x in found)
