"""Both tests of bias, of every event: up or down, and away from zero or toward it."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from scipy.stats import norm

from roundscope import Plan, Site
from roundscope.attention.budget.parts import event_part, repair
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import RoundingMode, rounding
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace import data
from roundscope.tools.trace.analysis.bias import Bias, MeanError
from roundscope.tools.trace.analysis.consequences import Gain
from roundscope.tools.trace.repairs import changes
from roundscope.tools.trace.report.words import sentence, short
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.summary import summarise
from roundscope.tools.trace.verdict import verdict
from tests.tools.trace.inputs import asked

PLAN = replace(
    Plan.preset("fa2-bf16").rounded(
        dict.fromkeys((Site.Q, Site.K, Site.V, Site.DO), rounding("bf16"))
    ),
    name="fa2-bf16 of cast inputs",
)


def layer(seed=0, tokens=64):
    random = np.random.default_rng(seed)
    q, k, v, do = (random.standard_normal((1, tokens, 4, 16)).astype("f4") for _ in range(4))
    return Layer(name="a", q=q, k=k, v=v, do=do)


def seen(plan=PLAN, of=None, **changes):
    request = replace(asked(block_q=32, block_k=16, **changes), plan=plan)
    return observe(of or layer(), request)


def summary(plan=PLAN, of=None, **changes):
    return summarise(seen(plan, of, **changes))


def in_mode(plan, mode, *sites):
    events = {s: replace(plan[s], mode=mode, seed=n) for n, s in enumerate(sites)}
    return plan.rounded(events)


@pytest.fixture(scope="module")
def plain():
    return summary()


def test_every_truncated_event_is_marked(plain):
    """A test of up and down alone: numbers of both signs that are cut have a mean error of 0."""
    names = [e.name for e in plain.rounding]
    assert len(names) > 20 and {"Q", "P", "X", "OUT", "DS", "DQ_OUT", "DK_OUT"} <= set(names)
    found = summary(in_mode(PLAN, RoundingMode.TOWARD_ZERO, *(Site[name] for name in names)))
    marked = {e.name: e for e in found.biased_events}
    for name in names:
        away = marked[name].away
        assert away.is_biased and away.error.mean < -0.1 * marked[name].share("inexact"), name


@pytest.mark.parametrize("name", ["DS", "DQ_OUT"])
def test_an_event_that_is_truncated_is_named(name):
    """The same alone, where up and down cancel and nothing else is biased."""
    found = summary(in_mode(PLAN, RoundingMode.TOWARD_ZERO, Site[name]))
    assert f"1 is biased: {name} toward zero" in sentence(found)
    assert f"{name} toward zero by 0.5" in short(found).replace("0.49", "0.5")
    (event,) = found.biased_events
    assert not event.signed.is_biased and event.away.error.z < -10.0


@pytest.mark.parametrize("seed", range(3))
def test_no_stochastic_event_is_marked(seed):
    """A null that is too narrow, or a threshold for half of the tests."""
    sites = [s for s in Site if not PLAN[s].is_identity]
    found = summary(in_mode(PLAN, RoundingMode.STOCHASTIC, *sites), layer(seed))
    assert len(found.rounding) > 20 and not found.biased_events
    assert found.limit == pytest.approx(norm.isf(0.01 / 2 / (2 * len(found.rounding))))


def test_the_mean_away_from_zero_is_that_of_the_events():
    """Signs of the results, or of other numbers; rows without their tiles."""
    site = Site.DS
    observed = seen(record=["events:DS"])
    found = summarise(observed)
    before, after = observed.trace.events["DS"]
    unit = np.exp2(np.floor(np.log2(np.abs(before))) - 7)
    (event,) = (e for e in found.events if e.name == site)
    want = ((after - before) / unit * np.sign(before)).sum() / before.size
    assert event.away.error.mean == pytest.approx(want, rel=1e-9)
    written = data.event(event, found)["away_from_zero"]
    assert written["mean_ulps"] == event.away.error.mean and written["biased"] is False


def test_a_file_of_cut_inputs_reads_as_one_list():
    """`Q=e4m3fn:toward-zero`, whose output is too short beside "no event is biased"."""
    found = summary(PLAN.changed("Q=e4m3fn:toward-zero"))
    assert "1 is biased: Q toward zero" in sentence(found)
    assert short(found).startswith("biased events: Q toward zero by 0.48")


def made_up(plain, random):
    """Return a summary whose tests and gains are drawn, in half of the cases within all limits."""
    far = random.choice([1.0, 30.0], size=2)

    def bias():
        z = plain.limit * random.uniform(-0.9, 0.9) * random.choice([1.0, far[0]])
        error = MeanError(mean=0.1 * z, se=0.1, z=z, null=0.1)
        return Bias(error=error, by_rows=error, limit=plain.limit)

    def gain():
        return Gain(mean=random.uniform(-0.9, 0.9) * far[1], se=0.5, limit=2.0, heads=9)

    events = [replace(e, signed=bias(), away=bias()) for e in plain.events]
    results = [r if r.gain is None else replace(r, gain=gain()) for r in plain.results]
    return replace(plain, events=events, results=results)


def test_a_biased_result_never_stands_beside_no_event_is_biased(plain):
    """Two verdicts that disagree, whatever the numbers are."""
    random, cases = np.random.default_rng(5), set()
    for _ in range(60):
        s = made_up(plain, random)
        text, is_biased = sentence(s), bool(s.biased_results)
        cases.add((bool(s.biased_events), is_biased))
        assert text.startswith("Biased: ") == is_biased == verdict(s).bias.startswith("Biased: ")
        assert text.startswith(verdict(s).bias) and text.count("biased: ") <= 1
        assert ("events that round is biased" in text) == (not s.biased_events)
        for e in s.biased_events[:4]:
            ways = ("up", "down", "toward zero", "away from zero")
            assert any(f"{e.name} {way}" in text for way in ways), e.name
        if is_biased and not s.biased_events:
            first = s.biased_results[0]
            way = "long" if first.gain.mean > 0 else "short"
            assert f"Biased: {first.name} is too {way} by" in text and ", though none of" in text
        alone = sentence(replace(s, events=[]))
        assert alone.startswith("No event rounds") and is_biased == ("is too " in alone)
    assert len(cases) == 4


@pytest.fixture(scope="module")
def cut():
    """A plan whose dS is truncated, with its budget."""
    return summary(PLAN.changed("DS=bf16:toward-zero"), budget=True)


def test_the_budget_names_what_no_test_marks(cut):
    """An event too small to mark that makes a result too short, and is not named."""
    assert "DS toward zero" in sentence(cut)
    none = MeanError(mean=0.0, se=1.0, z=0.0, null=1.0)
    quiet = Bias(error=none, by_rows=none, limit=cut.limit)
    text = sentence(replace(cut, events=[replace(e, signed=quiet, away=quiet) for e in cut.events]))
    assert text.startswith("Biased: ") and "too short by" in text and "though none of" in text
    assert "the largest cause is DS (bf16:toward-zero), which alone changes" in text


class TestRepair:
    def test_the_step_was_tried(self, cut):
        """A gain of the budget, of other heads, or of no run at all."""
        again = summary(PLAN.changed("DS=bf16:toward-zero").changed(*cut.repair.words))
        (result,) = (r for r in again.results if r.name == cut.repair.result)
        assert cut.repair.gain == result.gain and cut.repair.error == result.error
        assert not cut.repair.gain.is_biased and not cut.repair.is_wider
        assert f"{100 * result.gain.mean:+.2g} %" in verdict(cut).buys

    def test_the_smallest_repair_comes_first(self):
        """All tensors of a format where one is enough, or more bits where a rule is."""
        blocks = Plan.preset("mxfp8-attention")
        cut = PLAN.changed("DS=bf16:toward-zero")
        found = [
            [(len(words), wider) for words, wider in changes(plan, event_part(plan, site))]
            for plan, site in ((blocks, Site.K), (cut, Site.DS), (PLAN, Site.DS))
        ]
        count = len(repair(blocks, event_part(blocks, Site.K)))
        assert found[0][:2] == [(1, False), (count, False)] and found[0][2][1]
        assert [wider for _, wider in found[1]] == [False, True] and found[1][0] == (1, False)
        assert [wider for _, wider in found[2]] == [True]

    def test_a_truncation_becomes_rounding_to_nearest(self, cut):
        found = verdict(cut)
        assert found.step == "--set DS=bf16" and "DS rounds without a bias" in found.buys

    def test_blocks_get_a_scale_that_clips_nothing(self):
        plan = Plan.preset("mxfp8-attention")
        words = repair(plan, event_part(plan, Site.K))
        assert "K=mxfp8_e4m3:rceil" in words and "Q=mxfp8_e4m3:rceil" in words
        for text in words:
            plan = plan.changed(text)
        assert plan.event(Site.K).rule is ScaleRule.RCEIL
        assert repair(plan, event_part(plan, Site.K)) == []

    def test_rounding_to_nearest_needs_none(self):
        plan = Plan.preset("fa2")
        assert all(repair(plan, event_part(plan, s)) == [] for s in Site)

    def test_fewer_cut_off_numbers_come_before_more_bits(self):
        """FP32 for MXFP8, whose rule cuts numbers off; a step's new bias that is not said."""
        random = np.random.default_rng(7)
        q, k, v, do = (
            random.standard_normal((4, 1, 32, 4, 32)).astype(ml_dtypes.bfloat16).astype("f4")
        )
        of = Layer(name="a", q=q, k=k, v=v, do=do)
        plan = Plan.preset("mxfp8-attention")
        sizes = {"block_q": 32, "block_k": 32}
        s = summarise(observe(of, asked(plan=plan.name, budget=True, **sizes)))
        first = s.repair
        assert first.words == tuple(f"{x}=mxfp8_e4m3:rceil" for x in ("Q", "K", "V", "P"))
        assert not first.is_wider and first.second.is_wider and "Q=fp32" in first.second.words
        own = summarise(observe(of, asked(plan=plan.name, changes=first.words, **sizes)))
        (result,) = (r for r in own.results if r.name == first.result)
        assert first.error == result.error
        before = {r.name for r in s.biased_results}
        assert {n for n, _ in first.newly} == {r.name for r in own.biased_results} - before
        said = verdict(s)
        assert said.step.startswith("--set Q=mxfp8_e4m3:rceil") and "Q=fp32" not in said.step
        assert "with as many bits as before; with --set Q=fp32" in said.buys
        short = Gain(mean=-0.0025, se=0.0001, limit=4.0, heads=8)
        told = verdict(replace(s, repair=replace(first, newly=(("out", short),)))).buys
        assert "(out is then 0.25 % too short, which this unmasks), with as many bits" in told
