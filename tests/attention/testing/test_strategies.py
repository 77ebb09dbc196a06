"""The Hypothesis strategies of plans, inputs and injections: what they draw and shrink to."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from roundscope import FlipBit, Plan, SetTo, Site, examine
from roundscope.attention.sites import BACKWARD
from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.attention.testing.strategies import attention_inputs, injections, plans
from roundscope.attention.testing.words import plans as plan_words

quick = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)


def simplest(strategy: st.SearchStrategy[Any], condition: Any = lambda x: True) -> Any:
    return find(strategy, condition, settings=settings(quick, max_examples=200))


def drawn(strategy: st.SearchStrategy[Any], count: int = 40) -> list[Any]:
    found: list[Any] = []

    @settings(quick, max_examples=count)
    @given(strategy)
    def take(x: Any) -> None:
        found.append(x)

    take()
    return found


def called(x: Inputs, plan: Plan | str, inject: Any = (), block_k: int = 4) -> Any:
    return examine(
        x.q,
        x.k,
        x.v,
        x.do,
        plan=plan,
        block_q=4,
        block_k=block_k,
        is_causal=x.is_causal,
        record=None,
        engine="numpy",
        inject=inject,
    )


def test_a_plan_shrinks_to_a_preset_without_changes():
    """A failure that any plan has, shown with changes that do not matter."""
    assert simplest(plans()) == Plan.preset("fa2-bf16")
    assert simplest(plans(["cudnn", "exact"])).name == "cudnn"


def test_a_plan_shrinks_to_the_one_change_that_matters():
    """A change that cannot be dropped from a plan, or is not drawn at all."""
    text = simplest(plan_words(("fa2-bf16",), 3), lambda text: "toward-zero" in text)
    preset, change = text.split()
    assert preset == "fa2-bf16" and "toward-zero" in change


def test_plans_are_presets_twins_and_changed_ones_that_run():
    """A strategy that draws one kind of plans only, or plans that a call refuses."""
    found = drawn(plans(), 40)
    names = {plan.name for plan in found}
    assert len(names) > 12
    assert any("; " in name for name in names) and "fa2-bf16" in names
    x = draw("gaussian", batch=1, tokens=3, heads=1, features=4)
    with np.errstate(all="ignore"):
        for plan in found[:8]:
            assert called(x, plan).out.shape == x.q.shape


def test_plans_without_changes_are_presets():
    """An argument `changes` that is not obeyed."""
    names = {plan.name for plan in drawn(plans(["exact", "fa2"], changes=0))}
    assert names == {"exact", "fa2"}


def test_a_call_shrinks_to_one_token_and_one_head_of_gaussian_numbers():
    """A failing call that is larger than it has to be."""
    x = simplest(attention_inputs())
    assert x.q.shape == x.k.shape == (1, 1, 1, 8) and not x.is_causal
    np.testing.assert_array_equal(
        x.q, draw("gaussian", seed=0, batch=1, tokens=1, heads=1, features=8).q
    )
    longer = simplest(attention_inputs(), lambda x: x.q.shape[1] > 64 and x.is_causal)
    assert longer.q.shape == (1, 65, 1, 8)


def test_calls_are_of_every_family_size_and_type():
    """A family, grouped heads, or causal calls that are never drawn."""
    found = drawn(attention_inputs(features=8, dtype=None), 60)
    assert {x.is_causal for x in found} == {True, False}
    assert {x.q.shape[2] // x.k.shape[2] for x in found} >= {1, 2, 3}
    assert {x.q.shape[1] for x in found} & {63, 65, 127, 129}
    for family in FAMILIES:
        strategy = attention_inputs(family, tokens=8, heads=1, batch=1, features=8)
        (x,) = drawn(strategy, 1)  # the simplest one is drawn first
        expected = draw(family, batch=1, tokens=8, heads=1, features=8)
        np.testing.assert_array_equal(x.k, expected.k, err_msg=family)


def test_sizes_that_are_given_are_obeyed():
    """An argument that is swapped with another, or that is ignored."""
    strategy = attention_inputs(
        "sink", tokens=3, keys=5, heads=6, batch=st.just(2), features=4, causal=True
    )
    for x in drawn(strategy):
        assert x.q.shape == (2, 3, 6, 4) and x.k.shape[:2] == (2, 5) and x.is_causal
    assert {x.k.shape[2] for x in drawn(strategy)} == {1, 2, 3, 6}
    for x in drawn(attention_inputs(heads=6, key_heads=2)):
        assert x.q.shape[2] == 6 and x.k.shape[2] == 2


def test_a_failing_call_is_printed_as_the_call_of_draw():
    """A failure that shows thousands of numbers in place of how to make them."""

    @settings(quick, print_blob=False, phases=list(Phase))  # as users have it
    @given(attention_inputs())
    def test_fails(inputs):
        assert inputs.q.shape[1] < 50

    with pytest.raises(AssertionError) as caught:
        test_fails()
    notes = " ".join("\n".join(caught.value.__notes__).split())
    assert re.search(r"inputs=draw\( 'gaussian',.* seed=0,.* batch=1,.* tokens=63,", notes)
    assert len(notes) < 1000


@pytest.mark.parametrize(
    ("plan", "block_k"),
    [("fa2-bf16", 4), ("cudnn", 4), ("baseline-bf16", 4), ("mxfp8-attention", 32)],
)
def test_a_call_takes_every_injection_of_its_plan(plan, block_k):
    """An injection at an event, an entry or a tile that the call does not have."""
    x = draw("gaussian", batch=2, tokens=5, keys=7, heads=4, key_heads=2, features=4)
    strategy = injections(plan, x, block_q=4, block_k=block_k, backward=True)
    with np.errstate(all="ignore"):
        for injection in drawn(strategy, 25 if plan == "fa2-bf16" else 12):
            called(x, plan, injection, block_k)


def test_injections_shrink_and_reach_what_they_should():
    """Injections that select nothing but one entry, or events of the backward in a forward."""
    first = simplest(injections())
    assert (first.site, first.rows, first.what.ulps) == (Site.Q, None, 0.5)
    x = draw("gaussian", batch=1, tokens=9, heads=1, features=4)
    last = simplest(injections("fa2-bf16", x), lambda i: i.rows and max(i.rows) == 8)
    assert last.site is Site.Q and last.heads is None
    sites = {i.site for i in drawn(injections("fa2-bf16"), 100)}
    assert Site.P in sites and not sites & set(BACKWARD)
    assert simplest(injections(backward=True), lambda i: i.site in BACKWARD)


def test_injections_without_inputs_suit_every_call():
    """An index that a call of one token does not have."""
    x = draw("gaussian", batch=1, tokens=1, heads=1, features=1)
    with np.errstate(all="ignore"):
        for injection in drawn(injections("fa2-bf16", backward=True), 40):
            called(x, "fa2-bf16", injection)


def test_bits_and_values_are_those_of_the_format():
    """A bit beyond the code, or a value that rounding can never give."""
    plan = Plan.preset("fa3-fp8")
    found = [i.what for i in drawn(injections(plan), 200) if i.site is Site.P]
    assert {w.bit for w in found if isinstance(w, FlipBit)} <= set(range(8))
    values = [w.value for w in found if isinstance(w, SetTo)]
    assert all(np.isnan(v) or np.isinf(v) or abs(v) <= 448 for v in values)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: plans([]), "presets=()"),
        (lambda: plans(["fa2-bf17"]), "fa2-bf16"),
        (lambda: attention_inputs("sinks"), "sink"),
        (lambda: attention_inputs([]), "family"),
        (lambda: attention_inputs(dtype="bf16"), "bfloat16"),
        (lambda: attention_inputs(features=0), "features=0"),
        (lambda: attention_inputs(heads=0), "heads=0"),
        (lambda: injections("fa2-bf17"), "fa2-bf16"),
    ],
)
def test_wrong_arguments_are_refused_at_once(make, named):
    """A mistake that shows only while examples are drawn, or not at all."""
    with pytest.raises(ValueError, match=re.escape(named)):
        drawn(make(), 1)
