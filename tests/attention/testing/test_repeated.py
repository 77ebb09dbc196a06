"""`assert_deterministic` and `assert_invariant`: what they accept, and what they notice."""

import itertools

import numpy as np
import pytest

from roundscope import attend
from roundscope.attention.testing.assertions import assert_deterministic, assert_invariant
from roundscope.attention.testing.families import draw

X = draw("gaussian", batch=2, tokens=20, heads=2, features=8, is_causal=True)
ALONE = draw("gaussian", batch=1, tokens=20, heads=2, features=8)
ULP = np.float32(2.0**-7)  # of BF16, in [1, 2)


def plain(q, k, v, *, scale, is_causal, mask=None):
    """Attention in BF16, whose bits depend on nothing but the numbers of a row."""
    return attend(q, k, v, plan="fa2-bf16", scale=scale, is_causal=is_causal, mask=mask)


def without_mask(q, k, v, *, scale, is_causal):
    return plain(q, k, v, scale=scale, is_causal=is_causal)


def changing(is_wrong):
    """Return a kernel that adds one ulp to a number of each entry if told so of the inputs."""

    def kernel(q, k, v, *, scale, is_causal, mask=None):
        out = np.array(plain(q, k, v, scale=scale, is_causal=is_causal, mask=mask))
        out[:, 3, 1, 5] = 1.0
        out[-1, 3, 1, 5] += ULP * is_wrong(q, k, mask)
        return out

    return kernel


def test_a_kernel_with_the_same_bits_passes():
    """An assertion that fails a kernel whose results never change."""
    assert_deterministic(plain, X, library="numpy")
    assert_invariant(plain, inputs=X, library="numpy")
    assert_invariant(without_mask, inputs=X, library="numpy")
    assert_invariant(plain, ("batch", "padding"), X, plan="fa2-bf16", bits=False, library="numpy")


@pytest.mark.parametrize("wrong", [2, 3])
def test_one_bit_of_a_later_call_is_shown(wrong):
    """An assertion that compares the second call alone, or shows bits of a wider type."""
    calls = itertools.count(1)
    kernel = changing(lambda q, k, mask: next(calls) == wrong)
    with pytest.raises(AssertionError) as caught:
        assert_deterministic(kernel, X, library="numpy")
    assert str(caught.value).splitlines() == [
        f"kernel: out of call {wrong}, compared with the first call: 1 of 640 numbers differ"
        " (0.156 %), the first at index (1, 3, 1, 5) is the farthest",
        "  actual    1.0078125                0x1.02p+0                0|01111111|0000001",
        "  expected  1.0                      0x1p+0                   0|01111111|0000000",
        "  distance  1 ulp of bf16 (numbers from one to the other)",
    ]


def test_gradients_are_compared():
    """An assertion that looks at the output alone."""
    calls = itertools.count()

    def kernel(q, k, v, *, do, scale, is_causal):
        return q, q, k + np.float32(next(calls)), v

    with pytest.raises(AssertionError, match="kernel: dk of call 2"):
        assert_deterministic(kernel, X, library="numpy")
    assert_deterministic(kernel, X, results=("out", "dq", "dv"), library="numpy")


FAULTS = {
    "batch": (lambda q, k, mask: len(q) == 1, "an entry of the batch alone"),
    "prefix": (lambda q, k, mask: q.shape[1] < 20, "the first 12 tokens alone"),
    "padding": (lambda q, k, mask: k.shape[1] > 20, "keys that a mask hides"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_one_bit_of_a_changed_call_fails(kind):
    """A change that is not asked about, or whose results are compared in the wrong place."""
    is_wrong, name = FAULTS[kind]
    kernel = changing(is_wrong)
    with pytest.raises(AssertionError, match=rf"kernel: out of {name}, compared .*1 of"):
        assert_invariant(kernel, kind, X, library="numpy")
    for other in FAULTS:
        if other != kind:
            assert_invariant(kernel, other, X, library="numpy")


def test_the_order_of_heads_matters_to_a_kernel_that_mixes_them():
    """A kernel that takes the keys of another head."""

    def kernel(q, k, v, *, scale, is_causal):
        return plain(q, k[:, :, [0, 0]], v, scale=scale, is_causal=is_causal)

    with pytest.raises(AssertionError, match="out of the heads in reverse order"):
        assert_invariant(kernel, "heads", X, library="numpy")
    assert_invariant(kernel, "batch", X, library="numpy")


def test_other_bits_are_accepted_if_they_are_as_exact_as_the_plan():
    """`bits=False` that fails an order of additions, or accepts wrong results."""

    def summed_in_another_order(q, k, v, *, scale, is_causal):
        out = np.array(plain(q, k, v, scale=scale, is_causal=is_causal))
        if len(q) == 1:
            out.view(np.int32)[0, ::7, 0, 3] += 1 << 16  # one ulp of BF16
        return out

    def wrong_alone(q, k, v, *, scale, is_causal):
        return plain(q, k, v, scale=scale * len(q) / 2, is_causal=is_causal)

    x = draw("gaussian", batch=2, tokens=64, heads=2, features=16, is_causal=True)
    with pytest.raises(AssertionError, match="an entry of the batch alone"):
        assert_invariant(summed_in_another_order, "batch", x, library="numpy")
    loose = {"plan": "fa2-bf16", "bits": False, "library": "numpy"}
    assert_invariant(summed_in_another_order, "batch", x, **loose)
    with pytest.raises(AssertionError, match="wrong_alone is not invariant:\n  Other results"):
        assert_invariant(wrong_alone, "batch", x, **loose)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: assert_deterministic(plain, X, calls=1, library="numpy"), "calls=1"),
        (lambda: assert_deterministic(plain, X, results="lse", library="numpy"), "results=lse"),
        (lambda: assert_deterministic(plain, X, results="dq", library="numpy"), "returns none"),
        (lambda: assert_invariant(plain, "rows", X, library="numpy"), "to=rows"),
        (lambda: assert_invariant(plain, "batch", ALONE, library="numpy"), "to=batch: .*two"),
        (lambda: assert_invariant(plain, "prefix", ALONE, library="numpy"), "to=prefix"),
        (lambda: assert_invariant(without_mask, "padding", X, library="numpy"), "argument `mask`"),
        (lambda: assert_invariant(plain, "batch", X, bits=False, library="numpy"), "plan=None"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(call, words):
    """An assertion that passes because it compared nothing."""
    with pytest.raises(ValueError, match=words):
        call()


def test_a_call_that_is_said_to_be_full_has_no_prefix():
    """A kernel for full calls alone, which could be asked about causal ones only."""
    seen = []

    def recorded(q, k, v, *, scale, is_causal):
        seen.append(is_causal)
        return v

    assert_invariant(recorded, ("batch", "heads"), is_causal=False, library="numpy")
    assert_deterministic(recorded, is_causal=False, library="numpy")
    assert seen and not any(seen)
    with pytest.raises(ValueError, match="to=prefix: the inputs need to be causal"):
        assert_invariant(recorded, "prefix", is_causal=False, library="numpy")
