"""Usual suspects: the mistake in a kernel's code that explains a gross error, or no word of it.

The kernels are the planted faults of `tests.checks.mutants`, and binary64 attention of other calls;
neither shares code with the suspects.
"""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention.testing.calls import Outputs
from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.comparison import compare, suspected
from roundscope.attention.testing.edges import check_edges
from roundscope.attention.testing.errors import UNITS, Margins, all_gross
from roundscope.attention.testing.exact import exact
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.foreign.user import kernel_of
from roundscope.attention.testing.reference import Reference
from tests.attention.testing.planted import exactly, remembered
from tests.checks.mutants import faults_kernel

PLAN = remembered(block=64)
SIZES = {"tokens": 100, "features": 16, "heads": 4, "batch": 2}
CAUSAL = draw("gaussian", is_causal=True, **SIZES)
FULL = draw("large-logits", is_causal=False, **SIZES)
GROUPED = draw("gaussian", key_heads=2, **SIZES)


def planted(name):
    """A kernel with a planted fault."""
    return kernel_of(faults_kernel.kernel_of(faults_kernel.CHANGES[name]), library="numpy")


def said(kernel, x):
    """Return the mistake that explains the output of a grossly wrong kernel on these inputs."""
    own = kernel(x)
    theirs = Reference.outputs(PLAN, x, own.dq is not None)
    found = list(all_gross("", x, own, theirs, Margins(), UNITS["bfloat16"]))
    assert found
    return suspected(x, own, theirs, found)


