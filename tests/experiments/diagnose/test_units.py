"""Which events can be made exact, the plans with some of them exact, and the search over layers,
heads and events with planted truths.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from roundscope.attention import Plan, Site
from roundscope.attention.plans.traced import structure
from roundscope.experiments.diagnose.gpt.units import (
    FAMILY,
    Unit,
    change_words,
    exactly,
    is_random,
    reseeded,
    unit_words,
    units_of,
)
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.tools.diagnose import search
from roundscope.tools.diagnose.replay.replayer import Clock, Fate, Outcome
from roundscope.tools.diagnose.search import CONTROLS, Replays
from roundscope.tools.diagnose.tensors.measured import OUTPUT_SITES
from roundscope.tools.diagnose.tensors.repairs import changes, noise

CONFIG = Config(layers=2, heads=2, width=16, context=8, plan="qiu-yao")
QIU_YAO = {
    "Q",
    "K",
    "V",
    "DO",
    "S",
    "SCALED",
    "M",
    "X",
    "P",
    "DM",
    "L",
    "AO",
    "PV",
    "O",
    "OUT",
    "DQ_OUT",
    "DK_OUT",
    "DV_OUT",
}


def places(plans):
    return [(i, n) for i, row in enumerate(plans) for n in range(len(row))]


def test_units_are_the_events_below_fp32():
    """Catches events missed or invented: those of qiu-yao in BF16 are 18 by its source, in each of
    4 heads; INV in binary64 is none.
    """
    units = units_of(plans_of(CONFIG))
    assert {str(u.site) for u in units} == QIU_YAO and len(units) == 72
    assert units_of(plans_of(Config(plan="fp32"))) == frozenset()


def test_steps_of_sums_count_unless_they_are_the_devices_own():
    """Catches a sum with BF16 steps that passes for exact because its event is FP32."""
    change = ["site=PV -> accumulator=ascending:bf16", "site=S -> accumulator=native"]
    plans = plans_of(
        Config(layers=1, heads=1, width=16, context=8, plan="fp32", sums="preset"), change
    )
    assert units_of(plans) == {Unit(0, 0, Site.PV)}
    assert units_of(exactly(units_of(plans))(plans)) == frozenset()


@pytest.mark.parametrize(
    "words",
    [(), ("site=O,PV -> bf16:stochastic",), ("layer=1 head=0 site=OD -> e8m1:toward-zero",)],
)
def test_exact_plans_have_the_structure_of_the_low_ones(words):
    """Catches a set that cannot run in the launch of the others, and one that is exact in name
    only.
    """
    plans = plans_of(CONFIG, words)
    units = units_of(plans)
    exact = exactly(units)(plans)
    assert all(
        structure(a) == structure(b)
        for x, y in zip(plans, exact, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    assert units_of(exact) == frozenset()
    one = next(iter(units))
    assert units_of(exactly([one])(plans)) == units - {one}


def test_the_change_in_words_makes_the_same_plans():
    """Catches a report whose change, given to `roundscope train`, is another one."""
    plans = plans_of(CONFIG)
    some = {
        u
        for u in units_of(plans)
        if (u.layer, u.head, u.site)
        in [(0, 1, Site.PV), (1, 0, Site.PV), (1, 1, Site.PV), (1, 1, Site.O)]
    }
    made = plans_of(CONFIG, change_words(some).split("; "))
    assert [[p.roundings for p in row] for row in made] == [
        [p.roundings for p in row] for row in exactly(some)(plans)
    ]


def test_units_in_a_sentence():
    """Catches a head named where the whole layer is meant, and the other way round."""
    every = units_of(plans_of(CONFIG, ["-> fp32", "site=PV,O -> bf16"]))

    def at(*where):
        return frozenset(u for u in every if (u.layer, u.head) in where)

    assert unit_words(every, every) == "PV and O wherever it is rounded"
    assert unit_words(at((0, 1)), every) == "PV and O in layer 0, head 1"
    assert (
        unit_words(at((0, 1), (1, 0), (1, 1)), every)
        == "PV and O in layer 0, head 1 and in layer 1"
    )


def test_repeats_draw_other_bits_and_the_first_the_runs_own():
    """Catches repeats of a stochastic plan that are all the same replay."""
    plans = plans_of(CONFIG, ["site=O -> bf16:stochastic"], seed=3)
    assert is_random(plans) and not is_random(plans_of(CONFIG))
    assert reseeded(0)(plans) == plans
    assert len({reseeded(r)(plans)[0][0][Site.O].seed for r in range(3)}) == 3


def planted(units, survives):
    """A replays without replays."""

    def fate(good):
        return (Fate(failed=None if good else 7, losses=np.zeros(1)),)

    replays = Replays(
        replay=lambda sets: [Outcome(units=x, fates=fate(survives(x))) for x in sets], width=8
    )
    replays.ask([frozenset(), units])
    return replays


def test_one_event_of_one_head_is_named():
    """Catches a search that ends at layers, heads or sites although one event of one head is it."""
    units = units_of(plans_of(CONFIG))
    culprit = Unit(1, 0, Site.PV)
    g = search.search(planted(units, lambda x: culprit in x), units, FAMILY)
    assert g.found == {culprit} and (g.size, g.of) == (1, 72) and g.is_minimal
    assert len(g.controls) == CONTROLS and not any(o.survives for o in g.controls)
    assert g.ties == () and g.turns == ()


def test_an_event_needed_in_every_head_is_named_over_all():
    """Catches a list of heads where the event is at fault everywhere, and controls of another size
    than the set.
    """
    units = units_of(plans_of(Config(layers=4, heads=4, width=16, context=8, plan="qiu-yao")))
    need = {u for u in units if u.site in (Site.S, Site.SCALED)}
    g = search.search(planted(units, lambda x: need <= x), units, FAMILY)
    assert (
        g.found == need
        and (g.size, g.of) == (2, 18)
        and [x.name for x in g.levels] == ["layers", "heads", "events"]
    )
    assert all(len(o.units) == len(need) for o in g.controls)


def test_two_heads_with_different_events():
    """Catches a product of heads and events where each head needs its own event alone."""
    units = units_of(plans_of(CONFIG))
    need = {Unit(0, 1, Site.P), Unit(1, 1, Site.O)}
    g = search.search(planted(units, lambda x: need <= x), units, FAMILY)
    assert g.found == need and g.is_minimal and (g.size, g.of) == (2, 72)


def test_ties_are_told_and_the_smallest_is_taken():
    """Catches a set of a whole layer where one event of another layer would do."""
    units = units_of(plans_of(CONFIG))
    first = {u for u in units if u.layer == 0 and u.site is Site.V}
    g = search.search(
        planted(units, lambda x: first <= x or Unit(1, 1, Site.K) in x), units, FAMILY
    )
    assert g.found == {Unit(1, 1, Site.K)}
    assert g.only.survives == (first <= units - g.found)


@pytest.mark.parametrize("lucky", [False, True])
def test_a_set_that_survives_by_luck_is_not_believed(lucky, monkeypatch):
    """Catches a search that believes one replay: where its set does not keep on surviving, all is
    asked for again, three times each.
    """
    units = units_of(plans_of(CONFIG))
    culprit, chance = Unit(1, 1, Site.O), Unit(0, 0, Site.Q)

    def often(replayer, exactly, sets, times):
        def good(x, r):
            return culprit in x or (lucky and r == 0 and chance in x)

        def fate(x, r):
            return Fate(failed=None if good(x, r) else 7, losses=np.zeros(1))

        return [Outcome(units=x, fates=tuple(fate(x, r) for r in times)) for x in sets]

    monkeypatch.setattr(search, "often", often)
    low, exact = often(None, None, [frozenset(), units], range(4))
    g = search.guilty(
        SimpleNamespace(clock=Clock(lambda step, text: None)),
        FAMILY,
        None,
        units,
        low,
        exact,
        False,
    )
    assert g.found == {culprit} and g.holds and g.repeats == (3 if lucky else 1)
    assert not any(chance in o.units and culprit not in o.units and o.survives for o in g.outcomes)


def test_repairs_of_a_run_keep_heads_alike():
    """Catches a repair that leaves two heads with programs of their own, which cannot run in one
    launch.
    """
    plans = plans_of(
        CONFIG, ["-> fp32", "layer=1 head=0 site=OUT -> e8m2:toward-zero", "layer=0 site=P -> bf16"]
    )
    flat = [p for row in plans for p in row]
    found = changes(flat, ["P"])
    assert set(found) == {
        "O in FP32",
        "delta from P dP",
        "delta centred",
        "stabilised softmax",
        "stochastic rounding of O",
        "production order",
        "all origins in FP32",
    }
    for change in found.values():
        assert len({structure(change(p)) for p in flat}) == 1
    assert units_of(((found["O in FP32"](flat[2]),),)) == frozenset()


def test_the_sham_keeps_the_bias_and_adds_noise_behind_it():
    """Catches a sham that rounds away what it should leave: noise on a grid coarser than OD's, in
    front of it, would make OD exact.
    """
    behind = noise(plans_of(CONFIG, ["layer=1 head=0 site=OUT -> e8m2:toward-zero"]))
    assert (
        str(behind[1][0][Site.OD]) == "e8m1:stochastic"
        and str(behind[0][0][Site.OD]) == "e8m6:stochastic"
    )
    assert str(behind[1][0][Site.OUT]) == "e8m2:toward-zero"
    of_od = noise(plans_of(CONFIG, ["site=OD -> e8m3"]))
    assert str(of_od[0][0][Site.DELTA]) == "e8m2:stochastic" and str(of_od[0][0][Site.OD]) == "e8m3"
    assert noise(plans_of(CONFIG, ["-> fp32"])) is None
    assert set(OUTPUT_SITES) <= set(Site) and Plan.preset("qiu-yao")[Site.OD].format.precision == 24
