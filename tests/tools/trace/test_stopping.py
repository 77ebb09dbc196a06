"""Where a trace says that nothing is wrong, and what its first page says of its plan."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roundscope import PRESETS, Plan
from roundscope.attention.budget.parts import event_part
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import Site
from roundscope.tools.look.plans import about
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.biased import bias, hints
from roundscope.tools.trace.repairs import to_promote
from roundscope.tools.trace.report import plots
from roundscope.tools.trace.report.report import _opening, of_layer, stepped
from roundscope.tools.trace.report.tables import sizes
from roundscope.tools.trace.results import CLOSE, EVENT, Result
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.stopping import _no_longer_narrow, stop
from roundscope.tools.trace.summary import summarise
from roundscope.tools.trace.verdict import verdict
from tests.tools.trace.inputs import asked

LAST = ("OUT=bf16 DQ_OUT=bf16 DK_OUT=bf16 DV_OUT=bf16",)


def summary(changes=LAST, plan="fp32", factor=1.0, **more):
    """Trace BF16 numbers under fp32 with results in BF16, whose errors are of one rounding."""
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
    for layers in ([best], [best, best]):
        opening = _opening(layers, best, "roundscope trace x")
        assert opening.text.startswith("Nothing is wrong here, and you can stop: ")
        assert verdict(best).accuracy in opening.text and not opening.number


def test_few_heads_are_said_to_show_little_and_nothing_contradicts_it():
    """A length that cannot be judged, in the sentence that says that nothing is biased."""
    x = np.random.default_rng(7).standard_normal((4, 1, 48, 2, 16)).astype(ml_dtypes.bfloat16)
    layer = Layer(name="a", **dict(zip(("q", "k", "v", "do"), x.astype(np.float32), strict=True)))
    s = summarise(observe(layer, asked(plan="fp32", changes=LAST)))
    first, second = re.split(r"(?<=biased)\. ", bias(s))
    assert first.startswith("None of ") and "key heads" not in first
    assert re.match(r"Whether out.* cannot be said of 2 key heads", second)
    assert stop(s).startswith("Nothing that 2 key heads can show is wrong here, and you can stop")
    one = Layer(name="a", q=layer.q[:, :, :1], k=layer.k[:, :, :1], v=layer.v[:, :, :1])
    assert "1 head," in sizes(replace(s, layer=one))


def test_a_next_step_replaces_the_changes_of_the_command():
    """--set Q=mxfp8 --set Q=fp32: which of them counts?"""
    command = "roundscope trace 'a b.st' --set=Q=mxfp4 --set 'K=bf16; V=bf16' --budget-heads 2"
    assert stepped(command, "--set Q=fp32 --set K=fp32") == (
        "roundscope trace 'a b.st' --set V=bf16 --budget-heads 2 --set Q=fp32 --set K=fp32"
    )


@pytest.mark.parametrize("kept", [(), ("V",)])
def test_a_plan_whose_narrow_roundings_were_widened_is_not_called_right(kept):
    """The chain of advice on an FP8 kernel that ends with: nothing is wrong, you can stop."""
    wide = [site for site in ("Q", "K", "V", "P") if site not in kept]
    plan = Plan.preset("cudnn-mxfp8").changed(*(f"{site}=fp32" for site in wide))
    said = _no_longer_narrow(plan)
    named = ", ".join(wide[:-1]) + f" and {wide[-1]} are wider than in cudnn-mxfp8"
    assert named in said and said.startswith("No FP8 rounding of this plan is left") == (not kept)
    for name in ("cudnn-mxfp8", "fa2-bf16; P=fp32", "fa2-bf16; P=e4m3fn"):
        base, _, change = name.partition("; ")
        assert not _no_longer_narrow(Plan.preset(base).changed(*change.split()))


def test_the_end_of_a_chain_of_advice_on_fp8_names_what_was_widened(best):
    plan = Plan.preset("cudnn-mxfp8").changed("Q=fp32", "K=fp32", "V=fp32", "P=fp32")
    said = stop(replace(best, request=replace(best.request, plan=plan)))
    assert said.startswith("No FP8 rounding of this plan is left, since Q, K, V and P are wider")
    assert "you can stop" not in said and "nothing is wrong with what is left: out has" in said


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


@pytest.mark.thorough
def test_the_loop_of_its_advice_ends_at_the_worst_result():
    """Advice to write in FP32 the one gradient that is as good as BF16, and then the next one."""
    changes: list[str] = ["P=e4m3fn"]
    for _ in range(3):
        s = summary(changes=changes, plan="fa2-bf16", budget=True, factor=3.0)
        if stop(s) or hints(s):  # few heads: whether results are too long or short is not known
            break
        assert s.repair is not None
        worst = max(s.results[:1] + s.results[3:], key=lambda r: r.times)
        assert s.repair.result == worst.name and s.repair.error < worst.error
        at_best = {str(EVENT[r.name]) for r in s.results if r.unit and r.times < CLOSE}
        assert worst.times >= CLOSE and str(EVENT[worst.name]) not in at_best
        changes += s.repair.words
    assert len(changes) > 1 and ("you can stop" in stop(s) or s.repair is None)


def test_a_result_at_its_least_error_is_not_widened():
    """The largest fall, of dv that is at one rounding, in place of dq's at 2.3 of them."""

    def line(site, dq, dv):
        left = {"dq": 3.7e-3 * dq, "dv": 1.7e-3 * dv}
        part = event_part(Plan.preset("fa2"), site)
        nothing = dict.fromkeys(left, 0.0)
        return Line(part=part, alone=nothing, gain=nothing, without=left, is_change=False)

    lines = (line(Site.DV_OUT, 1.0, 0.26), line(Site.DS, 0.76, 1.0), line(Site.OUT, 0.85, 1.0))
    budget = ErrorBudget(
        plan="fa2",
        total={"dq": 3.7e-3, "dv": 1.7e-3},
        gain={},
        lines=lines,
        functions={},
        heads=(0,),
    )
    dq, dv = (
        Result(
            name=name,
            difference={"relative_rms": error},
            gain=None,
            beside=None,
            besides=None,
            cast=None,
            computed=None,
            least=1.64e-3,
            unit=1.64e-3,
            heads=np.zeros((1, 1)),
        )
        for name, error in budget.total.items()
    )
    assert dq.is_far and not dv.is_far
    assert to_promote(budget, dq)[0].part.name == "DS"
    assert to_promote(budget, dv) == []
