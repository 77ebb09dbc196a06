"""The same word for a format gives the same rounding in every grammar."""

import pytest

from roundscope import emu
from roundscope.attention import Plan, Site
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.trace.request import changed

SMALL = Config(layers=1, heads=1, width=4)
NAMES = ("e4m3fn", "e5m2", "e4m3fnuz", "e3m2fn", "e2m1fn", "fp16", "bf16", "e5m10")


@pytest.mark.parametrize("name", NAMES)
def test_python_trace_sweep_and_train_agree(name):
    """trace --set Q=e4m3fn overflowed to NaN, sweep format.Q=e4m3fn saturated."""
    plan, want = Plan.preset("fa2-bf16"), emu.rounding(name)
    summed = cell_of({"preset": "fa2-bf16", "accumulator.S": f"ascending:{name}"}).plan
    [[trained]] = plans_of(SMALL, [f"site=Q -> {name}"])
    found = {
        "Plan.at": plan.at("Q", name)[Site.Q],
        "trace --set": changed(plan, f"Q={name}")[Site.Q],
        "sweep format.Q": cell_of({"preset": "fa2-bf16", "format.Q": name}).plan[Site.Q],
        "sweep accumulator.S": summed.accumulator(Site.S).step,
        "train site=Q": trained[Site.Q],
        "preset all:": Plan.preset(f"all:{name}")[Site.Q],
    }
    assert found == dict.fromkeys(found, want)
