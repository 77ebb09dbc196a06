"""The half of `reproduce su` that needs no training, against numbers by hand and by formula."""

import math
from fractions import Fraction

import numpy as np
import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.microscaling_2506_20752 import code
from roundscope.experiments.papers.microscaling_2506_20752.code import E4M3, Draws


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few blocks: what is tested is what is computed, not its precision."""
    monkeypatch.setattr(code, "BLOCKS", 400)
    code.stats.cache_clear()
    yield
    code.stats.cache_clear()


def test_the_paper_s_example_is_the_grid_s_doing():
    """A saturation that is blamed for what the grid does: all five lie below 0.90625, which E4M3
    rounds to 0.875 on either scale.
    """
    assert all(Fraction(str(x)) < Fraction(90625, 100000) for x in code.EXAMPLE)
    found = code.example()
    assert found.word is Word.CONTRADICTS and found.measured == "floor 0.875; rceil 0.875"


def test_bump_differs_from_rceil_where_it_must():
    """A comparison that compares a rule with itself: E2M3 ends at 1.875 2^e, so a bump at 1.75
    would differ, and is refused.
    """
    edges = np.array(
        [1.0, 1.75, np.nextafter(np.float32(1.75), np.float32(2)), 1.9999999], np.float32
    ).reshape(-1, 1)
    assert [code._differ(edges, name) for name in (E4M3, code.E5M2, code.E3M2)] == [0, 0, 0]
    with pytest.raises(ValueError, match="bump"):
        code._differ(edges, "mxfp6_e2m3")


def test_wrong_constants_that_cancel():
    """A threshold taken for wrong because the numbers in it are: 224 / 2^7 = 28 / 2^4."""
    assert Fraction(224, 2**7) == Fraction(28, 2**4) == Fraction(7, 4)
    assert code.meta().word is Word.CONTRADICTS


def test_clipped_shares_are_those_of_the_normal_distribution():
    """Clipped blocks counted as numbers, draws that are all the same draw, an interval that is
    none.
    """

    def normal(t):
        return math.erf(t / math.sqrt(2))

    exact = sum(normal(2.0 ** (e + 1)) ** 32 - normal(1.75 * 2.0**e) ** 32 for e in range(-6, 6))
    e = Draws().of(E4M3, lambda s: s.clipped_blocks / s.blocks)
    assert e.low < exact < e.high and e.high - e.low < 0.06 and e.seeds == code.DRAWS
    low, high = code._about("17.0")
    assert low < 100 * exact < high and exact == pytest.approx(0.169, abs=1e-4)


def test_ties_away_lengthen_by_the_share_of_ties():
    """A shift of the wrong sign or size.

    Of the 128 numbers that BF16 has in [1, 2), 8 are ties of E4M3 and every other one goes the
    other way, by 1/8; numbers of a normal distribution lie a little nearer to 1 than those, where
    1/8 is more of their size.
    """
    numbers = [Fraction(128 + k, 128) for k in range(128)]
    ties = [x for x in numbers if (x * 8) % 1 == Fraction(1, 2)]
    shift = float(len(ties) // 2 * Fraction(1, 8) / sum(numbers))
    assert len(ties) == 8
    for v in code.ties():
        assert v.word is Word.AGREES and shift < v.estimate.mean / 1e3 < 1.3 * shift


def test_what_a_printed_number_allows():
    """A range narrower than the digits that were printed, or without any edge."""
    assert code._about("1.6") == pytest.approx((1.55 * 0.98, 1.65 * 1.02))
    assert code._about("0.86") == pytest.approx((0.855 * 0.98, 0.865 * 1.02))


def test_words_follow_the_numbers():
    """A claim that contradicts its own numbers by a mistake of sign."""
    assert (
        code.harm().word is code.blocks_of_16().word is Word.CONTRADICTS
        and code.harm().estimate.low > 10
    )
    assert all(v.word is not Word.CONTRADICTS for v in (*code.clusters(), *code.clipped()))
