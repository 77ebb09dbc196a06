"""The static half of `reproduce qiu-yao` against numbers counted by hand: bits, the closed form,
tie windows, order, what P sums to.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from roundscope.attention import DeltaFrom
from roundscope.experiments.framework.estimates import Estimate
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.failure_2510_04212.static import bias as static_bias
from roundscope.experiments.papers.failure_2510_04212.static import ties as static_ties
from roundscope.experiments.papers.failure_2510_04212.static.bias import nearest


def rng():
    return np.random.Generator(np.random.Philox(key=2))


def all_pairs(bits, residual):
    """Mean error over all pairs of p-bit numbers in [1, 2) and a residual, in ulps of V: by
    definition, in rational numbers.
    """
    u = Fraction(1, 2 ** (bits - 1))
    numbers = [1 + i * u for i in range(2 ** (bits - 1))]
    sums = [a + b + residual * u for a, b in itertools.product(numbers, repeat=2)]
    return float(sum((nearest(x, bits) - x for x in sums), Fraction(0)) / len(sums) / u)


def test_nearest_by_hand():
    """A tie that goes to the wrong neighbour, a carry that is lost, a sign."""
    assert nearest(Fraction(-4703125, 10**6), 8) == Fraction(-46875, 10**4)
    assert nearest(Fraction(-4703125, 10**6), 8, even=False) == Fraction(-471875, 10**5)
    assert (
        nearest(Fraction(31, 2), 4) == 16
        and nearest(Fraction(29, 2), 4) == 14
        and nearest(Fraction(3, 1000), 11) > 0
    )


def test_the_paper_s_example():
    """A residual that is dropped before the sum rounds to FP32, and v1's slip taken for a fact."""
    words = [v.word for v in static_bias.example()]
    assert words == [Word.AGREES, Word.CONTRADICTS, Word.AGREES]


@pytest.mark.parametrize(("f", "bits"), [("bf16", 8), ("e4m3fn", 4), ("e5m2", 3)])
def test_closed_form_against_all_pairs(f, bits):
    """A bias in ulps of the wrong number, a residual on the wrong side, draws that miss numbers of
    the format.
    """
    residual = Fraction(
        1, 16
    )  # the mean of those drawn: the error is linear in it between two ties
    for sign in (1, 0, -1):
        exact = all_pairs(bits, sign * residual)
        assert exact == pytest.approx(sign * (0.5 - 1 / 16), abs=1e-12)
        e = static_bias.rounded_once(sign)(f, 2, rng())
        assert e.mean() == pytest.approx(exact, abs=5 * e.std() / math.sqrt(e.size))


def test_halves_and_the_order_of_production():
    """Weights of 1/2 taken for weights that fill the significand; a sign of residual V minus main V
    the wrong way round.
    """
    for f in static_bias.FORMATS:
        assert static_bias.halves(f, 2, rng()).mean() == pytest.approx(0.1875, abs=0.01)
    found = [static_bias.normalised(times)("bf16", 2, rng()).mean() for times in (1.0, 2.0, 0.25)]
    assert found == pytest.approx([0.0, 0.203, -0.215], abs=0.012)  # PAPERS 1.8


def test_closed_form_verdicts():
    """A wrong number that is called right: measured means, then the same with e5m2 off by a tenth
    of an ulp.
    """
    line = static_bias.Line(
        "same-sign residual", "", lambda f, k, r: np.full(4, 0.4375) + r.normal(0, 1e-3, 4), 0.4375
    )
    good = line.measured()
    off = {
        at: Estimate(mean=0.55, low=0.54, high=0.56, seeds=8) if at[0] == "e5m2" else e
        for at, e in good.items()
    }
    words = [static_bias.verdict(line, found).word for found in (good, off)]
    assert words == [Word.AGREES, Word.DEPENDS]


@pytest.mark.parametrize(
    ("f", "gap"),
    [("bf16", 1.95503e-3), ("fp16", 2.4417e-4), ("e4m3fn", 3.17487e-2), ("e5m2", 6.45385e-2)],
)
def test_windows(f, gap):
    """An exp that rounds to 1 too early or too late (oracle 4 of PAPERS)."""
    assert static_ties.window(f) == pytest.approx(gap, rel=1e-4) and static_ties.formula(
        f
    ) == pytest.approx(gap, rel=1e-4)


def tensors(gaps, v):
    """One query for each gap, of the second key below the first; the third key 8 below it: P =
    3.35e-4.
    """
    q = np.zeros((1, len(gaps), 1, 2))
    q[0, :, 0, 0], q[0, :, 0, 1] = -np.asarray(gaps), -8.0
    k = np.zeros((1, 3, 1, 2))
    k[0, 1, 0, 0] = k[0, 2, 0, 1] = 1.0
    return static_ties.Input(
        name=static_ties.SAMPLE, q=q, k=k, v=np.asarray(v, float).reshape(1, 3, 1, 1), scale=1.0
    )


