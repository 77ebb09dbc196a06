"""Where a trace says that nothing is wrong, and what its first page says of its plan."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roundscope import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.tools.look.plans import about
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.report import plots
from roundscope.tools.trace.report.report import of_layer
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.stopping import stop
from roundscope.tools.trace.summary import summarise
from tests.tools.trace.inputs import asked

LAST = ("OUT=bf16 DQ_OUT=bf16 DK_OUT=bf16 DV_OUT=bf16",)


def summary(changes=LAST, plan="fp32", factor=1.0, **more):
    """What is traced of numbers of BF16: fp32 but for the last roundings, so as good as can be."""
    x = np.random.default_rng(7).standard_normal((4, 1, 48, 4, 16)).astype(ml_dtypes.bfloat16)
    q, k, v, do = (np.float32(factor) ** (n < 2) * x[n].astype(np.float32) for n in range(4))
    layer = Layer(name="a", q=q, k=k, v=v, do=do)
    return summarise(observe(layer, asked(plan=plan, changes=[*changes], **more)))


@pytest.fixture(scope="module")
def best():
    return summary(budget=True)


def test_results_that_are_rounded_once_need_no_repair(best):
    """Advice to write the output in FP32 where the kernel is as exact as its format."""
    said = stop(best)
    assert "you can stop" in said and "one rounding to bf16" in said and "dq, dk and dv" in said
    texts = [getattr(part, "text", "") for part in of_layer(best)]
    assert said in texts and not any(getattr(p, "lead", "") == "Next:" for p in of_layer(best))


@pytest.mark.parametrize(
    "more",
    [
        {"changes": ("OUT=bf16:toward-zero",)},  # every number too short
        {"changes": (*LAST, "P=e4m3fn")},  # the output worse than its rounding
        {"changes": (*LAST, "DS=e4m3fn")},  # a gradient alone
        {"inject": ["P:ulps=0.001"]},
        {"against": "fp32"},  # what the other plan does wrong is not seen
        {"factor": 1e38},  # NaN
        {"changes": ()},  # leaves in FP32: there is no rounding to compare with
    ],
)
def test_nothing_else_is_called_right(more):
    """A biased, inexact, injected or infinite result of which the page says to stop."""
    with np.errstate(all="ignore"):
        assert stop(summary(**more)) == ""


def test_the_words_of_the_picture_have_formulas(best):
    """DS alone, which no newcomer knows; a sum that is called by the formula of one event."""
    figure = plots.budget(best.budget, best.budget.lines)
    labels = [x.get_text() for x in figure.axes[0].get_yticklabels()]
    assert "OUT = O INV  bf16" in labels and all(len(x) < 60 for x in labels)


@pytest.mark.parametrize("name", [*PRESETS, *TWINS])
def test_every_plan_is_introduced(name):
    """A page about 'fa2' that does not say whose kernel that is, and on which GPU."""
    said = about(f"{name}; O=bf16")
    assert said.startswith(f"{name}: ") and said.count("\n") == 0
    assert (name in TWINS) == ("with the bits of" in said) == ("one H" in said)


def test_a_name_of_ones_own_is_not_introduced(best):
    assert about("mine") == about("all:bf16") == ""
    own = replace(best.request, plan=replace(best.request.plan, name="mine"))
    assert of_layer(replace(best, request=own))