FAULTS = {
    "row-sum-not-rescaled": (FULL, "a sum of the row that is not rescaled (tiles of 64 keys)"),
    "output-not-rescaled": (FULL, "an output that is not rescaled (tiles of 64 keys)"),
    "stale-maximum": (FULL, "a stale maximum, that of the tiles before (tiles of 64 keys)"),
    "scale-of-head-size": (CAUSAL, "the scale 1 / H = 1 / 16 in place of 0.25"),
    "causal-strict": (CAUSAL, "a causal mask that hides a query's own key"),
    "causal-one-too-many": (CAUSAL, "a causal mask that shows one later key"),
    "causal-tiles-too-few": (CAUSAL, "the last key tiles of each query tile left out"),
    "padding-keys-counted": (GROUPED, "28 keys of padding counted"),
    "ragged-tile-skipped": (GROUPED, "the last keys left out, which fill no tile of 64"),
    "groups-interleaved": (GROUPED, "query head j reading key head j mod 2"),
    "keys-of-first-entry": (FULL, "k of the first batch entry"),
    "dq-not-scaled": (FULL, "dq is the exact gradient times 1 / scale"),
    "heads-of-dv-reversed": (FULL, "dv is that of the heads in reverse order"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name):
    """A mistake of a usual kind that is called unknown, or by another's name."""
    x, words = FAULTS[name]
    assert words in said(planted(name), x)


SERVED = replace(CAUSAL, softcap=2.0, window=30, sinks=np.array([1.0, 0.5, 2.0, -1.0], np.float32))
MASKED = replace(FULL, mask=np.random.default_rng(1).random((1, 1, 100, 100)) < 0.6)
OTHERS = {
    "no causal mask": (CAUSAL, replace(CAUSAL, is_causal=False)),
    "a causal mask, which nobody asked for": (FULL, replace(FULL, is_causal=True)),
    "no scale, that is 1": (CAUSAL, replace(CAUSAL, scale=1.0)),
    "2^x in place of e^x": (FULL, replace(FULL, scale=FULL.scale * np.log(2))),
    "k and v swapped": (FULL, replace(FULL, k=FULL.v, v=FULL.k)),
    "no softcap": (SERVED, replace(SERVED, softcap=None)),
    "no window": (SERVED, replace(SERVED, window=None)),
    "a window of one key more": (SERVED, replace(SERVED, window=31)),
    "a window of one key less": (SERVED, replace(SERVED, window=29)),
    "no sinks": (SERVED, replace(SERVED, sinks=None)),
    "no mask": (MASKED, replace(MASKED, mask=None)),
    "the mask transposed": (MASKED, replace(MASKED, mask=MASKED.mask.swapaxes(2, 3))),
}


def test_two_mistakes_at_once_and_two_that_are_one():
    """Two mistakes without a name; with two tokens one name of two that are the same there."""
    sees = np.tri(100, k=1, dtype=bool)[None, None]
    wrong = replace(CAUSAL, scale=1 / 16, mask=sees, is_causal=False)
    sentence = said(lambda _: Outputs(out=exact(wrong).out.astype(np.float32)), CAUSAL)
    assert "the scale 1 / H = 1 / 16" in sentence and "shows one later key" in sentence
    two = replace(CAUSAL, **{n: getattr(CAUSAL, n)[:, :2] for n in ("q", "k", "v", "do")})
    full = replace(two, is_causal=False)
    sentence = said(lambda _: Outputs(out=exact(full).out.astype(np.float32)), two)
    assert "no causal mask" in sentence and "shows one later key" in sentence


@pytest.mark.parametrize("words", OTHERS)
def test_another_call_is_named(words):
    """An argument that a kernel drops or changes, and no word of it."""
    x, other = OTHERS[words]
    sentence = said(lambda _: Outputs(out=exact(other).out.astype(np.float32)), x)
    assert sentence.startswith(f"the output is what attention with {words}")
    assert sentence.endswith("%") and ", to 0." in sentence


@pytest.mark.parametrize("name", ["first-row-of-tile", "scores-clamped", "uninitialized-dq"])
def test_a_fault_of_no_usual_kind_is_not_called_by_another_name(name):
    """A name that does not explain the numbers, which sends somebody to the wrong line."""
    assert said(planted(name), FULL) == ""


def test_coarse_rounding_is_no_mistake_in_the_code():
    """An output in two bits that some wrong mask seems to explain."""

    def coarse(x):
        out = exactly(x).out
        return Outputs(out=np.sign(out) * 2.0 ** np.round(np.log2(np.abs(out))))

    assert said(coarse, CAUSAL) == ""


def test_a_stale_maximum_of_full_calls_is_found_and_named():
    """A maximum that the last tile does not raise: it overflows in full calls of large scores."""
    kernel = planted("last-tile-maximum-ignored")
    options = {"features": 16, "is_causal": False, "margins": Margins()}
    names = ("scores of thousands", "one token", "wide logits")
    found = {c.name: c for c in check_edges(kernel, PLAN, names=names, **options)}
    assert found["one token"].answer is Answer.PASS
    bad = found["scores of thousands"]
    assert bad.answer is Answer.FAIL and bad.is_lost
    words = (
        "exp overflows in FP32 under a stale maximum, that of the tiles before (tiles of 64 keys)"
    )
    assert words in bad.sentence


def with_sums(change=lambda lse: lse, swap=False):
    """A user's function that returns (out, L), L changed."""

    def attention(q, k, v, *, scale, is_causal):
        x = replace(FULL, q=q, k=k, v=v, scale=scale, is_causal=is_causal)
        own = exact(x)
        lse = change(own.lse)
        return own.out.astype(np.float32), (lse.swapaxes(1, 2) if swap else lse)

    return kernel_of(attention, library="numpy")


def compared(kernel):
    kinds = ("gaussian", "large-logits")
    drawn = lambda kind, look: draw(kind, seed=look, **SIZES)  # noqa: E731
    options = {"margins": Margins(), "unit": UNITS["bfloat16"], "stop": False}
    return compare(kernel, PLAN, kinds, drawn, draws=1, **options)


def in_bf16(lse):
    """The nearest number of 8 significand bits."""
    step = 2.0 ** (np.frexp(lse)[1] - 8)
    return np.round(lse / step) * step


@pytest.mark.parametrize("swap", [False, True])
def test_right_sums_of_rows_pass(swap):
    """L in float32 that is called wrong, in either order of its axes."""
    found = compared(with_sums(lambda lse: lse.astype(np.float32), swap))
    assert found.is_fine and set(found.sums) == {"gaussian", "large-logits"}
    assert all(kernel < 2.0**-15 for kernel, _ in found.sums.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_bf16, ""),
        (lambda lse: lse + 2.0**-8, ""),
        (lambda lse: lse / np.log(2), "the logarithms in base 2"),
        (lambda lse: -lse, "the opposite sign"),
        (np.exp, ""),
        (lambda lse: np.where(lse > np.median(lse), np.nan, lse), ""),
    ],
)
def test_wrong_sums_of_rows_fail(change, words):
    """Gradients of a fused backward that read a wrong L, which nobody looked at."""
    found = compared(with_sums(change))
    assert not found.is_fine and {g.result for g in found.gross} == {"lse"}
    assert words in found.suspect and bool(words) == bool(found.suspect)


def test_the_maxima_in_place_of_sums_are_named():
    """The largest score of a row under the name of L."""
    maxima = []

    def attention(q, k, v, *, scale, is_causal):
        x = replace(FULL, q=q, k=k, v=v, scale=scale, is_causal=is_causal)
        maxima.append(scale * np.einsum("btnh,bsnh->bnts", q, k).max(-1))
        return exact(x).out.astype(np.float32), maxima[-1]

    assert (
        "the largest score of each row, not"
        in compared(kernel_of(attention, library="numpy")).suspect
    )


def test_what_is_not_of_the_shape_of_sums_is_not_judged():
    """A second result that is no L, such as the weights, and a failure for it."""
    assert compared(with_sums(lambda lse: lse[..., None])).sums == {}
    assert compared(with_sums(lambda lse: lse[:, :1])).is_fine
