"""Calls at the edge: the plan passes all, and a planted kernel gets each other answer."""

import re
import unittest
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention.testing.cases import Answer, strict
from roundscope.attention.testing.edges import SPECIAL, check_edges, edge_names, edges
from roundscope.attention.testing.errors import Margins
from roundscope.attention.testing.exact import exact
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.foreign.user import kernel_of
from tests.attention.testing.planted import exactly, remembered

PLAN = remembered(block=64)
NAN, INFINITY, MASK, BLIND = SPECIAL
TINY = draw("gaussian", batch=1, tokens=1, heads=1, features=8)
modes = pytest.mark.parametrize("is_causal", [True, False])


def answers(kernel, names=None, is_causal=True, plan=PLAN, dtype="bfloat16"):
    """The answer at each edge, or at some."""
    options = {"margins": Margins(), "dtype": dtype, "names": names}
    found = check_edges(kernel, plan, features=8, is_causal=is_causal, **options)
    return {c.name: c for c in found}


def masking(change=lambda x, results: results):
    """A user's kernel that takes a mask: exact results, and a change of them."""

    def attention(q, k, v, do, *, scale, is_causal, mask=None):
        x = replace(TINY, q=q, k=k, v=v, do=do, scale=scale, is_causal=is_causal, mask=mask)
        return tuple(change(x, [a for _, a in exactly(x).named()]))

    return kernel_of(attention, library="numpy")


@modes
def test_the_plan_passes_all_edges(is_causal):
    """An edge at which every kernel fails, or that is never asked about."""
    found = answers(lambda x: PLAN.outputs(x, True), is_causal=is_causal)
    assert tuple(found) == edge_names(is_causal)
    assert len(found) == (15 if is_causal else 18) + 1
    not_run = {name for name, c in found.items() if c.answer is Answer.NOT_RUN}
    assert not_run == {MASK, BLIND}
    assert {c.answer for n, c in found.items() if n not in SPECIAL} == {Answer.PASS}
    assert found[NAN].answer is Answer.PASS
    assert found[INFINITY].answer is (Answer.NOTE if is_causal else Answer.PASS)


def test_edges_are_what_their_names_say():
    """An edge without the property that it asks about."""
    for is_causal in (True, False):
        calls = dict(edges(8, is_causal, "bfloat16"))
        sizes = {name: (x.q.shape[:3], x.k.shape[1:3]) for name, x in calls.items()}
        assert sizes["one token"] == ((2, 1, 2), (1, 2))
        assert sizes["one entry and one head"] == ((1, 100, 1), (100, 1))
        assert sizes["three query heads of a key head"] == ((2, 100, 6), (100, 2))
        assert all(x.is_causal == is_causal for x in calls.values())
        assert all(np.isfinite(exact(x).out).all() for x in calls.values())
    assert sizes["one query, many keys"] == ((2, 1, 2), (100, 2))
    assert sizes["many queries, one key"] == ((2, 100, 2), (1, 2))

    def scores(name):
        x = calls[name]
        return x.scale * np.einsum("btnh,bsnh->bnts", x.q.astype(float), x.k.astype(float))

    assert np.ptp(scores("all scores equal"), axis=-1).max() == 0
    assert 3900 < np.abs(scores("scores of thousands")).max() < 4100
    below = scores("all scores far below 0")
    assert below.max() < -3900 and np.ptp(below, axis=-1).min() > 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@modes
