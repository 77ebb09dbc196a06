"""Diagnosis of attention in block formats: repairs that keep the blocks, and an account for each
operand.
"""

import numpy as np
import pytest

from roundscope.attention import Site
from roundscope.attention.plans.named import preset
from roundscope.attention.plans.presets import fa2_bf16
from roundscope.emu.blocks.format import block_format
from roundscope.experiments.diagnose.gpt.units import Unit, exactly, is_low, reseeded, units_of
from roundscope.tools.diagnose.tensors.accounts import SITES_OF, accounts, head_events
from roundscope.tools.diagnose.tensors.measured import Subject, measure
from roundscope.tools.diagnose.tensors.repairs import changes, production_order, stochastic
from roundscope.tools.trace.request import Request
from tests.tools.diagnose.inputs import layer

MX = preset("mxfp8-attention")
BLOCKED = (Site.Q, Site.K, Site.P, Site.V)


def test_repairs_keep_the_blocks():
    """Catches a repair that turns block-scaled operands into plain ones: another experiment under
    the repair's name.
    """
    low = MX.at(Site.O, "bf16")  # what production order puts back
    made = production_order(low)
    assert (
        made is not None
        and all(made.event(s) == block_format("mxfp8_e4m3") for s in BLOCKED)
        and production_order(MX) is None
    )
    elements = fa2_bf16().rounded({s: MX[s] for s in BLOCKED})
    assert (
        production_order(elements) is None
        and production_order(elements.at(Site.O, "bf16")).blocks == ()
    )
    drawn = stochastic(MX, (Site.P, Site.OUT))
    assert (
        drawn.block(Site.P).size == 32
        and drawn[Site.P].mode == drawn[Site.OUT].mode == "stochastic"
    )
    assert reseeded(3)(((drawn,),))[0][0].block(Site.P) == drawn.block(Site.P)
    every = changes([MX], ["P", "V"])
    assert all(every["O in FP32"](MX).event(s) == MX.event(s) for s in BLOCKED)
    lifted = every["all origins in FP32"](MX)
    assert (
        not is_low(lifted, Site.P) and not is_low(lifted, Site.V) and lifted.block(Site.V) is None
    )
    assert lifted.event(Site.Q) == MX.event(Site.Q)


def test_an_exact_event_leaves_its_blocks():
    """Catches a search whose exact operand still has a scale, or that takes another's away."""
    plans = ((MX, MX),)
    units = units_of(plans)
    assert {Unit(0, 1, s) for s in BLOCKED} <= units
    ((left, right),) = exactly({Unit(0, 1, Site.V)})(plans)
    assert (
        left.event(Site.V) == MX.event(Site.V)
        and right.block(Site.V) is None
        and right[Site.V].format.name == "fp32"
    )
    assert units_of(((left, right),)) == units - {Unit(0, 1, Site.V)}


def largest(plan):
    """The largest error of each account of a head, after a check that they add up."""
    request = Request(plan=plan, against=preset("exact"), block_q=32, block_k=32, causal=False)
    m = measure(Subject(layer=layer(t=64), request=request), lambda text: None)
    found = accounts(m, 0, 0, head_events(m, 0, 0))
    assert sum(found.values()) == pytest.approx(m.drift.error[0, :, 0], abs=1e-9)
    return {name: float(np.abs(v).max()) for name, v in found.items()}


@pytest.mark.parametrize("sites", [(Site.P,), (Site.V,), (Site.Q, Site.K)])
def test_the_account_of_an_operand_is_its_own(sites):
    """Catches V's error booked under P, or that of Q and K booked nowhere: other accounts keep
    about the size that FP32 gives them.
    """
    low = largest(preset("fp32").rounded(dict.fromkeys(sites, block_format("mxfp4"))))
    wide = largest(preset("fp32"))
    own = next(name for name, of in SITES_OF.items() if set(sites) <= set(of))
    assert low[own] > 100.0 * max(wide.values())
    assert all(low[name] < 10.0 * max(wide.values()) for name in low if name != own)
