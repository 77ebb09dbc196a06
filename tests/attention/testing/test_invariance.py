"""What must not change a result: a planted kernel for each answer, and changes that are none."""

import re
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention.testing.calls import Outputs
from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.errors import Margins
from roundscope.attention.testing.exact import RESULTS, exact
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.foreign.user import kernel_of
from roundscope.attention.testing.invariance import changes, check_invariance
from tests.attention.testing.planted import PLAN, exactly

X = draw("gaussian", batch=3, tokens=20, heads=4, key_heads=2, features=8, is_causal=True)
NAMES = [
    "a second call",
    "an entry of the batch alone",
    "the batch in reverse order",
    "the heads in reverse order",
    "the first 12 tokens alone",
]


def answers(kernel, x=X):
    """The answer to each question."""
    return {c.name: c for c in check_invariance(kernel, PLAN, x, margins=Margins())}


def of_results(change):
    """A kernel that is exact but for a change of each result, a function of it and the inputs."""
    return lambda x: Outputs(**{n: change(getattr(exactly(x), n), x) for n in RESULTS})


def masked(q, k, v, do, *, scale, is_causal, mask=None):
    """A user's kernel that takes a mask."""
    x = replace(X, q=q, k=k, v=v, do=do, scale=scale, is_causal=is_causal, mask=mask)
    return tuple(a for _, a in exactly(x).named())


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_changes_leave_the_exact_results(is_causal, with_mask):
    """A change that alters what is computed, for which good kernels would be blamed."""
    x = replace(X, is_causal=is_causal)
    found = list(changes(x, with_mask))
    assert len(found) == 3 + is_causal + with_mask
    for c in found:
        first, changed = (
            Outputs(**{n: getattr(exact(y), n) for n in RESULTS}) for y in (c.first, c.changed)
        )
        for name in RESULTS:
            wants = getattr(exact(c.compared), name)
            for part in (c.of_first(first), c.of_changed(changed)):
                np.testing.assert_allclose(
                    getattr(part, name), wants, atol=1e-12, err_msg=f"{c.name}: {name}"
                )


def test_changes_change_the_call():
    """A question that compares a call with itself."""
    for c in changes(X, with_mask=True):
        before, after = (np.concatenate([y.q.ravel(), y.k.ravel()]) for y in (c.first, c.changed))
        assert not np.array_equal(before, after), c.name


def test_changes_that_the_inputs_do_not_allow():
    """An entry alone of a single one, or a prefix of a call whose every query sees all keys."""
    single = draw("gaussian", batch=1, tokens=1, heads=2, key_heads=1, features=8, is_causal=True)
    assert list(changes(single)) == []


def test_a_kernel_that_is_invariant():
    """Notes on a kernel that gives the same bits."""
    found = answers(PLAN_KERNEL)
    assert list(found) == NAMES
    assert {c.answer for c in found.values()} == {Answer.PASS}
    assert {c.sentence for c in found.values()} == {"The same bits."}
    assert {c.test for c in found.values()} == {"invariance"}


def PLAN_KERNEL(x):
    """The plan as a kernel."""
    return PLAN.outputs(x, True)


def test_a_kernel_whose_last_bits_change_with_the_batch():
    """A failure for an order of additions, or none noticed."""

    def larger(a, x):
        """The next number up for a single entry: one float32 ulp, far below the plan's error."""
        return np.nextafter(a, np.float32(np.inf)) if x.q.shape[0] == 1 else a

    found = answers(of_results(larger))
    alone = found.pop("an entry of the batch alone")
    assert alone.answer is Answer.NOTE
    assert alone.sentence == (
        "Other bits in 100 % of out, 100 % of dq, 100 % of dk, 100 % of dv, as exact as the plan:"
        " an order of additions changes."
    )
    assert {c.answer for c in found.values()} == {Answer.PASS}


def test_a_kernel_that_is_not_repeatable():
    """Results that change at each call, judged by the first two."""
    calls = []

    def drifting(a, x):
        calls.append(x)
        return np.nextafter(a, np.float32(np.inf)) if len(calls) > 8 else a

    found = answers(of_results(drifting))
    assert found["a second call"].answer is Answer.NOTE

    def broken(x):
        calls.append(x)
        own = exactly(x)
        return own if len(calls) % 3 else replace(own, dq=-own.dq)

    calls.clear()
    wrong = answers(broken)["a second call"]
    assert wrong.answer is Answer.FAIL
    assert "Other results, which are wrong: a second call: dq: " in wrong.sentence


WRONG = {
    "an entry of the batch alone": lambda a, x: 1.1 * a if x.q.shape[0] == 1 else a,
    "the batch in reverse order": lambda a, x: (
        np.stack([a[0], a[1], 1.1 * a[2]]) if len(a) == 3 and is_first_entry(x, -1) else a
    ),
    "the first 12 tokens alone": lambda a, x: 1.1 * a if x.q.shape[1] == 12 else a,
}


def is_first_entry(x, entry):
    """Whether an entry of the batch is the first one of X."""
    return np.array_equal(x.q[entry], X.q[0])


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_is_wrong_in_one_of_the_calls(name):
    """A wrong result that passes for another order of additions."""
    found = answers(of_results(WRONG[name]))
    assert found.pop(name).answer is Answer.FAIL
    assert {c.answer for c in found.values()} == {Answer.PASS}


def test_later_tokens_that_change_a_prefix():
    """A causal kernel in which a query sees the future."""

    def looking_ahead(x):
        return exactly(replace(x, is_causal=False))

    found = answers(looking_ahead)["the first 12 tokens alone"]
    assert found.answer is Answer.FAIL


def test_a_kernel_that_does_not_take_a_call():
    """A traceback, or a failure, where a kernel takes whole batches only."""

    def three_entries(x):
        if x.q.shape[0] != 3:
            raise RuntimeError("the batch\nmust have 3 entries")
        return exactly(x)

    found = answers(three_entries)
    assert found["the batch in reverse order"].answer is Answer.PASS
    alone = found["an entry of the batch alone"]
    assert alone.answer is Answer.NOT_RUN
    place = r"RuntimeError at test_invariance.py:\d+: the batch must have 3 entries"
    assert re.fullmatch(rf"The kernel does not take this call \({place}\)\.", alone.sentence)


def test_keys_that_a_mask_hides():
    """Hidden keys that take part, which no other question shows."""
    name = "keys that a mask hides"
    assert answers(kernel_of(masked, library="numpy"))[name].answer is Answer.PASS

    def ignoring(q, k, v, do, *, scale, is_causal, mask=None):
        return masked(q, k, v, do, scale=scale, is_causal=is_causal)

    found = answers(kernel_of(ignoring, library="numpy"))
    assert found.pop(name).answer is Answer.FAIL
    assert {c.answer for c in found.values()} == {Answer.PASS}
