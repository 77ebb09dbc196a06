"""alpha l + rowsum and alpha O + P V: which of them are one multiply-add."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from roundscope.attention import Plan, Site, head_plans
from roundscope.attention.plans.traced import TracedPlan
from roundscope.attention.softmax.row_sums import rescaled_sum
from roundscope.emu import round_to
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

COMPILED = Plan.preset("qiu-yao-compiled")
# half way between two binary32 numbers, and a little more, which binary64 does not hold
KEPT, NEW = np.array([1.0 + 2.0**-24, 1.0 + 2.0**-24]), np.array([2.0**-60, -(2.0**-60)])
ONCE, TWICE = [1.0 + 2.0**-23, 1.0], [1.0, 1.0]
CASES = [
    (COMPILED, ONCE),
    (COMPILED.at("AL", "fp32"), TWICE),  # the product is a binary32 number before it is added
    (Plan.preset("fp32").at("AL", "fp64"), TWICE),  # sums of plans without registers
]


@pytest.mark.parametrize(("plan", "wanted"), CASES)
def test_a_product_that_is_not_rounded_is_part_of_the_sum(plan, wanted):
    """Two roundings, where the released code's compiler makes one."""
    at = SimpleNamespace(ops=numpy_ops(), plan=plan)
    total = rescaled_sum(at, KEPT, NEW, (Site.AL, Site.L))
    assert round_to(total, plan[Site.L]).tolist() == wanted


@pytest.mark.parametrize(("plan", "wanted"), CASES[:2])
def test_of_plans_that_are_data(plan, wanted):
    """A training's arms, whose plans are a table, add up otherwise than the plan alone."""
    with jax.enable_x64(True):
        plans = head_plans([plan])
        at = SimpleNamespace(
            ops=xla_ops(opaque_zero(KEPT)), plan=TracedPlan(plans.like, plans.table[0])
        )
        total = np.asarray(rescaled_sum(at, KEPT, NEW, (Site.AL, Site.L)))
    assert round_to(total, plan[Site.L]).tolist() == wanted
