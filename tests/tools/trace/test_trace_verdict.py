"""The verdict of a trace, its error budget, its costs, and what results are held against."""

import json
import re

import ml_dtypes
import numpy as np
import pytest

from roundscope import Plan
from roundscope.attention.budget.parts import event_part, sum_part
from roundscope.attention.sites import Site
from roundscope.tools.report.html import page
from roundscope.tools.report.wording import factor
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.costs import cost, visible
from roundscope.tools.trace.report.report import again_of, report
from roundscope.tools.trace.report.words import details
from roundscope.tools.trace.results import results
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.summary import summarise
from roundscope.tools.trace.verdict import verdict
from tests.tools.trace.inputs import asked


def made(heads=4, tokens=48, narrow=True, name="a"):
    random = np.random.default_rng(7)
    arrays = random.standard_normal((4, 1, tokens, heads, 16)).astype(np.float32)
    if narrow:
        arrays = arrays.astype(ml_dtypes.bfloat16).astype(np.float32)
    q, k, v, do = arrays
    return Layer(name=name, q=q, k=k, v=v, do=do)


def summary(layer=None, **changes):
    return summarise(observe(layer or made(), asked(**({"plan": "fa2-bf16"} | changes))))


@pytest.fixture(scope="module")
def cut():
    """A plan whose P is cut toward zero, with its budget."""
    return summary(changes=["P=bf16:toward-zero"], budget=True, beside="fa2")


@pytest.fixture(scope="module")
def plain_seen():
    return observe(made(), asked(plan="fa2-bf16", budget=True))


@pytest.fixture(scope="module")
def plain(plain_seen):
    return summarise(plain_seen)


class TestVerdict:
    def test_a_biased_result_comes_with_the_event_that_makes_it_so(self, cut):
        v = verdict(cut)
        assert re.search(
            r"the largest cause is P \(bf16:toward-zero\), which alone changes", v.bias
        )
        assert v.step == "--set P=bf16" and "when P rounds without a bias" in v.buys

    def test_an_error_is_held_against_the_least_of_its_format(self, plain):
        v, out = verdict(plain), plain.results[0]
        times = (
            f"{factor(out.error / out.least)} times as much as rounding the exact output to bf16"
        )
        assert times in v.accuracy and re.fullmatch(r"0\.\d+ %", v.number)
        best = verdict(summary(plan="fp32", changes=["OUT=bf16"]))
        assert "hardly more than rounding the exact output to bf16 once" in best.accuracy

    def test_the_step_can_be_run(self, plain):
        v = verdict(plain)
        name = v.buys.removeprefix("the error of ").partition(" ")[0]
        better = summary(changes=[v.step.removeprefix("--set ")])
        old, new = (next(r for r in s.results if r.name == name) for s in (plain, better))
        assert new.error < 0.8 * old.error

    def test_an_exact_plan(self):
        v = verdict(summary(plan="exact", budget=True))
        assert v.accuracy.startswith("The output is exact attention, to the last") and v.step == ""

    def test_an_injected_error_is_blamed_and_needs_no_bits(self):
        v = verdict(summary(inject=["P:bias=1"], budget=True))
        assert "the injected error makes 100 % in out" in v.causes and v.step == ""

    def test_an_injection_too_small_to_see_says_how_large_would_do(self):
        """Half an ulp of 1 % of P, whose results are those of no injection but for noise."""
        small = {"inject": ["P:noise=0.5:share=0.05"], "beside": "fa2-bf16"}
        said = re.search(r"errors about ([\d.]+) times as large", details(summary(**small)))
        larger = {"inject": [f"P:noise={float(said[1]) / 2}:share=0.05"], "beside": "fa2-bf16"}
        grown = max(r.error / r.beside for r in summary(**larger).results if r.gain)
        assert 1.05 < grown < 1.2

    def test_another_plan_than_exact_to_compare_with(self):
        assert (
            "from the output of fa2-bf16" in verdict(summary(against="fa2-bf16", plan="fp32")).text
        )


