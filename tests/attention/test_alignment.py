"""Alignment of causal and windowed calls: against masks, binary64, PyTorch, on every engine."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from roundscope.attention import attend, error_budget, examine, row_sums
from roundscope.attention.engines import fused
from roundscope.attention.inputs.alignment import visible_keys
from roundscope.attention.models.drift import HeadTensors, head_numbers
from roundscope.attention.testing.exact import exact
from roundscope.attention.testing.families import draw

SIZES = [(4, 30), (1, 30), (17, 33), (32, 12)]  # few queries, one, ragged, more than keys
RESULTS = ("out", "lse", "dq", "dk", "dv", "delta")


def drawn(queries, keys, heads=2):
    rng = np.random.default_rng(queries + keys)
    q, do = rng.standard_normal((2, 1, queries, heads, 8), "f4")
    k, v = rng.standard_normal((2, 1, keys, heads, 8), "f4")
    return q, k, v, do


def of_mask(queries, keys, is_causal, window):
    """The keys that the last query sees are those before the last key: written out by loops."""
    sees = np.zeros((queries, keys), bool)
    for t in range(queries):
        at = keys - (queries - t)  # as many keys behind it as there are queries behind it
        for s in range(keys):
            near = window is None or abs(at - s) < window
            sees[t, s] = near and (s <= at or not is_causal)
    return sees


@pytest.mark.parametrize(("is_causal", "window"), [(True, None), (True, 5), (False, 5)])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("plan", ["fa2-bf16", "exact"])  # no plan that depends on causality
def test_bits_of_a_mask(plan, queries, keys, is_causal, window):
    """Catches a shift that one of mask, skipped tiles, first visible tile or blind rows misses."""
    x, tiles = drawn(queries, keys), {"block_q": 8, "block_k": 8}
    got = examine(
        *x, plan=plan, is_causal=is_causal, window=window, alignment="bottom-right", **tiles
    )
    mask = of_mask(queries, keys, is_causal, window)
    sees = visible_keys(queries, keys, is_causal=is_causal, window=window, alignment="bottom-right")
    assert np.array_equal(sees, mask)
    expected = examine(*x, plan=plan, mask=mask, **tiles)
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    blind = ~mask.any(1)
    assert blind.any() == (queries > keys)
    assert not got.out[:, blind].any() and not got.dq[:, blind].any()
    assert got.notes == ()


def test_rows_before_the_first_key_are_0_beside_an_infinite_value():
    """Catches 0 times infinity in rows that see no key, of a tile in which others see it."""
    q, k, v, _ = drawn(32, 12)
    v[0, 0] = np.inf
    how = {"plan": "fa2-bf16", "is_causal": True, "block_q": 8, "block_k": 8}
    out = attend(q, k, v, alignment="bottom-right", **how)
    assert not out[:, :20].any() and np.isinf(out[:, 20:]).all()


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_exact_attention(queries, keys):
    """Catches a wrong meaning: binary64 attention that shares no code, and SDPA's own bias."""
    x = draw(tokens=queries, keys=keys, heads=2, features=8, batch=1, is_causal=True)
    x = replace(x, alignment="bottom-right")
    wide = [a.astype(np.float64) for a in (x.q, x.k, x.v, x.do)]
    got, expected = examine(*wide, plan="exact", **x.options), exact(x)
    for name in ("out", "dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), atol=1e-12)
    if queries <= keys:  # PyTorch gives NaN in rows that see no key
        from torch.nn.attention.bias import causal_lower_right  # which takes seconds

        q, k, v = (torch.from_numpy(a.swapaxes(1, 2).copy()) for a in wide[:3])
        bias = causal_lower_right(queries, keys)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        np.testing.assert_allclose(got.out, out.numpy().swapaxes(1, 2), atol=1e-12)


PLANS = ["triton-tutorial", "flex", "jax-xla", "fa2-split", "qiu-yao", "cudnn", "pallas-mha"]


@pytest.mark.parametrize("plan", PLANS)
def test_last_rows_of_a_square_call(plan):
    """Catches an order of tiles, or a cut tile, that is counted from the first query.

    The last rows of a square causal call see what they see alone, in the same tiles if those before
    them are whole tiles. Queries before them get dO = 0, and so add nothing to dK and dV.
    """
    queries, keys = 11, 27
    q, k, v, do = drawn(keys, keys)
    do[:, : keys - queries] = 0.0
    how = {"plan": plan, "is_causal": True, "block_q": 4, "block_k": 8}
    square = examine(q, k, v, do, **how)
    q, do = q[:, -queries:], do[:, -queries:]
    own = examine(q, k, v, do, alignment="bottom-right", **how)
    for name in ("out", "lse", "dq", "delta"):
        np.testing.assert_array_equal(getattr(own, name), getattr(square, name)[:, -queries:], name)
    for name in ("dk", "dv"):
        np.testing.assert_array_equal(getattr(own, name), getattr(square, name), name)


@pytest.mark.parametrize(("queries", "keys", "count"), [(7, 19, 3), (19, 7, 4)])
def test_engines_agree(queries, keys, count):
    """Catches an engine that counts queries from the first; forward alone, and with gradients."""
    import jax

    x = drawn(queries, keys)[:count]
    how = {
        "plan": "fp32",
        "is_causal": True,
        "alignment": "bottom-right",
        "block_q": 8,
        "block_k": 8,
    }
    with fused.from_scores(math.inf):
        expected = examine(*x, record=None, **how)
    with fused.from_scores(0):
        programs = examine(*x, record=None, **how)
    xla = examine(*map(jax.numpy.asarray, x), record=None, engine="xla", **how)
    for name in [name for name in RESULTS if getattr(expected, name) is not None]:
        np.testing.assert_array_equal(getattr(programs, name), getattr(expected, name), name)
        np.testing.assert_array_equal(getattr(xla, name), getattr(expected, name), name)
    host = jax.jit(lambda *x: attend(*x, engine="numpy", **how))(*x[:3])
    np.testing.assert_array_equal(np.asarray(host), expected.out)


@pytest.mark.parametrize("window", [None, 4])
def test_square_calls_are_as_before(window):
    """Catches an alignment that changes a bit, or a note, where there is nothing to align."""
    x = drawn(12, 12)
    how = {"plan": "fa2-bf16", "is_causal": True, "window": window, "block_q": 4, "block_k": 4}
    first = examine(*x, **how)
    last = examine(*x, alignment="bottom-right", **how)
    assert first.notes == last.notes == ()
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(first, name), getattr(last, name))