def test_rows_with_several_ones():
    """A window of another format, rows counted as keys, an error toward zero counted as away from
    it.
    """
    gaps = [2.0**-13, 2.0**-10, 2.0**-6, 3 * 2.0**-6, 2.0**-2]
    x = tensors(gaps, [-2.40625, -2.296875, -1.0])
    for f, several in (("fp16", 1), ("bf16", 2), ("e4m3fn", 3), ("e5m2", 4)):
        found = static_ties._ties([x], static_ties.plan(f, "FP32"))
        assert found.rows == several and found.share.mean == pytest.approx(several / 5)
    # -4.703125 - 3.35e-4 rounds to -4.71875, half an ulp of 2^-5 away from zero; E4M3 has no P
    # below 2^-10: the tie goes to -4.6875
    tied = {
        f: static_ties._ties([x], static_ties.plan(f, "FP32")).tied.mean for f in ("bf16", "e4m3fn")
    }
    assert tied == pytest.approx({"bf16": 0.5 - math.exp(-8.0) * 32, "e4m3fn": -0.5}, abs=1e-4)
    assert list(static_ties.gaps([x])) == gaps


def test_ratio_of_counts():
    """An interval of a ratio without the smaller count's spread."""

    def make(rows):
        return static_ties.Ties(share=None, rows=rows, tied=None, others=None)

    e = static_ties.ratio_of(make(400), make(25))
    assert (
        e.mean == 16.0
        and e.high / e.mean == pytest.approx(math.exp(1.96 * math.sqrt(1 / 400 + 1 / 25)))
        and e.low * e.high == pytest.approx(256.0)
    )
    assert math.isnan(static_ties.ratio_of(make(3), make(0)).mean)


def test_order_inputs_and_verdicts():
    """Scores that BF16 moves, V of both signs; and a verdict that does not see that the sign
    turns.
    """
    q, k, v = static_bias.inputs(2.0)
    s = np.einsum("btnh,bsnh->bnts", q, k)
    assert (
        (s[..., :2] == 0.0).all()
        and (s[..., 2] <= -8.0).all()
        and (s[..., 2] >= -10.0).all()
        and (v < 0.0).all()
    )

    def e(mean):
        return Estimate(mean=mean, low=mean - 0.01, high=mean + 0.01, seeds=9)

    sides = {t: e(0.0 if t == 1.0 else math.copysign(0.25, 1.0 - t)) for t in static_bias.TIMES}
    o = {("qiu-yao", t): e(-0.25) for t in sides} | {("fa2-bf16", t): x for t, x in sides.items()}
    assert [v.word for v in static_bias.judged_order(o)] == [Word.AGREES, Word.DEPENDS, Word.AGREES]
    same = {at: e(-0.25) for at in o}
    assert [v.word for v in static_bias.judged_order(same)] == [
        Word.AGREES,
        Word.AGREES,
        Word.CONTRADICTS,
    ]


def test_the_order_as_measured(monkeypatch):
    """The bias by hand: half of the sums of two are ties, and each goes half an ulp: a quarter of
    an ulp.
    """
    monkeypatch.setattr(static_bias, "TIMES", (0.25, 2.0))
    o = static_bias.measure_order()
    for at, wanted in (
        (("qiu-yao", 0.25), -0.25),
        (("qiu-yao", 2.0), -0.25),
        (("fa2-bf16", 0.25), 0.25),
        (("fa2-bf16", 2.0), -0.25),
    ):
        assert o[at].mean == pytest.approx(wanted, abs=0.03)


def test_rows_of_ds_sum_to_the_identity():
    """rowsum(dS) = sum(P dP) - delta rowsum(P): with P dP for delta it is delta (1 - rowsum P), and
    CENTRED leaves 0.
    """
    from roundscope.tools.tensors.layers import read_layers, sample_path

    layer = read_layers(sample_path())[0]
    seen = {
        operand: static_ties._rows(
            layer, static_ties.replace(static_ties._plan("qiu-yao"), delta_from=operand)
        )
        for operand in DeltaFrom
    }
    lost, rest = seen[DeltaFrom.P_DP]
    assert np.array_equal(lost, seen[DeltaFrom.CENTRED][0]) and np.abs(lost).max() > 1e-3
    assert (
        np.abs(seen[DeltaFrom.CENTRED][1]).max() < 1e-4 < 1e-2 < np.abs(rest).max()
    )  # what is left is FP32's: dS is far below P dP in some rows
    heads, queries = static_ties.EVERY, static_ties.QUERIES
    q, do = (x[:, :queries, ::heads].astype(float) for x in (layer.q, layer.do))
    k, v = (x[:, :, ::heads].astype(float) for x in (layer.k, layer.v))
    p = np.exp(s := layer.scale * np.einsum("btnh,bsnh->bnts", q, k))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("btnh,bsnh->bnts", do, v)
    size = np.abs(p * (dp - (p * dp).sum(-1, keepdims=True))).sum(-1)
    wanted = -(p * dp).sum(-1) * lost / size  # to the first order in 1 - rowsum P
    assert s.shape == p.shape and np.corrcoef(rest.ravel(), wanted.ravel())[0, 1] > 0.99
