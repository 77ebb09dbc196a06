"""How wrong the results are, on the terminal, on the page and in trace.json."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from roundscope.tools.report.terminal import show
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.analysis.consequences import Gain, gain
from roundscope.tools.trace.report import tables
from roundscope.tools.trace.report import words as trace_words
from roundscope.tools.trace.report.report import of_layer
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.summary import summarise
from roundscope.tools.trace.verdict import verdict
from tests.tools.trace.inputs import asked


def summary(heads=4, tokens=64, **changes):
    random = np.random.default_rng(7)
    q, k, v, do = random.standard_normal((4, 1, tokens, heads, 16)).astype(np.float32)
    layer = Layer(name="a", q=q, k=k, v=v, do=do)
    return summarise(observe(layer, asked(**({"plan": "fa2-bf16"} | changes))))


@pytest.fixture(scope="module")
def cut():
    """A summary of a run whose P is cut toward zero, which makes every output too short."""
    return summary(changes=["P=bf16:toward-zero"])


def shown(s, width=100):
    """Return what the terminal shows of a summary, as lines."""
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    show(of_layer(s, every=True), console)
    return console.export_text().splitlines()


def test_an_output_that_is_too_short_is_said_although_its_own_rounding_is_even(cut):
    """The words OUT is not biased would be read as a statement about the output."""
    text = trace_words.sentence(cut)
    assert re.search(r"^Biased: out is too short by 0\.\d+ % \(z = -\d", verdict(cut).bias)
    assert cut.results[0].is_biased and cut.results[0].gain.mean < -5e-4
    assert "OUT is not biased" not in text + verdict(cut).text


@pytest.mark.parametrize("sets", [[], ["O=fp16"]])
def test_a_plan_with_splits_of_the_keys_has_a_trace(sets):
    """An error of its last part, which records an event that every split has."""
    text = "\n".join(shown(summary(heads=1, tokens=16, plan="fa2-split", changes=sets)))
    assert text.startswith("a: fa2-split")


def test_an_unbiased_plan_has_no_biased_result():
    """False alarms of a standard error that takes rows as independent."""
    plain = summary()
    assert [r.name for r in plain.results if r.gain] == ["out", "dq", "dk", "dv"]
    assert not plain.biased_results
    said = "None of out, dq, dk and dv is too long or too short by more than chance, and none of"
    assert verdict(plain).bias.startswith(said)


def test_a_bias_that_few_heads_cannot_show_is_not_denied():
    """ "None of out ... is too short by more than chance" of -0.91 ± 0.12 %, limit 9.5."""
    plain = summary()
    hint = Gain(mean=-0.0091, se=0.0012, limit=9.46, heads=4)  # Student's, 3 degrees of freedom
    out = replace(plain.results[0], gain=hint)
    said = verdict(replace(plain, results=[out, *plain.results[1:]])).bias
    assert said.startswith(
        "4 key heads cannot show whether out (-0.91 ± 0.1 %, z = -7.6) is too long or too short:"
    )
    assert "None of dq, dk and dv is" in said and "more batch entries or heads" in said


def test_the_terminal_says_how_wrong_each_result_is(cut):
    lines = shown(cut)
    for name in ("out", "lse", "delta", "dq", "dk", "dv"):
        assert any(re.match(rf"{name} +\d\.\d\de-\d\d +\d\.\d\de-\d\d", line) for line in lines)
    (out,) = (line for line in lines if re.match(r"out +\d", line))
    assert "▼" in out


def test_the_sizes_of_the_axes_are_shown():
    """A file in the other layout, whose tokens pass for heads without a word."""
    assert "batch 1, 4 heads, 64 tokens, 16 features" in shown(summary())


def test_the_page_begins_with_the_results_and_the_file_has_their_gains(run, small, tmp_path):
    assert run(small(), "--out", tmp_path / "x")[0] == 0
    page = (tmp_path / "x" / "report.html").read_text()
    assert page.index("The output differs from exact attention by") < page.index("<svg ")
    assert page.index("<h3>Results</h3>") < page.index("<svg ")
    (layer,) = json.loads((tmp_path / "x" / "trace.json").read_text())["layers"]
    results = layer["results"]
    assert [n for n in results if results[n]["gain"]] == ["out", "dq", "dk", "dv"]
    gain_of_out = results["out"]["gain"]
    assert set(gain_of_out) == {"mean", "standard_error", "z", "limit", "biased"}
    assert layer["budget"] is None


def test_a_gain_is_that_of_its_definition():
    """Every number is 2 % too long in one head and 4 % in the other: 3 ± 1 %."""
    exact = np.random.default_rng(1).standard_normal((1, 8, 2, 4))
    found = gain(exact * np.array([1.02, 1.04])[:, None], exact, 2, 1)
    assert np.allclose((found.mean, found.se), (0.03, 0.01)) and not found.is_biased


def test_heads_that_share_a_key_head_count_as_one_and_one_head_shows_nothing():
    exact = np.random.default_rng(1).standard_normal((1, 8, 4, 4))
    own = exact * np.array([1.01, 1.02, 1.03, 1.04])[:, None]
    assert np.isnan(gain(own, exact, 1, 1).se) and not gain(own, exact, 1, 1).is_biased
    assert gain(own, exact, 2, 1).se > gain(own, exact, 4, 1).se > 0.0


def test_a_result_with_nan_has_no_gain_and_a_result_of_zeros_has_none_to_speak_of():
    """The mean of the finite numbers in place of that of all, which says "not too long"."""
    exact = np.ones((1, 2, 2, 2))
    own = exact.copy()
    own[0, 0, 0, 0] = np.nan
    assert np.isnan(gain(own, exact, 2, 1).mean) and not gain(own, exact, 2, 1).is_biased
    assert gain(0.0 * exact, 0.0 * exact, 2, 1).mean == 0.0


@pytest.mark.parametrize("width", [80, 100])
def test_large_errors_leave_the_table_whole(width):
    """An error of thousands of ulps that squeezes the headings and drops the column of marks."""
    lines = shown(summary(inject=["P:bias=1:heads=0:2"]), width)
    assert all(len(line) <= width and "…" not in line for line in lines)
    (injected,) = (line for line in lines if re.match(r"P +bf16", line))
    assert "▲" in injected and "e+0" in injected


def test_a_narrow_screen_keeps_how_much_too_long_and_z(cut):
    """The columns that the answer speaks of, behind the edge of a telephone."""
    table = tables.results(cut)
    kept = [head for i, head in enumerate(table.heads) if i not in table.optional]
    assert kept[:3] == ["result", "relative\nrms error", "rounded\nonce"]
    assert kept[3].startswith("too long") and kept[4].startswith("z") and len(kept) == 5
