"""Block formats in the words of sweeps, traces and trainings."""

import pytest

from roundscope.attention import Plan, Site
from roundscope.emu.blocks.format import block_format
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.axes import typed
from roundscope.tools.sweep.conditions.condition import plan_of
from roundscope.tools.trace.report.words import plan_changes
from roundscope.tools.trace.request import changed

SMALL = Config(layers=2, heads=2, width=32, context=32, batch=8, plan="fa2-bf16")


def test_a_sweeps_axis():
    """Catches a block format that an axis takes for a plain one, a mode that does not reach the
    elements, `only` that keeps a block.
    """
    assert typed("format.P", "mxfp8_e4m3") == "mxfp8_e4m3"
    settings = (("preset", "fa2-bf16"), ("format.P", "mxfp8_e4m3"))
    assert plan_of(settings, 0).event(Site.P) == block_format("mxfp8_e4m3")
    drawn = plan_of((*settings, ("mode.P", "stochastic")), 7)
    assert drawn.event(Site.P) == block_format("mxfp8_e4m3", "stochastic", seed=7)
    assert plan_of((*settings, ("but", "P")), 0).blocks == ()
    assert plan_of((("preset", "mxfp8-attention"), ("format.V", "bf16")), 0).block(Site.V) is None


def test_a_changed_training():
    """Catches a change that leaves the old block, one for all heads only, and seeds that miss
    elements.
    """
    layer, other = plans_of(
        SMALL,
        ("layer=0 site=P -> mxfp8_e4m3:stochastic", "layer=1 site=P -> mxfp8_e4m3:stochastic"),
        seed=5,
    )
    assert layer == other and layer[0].event(Site.P) == block_format(
        "mxfp8_e4m3", "stochastic", seed=5
    )
    plain = plans_of(SMALL, ("-> plan=mxfp8-attention", "site=Q,K,P,V -> bf16"))
    assert plain[0][0].blocks == () and plain[0][0].roundings == Plan.preset("fa2-bf16").roundings


def test_a_traces_option():
    """Catches a description of the plan that hides its blocks."""
    plan = changed(Plan.preset("fa2-bf16"), "V=mxfp4:stochastic", seed=3)
    assert plan.event(Site.V) == block_format("mxfp4", "stochastic", seed=3) and plan_changes(
        plan
    ) == ["V=mxfp4:stochastic"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plans_of(SMALL, ("site=S -> mxfp8_e4m3",)), ("S", "Q K V DO P P_B DS")),
        (
            lambda: plans_of(SMALL, ("head=0 site=P -> mxfp8_e4m3",)),
            ("between heads of a layer", "leave head= out"),
        ),
        (lambda: changed(Plan.preset("fp32"), "O=mxfp4"), ("O", "Q K V DO P P_B DS")),
    ],
)
def test_errors(call, words):
    """Catches blocks where there is no sum, and two structures in one program."""
    with pytest.raises(UsageError) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