def test_edges_are_numbers_of_the_type(dtype, is_causal):
    """Infinities in the inputs of FP16, or inputs that a kernel's cast changes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for name, x in edges(8, is_causal, dtype):
        for a in (x.q, x.k, x.v, x.do):
            assert np.isfinite(a).all(), name
            np.testing.assert_array_equal(a, a.astype(kind).astype(np.float32), err_msg=name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("one token", lambda x, own: replace(own, out=0 * own.out)),
        ("a tile and one token", lambda x, own: replace(own, dk=_last_lost(own.dk))),
        ("one entry and one head", lambda x, own: replace(own, out=np.nan * own.out)),
        ("three query heads of a key head", lambda x, own: replace(own, dv=own.dv / 3)),
        ("large values", lambda x, own: replace(own, out=np.minimum(own.out, 65504))),
        ("small values", lambda x, own: replace(own, out=own.out.astype(np.float16))),
    ],
)
def test_a_planted_failure_is_found_where_it_is(name, change):
    """A kernel that is wrong at one edge, and passes."""
    at = dict(edges(8, True, "bfloat16"))[name]

    def kernel(x):
        return change(x, exactly(x)) if np.array_equal(x.q, at.q) else exactly(x)

    some = [name, "two tokens", "wide logits"]
    found = answers(kernel, some)
    assert found.pop(name).answer is Answer.FAIL
    assert [c.answer for c in found.values()] == [Answer.PASS] * 2


def _last_lost(a):
    a[:, -1] = 0
    return a


def test_a_kernel_without_the_maximum_fails_at_large_scores():
    """exp that overflows, of which nothing is said."""

    def no_maximum(x):
        s = x.scale * np.einsum("btnh,bsnh->bnts", x.q, x.k)
        p = np.exp(np.where(np.tri(*s.shape[2:], dtype=bool), s, -np.inf))
        out = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), x.v)
        return replace(exactly(x), out=out.astype(np.float32))

    found = answers(no_maximum, ["two tokens", "scores of thousands", "all scores far below 0"])
    states = [c.answer for c in found.values()]
    assert states == [Answer.PASS, Answer.FAIL, Answer.FAIL]
    assert "are NaN where the plan's are finite" in found["scores of thousands"].sentence
    assert found["scores of thousands"].is_lost


def test_a_call_that_the_kernel_does_not_take():
    """A traceback where a kernel has a least number of tokens."""

    def many_tokens(x):
        if x.q.shape[1] < 16:
            raise ValueError("tokens: at least 16")
        return exactly(x)

    found = answers(many_tokens, ["one token", "wide logits"])
    assert found["one token"].answer is Answer.NOT_RUN
    place = r"\(ValueError at test_edges_of_kernels.py:\d+: tokens: at least 16\)"
    assert re.search(place, found["one token"].sentence)
    assert found["wide logits"].answer is Answer.PASS


def test_nan_in_a_query():
    """A kernel that hides a NaN, or spreads it, and passes."""

    def hiding(x):
        return exactly(replace(x, q=np.nan_to_num(x.q)))

    def spreading(x):
        own = exactly(x)
        return replace(own, out=own.out + 0 * np.nansum(own.out) + 0 * own.out.sum())

    hidden = answers(hiding, [NAN])[NAN]
    assert (hidden.answer, hidden.sentence[:28]) == (Answer.FAIL, "The row of the NaN is not Na")
    spread = answers(spreading, [NAN])[NAN]
    assert (spread.answer, spread.sentence) == (Answer.FAIL, "199 other rows change as well.")
    assert answers(exactly, [NAN])[NAN].answer is Answer.PASS


def untouched(x):
    """A kernel that reads no value which the mask hides."""
    clean = exactly(replace(x, v=np.nan_to_num(x.v, posinf=0.0)))
    out = clean.out.copy()
    out[0, -1][~np.isfinite(x.v[0, -1])] = np.inf
    return replace(clean, out=out)


def test_infinity_in_a_value():
    """A kernel that hides an infinity and passes, or one that is blamed for its plan's cast."""

    def clipping(x):
        return exactly(replace(x, v=np.clip(x.v, -448, 448)))

    assert answers(untouched, [INFINITY])[INFINITY].answer is Answer.PASS
    spread = answers(exactly, [INFINITY])[INFINITY]
    assert spread.answer is Answer.NOTE
    assert spread.sentence.startswith("99 earlier rows, which do not see it, change as well")
    hidden = answers(clipping, [INFINITY])[INFINITY]
    assert hidden.answer is Answer.FAIL
    assert hidden.sentence == "The last row sees the infinity, and its result is finite."
    planned = answers(clipping, [INFINITY], plan=remembered("fa3-fp8", block=64))[INFINITY]
    assert planned.answer is Answer.NOTE
    assert planned.sentence.endswith("its result is finite, as that of the plan is.")