class TestResults:
    def test_the_production_plan_stands_beside(self, cut):
        out = cut.results[0]
        assert out.beside is not None and out.beside < out.error
        assert out.besides is not None and not out.besides.is_biased

    def test_no_plan_stands_beside_itself(self):
        assert summary(plan="fa2", beside="fa2").results[0].beside is None

    def test_the_least_error_is_that_of_one_rounding_by_ml_dtypes(self, plain, plain_seen):
        exact = plain_seen.reference["out"]
        once = exact.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
        least = np.sqrt(((once - exact) ** 2).sum() / (exact**2).sum())
        assert plain.results[0].least == pytest.approx(least, rel=1e-3)

    def test_casts_of_the_inputs_are_set_apart(self):
        """float32 inputs, most of whose error is not attention's; BF16 ones, which are not cast."""
        sets = ["Q=bf16", "K=bf16", "V=bf16", "DO=bf16"]
        assert summary(changes=sets).results[0].cast is None
        out = summary(made(narrow=False), changes=sets).results[0]
        assert out.cast > 0.0 and out.computed > 0.0
        assert out.error == pytest.approx(np.hypot(out.cast, out.computed), rel=0.1)

    def test_errors_of_heads(self, plain, plain_seen):
        out = plain.results[0]
        own, want = plain_seen.results["out"][:, :, 2], plain_seen.reference["out"][:, :, 2]
        expected = np.sqrt(((own - want) ** 2).sum() / (want**2).sum())
        assert out.heads.shape == (1, 4) and out.heads[0, 2] == pytest.approx(expected)

    def test_every_result_has_a_line(self, plain_seen):
        assert [r.name for r in results(plain_seen)] == ["out", "lse", "delta", "dq", "dk", "dv"]


class TestCosts:
    def test_operands_results_registers_and_sums(self):
        plan, layer = Plan.preset("fa2-bf16@hopper"), made()

        def of(site, p=plan):
            return cost(p, event_part(p, site), layer)

        assert of(Site.P) == "PV in TF32, 1/2 of the rate"
        assert of(Site.OUT) == "6.14 kB more to write"  # 48 x 4 x 16 numbers of 2 more bytes
        assert of(Site.SCALED) == "arithmetic in binary64"
        assert of(Site.O, Plan.preset("qiu-yao")) == "2 bytes of register more per value"
        assert of(Site.P, Plan.preset("fa3-fp8")) == "PV in TF32, 1/4 of the rate"
        assert "more to read" in of(Site.K, Plan.preset("fa3-fp8"))
        assert cost(plan, sum_part(plan, Site.PV), layer) == "additions outside the tensor core"


class TestPage:
    @pytest.mark.pictures
    def test_the_budget_is_drawn_and_told(self, run, small, tmp_path):
        code, out, _ = run(small(), "--budget", "--out", tmp_path / "x")
        text = (tmp_path / "x" / "report.html").read_text()
        assert code == 0 and "Error budget" in out and "Next: roundscope " in out
        assert 'aria-label="Error budget"' in text and "What more bits would buy, and cost" in text
        (layer,) = json.loads((tmp_path / "x" / "trace.json").read_text())["layers"]
        parts = {p["name"]: p for p in layer["budget"]["parts"]}
        assert parts["P"]["promotion"] == ["P=fp32"] and set(parts["P"]["share"]) == {
            "out",
            "dq",
            "dk",
            "dv",
        }

    def test_layers_and_heads_can_be_chosen(self, plain):
        other = summary(made(name="b<c"), budget=True)
        data = {"file": "f", "block_q": 16, "block_k": 16, "engine": "numpy", "layers": []}
        data |= {"command": ["roundscope", "trace", "f"], "versions": {}}
        data |= {"platform": "", "seed": 0, "plan": plain.request.plan.describe()}
        data |= {"against": {"name": "exact"}}
        found = report([plain, other], data)
        assert found.opening.mood == ""  # a green bar beside results that are far from their best
        text = page(found)
        assert text.count("<section data-layer=") == 2 and 'data-layer="b&lt;c"' in text
        assert "<option value='b&lt;c'>" in text and '<div class="wide heads">' in text
        assert "is the least exact of 2 layers" in text

    def test_parts_without_weight_have_no_line_on_the_screen(self, plain):
        budget = plain.budget
        assert len(visible(budget)) < len(budget.lines)


def test_the_next_command_is_this_one_without_its_output():
    words = ["roundscope", "trace", "a file", "--out", "x", "--json", "--set", "P=bf16", "--out=y"]
    assert again_of(words) == "roundscope trace 'a file' --set P=bf16"
