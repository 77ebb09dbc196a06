"""The grammar of changes, and the plans that come of it."""

import numpy as np
import pytest

from roundscope.attention import DeltaFrom, Site
from roundscope.emu.sums.accumulator import Order
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import changes_of, plans_of
from roundscope.experiments.train.gpt.plans import by_arm, by_layer
from roundscope.tools.errors import UsageError

CONFIG = Config(layers=3, heads=4, width=16)


def rounded(plans, site):
    """The rounding of a site, as text, in each layer and head."""
    return [[str(plan[site]) for plan in row] for row in plans]


def test_one_head_of_one_layer():
    """A change that lands in another head, layer or event, or in all."""
    plans = plans_of(CONFIG, ["layer=1 head=3 site=O -> fp32"])
    assert rounded(plans, Site.O) == [["bf16"] * 4, ["bf16"] * 3 + ["fp32"], ["bf16"] * 4]
    assert rounded(plans, Site.OUT) == [["bf16"] * 4] * 3


@pytest.mark.parametrize(
    ("text", "site", "expected"),
    [
        (
            "layer=0,2 head=0-1 site=PV -> e5m10",
            Site.PV,
            [["e5m10"] * 2 + ["bf16"] * 2, ["bf16"] * 4, ["e5m10"] * 2 + ["bf16"] * 2],
        ),
        ("site=OD -> e8m3:toward-zero", Site.OD, [["e8m3:toward-zero"] * 4] * 3),
        ("site=backward -> fp32", Site.DQ_OUT, [["fp32"] * 4] * 3),
        ("site=backward -> fp32", Site.OUT, [["bf16"] * 4] * 3),
        ("-> fp32", Site.S, [["fp32"] * 4] * 3),
        ("-> plan=fp32; head=0 site=S -> bf16", Site.S, [["bf16"] + ["fp32"] * 3] * 3),
        ("head=2 -> plan=fp32", Site.P, [["bf16", "bf16", "fp32", "bf16"]] * 3),
        ("site=o -> fp32 bf16:toward-zero", Site.O, [["bf16:toward-zero"] * 4] * 3),
        ("site=P -> e4m3fn", Site.P, [["e4m3fn:saturate"] * 4] * 3),
    ],
)
def test_formats(text, site, expected):
    """Lists, ranges, stages, several changes in turn, and what is left out: read wrongly."""
    assert rounded(plans_of(CONFIG, [text]), site) == expected


def test_what_is_of_a_whole_plan():
    """stabiliser, delta_from and accumulator that are read and then forgotten."""
    [plan] = {
        p
        for row in plans_of(
            CONFIG, ["-> stabiliser=2 delta_from=P_DP", "site=PV -> accumulator=ascending:bf16"]
        )
        for p in row
    }
    assert plan.stabiliser.beta == 2.0 and plan.delta_from is DeltaFrom.P_DP
    assert (
        plan.accumulator(Site.PV).order is Order.ASCENDING
        and str(plan.accumulator(Site.PV).step) == "bf16"
    )
    assert plan.accumulator(Site.S).order is Order.NATIVE
    assert plans_of(CONFIG, ["-> stabiliser=2; -> stabiliser=none"])[0][0].stabiliser is None


def test_formats_need_no_other_structure():
    """A change of formats and modes, in some heads only, that would compile anew or could not be an
    arm beside others.
    """
    texts = [
        "",
        "layer=1 head=3 site=O -> fp32",
        "site=OD -> e8m1:ties-to-away",
        "head=1 -> plan=fp32",
    ]
    table = by_arm([by_layer(plans_of(CONFIG, [t])) for t in texts]).table
    assert table.shape[:3] == (4, 3, 4)
    assert [np.argwhere((t != table[0]).any((-3, -2, -1))).tolist() for t in table[:2]] == [
        [],
        [[1, 3]],
    ]


def test_seeds_reach_stochastic_roundings_only():
    """Arms of different seeds that draw the same bits."""
    plans = plans_of(CONFIG, ["site=O -> bf16:stochastic"], seed=7)
    assert plans[0][0][Site.O].seed == 7 and plans[0][0][Site.OUT].seed == 0


def test_config_changes_come_first():
    """config.changes applied after, or not at all."""
    config = Config(layers=1, heads=1, width=4, changes=("site=O -> fp32", "site=P -> fp32"))
    plan = plans_of(config, ["site=O -> fp16"])[0][0]
    assert (str(plan[Site.O]), str(plan[Site.P])) == ("fp16", "fp32")


def test_without_emulation_there_is_nothing_to_change():
    """plan = "jax" with a change that is silently ignored."""
    config = Config(plan="jax")
    assert plans_of(config) is None
    with pytest.raises(UsageError, match="no events"):
        plans_of(config, ["site=O -> fp32"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("site=O fp32", ["WHERE -> WHAT"]),
        ("layer=1 ->", ["WHERE -> WHAT"]),
        ("laier=1 -> fp32", ["laier", "did you mean 'layer'"]),
        ("layer=3 -> fp32", ["layer=3", "0 to 2"]),
        ("head=2-1 -> fp32", ["2-1"]),
        ("head=x -> fp32", ["'x'"]),
        ("head=1 head=2 -> fp32", ["once"]),
        ("site=OO -> fp32", ["OO", "did you mean 'O'"]),
        ("site=O -> fp23", ["fp23", "did you mean 'fp32'"]),
        ("site=O -> bf16:up", ["up", "Known"]),
        ("site=O -> plan=fp32", ["leave site= out"]),
        ("site=O -> accumulator=exact", ["no sum of products"]),
        ("-> acumulator=exact", ["did you mean 'accumulator'"]),
        ("-> stabiliser=1", ["above 1"]),
        ("-> delta_from=PDP", ["did you mean 'P_DP'"]),
        ("-> plan=qiu", ["unknown preset 'qiu'", "did you mean 'qiu-yao"]),
        ("head=1 -> stabiliser=2", ["leave head= out"]),
        ("layer=2 head=0 site=O -> bf16:stochastic", ["leave head= out"]),
        ("-> plan=fa2-bf16; site=PV -> fp32", ["accumulates P V into O"]),
    ],
)
def test_errors_quote_the_change_and_say_the_repair(text, words):
    """A traceback, or a change that is misread as another."""
    with pytest.raises(UsageError) as error:
        plans_of(CONFIG, [text])
    said = str(error.value)
    assert (
        said.startswith(("change '", "changes '"))
        and text.split(";")[-1].strip() in said
        and all(w in said for w in words)
    )
    assert "\n" not in said


def test_an_empty_text_changes_nothing():
    """An arm without changes that is an error."""
    assert changes_of("") == () and plans_of(CONFIG, [""]) == plans_of(CONFIG)