def test_a_mask():
    """A mask that is ignored or turned, and passes."""
    assert answers(masking(), [MASK])[MASK].answer is Answer.PASS

    def turned(x, results):
        return [a for _, a in exactly(replace(x, mask=np.swapaxes(x.mask, 2, 3))).named()]

    assert answers(masking(turned), [MASK])[MASK].answer is Answer.FAIL


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda x: 0.0, "They give 0;"),
        (lambda x: np.nan, "They give NaN;"),
        (lambda x: x.v.mean(1, keepdims=True), "They give the mean of V;"),
        (lambda x: 7.0, "They give neither 0, NaN nor the mean of V;"),
    ],
)
def test_rows_that_see_no_key(given, words):
    """Wrong words for what such rows give."""

    def blind(x, results):
        results[0][:, :3] = given(x)
        return results

    found = answers(masking(blind), [BLIND])[BLIND]
    is_zero = words == "They give 0;"
    assert found.answer is (Answer.PASS if is_zero else Answer.NOTE)
    assert strict(found).answer is (Answer.PASS if is_zero else Answer.FAIL)
    assert found.sentence.startswith(words.removesuffix(";"))
    assert found.sentence.endswith("; no other result is harmed.")


def test_rows_that_see_no_key_and_harm_others():
    """NaN of a blind row in the gradients of all keys, and a note."""

    def spreading(x, results):
        if not x.mask.any(-1).all():
            results[2][:] = np.nan
        return results

    found = answers(masking(spreading), [BLIND])[BLIND]
    assert found.answer is Answer.FAIL
    assert found.sentence.startswith("They give 0, and harm other results: dk: ")


def test_a_kernel_that_ends_the_process_fails():
    """A kernel whose SystemExit(0) ends the check with the exit code of a pass."""

    def exits(q, k, v, *, scale, is_causal):
        raise SystemExit(0)

    found = answers(kernel_of(exits, library="numpy"), ["one token", NAN])
    assert {c.answer for c in found.values()} == {Answer.FAIL}
    assert "ends the process (SystemExit, code 0)" in found["one token"].sentence


def test_a_missing_gpu_is_no_fault_of_the_kernel():
    """A kernel that looks bad on a machine without its GPU, and fails where tests skip."""

    def needs_gpu(q, k, v, *, scale, is_causal):
        raise AssertionError("Torch not compiled with CUDA enabled")

    with pytest.raises(unittest.SkipTest, match="needs a GPU, and none is found here"):
        kernel_of(needs_gpu, library="numpy")(TINY)


def test_a_maximum_without_the_last_tile_fails_at_scores_of_thousands():
    """A stale maximum that overflows in full calls alone, where no extreme edge was asked about."""

    def ignoring(x):
        tile = 16
        s = x.scale * np.einsum("btnh,bsnh->bnts", x.q, x.k)
        s = np.where(np.tri(*s.shape[2:], dtype=bool), s, -np.inf) if x.is_causal else s
        keys = s.shape[3]
        first = (keys - 1) // tile * tile
        m = s[..., : first or keys].max(-1, keepdims=True)
        p = np.exp((s - m).astype(np.float32))
        out = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), x.v)
        return replace(exactly(x), out=out.astype(np.float32))

    found = answers(ignoring, ["two tokens", "scores of thousands"], is_causal=False)
    assert found["two tokens"].answer is Answer.PASS
    assert found["scores of thousands"].answer is Answer.FAIL
    assert "NaN where the plan's are finite" in found["scores of thousands"].sentence