def test_notes():
    """Catches a causal or windowed call with T != S in which nobody said how it is aligned."""
    q, k, v, _ = drawn(4, 30)
    call = {"plan": "fa2-bf16"}
    (note,) = examine(q, k, v, is_causal=True, **call).notes
    assert "causal call of 4 queries and 30 keys" in note and "t +26" in note
    assert "windowed" in examine(q, k, v, window=3, **call).notes[0]
    assert note in str(error_budget(q, k, v, is_causal=True, **call))
    for given in ({}, {"is_causal": True, "alignment": "top-left"}, {"alignment": "bottom-right"}):
        assert examine(q, k, v, **given, **call).notes == ()
    top = attend(q, k, v, is_causal=True, **call)
    assert np.array_equal(top, attend(q, k, v, is_causal=True, alignment="top-left", **call))
    assert not np.array_equal(
        top, attend(q, k, v, is_causal=True, alignment="bottom-right", **call)
    )


@pytest.mark.parametrize("alignment", ["bottom", 1, True])
def test_wrong_alignment(alignment):
    """Catches a word that is taken for the default."""
    q, k, v, _ = drawn(2, 3)
    with pytest.raises((TypeError, ValueError), match=r"alignment=.*top-left"):
        attend(q, k, v, plan="fa2", is_causal=True, alignment=alignment)


def test_pallas_refuses():
    """Catches fused kernels, which count from the first, that run such a call silently."""
    x = [np.zeros((1, n, 1, 16), "f4") for n in (16, 32, 32)]
    how = {"plan": "fa2-bf16", "engine": "pallas", "block_q": 16, "block_k": 16}
    with pytest.raises(ValueError, match=r"alignment='bottom-right'.*engine='xla'"):
        attend(*x, is_causal=True, alignment="bottom-right", **how)


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5)])
def test_row_sums_and_drift(queries, keys):
    """Catches sums over scores that the call does not have, and an exact output of another call."""
    x = drawn(queries, keys)
    how = {"plan": "fa2-bf16", "is_causal": True, "alignment": "bottom-right"}
    mask = of_mask(queries, keys, is_causal=True, window=None)
    got, expected = row_sums(*x, **how), row_sums(*x, plan="fa2-bf16", mask=mask)
    np.testing.assert_array_equal(got, expected)
    q, k, v, do = (a[0].swapaxes(0, 1) for a in x)
    given = HeadTensors(q=q, k=k, v=v, do=do, r=got[0].T, dq=q, out=do, scale=0.5)
    one = head_numbers(replace(given, is_causal=True, alignment="bottom-right"), 16)
    other = head_numbers(replace(given, mask=mask), 16)
    np.testing.assert_allclose(one, other, rtol=1e-4)


def test_torch_and_flax():
    """Catches a bridge that drops the word."""
    import jax

    from roundscope.flax import attention_fn
    from roundscope.torch import attention

    x = drawn(3, 9)
    how = {"plan": "exact", "is_causal": True, "alignment": "bottom-right"}
    expected = attend(*x[:3], **how)
    q, k, v = (torch.from_numpy(a.swapaxes(1, 2).copy()) for a in x[:3])
    np.testing.assert_array_equal(attention(q, k, v, **how).numpy().swapaxes(1, 2), expected)
    layer = attention_fn("exact", is_causal=True, alignment="bottom-right")
    np.testing.assert_array_equal(layer(*map(jax.numpy.asarray, x[:3])), expected)
