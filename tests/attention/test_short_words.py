"""Short texts: suggestions for unknown arguments, the repr of results, warnings of odd tensors."""

import importlib
import inspect

import numpy as np
import pytest

from roundscope import Plan, attend, error_budget, examine
from roundscope.emu import round_with_stats

Q = np.random.default_rng(0).standard_normal((1, 8, 2, 8)).astype(np.float32)
PACKAGES = "", ".emu", ".operations", ".testing", ".jax", ".torch"


def functions(package):
    """The public functions of a package that pass no arguments on."""
    module = importlib.import_module(f"roundscope{package}")
    for name in module.__all__:
        function = getattr(module, name)
        kinds = (
            {p.kind for p in inspect.signature(function).parameters.values()}
            if inspect.isfunction(function)
            else {inspect.Parameter.VAR_KEYWORD}
        )
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            yield function


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_function_names_the_argument_that_is_meant(package):
    """causal=, which the command line takes, is refused without a word on is_causal."""
    if package == ".torch":
        pytest.importorskip("torch")
    found = list(functions(package))
    assert found
    for function in found:
        name = list(inspect.signature(function).parameters)[-1]
        with pytest.raises(TypeError, match=f"unknown argument '{name}x'; did you mean '{name}'"):
            function(**{f"{name}x": 1})


def test_arguments_that_are_passed_on_are_named_too():
    for call in (attend, examine, error_budget):
        with pytest.raises(TypeError, match="'causal'; did you mean 'is_causal'"):
            call(Q, Q, Q, plan="fa2", causal=True)


def test_captures_name_the_argument_that_is_meant():
    capture = pytest.importorskip("torch") and importlib.import_module("roundscope.torch").capture
    with pytest.raises(TypeError, match="'step'; did you mean 'steps'"):
        capture(None, "x", step=1)


def test_a_near_word_spares_the_long_list():
    """A hundred known words behind the one that was meant."""
    plan = Plan.preset("fa2")
    with pytest.raises(ValueError, match=r"^unknown site 'OUTT'; did you mean 'OUT'\?$"):
        plan.changed("OUTT=fp32")
    with pytest.raises(ValueError, match="Known: Q K V"):
        plan.changed("xyzzy=fp32")


def test_results_print_in_short():
    """Two hundred lines of arrays in place of an answer."""
    found = examine(Q, Q, Q, Q, plan="fa2")
    lines = repr(found).splitlines()
    assert "Plan.preset('fa2')" in lines[0] and "out (1, 8, 2, 8)" in lines[0]
    assert len(lines) == 2 + len([s for s in found.trace.stats.values() if s.n.sum()])
    assert all(len(line) < 150 for line in lines)
    _, stats = round_with_stats(np.float32([1, 1.00390625, 3]), "bf16")  # one tie
    assert repr(stats) == "Stats(n=3, inexact=1, mean_ulps=-0.167, peak=0.5)"


def test_tensors_that_look_like_another_layout_are_told():
    """(B, N, T, H) for (B, T, N, H): 4 tokens of 64 heads; 64 heads alone are a decode."""
    heads = np.ones((1, 4, 64, 2), np.float32)
    with pytest.warns(UserWarning, match=r"4 tokens of 64 heads.*swapaxes\(1, 2\)"):
        attend(heads, heads, heads, plan="fp32")
    keys = np.ones((1, 64, 64, 2), np.float32)
    attend(heads[:, :1], keys, keys, plan="fp32")


def test_queries_of_nan_alone_are_told():
    with pytest.warns(UserWarning, match="every number is NaN"):
        attend(np.full_like(Q, np.nan), Q, Q, plan="fp32")
