"""An output that is not the claimed plan's is explained by another plan, or by one row."""

import numpy as np
import pytest

from roundscope.attention.testing.calls import Outputs
from roundscope.attention.testing.causes import of_output
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.gathered import gathered
from roundscope.attention.testing.reference import reference

X = draw("gaussian", batch=2, heads=2, tokens=64, features=16, is_causal=True)
PLAN = reference("fa2-bf16")


def made(plan, *changes):
    return reference(plan, changes=changes).outputs(X, backward=False)


@pytest.mark.parametrize("change", ["P=bf16:toward-zero", "P=fp16", "OUT=bf16:to-odd"])
def test_one_event_is_named(change):
    """An event that is cast in another way, and no word of it, or the name of another event."""
    words = of_output(X, made("fa2-bf16", change), made("fa2-bf16"), PLAN)
    assert words.startswith(f"{change} explains it (1.0000 of the output's numbers")


def test_another_plan_is_named_and_the_claimed_one_is_not():
    """P that is divided before it is cast, as in attention by hand."""
    own = made("baseline-bf16")
    assert "its numbers are those of " in of_output(X, own, made("fa2-bf16"), PLAN)
    assert of_output(X, made("fa2-bf16"), made("fa2-bf16"), PLAN) == ""


def test_the_place_of_a_fault_is_named():
    """One row or one feature that is wrong, called an order of additions; noise called a place."""
    plan = made("fa2-bf16").out
    row, feature, far = plan.copy(), plan.copy(), plan.copy()
    row[:, 17] *= np.float32(1.5)
    feature[..., 3] = 0.0
    far[np.random.default_rng(0).random(far.shape) < 0.1] += np.float32(1.0)
    place = gathered(plan, row, plan != row)
    assert "64 of them in token 17 of 64" in place.words and place.factor == 1.5
    assert "in feature 3 of 16" in gathered(plan, feature, plan != feature).words
    assert gathered(plan, far, plan != far) is None
    assert of_output(X, Outputs(out=row), Outputs(out=plan), PLAN).endswith("times the plan's")
    row[:, 17] = np.nan
    assert gathered(plan, row, plan != row).factor == 0.0
